#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collector/tests/check.h"
#include "collector/tests/softpmu_models.h"

#define P3 TC_MACHINES_DIR "/p3-xeon.json"

static void the_machines_are_what_their_names_say(void **state)
{
    (void)state;
    struct tc_machine p3 = models_machine("p3-xeon", NULL);
    assert_int_equal(p3.variants, 3);
    assert_int_equal(p3.variant[2].l2_bytes, 2 << 20);
    assert_int_equal(p3.clock_hz, 500000000);
    assert_string_equal(p3.guest, "i386");
    assert_false(p3.has_llc);
    struct tc_machine one = models_machine("p3-xeon", "1m");
    assert_int_equal(one.variants, 1);
    assert_string_equal(one.variant[0].name, "1m");
    assert_int_equal(one.variant[0].l2_bytes, 1 << 20);
    struct tc_machine skylake = models_machine("skylake-server", NULL);
    assert_true(skylake.has_llc);
    assert_string_equal(skylake.guest, "x86_64");
    assert_int_equal(skylake.bus_clock_hz, 0);
}

/* Changes one place of the Pentium III's file and expects the file refused in these words. path:
 * keys, divided by dots; value: JSON, NULL: the key is removed. */
static void expect_refused(const char *path, const char *value, const char *words)
{
    json_t *root = json_load_file(P3, 0, NULL);
    assert_non_null(root);
    char keys[128];
    char *rest = keys;
    (void)snprintf(keys, sizeof(keys), "%s", path);
    json_t *object = root;
    char *key = strsep(&rest, ".");
    while (rest != NULL) {
        object = json_is_array(object) ? json_array_get(object, (size_t)strtoul(key, NULL, 10))
                                       : json_object_get(object, key);
        assert_non_null(object);
        key = strsep(&rest, ".");
    }
    if (value == NULL) {
        assert_int_equal(json_object_del(object, key), 0);
    } else {
        assert_int_equal(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)),
                         0);
    }
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    struct tc_machine machine;
    struct tc_error err = {""};
    assert_int_equal(tc_machine_parse(text, strlen(text), "m.json", NULL, &machine, &err), -EINVAL);
    if (strstr(err.message, words) == NULL || strncmp(err.message, "m.json: ", 8) != 0) {
        fail_msg("%s = %s: '%s' lacks '%s'", path, value != NULL ? value : "(none)", err.message,
                 words);
    }
    /* A caller that wants no message gets the same answer. */
    assert_int_equal(tc_machine_parse(text, strlen(text), "m.json", NULL, &machine, NULL), -EINVAL);
    free(text);
    json_decref(root);
}

static void impossible_machines_are_refused(void **state)
{
    (void)state;
    expect_refused("l1d.bytes.value", "20000", "l1d: 20000 bytes in 4 ways of 32-byte lines");
    expect_refused("l1d.bytes.value", "0", "l1d.bytes: 0 is not within 1 to");
    expect_refused("l1d.bytes.value", "-1", "l1d.bytes: expected a whole number");
    expect_refused("l1d.bytes.value", "16384.5", "l1d.bytes: expected a whole number");
    expect_refused("l1d.bytes.value", "1099511627776", "l1d.bytes: 1099511627776 is not within");
    expect_refused("l1d.ways.value", "0", "l1d.ways: 0 is not within 1 to 16");
    expect_refused("l1d.ways.value", "3", "l1d: 16384 bytes in 3 ways");
    expect_refused("l1d.ways.value", "17", "l1d.ways: 17 is not within 1 to 16");
    expect_refused("l1d.line_bytes.value", "48", "l1d.line_bytes: 48 is not a power of two");
    expect_refused("l1d.line_bytes.value", "64", "l1d.line_bytes: 64, but l1i's is 32");
    expect_refused("l2.line_bytes.value", "64", "l2.line_bytes: 64, but l1i's is 32");
    expect_refused("l2.variants", "[]", "l2.variants: expected a list of 1 to 8");
    expect_refused("l2.variants.0.name", "\"2m\"", "l2.variants: '2m' is there twice");
    expect_refused("l2.variants.0.name", "\"a/b\"", "l2.variants.name: 'a/b' has other char");
    expect_refused("l2.variants.0.bytes.value", "500000", "l2.variants: 500000 bytes");
    expect_refused("fetch_block_bytes.value", "64", "fetch_block_bytes: 64 is not within 1 to 32");
    expect_refused("predictor.btb_ways.value", "8", "btb_ways: 8 is not within 1 to 4");
    expect_refused("predictor.btb_entries.value", "2", "btb_entries: 2, but btb_ways is 4");
    expect_refused("predictor.history_bits.value", "5", "history_bits: 5 is not within 0 to 4");
    expect_refused("predictor.return_stack.value", "0", "return_stack: 0 is not within");
    expect_refused("bus.width_bytes.value", "64", "bus.width_bytes: 64 is not within 1 to 32");
    expect_refused("timing.mispredict.value", "-1", "timing.mispredict: expected 0 to");
    expect_refused("timing.mispredict.value", "\"x\"", "timing.mispredict: expected 0 to");
    expect_refused("timing.issue_cpi.value", "0", "timing.issue_cpi: expected more than 0");
    expect_refused("guest", "\"arm\"", "guest: 'arm' is neither i386 nor x86_64");
    expect_refused("name", "\"../p3\"", "name: '../p3' has other characters");
    expect_refused("clock_hz.value", "0", "clock_hz: 0 is not within");
}

