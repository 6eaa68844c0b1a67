#include "workloads/load/pacing.h"

#include <errno.h>
#include <math.h>

/* Mean of the bounded Pareto distribution over [1, range]. */
static double pareto_mean(double shape, double range)
{
    double cut = -expm1(-shape * log(range)); /* 1 - range^-shape */
    if (fabs(shape - 1) < 1e-9) {
        return log(range) / cut;
    }
    return shape / (1 - shape) * expm1((1 - shape) * log(range)) / cut;
}

int tc_pacing_init(struct tc_pacing *pacing, enum tc_arrivals arrivals, double rate, double shape,
                   uint32_t seed, struct tc_error *err)
{
    if (!(rate > 0) || rate > 1e9) {
        return tc_error_set(err, EINVAL, "rate %g: expected more than 0 and at most 1e9 a second",
                            rate);
    }
    if (arrivals == TC_ARRIVALS_PARETO && !(shape > 0 && shape <= 100)) {
        return tc_error_set(err, EINVAL, "Pareto shape %g: expected more than 0, at most 100",
                            shape);
    }
    *pacing = (struct tc_pacing){
        .arrivals = arrivals,
        .mean_ns = 1e9 / rate,
        .shape = shape,
        .seed = {0x330e, (unsigned short)seed, (unsigned short)(seed >> 16)},
    };
    if (arrivals == TC_ARRIVALS_PARETO) {
        pacing->pareto_unit_ns = pacing->mean_ns / pareto_mean(shape, TC_PACING_PARETO_RANGE);
    }
    return 0;
}

static double uniform(struct tc_pacing *pacing)
{
    double value = 0;
    /* Cannot fail: both pointers are ours. */
    (void)erand48_r(pacing->seed, &pacing->random, &value);
    return value;
}

static double interval_ns(struct tc_pacing *pacing)
{
    double u = uniform(pacing); /* in [0, 1) */
    if (pacing->arrivals == TC_ARRIVALS_POISSON) {
        return -log1p(-u) * pacing->mean_ns;
    }
    double cut = -expm1(-pacing->shape * log(TC_PACING_PARETO_RANGE));
    return exp(-log1p(-u * cut) / pacing->shape) * pacing->pareto_unit_ns;
}

uint64_t tc_pacing_next(struct tc_pacing *pacing)
{
    if (pacing->arrivals == TC_ARRIVALS_CONSTANT) {
        pacing->offset_ns = (double)pacing->index * pacing->mean_ns;
    } else {
        pacing->offset_ns += interval_ns(pacing);
    }
    pacing->index++;
    return (uint64_t)pacing->offset_ns;
}
