/* Which events an ARM PMU (PMUv3) counts. The kernel refuses generic events that the processor does
 * not count, but opens any raw one, which then reads 0 for ever. */
#ifndef TC_COLLECTOR_PMUV3_H
#define TC_COLLECTOR_PMUV3_H

#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>

#include "workloads/common/error.h"

struct tc_pmuv3 {
    bool known;      /* it is a PMUv3, and the kernel tells what it counts */
    uint64_t events; /* bit N: common event N, of 0 to 3FH */
};

/* What a PMU of the kernel's counts, by the files in `folder`/events; `name` is the PMU's. */
void tc_pmuv3_read(const char *folder, const char *name, struct tc_pmuv3 *pmu);

/* Refuses an event of a PMU's own or a generic one that would read 0. type: the PMU's, for
 * perf_event_attr. Errors: -ENOENT, naming the event as `name`. */
TC_MUST_CHECK int tc_pmuv3_check(const struct tc_pmuv3 *pmu, uint32_t type,
                                 const struct perf_event_attr *attr, const char *name,
                                 struct tc_error *err);

#endif
