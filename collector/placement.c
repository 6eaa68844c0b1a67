#include "collector/placement.h"

#include <ctype.h>
#include <errno.h>
#include <numa.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* libnuma prints its warnings unless the program takes them; our callers get a struct tc_error. */
void numa_warn(int num, char *fmt, ...)
{
    (void)num;
    (void)fmt;
}

static bool contains(const struct tc_cpus *cpus, int id)
{
    for (size_t i = 0; i < cpus->count; i++) {
        if (cpus->ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* A number of a list; -1 where there is none that could be a CPU. */
static long list_number(const char **text)
{
    char *end;
    long number = isdigit((unsigned char)**text) ? strtol(*text, &end, 10) : -1;
    if (number < 0 || number >= TC_CPUS_MAX) {
        return -1;
    }
    *text = end;
    return number;
}

/* Not libnuma's: it knows this machine's CPUs only, and takes "all", "!3" and "+1". */
int tc_cpus_list(const char *text, struct tc_cpus *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (bool more = true; more; more = *text == ',' && *text++ != '\0') {
        long first = list_number(&text);
        long last = first;
        if (first >= 0 && *text == '-') {
            text++;
            last = list_number(&text);
        }
        if (first < 0 || last < first) {
            return -EINVAL;
        }
        for (long id = first; id <= last; id++) {
            CPU_SET((size_t)id, &set);
        }
    }
    cpus->count = 0;
    for (int id = 0; id < TC_CPUS_MAX; id++) {
        if (CPU_ISSET((size_t)id, &set)) {
            cpus->ids[cpus->count++] = id;
        }
    }
    return *text == '\0' ? 0 : -EINVAL;
}

int tc_cpus_online(struct tc_cpus *cpus, struct tc_error *err)
{
    const char *path = "/sys/devices/system/cpu/online";
    char text[4096];
    cpus->count = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(text, sizeof(text), file) == NULL) {
        int code = file == NULL ? errno : EIO;
        if (file != NULL) {
            (void)fclose(file);
        }
        return tc_error_set(err, code, "%s: %s; mount /sys", path, strerror(code));
    }
    (void)fclose(file);
    text[strcspn(text, "\n")] = '\0';
    if (tc_cpus_list(text, cpus) != 0) {
        return tc_error_set(err, EINVAL, "%s: '%s' is not a list of CPUs", path, text);
    }
    return cpus->count > 0 ? 0 : tc_error_set(err, EINVAL, "%s: '%s' names no CPU", path, text);
}

int tc_cpus_parse(const char *option, const char *text, struct tc_cpus *cpus, struct tc_error *err)
{
    struct tc_cpus online;
    int rc = tc_cpus_online(&online, err);
    if (rc != 0 || online.count == 0) {
        return rc;
    }
    int last = online.ids[online.count - 1];
    if (tc_cpus_list(text, cpus) != 0) {
        return tc_error_set(
            err, EINVAL, "%s '%s': expected a list of this machine's CPUs (0 to %d), as 0 or 0,2-3",
            option, text, last);
    }
    for (size_t i = 0; i < cpus->count; i++) {
        if (!contains(&online, cpus->ids[i])) {
            return tc_error_set(err, EINVAL,
                                "%s '%s': CPU %d is not online here; online CPUs end at %d, see "
                                "/sys/devices/system/cpu/online",
                                option, text, cpus->ids[i], last);
        }
    }
    return cpus->count > 0 ? 0 : tc_error_set(err, EINVAL, "%s '%s': names no CPU", option, text);
}

bool tc_cpus_overlap(const struct tc_cpus *a, const struct tc_cpus *b)
{
    for (size_t i = 0; i < a->count; i++) {
        if (contains(b, a->ids[i])) {
            return true;
        }
    }
    return false;
}

int tc_cpus_beside(const struct tc_cpus *server, const struct tc_cpus *fallback,
                   struct tc_cpus *cpus, struct tc_error *err)
{
    struct tc_cpus online;
    int rc = tc_cpus_online(&online, err);
    if (rc != 0) {
        return rc;
    }
    cpus->count = 0;
    for (size_t i = 0; i < online.count; i++) {
        if (!contains(server, online.ids[i]) && !contains(fallback, online.ids[i])) {
            cpus->ids[cpus->count++] = online.ids[i];
        }
    }
    if (cpus->count == 0) {
        *cpus = *fallback;
    }
    return 0;
}

int tc_numa_parse(const char *text, struct tc_numa *numa, struct tc_error *err)
{
    static const struct {
        const char *name;
        enum tc_numa_policy policy;
        bool nodes;
    } kinds[] = {{"default", TC_NUMA_DEFAULT, false},
                 {"local", TC_NUMA_LOCAL, false},
                 {"bind", TC_NUMA_BIND, true},
                 {"interleave", TC_NUMA_INTERLEAVE, true}};
    size_t name_length = strcspn(text, ":");
    const char *nodes = text[name_length] == ':' ? text + name_length + 1 : "";
    *numa = (struct tc_numa){.policy = TC_NUMA_DEFAULT};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strlen(kinds[i].name) != name_length ||
            strncmp(text, kinds[i].name, name_length) != 0 || kinds[i].nodes != (*nodes != '\0') ||
            strlen(nodes) >= sizeof(numa->nodes)) {
            continue;
        }
        numa->policy = kinds[i].policy;
        (void)snprintf(numa->nodes, sizeof(numa->nodes), "%s", nodes);
        if (numa->policy != TC_NUMA_DEFAULT && numa_available() < 0) {
            return tc_error_set(err, ENOTSUP,
                                "--numa %s: this kernel has no NUMA policies; use "
                                "--numa default",
                                text);
        }
        struct bitmask *mask = kinds[i].nodes ? numa_parse_nodestring_all(nodes) : NULL;
        if (kinds[i].nodes && mask == NULL) {
            return tc_error_set(err, EINVAL, "--numa '%s': expected nodes 0 to %d, as bind:0", text,
                                numa_max_node());
        }
        if (mask != NULL) {
            numa_bitmask_free(mask);
        }
        return 0;
    }
    return tc_error_set(
        err, EINVAL, "--numa '%s': expected default, local, bind:NODES or interleave:NODES", text);
}

