#include "collector/pmuv3.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Common events, by the Arm Architecture Reference Manual (DDI 0487), "PMU events". */
enum {
    L1D_CACHE_REFILL = 0x03,
    L1D_CACHE = 0x04,
    INST_RETIRED = 0x08,
    BR_MIS_PRED = 0x10,
    CPU_CYCLES = 0x11,
    BR_PRED = 0x12,
    STALL_FRONTEND = 0x23,
    STALL_BACKEND = 0x24,
    LAST_OLD = 0x30, /* older kernels list none of the later ones */
    LAST = 0x3f
};

#define BIT(event) (UINT64_C(1) << (event))
/* Every PMUv3 counts these (same manual, "Required events"); what lacks one is an emulation. */
#define REQUIRED (BIT(L1D_CACHE_REFILL) | BIT(L1D_CACHE) | BIT(BR_MIS_PRED) | BIT(BR_PRED))
#define NO_EVENT UINT64_MAX

void tc_pmuv3_read(const char *folder, const char *name, struct tc_pmuv3 *pmu)
{
    char path[512];
    *pmu = (struct tc_pmuv3){0};
    (void)snprintf(path, sizeof(path), "%s/events", folder);
    bool arm = strncmp(name, "armv8_", 6) == 0 || strncmp(name, "armv9_", 6) == 0;
    DIR *events = arm ? opendir(path) : NULL;
    if (events == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(events); entry != NULL; entry = readdir(events)) {
        uint64_t event = NO_EVENT;
        (void)snprintf(path, sizeof(path), "%s/events/%s", folder, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (file != NULL && fscanf(file, "event=%" SCNx64, &event) == 1 && event <= LAST) {
            pmu->events |= BIT(event);
            pmu->known = true;
        }
        if (file != NULL) {
            (void)fclose(file);
        }
    }
    (void)closedir(events);
}

/* The processor's number of what would be opened; NO_EVENT where the kernel itself refuses what
 * the processor lacks, or it is no event of this PMU. */
static uint64_t number_of(const struct perf_event_attr *attr, uint32_t type)
{
    if (attr->type == PERF_TYPE_RAW || attr->type == type) {
        return attr->config & 0xffff;
    }
    switch (attr->type == PERF_TYPE_HARDWARE ? (uint32_t)attr->config : PERF_COUNT_HW_MAX) {
    case PERF_COUNT_HW_STALLED_CYCLES_FRONTEND:
        return STALL_FRONTEND;
    case PERF_COUNT_HW_STALLED_CYCLES_BACKEND:
        return STALL_BACKEND;
    default:
        return NO_EVENT;
    }
}

int tc_pmuv3_check(const struct tc_pmuv3 *pmu, uint32_t type, const struct perf_event_attr *attr,
                   const char *name, struct tc_error *err)
{
    uint64_t event = pmu->known ? number_of(attr, type) : NO_EVENT;
    uint64_t listed = pmu->events >= BIT(LAST_OLD + 1) ? LAST : LAST_OLD;
    if (event == NO_EVENT || event == CPU_CYCLES || event == INST_RETIRED) {
        return 0;
    }
    if (event <= listed && (pmu->events & BIT(event)) == 0) {
        return tc_error_set(err, ENOENT,
                            "this processor's PMU does not count %s (event %" PRIx64
                            "H): it would read 0; name another event",
                            name, event);
    }
    if ((pmu->events & REQUIRED) != REQUIRED) {
        return tc_error_set(err, ENOENT,
                            "an emulated PMU, which lacks events that every real one has: %s would "
                            "read 0; only cycles and instructions count here",
                            name);
    }
    return 0;
}
