#include "collector/idle.h"
#include "collector/tests/check.h"

#define SECOND UINT64_C(1000000000)

static void corrects_by_the_idle_windows_rate(void **state)
{
    (void)state;
    /* 500 in half a second of idling: 1000/s. Over 0.25 s of idle time that is 250. */
    assert_float_equal(tc_idle_correct(10000, 500, SECOND / 2, SECOND / 4), 9750, 1e-9);
    assert_float_equal(tc_idle_correct(10000, 500, SECOND / 2, 0), 10000, 1e-9);
    assert_float_equal(tc_idle_correct(10000, 0, SECOND / 2, SECOND), 10000, 1e-9);
    /* Noise may bring it below zero, which a mean needs. */
    assert_float_equal(tc_idle_correct(10, 500, SECOND / 2, SECOND), -990, 1e-9);
}

static void scales_what_was_multiplexed(void **state)
{
    (void)state;
    assert_float_equal(tc_idle_scale(1000, SECOND, SECOND / 4), 4000, 1e-9);
    assert_float_equal(tc_idle_scale(1000, SECOND, SECOND), 1000, 1e-9);
    assert_float_equal(tc_idle_scale(UINT64_C(1) << 62, 2 * SECOND, SECOND), 0x1p63, 1);
}

static void combines_two_clocks_of_one_time(void **state)
{
    (void)state;
    const uint64_t tick = 10000000;
    /* Within a tick the fine clock is taken as it is. */
    assert_int_equal(tc_idle_combine(500000000, 503456789, tick, SECOND), 503456789);
    assert_int_equal(tc_idle_combine(500000000, 496543211, tick, SECOND), 496543211);
    /* It lacks a sleep under way: not more than a tick below the other. */
    assert_int_equal(tc_idle_combine(500000000, 3, tick, SECOND), 490000000);
    assert_int_equal(tc_idle_combine(500000000, 900000000, tick, SECOND), 510000000);
    assert_int_equal(tc_idle_combine(0, 0, tick, SECOND), 0);
    assert_int_equal(tc_idle_combine(5000000, 0, tick, SECOND), 0);
    /* Never longer than the interval. */
    assert_int_equal(tc_idle_combine(SECOND, SECOND + 5000000, tick, SECOND), SECOND);
}

static void counts_reference_cycles_of_busy_time(void **state)
{
    (void)state;
    assert_int_equal(tc_idle_ref_cycles(2 * SECOND, SECOND, SECOND / 2, 3000000000), 1500000000);
    assert_int_equal(tc_idle_ref_cycles(SECOND, 0, 0, 2600000000), 2600000000);
    assert_int_equal(tc_idle_ref_cycles(SECOND, SECOND, SECOND / 100, 2600000000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrects_by_the_idle_windows_rate),
        cmocka_unit_test(scales_what_was_multiplexed),
        cmocka_unit_test(combines_two_clocks_of_one_time),
        cmocka_unit_test(counts_reference_cycles_of_busy_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
