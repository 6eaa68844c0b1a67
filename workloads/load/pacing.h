/* When transactions of the open loop are scheduled to start: a renewal process of a given rate.
 *
 * The schedule does not depend on how the server does, so a latency counted from it omits nothing.
 * Pure arithmetic, deterministic for a seed; one user per object, no locks, no allocation. */
#ifndef TC_LOAD_PACING_H
#define TC_LOAD_PACING_H

#include <stdint.h>
#include <stdlib.h>

#include "workloads/common/error.h"

/* Longest over shortest interval of the bounded Pareto distribution: four decades of burstiness,
 * yet a mean and a variance that exist for every shape. */
#define TC_PACING_PARETO_RANGE 1e4
#define TC_PACING_PARETO_SHAPE 1.5

enum tc_arrivals {
    TC_ARRIVALS_CONSTANT, /* equal intervals */
    TC_ARRIVALS_POISSON,  /* exponential intervals */
    TC_ARRIVALS_PARETO    /* bounded Pareto intervals: heavy-tailed, in bursts */
};

struct tc_pacing {
    enum tc_arrivals arrivals;
    double mean_ns; /* interval */
    double shape;
    double pareto_unit_ns; /* the shortest interval, such that the mean is mean_ns */
    double offset_ns;      /* of the last arrival given */
    uint64_t index;        /* arrivals given */
    unsigned short seed[3];
    struct drand48_data random;
};

/* rate: arrivals per second, > 0 and at most 1e9; shape: of Pareto, > 0, ignored otherwise.
 * Errors: -EINVAL. */
TC_MUST_CHECK int tc_pacing_init(struct tc_pacing *pacing, enum tc_arrivals arrivals, double rate,
                                 double shape, uint32_t seed, struct tc_error *err);

/* The next arrival: ns since the schedule's start, never decreasing. Constant arrivals are
 * computed from their index, so they do not drift. */
uint64_t tc_pacing_next(struct tc_pacing *pacing);

#endif
