/* Parsers of the kernel's text files: pure functions on text, no files, no allocation. */
#ifndef TC_COLLECTOR_PROCFS_H
#define TC_COLLECTOR_PROCFS_H

#include <stdint.h>
#include <sys/types.h>

#include "collector/placement.h"
#include "workloads/common/error.h"

/* Fields of a "cpuN" line of /proc/stat, in ticks; user includes nice, idle includes iowait. */
struct tc_cpu_ticks {
    uint64_t user;
    uint64_t system;
    uint64_t idle;
    uint64_t irq;
    uint64_t softirq;
    uint64_t steal;
};

/* The lines of `cpus` from /proc/stat's text; ticks: cpus->count of them.
 * Errors: -ENODATA (a CPU's line is missing: it went offline), -EBADMSG (not the format). */
TC_MUST_CHECK int tc_procfs_cpu_ticks(const char *text, const struct tc_cpus *cpus,
                                      struct tc_cpu_ticks *ticks, struct tc_error *err);

/* Sleep time per CPU (idle and iowait) [ns] from /proc/timer_list's text; idle_ns: cpus->count.
 * Errors: -ENODATA (a CPU or its fields are missing: built without tickless idle). */
TC_MUST_CHECK int tc_procfs_idle_ns(const char *text, const struct tc_cpus *cpus, uint64_t *idle_ns,
                                    struct tc_error *err);

/* The number after `key` at the start of a line: "ctxt" of /proc/stat, "MemAvailable:" of
 * /proc/meminfo. Errors: -ENODATA, -EBADMSG. */
TC_MUST_CHECK int tc_procfs_keyed(const char *text, const char *key, uint64_t *value,
                                  struct tc_error *err);

/* Bytes received and sent by one interface, or by all where interface is NULL, from
 * /proc/net/dev's text. Errors: -ENODATA (no such interface), -EBADMSG. */
TC_MUST_CHECK int tc_procfs_net_bytes(const char *text, const char *interface, uint64_t *rx,
                                      uint64_t *tx, struct tc_error *err);

/* A value of /proc/net/snmp: names on one line, values on the next. protocol as "Tcp:".
 * Errors: -ENODATA, -EBADMSG. */
TC_MUST_CHECK int tc_procfs_snmp(const char *text, const char *protocol, const char *name,
                                 uint64_t *value, struct tc_error *err);

/* The 11th number of /sys/block/DEVICE/stat: time spent by requests in the queue [ms]. */
TC_MUST_CHECK int tc_procfs_disk_queue_ms(const char *text, uint64_t *value, struct tc_error *err);

/* Parent and resident set [pages] from /proc/PID/stat's text; the command may hold anything. */
TC_MUST_CHECK int tc_procfs_pid_stat(const char *text, pid_t *parent, uint64_t *rss_pages,
                                     struct tc_error *err);

#endif
