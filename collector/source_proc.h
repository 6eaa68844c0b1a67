/* System counters of /proc and /sys: how the other parts find a value among the source's slots. */
#ifndef TC_COLLECTOR_SOURCE_PROC_H
#define TC_COLLECTOR_SOURCE_PROC_H

#include "collector/source.h"

/* Values per CPU: slot = index of the CPU in the set x TC_PROC_CPU_VALUES + value. Times in ns. */
enum tc_proc_cpu_value {
    TC_PROC_IDLE,      /* /proc/stat, idle and iowait: multiples of a tick; the only one sampled */
    TC_PROC_IDLE_FINE, /* /proc/timer_list: ns, but without a sleep under way */
    TC_PROC_STEAL,
    TC_PROC_USER,
    TC_PROC_SYSTEM,
    TC_PROC_IRQ,
    TC_PROC_SOFTIRQ,
    TC_PROC_CPU_VALUES
};

/* Values of the machine: slot = CPUs x TC_PROC_CPU_VALUES + value. */
enum tc_proc_system_value {
    TC_PROC_MEM_AVAILABLE_BYTES, /* a level */
    TC_PROC_NET_RX_BYTES,
    TC_PROC_NET_TX_BYTES,
    TC_PROC_TCP_RETRANSMITS,
    TC_PROC_DISK_QUEUE_MS,
    TC_PROC_CONTEXT_SWITCHES,
    TC_PROC_INTERRUPTS,
    TC_PROC_PROCS_RUNNING, /* a level */
    TC_PROC_SYSTEM_VALUES
};

static inline size_t tc_proc_cpu_slot(size_t cpu_index, enum tc_proc_cpu_value value)
{
    return cpu_index * TC_PROC_CPU_VALUES + value;
}

static inline size_t tc_proc_system_slot(size_t cpus, enum tc_proc_system_value value)
{
    return cpus * TC_PROC_CPU_VALUES + value;
}

/* Gives the slots of cpus and of the machine their names. slots: tc_proc_system_slot(cpus->count,
 * TC_PROC_SYSTEM_VALUES) of them, zeroed. */
void tc_proc_name_slots(const struct tc_cpus *cpus, struct tc_slot *slots);

/* What an open set says of the source, as its probe() does by opening another. */
void tc_proc_report(const struct tc_counters *counters, struct tc_source_report *report);

/* Length of a tick of /proc/stat. */
uint64_t tc_proc_tick_ns(void);

/* Resident set of all processes below (not of) `root`, pages they share counted by each.
 * Errors: errno of /proc. */
TC_MUST_CHECK int tc_proc_tree_rss(pid_t root, uint64_t *bytes, struct tc_error *err);

#endif
