#include "workloads/load/pacing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#define SAMPLES 100000

static void test_constant_arrivals_are_exact(void **state)
{
    (void)state;
    struct tc_pacing pacing;
    assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_CONSTANT, 1000, 0, 1, NULL), 0);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        assert_int_equal(tc_pacing_next(&pacing), i * 1000000);
    }
    /* An interval that no integer holds must not drift: the 3,000,000th arrival is at 1e6 s. */
    assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_CONSTANT, 3, 0, 1, NULL), 0);
    uint64_t last = 0;
    for (uint64_t i = 0; i <= 3000000; i++) {
        last = tc_pacing_next(&pacing);
    }
    assert_in_range(last, UINT64_C(1000000000000000) - 1, UINT64_C(1000000000000000) + 1);
}

static double exponential_cdf(double x, double shape)
{
    (void)shape;
    return -expm1(-x);
}

/* Over [1, R], in units of the shortest interval; the mean is left to the other test. */
static double pareto_cdf(double x, double shape)
{
    return (1 - pow(x, -shape)) / (1 - pow(TC_PACING_PARETO_RANGE, -shape));
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov's distance between the intervals, in `unit_ns`, and the distribution. */
static double ks_distance(struct tc_pacing *pacing, double unit_ns, double shape,
                          double (*cdf)(double x, double shape))
{
    static double intervals[SAMPLES];
    double before = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        (void)tc_pacing_next(pacing);
        intervals[i] = (pacing->offset_ns - before) / unit_ns;
        before = pacing->offset_ns;
    }
    qsort(intervals, SAMPLES, sizeof(intervals[0]), compare_doubles);
    double distance = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        double expected = cdf(intervals[i], shape);
        distance = fmax(distance, fabs(expected - (double)i / SAMPLES));
        distance = fmax(distance, fabs(expected - (double)(i + 1) / SAMPLES));
    }
    return distance;
}

/* The distance that a true sample exceeds once in a million times. */
static double ks_limit(void)
{
    return sqrt(-0.5 * log(1e-6 / 2)) / sqrt(SAMPLES);
}

static void test_poisson_intervals_are_exponential(void **state)
{
    (void)state;
    struct tc_pacing pacing;
    assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_POISSON, 500, 0, 42, NULL), 0);
    double distance = ks_distance(&pacing, 2e6, 0, exponential_cdf);
    assert_true(distance < ks_limit());
    /* Mean: 2 ms, within 5 standard errors. */
    double mean = pacing.offset_ns / SAMPLES;
    assert_true(fabs(mean / 2e6 - 1) < 5 / sqrt(SAMPLES));
}

static void test_pareto_intervals_are_pareto(void **state)
{
    (void)state;
    const double shapes[] = {0.8, 1, 1.5, 2.5};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct tc_pacing pacing;
        assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_PARETO, 500, shapes[i], 7, NULL), 0);
        double unit = pacing.pareto_unit_ns;
        assert_true(ks_distance(&pacing, unit, shapes[i], pareto_cdf) < ks_limit());
    }
}

/* The mean of a distribution with cdf F over [1, R] is 1 + the integral of 1 - F: by Simpson's
 * rule over log x, which knows nothing of the closed form under test. */
static void test_pareto_mean_is_the_rate(void **state)
{
    (void)state;
    const double shapes[] = {0.8, 1, 1.5, 2.5};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const int steps = 20000;
        double width = log(TC_PACING_PARETO_RANGE) / steps;
        double integral = 0;
        for (int step = 0; step <= steps; step++) {
            double x = exp(step * width);
            double weight = step == 0 || step == steps ? 1 : (step % 2 == 1 ? 4 : 2);
            integral += weight * (1 - pareto_cdf(x, shapes[i])) * x;
        }
        double mean = 1 + integral * width / 3;
        struct tc_pacing pacing;
        assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_PARETO, 500, shapes[i], 7, NULL), 0);
        assert_true(fabs(pacing.pareto_unit_ns * mean / 2e6 - 1) < 1e-6);
    }
}

static void test_the_schedule_never_goes_back_and_is_its_seeds(void **state)
{
    (void)state;
    struct tc_pacing one;
    struct tc_pacing same;
    struct tc_pacing other;
    assert_int_equal(tc_pacing_init(&one, TC_ARRIVALS_PARETO, 1e5, 1.5, 3, NULL), 0);
    assert_int_equal(tc_pacing_init(&same, TC_ARRIVALS_PARETO, 1e5, 1.5, 3, NULL), 0);
    assert_int_equal(tc_pacing_init(&other, TC_ARRIVALS_PARETO, 1e5, 1.5, 4, NULL), 0);
    uint64_t last = 0;
    unsigned differing = 0;
    for (size_t i = 0; i < SAMPLES; i++) {
        uint64_t now = tc_pacing_next(&one);
        assert_true(now >= last);
        assert_int_equal(now, tc_pacing_next(&same));
        differing += now != tc_pacing_next(&other);
        last = now;
    }
    assert_true(differing > SAMPLES / 2);
}

static void test_bad_parameters_are_named(void **state)
{
    (void)state;
    struct tc_pacing pacing;
    struct tc_error err;
    const double rates[] = {0, -1, 2e9, NAN};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_CONSTANT, rates[i], 0, 1, &err),
                         -EINVAL);
        assert_non_null(strstr(err.message, "rate"));
    }
    const double shapes[] = {0, -1, 101, NAN};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        assert_int_equal(tc_pacing_init(&pacing, TC_ARRIVALS_PARETO, 1, shapes[i], 1, &err),
                         -EINVAL);
        assert_non_null(strstr(err.message, "shape"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_arrivals_are_exact),
        cmocka_unit_test(test_poisson_intervals_are_exponential),
        cmocka_unit_test(test_pareto_intervals_are_pareto),
        cmocka_unit_test(test_pareto_mean_is_the_rate),
        cmocka_unit_test(test_the_schedule_never_goes_back_and_is_its_seeds),
        cmocka_unit_test(test_bad_parameters_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
