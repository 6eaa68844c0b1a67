/* Memory for the samples of a window's counters. Each CPU has times of its own: where the kernel
 * samples, a CPU's instants are its own clock's. */
#ifndef TC_COLLECTOR_SAMPLES_H
#define TC_COLLECTOR_SAMPLES_H

#include "collector/source.h"

/* Samples of one CPU's slots (a process tree's are all slots together). */
struct tc_series {
    size_t first_slot;
    size_t slots;
    size_t rows;
    uint64_t *t_ns;
    uint64_t *counts; /* per row one per slot */
};

struct tc_samples {
    struct tc_series *series;
    size_t count;
    size_t rows_max; /* of each series */
    uint64_t lost;   /* for want of room here, or because a count was less than at the begin */
};

/* Makes room for rows_max samples of each CPU. Errors: -ENOMEM. tc_samples_close() in every case.
 */
TC_MUST_CHECK int tc_samples_open(struct tc_samples *samples, const struct tc_counters *counters,
                                  size_t rows_max, struct tc_error *err);
void tc_samples_close(struct tc_samples *samples);

/* Keeps one CPU's counts at t_ns (since the window's begin) as differences from begin; where there
 * is no room it counts as lost. One that is no later than its predecessor is superfluous: the CPU
 * was read when its ring was silent. first_slot: the CPU's. */
void tc_samples_add(struct tc_samples *samples, size_t first_slot, uint64_t t_ns,
                    const struct tc_reading *begin, const struct tc_reading *now);

/* The same of every CPU. */
void tc_samples_add_all(struct tc_samples *samples, uint64_t t_ns, const struct tc_reading *begin,
                        const struct tc_reading *now);

#endif
