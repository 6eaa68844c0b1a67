#include "collector/placement.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collector/network.h"
#include "collector/tests/check.h"

static void parses_lists_of_online_cpus(void **state)
{
    (void)state;
    struct tc_cpus online;
    struct tc_cpus cpus;
    struct tc_error err;
    assert_int_equal(tc_cpus_online(&online, NULL), 0);
    assert_true(online.count > 0);
    assert_int_equal(tc_cpus_parse("--server-cpus", "0", &cpus, NULL), 0);
    assert_int_equal(cpus.count, 1);
    assert_int_equal(cpus.ids[0], 0);
    if (online.count > 1 && online.ids[1] == 1) {
        assert_int_equal(tc_cpus_parse("--server-cpus", "1,0-1", &cpus, NULL), 0);
        assert_int_equal(cpus.count, 2);
        assert_int_equal(cpus.ids[0], 0);
        assert_int_equal(cpus.ids[1], 1);
    }
    static const char *const bad[] = {"", "x", "all", "!0", "-1", "0-", "1000000", "0,,"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int rc = tc_cpus_parse("--server-cpus", bad[i], &cpus, &err);
        if (rc != -EINVAL) {
            fail_msg("'%s' was taken", bad[i]);
        }
        assert_non_null(strstr(err.message, "--server-cpus"));
    }
}

static void reads_lists_of_any_machine(void **state)
{
    (void)state;
    struct tc_cpus cpus;
    assert_int_equal(tc_cpus_list("9,0-3,1,1023", &cpus), 0);
    const int ids[] = {0, 1, 2, 3, 9, 1023};
    assert_int_equal(cpus.count, 6);
    assert_memory_equal(cpus.ids, ids, sizeof(ids));
    static const char *const bad[] = {"",   " 0",   "0 ",   "0-",    "-1",  "3-0",
                                      "0,", "0,,1", "1024", "0-1-2", "0;1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (tc_cpus_list(bad[i], &cpus) != -EINVAL) {
            fail_msg("'%s' was taken", bad[i]);
        }
    }
}

static void knows_overlap_and_what_is_beside(void **state)
{
    (void)state;
    const struct tc_cpus first = {.count = 1, .ids = {0}};
    const struct tc_cpus both = {.count = 2, .ids = {0, 1}};
    const struct tc_cpus second = {.count = 1, .ids = {1}};
    struct tc_cpus online;
    struct tc_cpus rest;
    assert_true(tc_cpus_overlap(&first, &both));
    assert_false(tc_cpus_overlap(&first, &second));
    assert_int_equal(tc_cpus_online(&online, NULL), 0);
    assert_int_equal(tc_cpus_beside(&online, &second, &rest, NULL), 0);
    assert_int_equal(rest.count, 1); /* nothing is left: the fallback */
    assert_int_equal(rest.ids[0], 1);
}

static void parses_numa_policies(void **state)
{
    (void)state;
    struct tc_numa numa;
    struct tc_error err;
    char text[160];
    assert_int_equal(tc_numa_parse("default", &numa, NULL), 0);
    assert_int_equal(numa.policy, TC_NUMA_DEFAULT);
    static const char *const bad[] = {"",          "bind",   "bind:", "local:0",
                                      "default:0", "bind:x", "near"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(tc_numa_parse(bad[i], &numa, &err) < 0);
    }
    int rc = tc_numa_parse("bind:0", &numa, &err);
    if (rc == -ENOTSUP) {
        SKIP("this kernel has no NUMA policies");
    }
    assert_int_equal(rc, 0);
    tc_numa_format(&numa, text, sizeof(text));
    assert_string_equal(text, "bind:0");
}

static void places_the_process(void **state)
{
    (void)state;
    const struct tc_cpus first = {.count = 1, .ids = {0}};
    const struct tc_numa numa = {.policy = TC_NUMA_DEFAULT};
    cpu_set_t old;
    cpu_set_t now;
    assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
    assert_int_equal(tc_placement_apply(&first, &numa, NULL), 0);
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_int_equal(CPU_COUNT(&now), 1);
    assert_true(CPU_ISSET(0, &now));
    assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
}

static void writes_masks_as_sysfs_takes_them(void **state)
{
    (void)state;
    char text[TC_NETWORK_MASK_MAX];
    const struct tc_cpus low = {.count = 3, .ids = {0, 1, 5}};
    const struct tc_cpus high = {.count = 2, .ids = {3, 70}};
    struct tc_cpus all = {.count = TC_CPUS_MAX};
    tc_network_mask(&low, text, sizeof(text));
    assert_string_equal(text, "23");
    tc_network_mask(&high, text, sizeof(text));
    assert_string_equal(text, "40,00000000,00000008");
    for (int i = 0; i < TC_CPUS_MAX; i++) {
        all.ids[i] = i;
    }
    tc_network_mask(&all, text, sizeof(text));
    assert_int_equal(strlen(text), 32 * 9 - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_lists_of_online_cpus),
        cmocka_unit_test(reads_lists_of_any_machine),
        cmocka_unit_test(knows_overlap_and_what_is_beside),
        cmocka_unit_test(parses_numa_policies),
        cmocka_unit_test(places_the_process),
        cmocka_unit_test(writes_masks_as_sysfs_takes_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
