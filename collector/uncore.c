#include "collector/uncore.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/placement.h"
#include "collector/sysfile.h"

#define LINE_MAX_BYTES 1024
#define CACHE_LINE     64.0

/* A way to count memory traffic. Either the kernel names the event (`file` in events/, with its
 * scale), or it does not and `terms` do. */
struct way {
    const char *pmu; /* alone, or with _0, _1 ... behind */
    enum tc_uncore_what what;
    const char *file;
    const char *terms;
    const char *event_format; /* what the PMU's `event` must look like: tells its generations */
};

/* In order of preference: ways of the first PMU found are all that is counted, as another PMU would
 * see the same bytes again.
 * uncore_imc: the CAS commands of servers' controllers and the data requests of clients' ones,
 * named and scaled by the kernel. amd_umc: CAS commands (AMD PPR, UMC performance events, 0x0a).
 * amd_df: of families 17h and 19h up to model 0fh, requests with data of DRAM channels 0 to 7 (AMD
 * PPR, data fabric events 0x07 to 0x1c7, unit mask 0x38), no directions; later fabrics have other
 * events there, and another format. arm_cmn: the home nodes' requests to memory controllers (Arm
 * CMN-600 TRM, hnf_mc_reqs), no directions. */
#define AMD_DF(code)                                                                               \
    {                                                                                              \
        "amd_df", TC_UNCORE_BOTH, NULL, "event=" code ",umask=0x38", "config:0-7,32-35,59-60"      \
    }
static const struct way ways[] = {
    {"uncore_imc", TC_UNCORE_READ, "cas_count_read", NULL, NULL},
    {"uncore_imc", TC_UNCORE_WRITE, "cas_count_write", NULL, NULL},
    {"uncore_imc", TC_UNCORE_READ, "data_reads", NULL, NULL},
    {"uncore_imc", TC_UNCORE_WRITE, "data_writes", NULL, NULL},
    {"uncore_imc_free_running", TC_UNCORE_READ, "read", NULL, NULL},
    {"uncore_imc_free_running", TC_UNCORE_WRITE, "write", NULL, NULL},
    {"uncore_imc_free_running", TC_UNCORE_READ, "data_read", NULL, NULL},
    {"uncore_imc_free_running", TC_UNCORE_WRITE, "data_write", NULL, NULL},
    {"amd_umc", TC_UNCORE_READ, NULL, "event=0x0a,rdwrmask=0x1", NULL},
    {"amd_umc", TC_UNCORE_WRITE, NULL, "event=0x0a,rdwrmask=0x2", NULL},
    AMD_DF("0x07"),
    AMD_DF("0x47"),
    AMD_DF("0x87"),
    AMD_DF("0xc7"),
    AMD_DF("0x107"),
    AMD_DF("0x147"),
    AMD_DF("0x187"),
    AMD_DF("0x1c7"),
    {"arm_cmn", TC_UNCORE_BOTH, "hnf_mc_reqs", NULL, NULL},
};

const char tc_uncore_known[] =
    "uncore_imc*, uncore_imc_free_running*, amd_umc*, amd_df of Zen 1 to 3, arm_cmn*";

struct found {
    const char *pmus;
    const char *cpus;
    struct tc_uncore_counter *counters;
    size_t count;
};

const char *tc_uncore_name(enum tc_uncore_what what)
{
    static const char *const names[] = {"memory_read_bytes", "memory_write_bytes", "memory_bytes"};
    return names[what];
}

/* Takes "config", "config1" or "config2" off the front; -1: something else. */
static int config_word(const char **text)
{
    static const char prefix[] = "config";
    int word = 0;
    if (strncmp(*text, prefix, strlen(prefix)) != 0) {
        return -1;
    }
    *text += strlen(prefix);
    if (**text == '1' || **text == '2') {
        word = *(*text)++ - '0';
    }
    return word;
}

/* Takes "7" or "0-7" off the front. */
static bool bit_range(const char **text, unsigned *first, unsigned *last)
{
    char *end;
    if (!isdigit((unsigned char)**text)) {
        return false;
    }
    unsigned long low = strtoul(*text, &end, 10);
    unsigned long high = low;
    if (*end == '-') {
        *text = end + 1;
        if (!isdigit((unsigned char)**text)) {
            return false;
        }
        high = strtoul(*text, &end, 10);
    }
    *text = end;
    *first = (unsigned)low;
    *last = (unsigned)high;
    return low <= high && high < 64;
}

