#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "workloads/common/pattern.h"

enum { LENGTH = 3 * TC_PATTERN_PERIOD + 17 };

static void any_window_is_the_same_text(void **state)
{
    static char whole[LENGTH];
    char part[100];
    (void)state;
    tc_pattern_fill(0, whole, LENGTH);
    for (size_t offset = 0; offset + sizeof(part) <= LENGTH; offset += 41) {
        tc_pattern_fill(offset, part, sizeof(part));
        assert_memory_equal(part, whole + offset, sizeof(part));
        assert_true(tc_pattern_matches(offset, whole + offset, sizeof(part)));
    }
    assert_true(tc_pattern_matches(0, whole, LENGTH));
    assert_memory_equal(whole, whole + TC_PATTERN_PERIOD, TC_PATTERN_PERIOD);
}

static void every_altered_byte_is_seen(void **state)
{
    static char text[TC_PATTERN_PERIOD + 100];
    (void)state;
    tc_pattern_fill(0, text, sizeof(text));
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] ^= 1;
        assert_false(tc_pattern_matches(0, text, sizeof(text)));
        text[i] ^= 1;
    }
}

static void no_displacement_looks_alike(void **state)
{
    static char text[2 * TC_PATTERN_PERIOD];
    (void)state;
    tc_pattern_fill(0, text, sizeof(text));
    for (size_t by = 1; by < TC_PATTERN_PERIOD; by++) {
        assert_false(tc_pattern_matches(0, text + by, 64));
    }
}

static void text_is_printable(void **state)
{
    static char text[TC_PATTERN_PERIOD];
    (void)state;
    tc_pattern_fill(0, text, sizeof(text));
    for (size_t i = 0; i < sizeof(text); i++) {
        assert_in_range(text[i], 0x20, 0x7e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_window_is_the_same_text),
        cmocka_unit_test(every_altered_byte_is_seen),
        cmocka_unit_test(no_displacement_looks_alike),
        cmocka_unit_test(text_is_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
