#include "collector/core_pmus.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The upper half of a generic event's config names its PMU (PERF_PMU_TYPE_SHIFT, Linux 5.13). */
#define PMU_TYPE_SHIFT 32

static bool has(const struct tc_cpus *cpus, int id)
{
    for (size_t i = 0; i < cpus->count; i++) {
        if (cpus->ids[i] == id) {
            return true;
        }
    }
    return false;
}

static bool read_text(const char *folder, const char *pmu, const char *name, char *text, int size)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s/%s", folder, pmu, name);
    FILE *file = fopen(path, "re");
    bool got = file != NULL && fgets(text, size, file) != NULL;
    if (file != NULL) {
        (void)fclose(file);
    }
    return got;
}

/* A PMU of a kind of CPU has a file `cpus`; an uncore PMU's is called `cpumask`. */
static int add(struct tc_core_pmus *pmus, const char *folder, const char *name,
               struct tc_error *err)
{
    char cpus[4096];
    char type[32];
    char *end = type;
    if (name[0] == '.' || !read_text(folder, name, "cpus", cpus, sizeof(cpus))) {
        return 0;
    }
    if (pmus->count == TC_CORE_PMUS_MAX) {
        return tc_error_set(err, E2BIG, "%s: more than %d kinds of CPU", folder, TC_CORE_PMUS_MAX);
    }
    struct tc_core_pmu *pmu = &pmus->list[pmus->count];
    (void)snprintf(pmu->name, sizeof(pmu->name), "%s", name);
    if (read_text(folder, name, "type", type, sizeof(type))) {
        pmu->type = (uint32_t)strtoul(type, &end, 10);
    }
    cpus[strcspn(cpus, "\n")] = '\0';
    if (end == type || tc_cpus_list(cpus, &pmu->cpus) != 0) {
        return tc_error_set(err, EBADMSG, "%s/%s: expected a number in `type` and CPUs in `cpus`",
                            folder, name);
    }
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    tc_pmuv3_read(path, name, &pmu->pmuv3);
    pmus->count++;
    return 0;
}

int tc_core_pmus_read(const char *folder, struct tc_core_pmus *pmus, struct tc_error *err)
{
    struct dirent **entries;
    pmus->count = 0;
    int found = scandir(folder, &entries, NULL, alphasort);
    if (found < 0) {
        return 0; /* a kernel without perf events: opening one says so */
    }
    int rc = 0;
    for (int i = 0; i < found; i++) {
        rc = rc == 0 ? add(pmus, folder, entries[i]->d_name, err) : rc;
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static const struct tc_core_pmu *pmu_of(const struct tc_core_pmus *pmus, int cpu)
{
    for (size_t i = 0; pmus->count > 1 && i < pmus->count; i++) {
        if (has(&pmus->list[i].cpus, cpu)) {
            return &pmus->list[i];
        }
    }
    return NULL;
}

int tc_core_pmus_check(const struct tc_core_pmus *pmus, const struct tc_cpus *cpus,
                       struct tc_error *err)
{
    const struct tc_core_pmu *first = pmu_of(pmus, cpus->ids[0]);
    for (size_t i = 1; i < cpus->count; i++) {
        const struct tc_core_pmu *other = pmu_of(pmus, cpus->ids[i]);
        if (other != first) {
            return tc_error_set(err, EINVAL,
                                "CPU %d is counted by %s, CPU %d by %s: they are CPUs of different "
                                "kinds, whose counts must not be added up; name CPUs of one kind",
                                cpus->ids[0], first == NULL ? "no PMU" : first->name, cpus->ids[i],
                                other == NULL ? "no PMU" : other->name);
        }
    }
    return 0;
}

void tc_core_pmus_direct(const struct tc_core_pmus *pmus, int cpu, struct perf_event_attr *attr)
{
    const struct tc_core_pmu *pmu = pmu_of(pmus, cpu);
    if (pmu == NULL) {
        return;
    }
    if (attr->type == PERF_TYPE_HARDWARE || attr->type == PERF_TYPE_HW_CACHE) {
        attr->config |= (uint64_t)pmu->type << PMU_TYPE_SHIFT;
    } else if (attr->type == PERF_TYPE_RAW) {
        attr->type = pmu->type;
    }
}

int tc_core_pmus_counts(const struct tc_core_pmus *pmus, int cpu,
                        const struct perf_event_attr *attr, const char *name, struct tc_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < pmus->count; i++) {
        const struct tc_core_pmu *pmu = &pmus->list[i];
        if (has(&pmu->cpus, cpu)) {
            rc = tc_pmuv3_check(&pmu->pmuv3, pmu->type, attr, name, err);
        }
    }
    return rc;
}

const struct tc_core_pmus *tc_core_pmus_here(void)
{
    static struct tc_core_pmus pmus;
    static bool tried;
    if (!tried && tc_core_pmus_read(TC_CORE_PMUS_FOLDER, &pmus, NULL) != 0) {
        pmus.count = 0;
    }
    tried = true;
    return &pmus;
}
