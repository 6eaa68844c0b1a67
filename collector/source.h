/* The one table of functions that every counter source fills.
 *
 * A source opens a set of counters, says for each slot of the set what it is or why it cannot be
 * counted, and reads all slots in one call. Not thread-safe: one thread measures. */
#ifndef TC_COLLECTOR_SOURCE_H
#define TC_COLLECTOR_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "collector/passes.h"
#include "collector/placement.h"
#include "workloads/common/error.h"

enum tc_status {
    TC_STATUS_OK,
    TC_STATUS_OVERLAP,       /* server and load share CPUs */
    TC_STATUS_UNSUPPORTED,   /* this machine cannot count it */
    TC_STATUS_NOT_PERMITTED, /* this user may not */
    TC_STATUS_FAILED
};

/* Where a value comes from, the most direct first; docs/record-format.md. */
enum tc_origin {
    TC_ORIGIN_COUNTED,
    TC_ORIGIN_SCALED,
    TC_ORIGIN_DERIVED,
    TC_ORIGIN_SIMULATED,
    TC_ORIGIN_MODELLED
};

enum tc_scope {
    TC_SCOPE_CPU,    /* everything that runs on the CPUs */
    TC_SCOPE_PROCESS /* one process and what it forks, wherever it runs */
};

enum tc_depth {
    TC_DEPTH_SAMPLE, /* only what changes within a window's samples; cheap */
    TC_DEPTH_END     /* everything: at a window's two ends */
};

#define TC_REASON_MAX   256
#define TC_SLOT_NO_CPU  (-1)
#define TC_VARIANT_MAX  48
#define TC_PMU_NAME_MAX 64

/* One counted value. reason is empty where status is TC_STATUS_OK; variant where the value is not
 * one of several variants' of a simulated machine. */
struct tc_slot {
    char event[TC_EVENT_NAME_MAX];
    char variant[TC_VARIANT_MAX];
    enum tc_origin origin;
    enum tc_mode mode;
    int cpu; /* TC_SLOT_NO_CPU: the machine's or the process tree's */
    /* Of a PMU outside the cores (else empty, 0 and NULL): its name, the socket whose it is
     * (TC_SLOT_NO_CPU: not told), and what a count is. */
    char pmu[TC_PMU_NAME_MAX];
    int socket;
    double scale; /* units per count */
    const char *unit;
    enum tc_status status;
    char reason[TC_REASON_MAX];
};

/* A slot's value, cumulative since start: differences of two readings count. Levels (memory
 * available) are given as they are. enabled and running are 0 where the source does not multiplex.
 */
struct tc_reading {
    uint64_t raw;
    uint64_t enabled_ns;
    uint64_t running_ns;
};

struct tc_softpmu;

/* What a set counts, and where. events is one pass; a source that counts fixed things ignores it.
 * pid: the process tree of TC_SCOPE_PROCESS, and the one whose network namespace is looked at. */
struct tc_source_request {
    const struct tc_cpus *cpus;
    const struct tc_event *events;
    size_t events_count;
    uint64_t sample_ns; /* samples between a window's ends; 0: none */
    enum tc_scope scope;
    pid_t pid;
    const char *interface;            /* whose bytes count; NULL: all interfaces' */
    const struct tc_softpmu *softpmu; /* a simulated machine's page; NULL: this machine */
};

struct tc_source;

/* Who takes the samples between a window's ends. */
enum tc_sampling {
    TC_SAMPLING_READ, /* whoever measures: wakes up and calls read() */
    TC_SAMPLING_RING  /* the kernel, into memory that drain() empties */
};

/* An open set; sources embed it as their first member. Slots of one CPU are next to each other, and
 * each CPU has the same number of them. */
struct tc_counters {
    const struct tc_source *source;
    struct tc_slot *slots;
    size_t slots_count;
    enum tc_sampling sampling;
    char sampling_reason[TC_REASON_MAX]; /* why not the kernel; empty where it does */
};

/* The counters of one CPU at one instant. */
struct tc_sample {
    uint64_t t_ns;                     /* CLOCK_MONOTONIC */
    size_t first_slot;                 /* of that CPU */
    const struct tc_reading *readings; /* of all slots; that CPU's are of this instant */
};

typedef void (*tc_sample_take)(void *context, const struct tc_sample *sample);

/* What became of the samples of the kernel, added up over calls. */
struct tc_drained {
    uint64_t lost;
    uint64_t silent;
};

/* What a source can count here. reason names the remedy; empty where everything is available. */
struct tc_source_report {
    bool available;
    enum tc_scope scope;
    char reason[TC_REASON_MAX];
};

struct tc_source {
    const char *name;
    /* Of a source that counts events by name, from here to fits; a source of fixed counts has none.
     */
    const char *events; /* the set where the user names none */
    const char *anchor; /* the event that each pass also counts, in the mode of its first */
    /* Fills what is known of an event by its name alone. Errors: tc_event_encode()'s. */
    int (*encode)(struct tc_event *event, struct tc_error *err);
    /* What this user may count on a CPU: TC_SCOPE_CPU if all that runs there. */
    enum tc_scope (*scope)(int cpu);
    tc_passes_fits fits; /* context: const int *, a CPU */
    /* cpu: where to try. Never fails: what cannot be done is the report. */
    void (*probe)(int cpu, struct tc_source_report *report);
    /* Fails only where nothing could be counted for want of memory or of /proc; a slot that
     * cannot be counted has a status. close() by the caller on success. */
    int (*open)(struct tc_counters **counters, const struct tc_source_request *request,
                struct tc_error *err);
    int (*start)(struct tc_counters *counters, struct tc_error *err);
    /* readings: slots_count of them; those that depth leaves out are untouched. No allocation. */
    int (*read)(struct tc_counters *counters, enum tc_depth depth, struct tc_reading *readings,
                struct tc_error *err);
    /* TC_SAMPLING_RING only: hands over the samples taken since the last call, each CPU's in order,
     * and adds to drained->lost those that could not be kept. A CPU whose latest sample is older
     * than since_ns is silent: it is counted, and read instead. No allocation. */
    int (*drain)(struct tc_counters *counters, uint64_t since_ns, tc_sample_take take,
                 void *context, struct tc_drained *drained, struct tc_error *err);
    int (*stop)(struct tc_counters *counters, struct tc_error *err);
    void (*close)(struct tc_counters *counters);
};

extern const struct tc_source tc_source_perf;
extern const struct tc_source tc_source_papi;
extern const struct tc_source tc_source_proc;
extern const struct tc_source tc_source_uncore;
extern const struct tc_source tc_source_softpmu;
extern const struct tc_source tc_source_softpmu_system;

/* Names as used in records. */
static inline const char *tc_status_name(enum tc_status status)
{
    static const char *const names[] = {"ok", "overlap", "unsupported", "not_permitted", "failed"};
    return names[status];
}

static inline const char *tc_origin_name(enum tc_origin origin)
{
    static const char *const names[] = {"counted", "scaled", "derived", "simulated", "modelled"};
    return names[origin];
}

static inline const char *tc_sampling_name(enum tc_sampling sampling)
{
    return sampling == TC_SAMPLING_RING ? "ring" : "read";
}

static inline const char *tc_scope_name(enum tc_scope scope)
{
    return scope == TC_SCOPE_CPU ? "cpu" : "process";
}

#endif
