#include "collector/passes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collector/tests/check.h"

/* A PMU of so many counters that counts every event whose name does not begin with "no-". */
static bool fits_counters(const struct tc_event *events, size_t count, void *context)
{
    for (size_t i = 0; i < count; i++) {
        if (strncmp(events[i].name, "no-", 3) == 0) {
            return false;
        }
    }
    return count <= *(const size_t *)context;
}

static struct tc_pass passes[TC_PASSES_MAX];

/* The passes as text: events separated by commas, passes by bars. Names with "soft" are software.
 */
static const char *split(const char *text, size_t counters)
{
    static char shown[4096];
    struct tc_event set[TC_EVENTS_MAX];
    struct tc_event anchors[TC_MODE_BOTH + 1] = {0};
    size_t count;
    size_t passes_count = 0;
    assert_int_equal(tc_events_parse(text, set, &count, NULL), 0);
    for (size_t i = 0; i < count; i++) {
        set[i].known = true;
        set[i].hardware = strstr(set[i].name, "soft") == NULL;
    }
    for (int mode = TC_MODE_USER; mode <= TC_MODE_BOTH; mode++) {
        anchors[mode] = (struct tc_event){
            .name = "instructions", .mode = (enum tc_mode)mode, .hardware = true, .known = true};
    }
    assert_int_equal(
        tc_passes_split(set, count, anchors, fits_counters, &counters, passes, &passes_count, NULL),
        0);
    shown[0] = '\0';
    for (size_t p = 0; p < passes_count; p++) {
        for (size_t e = 0; e < passes[p].count; e++) {
            size_t used = strlen(shown);
            (void)snprintf(shown + used, sizeof(shown) - used, "%s%s:%s",
                           e > 0   ? ","
                           : p > 0 ? "|"
                                   : "",
                           passes[p].events[e].name, tc_mode_name(passes[p].events[e].mode));
        }
    }
    return shown;
}

static void keeps_together_what_fits(void **state)
{
    (void)state;
    assert_string_equal(split("instructions:u,cycles:u", 4), "instructions:u,cycles:u");
    assert_string_equal(split("soft-a,soft-b,soft-c", 0), "soft-a:uk,soft-b:uk,soft-c:uk");
    /* A set with hardware events gets the anchor. */
    assert_string_equal(split("cycles:u", 4), "instructions:u,cycles:u");
}

static void splits_with_an_anchor_in_each_pass(void **state)
{
    (void)state;
    assert_string_equal(split("instructions:u,a:u,b:u,c:u", 2),
                        "instructions:u,a:u|instructions:u,b:u|instructions:u,c:u");
    assert_string_equal(split("a:u,b:u,c:u,d:u", 3),
                        "instructions:u,a:u,b:u|instructions:u,c:u,d:u");
    assert_string_equal(split("a:k,b:k", 2), "instructions:k,a:k|instructions:k,b:k");
    assert_string_equal(split("instructions:u,instructions:k,cycles:u,cycles:k", 4),
                        "instructions:u,instructions:k,cycles:u,cycles:k");
    assert_string_equal(split("instructions:u,instructions:k,cycles:u,cycles:k", 2),
                        "instructions:u,instructions:k|instructions:u,cycles:u|"
                        "instructions:k,cycles:k");
}

static void software_events_take_no_counter(void **state)
{
    (void)state;
    assert_string_equal(split("instructions:u,a:u,soft-x,soft-y", 2),
                        "instructions:u,a:u,soft-x:uk,soft-y:uk");
    assert_string_equal(split("soft-x,a:u,b:u", 2),
                        "soft-x:uk,instructions:u,a:u|instructions:u,b:u");
}

static void what_cannot_be_counted_takes_none_either(void **state)
{
    (void)state;
    assert_string_equal(split("a:u,no-b:u,c:u", 3), "instructions:u,a:u,no-b:u,c:u");
    assert_string_equal(split("instructions:u,cycles:u,soft-x", 0),
                        "instructions:u,cycles:u,soft-x:uk");
    /* One counter has no room for an anchor. */
    assert_string_equal(split("a:u,b:u", 1), "a:u|b:u");
}

static void parses_names_and_modes(void **state)
{
    (void)state;
    struct tc_event set[TC_EVENTS_MAX];
    struct tc_error err;
    size_t count;
    assert_int_equal(
        tc_events_parse("INST_RETIRED:ANY_P:u,r:uk,x:k,y:ku,z:mask", set, &count, NULL), 0);
    assert_int_equal(count, 5);
    assert_string_equal(set[0].name, "INST_RETIRED:ANY_P");
    assert_int_equal(set[0].mode, TC_MODE_USER);
    assert_string_equal(set[1].name, "r");
    assert_int_equal(set[1].mode, TC_MODE_BOTH);
    assert_int_equal(set[2].mode, TC_MODE_KERNEL);
    assert_int_equal(set[3].mode, TC_MODE_BOTH);
    assert_string_equal(set[4].name, "z:mask");
    static const char *const bad[] = {"", "a,,b", ",a", "a,", ":u", "a:u,a:u", "a,a:uk"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tc_events_parse(bad[i], set, &count, &err), -EINVAL);
    }
    assert_non_null(strstr(err.message, "twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_together_what_fits),
        cmocka_unit_test(splits_with_an_anchor_in_each_pass),
        cmocka_unit_test(software_events_take_no_counter),
        cmocka_unit_test(what_cannot_be_counted_takes_none_either),
        cmocka_unit_test(parses_names_and_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