void tc_numa_format(const struct tc_numa *numa, char *text, size_t size)
{
    static const char *const names[] = {"default", "local", "bind", "interleave"};
    (void)snprintf(text, size, "%s%s%s", names[numa->policy], *numa->nodes != '\0' ? ":" : "",
                   numa->nodes);
}

size_t tc_numa_nodes_of(const struct tc_cpus *cpus, int *nodes)
{
    size_t count = 0;
    if (numa_available() < 0) {
        return 0;
    }
    for (int node = 0; node <= numa_max_node(); node++) {
        for (size_t i = 0; i < cpus->count; i++) {
            if (numa_node_of_cpu(cpus->ids[i]) == node) {
                nodes[count++] = node;
                break;
            }
        }
    }
    return count;
}

static int apply_policy(const struct tc_numa *numa, struct tc_error *err)
{
    if (numa->policy == TC_NUMA_DEFAULT) {
        return 0;
    }
    errno = 0;
    if (numa->policy == TC_NUMA_LOCAL) {
        numa_set_localalloc();
    } else {
        struct bitmask *mask = numa_parse_nodestring_all(numa->nodes);
        if (mask == NULL) {
            return tc_error_set(err, EINVAL, "NUMA nodes '%s' are gone", numa->nodes);
        }
        if (numa->policy == TC_NUMA_BIND) {
            numa_set_membind(mask);
        } else {
            numa_set_interleave_mask(mask);
        }
        numa_bitmask_free(mask);
    }
    return errno == 0 ? 0
                      : tc_error_set(err, errno, "NUMA policy on nodes '%s': %s", numa->nodes,
                                     strerror(errno));
}

int tc_placement_apply(const struct tc_cpus *cpus, const struct tc_numa *numa, struct tc_error *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t i = 0; i < cpus->count; i++) {
        CPU_SET((size_t)cpus->ids[i], &set);
    }
    if (sched_setaffinity(0, sizeof(set), &set) != 0) {
        return tc_error_set(err, errno, "cannot run on CPU %d...%d: %s; is a cpuset in the way?",
                            cpus->ids[0], cpus->ids[cpus->count - 1], strerror(errno));
    }
    return numa == NULL ? 0 : apply_policy(numa, err);
}

bool tc_placement_on(int cpu, void (*work)(void *context), void *context)
{
    cpu_set_t before;
    cpu_set_t there;
    CPU_ZERO(&there);
    CPU_SET((size_t)cpu, &there);
    if (sched_getaffinity(0, sizeof(before), &before) != 0 ||
        sched_setaffinity(0, sizeof(there), &there) != 0) {
        return false;
    }
    work(context);
    (void)sched_setaffinity(0, sizeof(before), &before);
    return true;
}
