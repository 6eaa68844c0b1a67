/* Memory controllers' counters as sysfs describes them: PMUs outside the cores ("uncore"), which
 * count for whole sockets or for the machine. What is where, and how an event is encoded, the
 * kernel says in its files (Documentation/ABI/testing/sysfs-bus-event_source-devices-*); which of
 * the events are memory traffic is said here. */
#ifndef TC_COLLECTOR_UNCORE_H
#define TC_COLLECTOR_UNCORE_H

#include <stddef.h>
#include <stdint.h>

#include "collector/source.h"
#include "workloads/common/error.h"

#define TC_UNCORE_PMUS "/sys/bus/event_source/devices"
#define TC_UNCORE_CPUS "/sys/devices/system/cpu"

enum tc_uncore_what {
    TC_UNCORE_READ,
    TC_UNCORE_WRITE,
    TC_UNCORE_BOTH, /* a controller that does not tell the directions apart */
    TC_UNCORE_KINDS
};

/* One event of one PMU, on one of the CPUs that the kernel lets it be opened on. */
struct tc_uncore_counter {
    char pmu[TC_PMU_NAME_MAX];
    enum tc_uncore_what what;
    int cpu;
    int socket;    /* that CPU's; -1: the kernel does not tell */
    uint32_t type; /* for perf_event_attr */
    uint64_t config[3];
    double bytes;            /* per count */
    struct tc_error problem; /* why it cannot be encoded; empty: it can */
};

/* "memory_read_bytes", "memory_write_bytes", "memory_bytes". */
const char *tc_uncore_name(enum tc_uncore_what what);

/* The PMUs that are looked for, for messages. */
extern const char tc_uncore_known[];

/* The memory controllers' counters of a machine. pmus, cpus: TC_UNCORE_PMUS and TC_UNCORE_CPUS, or
 * a copy of them. *counters: *count of them, the caller's to free(); none where the machine shows
 * no such PMU. Errors: -ENOMEM. */
TC_MUST_CHECK int tc_uncore_find(const char *pmus, const char *cpus,
                                 struct tc_uncore_counter **counters, size_t *count,
                                 struct tc_error *err);

/* Puts the value's bits, the lowest first, where a format file's line ("config:0-7,32-35") says.
 * Errors: -EBADMSG (no such line), -ERANGE (more bits than it has room for). */
TC_MUST_CHECK int tc_uncore_place(const char *format, uint64_t value, uint64_t config[3],
                                  struct tc_error *err);

/* Encodes "event=0x04,umask=0x3,edge" by the files in FOLDER/format. Errors: -ENOENT (a term that
 * the PMU does not have), -EINVAL (no number), those of tc_uncore_place(). */
TC_MUST_CHECK int tc_uncore_encode(const char *folder, const char *terms, uint64_t config[3],
                                   struct tc_error *err);

/* Bytes per count from an event's .scale and .unit lines; each NULL where there is none. Errors:
 * -EINVAL (a scale that is no number over 0, a unit that is not of bytes, or one without the
 * other). */
TC_MUST_CHECK int tc_uncore_bytes(const char *scale, const char *unit, double *bytes,
                                  struct tc_error *err);

#endif
