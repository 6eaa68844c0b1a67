/* The PMUs that count what CPUs execute. Most machines have one; hybrid ones (cpu_core and
 * cpu_atom, or ARM's big and little cores) have one for each kind of CPU. */
#ifndef TC_COLLECTOR_CORE_PMUS_H
#define TC_COLLECTOR_CORE_PMUS_H

#include <linux/perf_event.h>
#include <stdint.h>

#include "collector/placement.h"
#include "collector/pmuv3.h"
#include "workloads/common/error.h"

#define TC_CORE_PMUS_MAX    8
#define TC_CORE_PMUS_FOLDER "/sys/bus/event_source/devices"

struct tc_core_pmu {
    char name[64];
    uint32_t type; /* for perf_event_attr */
    struct tc_cpus cpus;
    struct tc_pmuv3 pmuv3;
};

struct tc_core_pmus {
    size_t count; /* more than 1: each names its CPUs */
    struct tc_core_pmu list[TC_CORE_PMUS_MAX];
};

/* Those of `folder` that name the CPUs they are for, ascending by name; none where the machine has
 * one kind of CPU on x86, or no PMU. Errors: -EBADMSG (a file there is not in its format). */
TC_MUST_CHECK int tc_core_pmus_read(const char *folder, struct tc_core_pmus *pmus,
                                    struct tc_error *err);

/* Refuses a set of CPUs of several kinds: their counts are of different events and must not be
 * added up. Errors: -EINVAL, naming the kinds. */
TC_MUST_CHECK int tc_core_pmus_check(const struct tc_core_pmus *pmus, const struct tc_cpus *cpus,
                                     struct tc_error *err);

/* Directs an event to the PMU of the CPU: without that a generic or raw one is the first PMU's. */
void tc_core_pmus_direct(const struct tc_core_pmus *pmus, int cpu, struct perf_event_attr *attr);

/* Refuses an event that the kernel would open on the CPU's PMU but that would read 0. Errors:
 * -ENOENT, naming it as `name`. */
TC_MUST_CHECK int tc_core_pmus_counts(const struct tc_core_pmus *pmus, int cpu,
                                      const struct perf_event_attr *attr, const char *name,
                                      struct tc_error *err);

/* Those of this machine, read at the first call; none where they cannot be read, which
 * tc_core_pmus_read() on TC_CORE_PMUS_FOLDER reports. */
const struct tc_core_pmus *tc_core_pmus_here(void);

#endif