int tc_uncore_place(const char *format, uint64_t value, uint64_t config[3], struct tc_error *err)
{
    const char *text = format;
    uint64_t left = value;
    int word = config_word(&text);
    bool good = word >= 0 && *text == ':';
    while (good && (*text == ':' || *text == ',')) {
        unsigned first = 0;
        unsigned last = 0;
        text++;
        good = bit_range(&text, &first, &last);
        for (unsigned bit = first; good && bit <= last; bit++) {
            config[word] |= (left & 1) << bit;
            left >>= 1;
        }
    }
    if (!good || *text != '\0') {
        return tc_error_set(err, EBADMSG, "format '%s': expected as config1:0-7,32-35", format);
    }
    return left == 0 ? 0
                     : tc_error_set(err, ERANGE, "0x%llx has more bits than format '%s'",
                                    (unsigned long long)value, format);
}

/* "name=0x3", or "name", which means 1. */
static int place_term(const char *folder, char *term, uint64_t config[3], struct tc_error *err)
{
    char path[512];
    char format[LINE_MAX_BYTES];
    char *equals = strchr(term, '=');
    char *end = NULL;
    uint64_t value = 1;
    if (equals != NULL) {
        *equals = '\0';
        errno = 0;
        value = strtoull(equals + 1, &end, 0);
        if (!isdigit((unsigned char)equals[1]) || *end != '\0' || errno != 0) {
            return tc_error_set(err, EINVAL, "%s: term '%s=%s': expected a number", folder, term,
                                equals + 1);
        }
    }
    (void)snprintf(path, sizeof(path), "%s/format/%s", folder, term);
    if (term[0] == '\0' || strchr(term, '/') != NULL || term[0] == '.' ||
        !tc_sysfile_read(path, format, sizeof(format))) {
        return tc_error_set(err, ENOENT, "%s: no term '%s' in its format/", folder, term);
    }
    return tc_uncore_place(format, value, config, err);
}

int tc_uncore_encode(const char *folder, const char *terms, uint64_t config[3],
                     struct tc_error *err)
{
    char text[LINE_MAX_BYTES];
    char *rest = text;
    int rc = 0;
    memset(config, 0, 3 * sizeof(config[0]));
    if (strlen(terms) >= sizeof(text)) {
        return tc_error_set(err, EINVAL, "%s: terms of more than %zu bytes", folder, sizeof(text));
    }
    (void)snprintf(text, sizeof(text), "%s", terms);
    for (char *term; rc == 0 && (term = strsep(&rest, ",")) != NULL;) {
        rc = place_term(folder, term, config, err);
    }
    return rc;
}

int tc_uncore_bytes(const char *scale, const char *unit, double *bytes, struct tc_error *err)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"Bytes", 1},    {"bytes", 1},    {"B", 1},
                 {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
    if (scale == NULL && unit == NULL) {
        *bytes = CACHE_LINE;
        return 0;
    }
    char *end = NULL;
    double factor = scale == NULL ? NAN : strtod(scale, &end);
    if (scale == NULL || end == scale || *end != '\0' || !isfinite(factor) || factor <= 0) {
        return tc_error_set(err, EINVAL, "scale '%s': expected a number over 0",
                            scale == NULL ? "" : scale);
    }
    for (size_t i = 0; unit != NULL && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0) {
            *bytes = factor * units[i].bytes;
            return 0;
        }
    }
    return tc_error_set(err, EINVAL, "unit '%s': expected one of bytes, as MiB",
                        unit == NULL ? "" : unit);
}

