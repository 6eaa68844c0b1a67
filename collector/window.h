/* One window: readings of everything at both ends and samples in between, into memory that was
 * prepared before. Between begin and end nothing is allocated, locked or logged, and nobody wakes
 * up for what the kernel samples by itself. */
#ifndef TC_COLLECTOR_WINDOW_H
#define TC_COLLECTOR_WINDOW_H

#include <time.h>

#include "collector/samples.h"
#include "collector/source.h"
#include "workloads/common/page.h"

/* What is read together. */
struct tc_meter {
    struct tc_counters *counters;
    struct tc_counters *system;
    struct tc_counters *memory; /* read at the ends only; NULL: a simulated machine */
    const struct tc_page *page; /* NULL: no load runs */
    size_t cpus;                /* of the set that proc was opened for */
};

/* When a window ends: after duration_ns and, with a load, `completions` for each transaction that
 * was under way at once, but not beyond max_ns. */
struct tc_window_rule {
    uint64_t duration_ns;
    uint64_t completions;
    uint64_t max_ns;
    uint64_t sample_ns;
    uint64_t align_ns; /* both ends wait so long for a completion; 0: they do not */
};

struct tc_snapshot {
    uint64_t t_ns;       /* CLOCK_MONOTONIC */
    uint64_t counted_ns; /* when the last counter had been read */
    struct tc_reading *counters;
    struct tc_reading *system;
    struct tc_reading *memory; /* NULL where the meter has none */
    uint64_t counts[TC_COUNT_KINDS];
    int64_t *latency[TC_LATENCY_KINDS]; /* hist_counts_len words each; NULL without a page */
};

struct tc_window {
    struct tc_window_rule rule;
    struct timespec start_utc;
    struct tc_snapshot begin;
    struct tc_snapshot end;
    size_t latency_len;
    uint64_t under_way; /* most transactions seen under way at once */
    /* What is sampled at wake-ups, cumulative from begin; row i of idle_ns has one per CPU. */
    size_t rows;
    size_t rows_max;
    uint64_t *t_ns;
    uint64_t *transactions;
    uint64_t *idle_ns;
    size_t cpus;
    struct tc_samples counts;
    struct tc_drained drained;
    struct tc_reading *scratch_counters;
    struct tc_reading *scratch_system;
};

/* 0, or -errno to end the window as failed: looked at before each sample. */
typedef int (*tc_window_watch)(void *context, struct tc_error *err);

/* Makes the memory. Errors: -ENOMEM. tc_window_close() in every case. */
TC_MUST_CHECK int tc_window_open(struct tc_window *window, const struct tc_meter *meter,
                                 const struct tc_window_rule *rule, struct tc_error *err);

/* Measures. Errors: those of watch and of the sources. */
TC_MUST_CHECK int tc_window_run(struct tc_window *window, const struct tc_meter *meter,
                                tc_window_watch watch, void *context, struct tc_error *err);

void tc_window_close(struct tc_window *window);

uint64_t tc_window_now_ns(void);

/* Idle time of CPU number i of the set over the whole window, by the best clock there is. */
uint64_t tc_window_idle_ns(const struct tc_window *window, const struct tc_meter *meter, size_t i);

/* Completions that the rule asks for. */
uint64_t tc_window_completions(const struct tc_window *window);

/* Samples of the counters that the window should have had and has not, of the CPU that lacks most.
 */
uint64_t tc_window_missing(const struct tc_window *window);

/* How fine that clock is. */
uint64_t tc_window_idle_resolution_ns(const struct tc_meter *meter, size_t i);

#endif