static void files_must_be_whole_and_name_their_sources(void **state)
{
    (void)state;
    expect_refused("l1d", NULL, "l1d: expected an object");
    expect_refused("timing.hitm", NULL, "timing.hitm: expected {\"value\"");
    expect_refused("timing.hitm", "20", "timing.hitm: expected {\"value\"");
    expect_refused("timing.hitm.source", NULL, "timing.hitm.source: expected where the value");
    expect_refused("timing.hitm.source", "\"\"", "timing.hitm.source: expected where the value");
    expect_refused("l1d.sets", "128", "l1d.sets: no such key");
    expect_refused("prefetcher", "{}", "prefetcher: no such key");
    expect_refused("left_out", "[]", "left_out: expected a list");
    expect_refused("left_out", "[1]", "left_out: expected texts");
    expect_refused("description", "\"\"", "description: expected a text");
}

static void what_cannot_be_read_says_where(void **state)
{
    (void)state;
    struct tc_machine machine;
    struct tc_error err = {""};
    assert_int_equal(tc_machine_load("/no/such.json", NULL, &machine, &err), -ENOENT);
    assert_non_null(strstr(err.message, "/no/such.json"));
    assert_int_equal(tc_machine_parse("{\n\"name\": }", 11, "m.json", NULL, &machine, &err),
                     -EINVAL);
    assert_non_null(strstr(err.message, "m.json:2: "));
    assert_int_equal(tc_machine_parse("[]", 2, "m.json", NULL, &machine, &err), -EINVAL);
    assert_int_equal(tc_machine_load(P3, "4m", &machine, &err), -EINVAL);
    assert_non_null(strstr(err.message, "no variant '4m'; it has 512k, 1m, 2m"));
}

static void cycles_are_the_issue_base_and_penalties(void **state)
{
    (void)state;
    struct tc_machine machine = models_machine("p3-xeon", NULL);
    const struct tc_machine_timing *t = &machine.timing;
    struct models m = models_new(&machine, 2);
    struct tc_core *core = models_core(&m, 0);
    tc_core_count(core, TC_SLOT_INSTRUCTIONS, 1000);
    double expected = 1000 * t->issue_cpi;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    tc_core_fetch(core, 0);
    expected += t->l1i_miss + t->l2_ifetch_miss;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    tc_core_load(core, 4096, 4);
    expected += t->l1d_load_miss + t->l2_load_miss;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    tc_core_store(core, 8192, 4);
    expected += t->l1d_store_miss + t->l2_store_miss;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    tc_core_store(models_core(&m, 1), 12288, 4);
    tc_core_load(core, 12288, 4);
    expected += t->l1d_load_miss + t->l2_load_miss + t->hitm;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    tc_core_store(core, 12288, 4);
    expected += t->upgrade;
    assert_int_equal(models_event(&m, 0, 0, "CPU_CLK_UNHALTED"), llround(expected));
    models_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_machines_are_what_their_names_say),
        cmocka_unit_test(impossible_machines_are_refused),
        cmocka_unit_test(files_must_be_whole_and_name_their_sources),
        cmocka_unit_test(what_cannot_be_read_says_where),
        cmocka_unit_test(cycles_are_the_issue_base_and_penalties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