static bool is_called(const char *name, const char *pmu)
{
    size_t length = strlen(pmu);
    if (strncmp(name, pmu, length) != 0) {
        return false;
    }
    const char *rest = name + length;
    return *rest == '\0' ||
           (*rest == '_' && rest[1] != '\0' && rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

static const char *read_event_file(const char *folder, const struct way *way, const char *suffix,
                                   char *text, size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/events/%s%s", folder, way->file, suffix);
    return tc_sysfile_read(path, text, size) ? text : NULL;
}

static bool offers(const char *folder, const struct way *way)
{
    char path[512];
    char text[LINE_MAX_BYTES];
    (void)snprintf(path, sizeof(path), "%s/format/event", folder);
    return (way->file == NULL || read_event_file(folder, way, "", text, sizeof(text)) != NULL) &&
           (way->event_format == NULL ||
            (tc_sysfile_read(path, text, sizeof(text)) && strcmp(text, way->event_format) == 0));
}

static int encode(const char *folder, const struct way *way, struct tc_uncore_counter *counter)
{
    char file[LINE_MAX_BYTES];
    char scale[64];
    char unit[64];
    const char *terms = way->terms;
    counter->bytes = CACHE_LINE;
    if (way->file != NULL) {
        terms = read_event_file(folder, way, "", file, sizeof(file));
        int rc = tc_uncore_bytes(read_event_file(folder, way, ".scale", scale, sizeof(scale)),
                                 read_event_file(folder, way, ".unit", unit, sizeof(unit)),
                                 &counter->bytes, &counter->problem);
        if (rc != 0) {
            return rc;
        }
    }
    return terms != NULL ? tc_uncore_encode(folder, terms, counter->config, &counter->problem)
                         : tc_error_set(&counter->problem, ENOENT, "%s/events/%s: is gone", folder,
                                        way->file);
}

static int read_number(const char *path, int fallback)
{
    char text[32];
    char *end = text;
    long number = tc_sysfile_read(path, text, sizeof(text)) ? strtol(text, &end, 10) : 0;
    return end == text ? fallback : (int)number;
}

static int append(struct found *found, const struct tc_uncore_counter *counter, int cpu)
{
    char path[512];
    struct tc_uncore_counter *grown =
        realloc(found->counters, (found->count + 1) * sizeof(*found->counters));
    if (grown == NULL) {
        return -ENOMEM;
    }
    found->counters = grown;
    found->counters[found->count] = *counter;
    (void)snprintf(path, sizeof(path), "%s/cpu%d/topology/physical_package_id", found->cpus, cpu);
    found->counters[found->count].cpu = cpu;
    found->counters[found->count++].socket = read_number(path, -1);
    return 0;
}

/* The PMU's counter on each CPU of its cpumask: one CPU a socket, or one for the machine. */
static int add(struct found *found, const char *pmu, const struct way *way)
{
    char folder[384];
    char path[512];
    char mask[LINE_MAX_BYTES];
    struct tc_cpus cpus = {.count = 0};
    struct tc_uncore_counter counter = {.what = way->what};
    (void)snprintf(folder, sizeof(folder), "%s/%s", found->pmus, pmu);
    if (!offers(folder, way)) {
        return 0;
    }
    (void)snprintf(counter.pmu, sizeof(counter.pmu), "%s", pmu);
    (void)snprintf(path, sizeof(path), "%s/type", folder);
    int type = read_number(path, -1);
    counter.type = (uint32_t)type;
    (void)snprintf(path, sizeof(path), "%s/cpumask", folder);
    if (type < 0 || !tc_sysfile_read(path, mask, sizeof(mask)) || tc_cpus_list(mask, &cpus) != 0 ||
        cpus.count == 0) {
        cpus = (struct tc_cpus){.count = 1};
        (void)tc_error_set(&counter.problem, EBADMSG,
                           "%s: expected a number in `type` and CPUs in `cpumask`", folder);
    } else {
        (void)encode(folder, way, &counter); /* what is wrong is its problem */
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < cpus.count; i++) {
        rc = append(found, &counter, cpus.ids[i]);
    }
    return rc;
}

int tc_uncore_find(const char *pmus, const char *cpus, struct tc_uncore_counter **counters,
                   size_t *count, struct tc_error *err)
{
    struct found found = {.pmus = pmus, .cpus = cpus};
    struct dirent **entries;
    const char *chosen = NULL;
    int rc = 0;
    int names = scandir(pmus, &entries, NULL, versionsort);
    for (size_t i = 0; rc == 0 && i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (chosen != NULL && strcmp(chosen, ways[i].pmu) != 0) {
            break;
        }
        for (int n = 0; rc == 0 && n < names; n++) {
            rc = is_called(entries[n]->d_name, ways[i].pmu)
                     ? add(&found, entries[n]->d_name, &ways[i])
                     : 0;
        }
        chosen = found.count > 0 ? ways[i].pmu : NULL;
    }
    for (int n = 0; n < names; n++) {
        free(entries[n]);
    }
    if (names >= 0) {
        free(entries);
    }
    *counters = found.counters;
    *count = found.count;
    if (rc != 0) {
        free(found.counters);
        *counters = NULL;
        return tc_error_set(err, ENOMEM, "out of memory for the memory controllers' counters");
    }
    return 0;
}
