/* CPU sets and NUMA policy; the only user of libnuma. */
#ifndef TC_COLLECTOR_PLACEMENT_H
#define TC_COLLECTOR_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "workloads/common/error.h"

#define TC_CPUS_MAX 1024 /* glibc's CPU_SETSIZE */

/* CPU numbers, ascending, each once. */
struct tc_cpus {
    size_t count;
    int ids[TC_CPUS_MAX];
};

enum tc_numa_policy { TC_NUMA_DEFAULT, TC_NUMA_LOCAL, TC_NUMA_BIND, TC_NUMA_INTERLEAVE };

struct tc_numa {
    enum tc_numa_policy policy;
    char nodes[128]; /* list, as "0,2"; empty where the policy names none */
};

/* Parses a list of the kernel's, "0,2-3", whoever is online. Errors: -EINVAL. */
TC_MUST_CHECK int tc_cpus_list(const char *text, struct tc_cpus *cpus);

/* Parses "0,2-3" and checks that each CPU is online. option: named in messages. Errors: -EINVAL. */
TC_MUST_CHECK int tc_cpus_parse(const char *option, const char *text, struct tc_cpus *cpus,
                                struct tc_error *err);

bool tc_cpus_overlap(const struct tc_cpus *a, const struct tc_cpus *b);

/* The CPUs that are online; errno of reading them. */
TC_MUST_CHECK int tc_cpus_online(struct tc_cpus *cpus, struct tc_error *err);

/* Online CPUs that are in neither set, or all of `fallback` where there is none: where the
 * collector disturbs the server least. */
TC_MUST_CHECK int tc_cpus_beside(const struct tc_cpus *server, const struct tc_cpus *fallback,
                                 struct tc_cpus *cpus, struct tc_error *err);

/* Parses default, local, bind:NODES or interleave:NODES. Errors: -EINVAL; -ENOTSUP where the
 * kernel has no NUMA policies. */
TC_MUST_CHECK int tc_numa_parse(const char *text, struct tc_numa *numa, struct tc_error *err);

/* "default", "local", "bind:0" ... into text. */
void tc_numa_format(const struct tc_numa *numa, char *text, size_t size);

/* NUMA nodes of the CPUs, ascending, each once; nodes: at least cpus->count of them. */
size_t tc_numa_nodes_of(const struct tc_cpus *cpus, int *nodes);

/* Puts the calling process on the CPUs and under the policy; both are inherited through exec.
 * Errors: errno of sched_setaffinity and of the policy. */
TC_MUST_CHECK int tc_placement_apply(const struct tc_cpus *cpus, const struct tc_numa *numa,
                                     struct tc_error *err);

/* Does the work on that CPU and comes back; false, and nothing done, where it may not run there. */
bool tc_placement_on(int cpu, void (*work)(void *context), void *context);

#endif
