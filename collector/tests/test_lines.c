#include "collector/lines.h"

#include <stdint.h>
#include <string.h>

#include "collector/source_proc.h"
#include "collector/source_uncore.h"
#include "collector/tests/check.h"

#define MS UINT64_C(1000000)

static const struct tc_cpus cpus = {.count = 1, .ids = {0}};

static int watch(void *context, struct tc_error *err)
{
    (void)context;
    (void)err;
    return 0;
}

/* Of this process: what anyone may count. */
static void measure(struct tc_window *window, struct tc_meter *meter)
{
    static struct tc_event events[TC_EVENTS_MAX];
    struct tc_source_request request = {
        .cpus = &cpus, .events = events, .scope = TC_SCOPE_PROCESS, .pid = 0};
    const struct tc_window_rule rule = {
        .duration_ns = 20 * MS, .max_ns = 1000 * MS, .sample_ns = 10 * MS};
    *meter = (struct tc_meter){.cpus = 1};
    assert_int_equal(tc_events_parse("page-faults:u", events, &request.events_count, NULL), 0);
    assert_int_equal(tc_source_perf.open(&meter->counters, &request, NULL), 0);
    assert_int_equal(tc_source_proc.open(&meter->system, &request, NULL), 0);
    assert_int_equal(tc_uncore_open(&meter->memory, "/nowhere", "/nowhere", NULL), 0);
    assert_int_equal(tc_window_open(window, meter, &rule, NULL), 0);
    assert_int_equal(tc_source_perf.start(meter->counters, NULL), 0);
    assert_int_equal(tc_window_run(window, meter, watch, NULL, NULL), 0);
}

static void drop(struct tc_window *window, struct tc_meter *meter)
{
    tc_window_close(window);
    tc_source_perf.close(meter->counters);
    tc_source_proc.close(meter->system);
    tc_source_uncore.close(meter->memory);
}

/* A count of the window's line, with its own idle window's in `idle` (which may be itself). */
static json_t *count_called(const char *event, const struct tc_window *window,
                            const struct tc_meter *meter, const struct tc_window *idle)
{
    size_t i;
    json_t *count = NULL;
    json_t *each;
    json_t *notes = json_array();
    const struct tc_line line = {.type = "window",
                                 .window = window,
                                 .idle = idle,
                                 .meter = meter,
                                 .cpus = &cpus,
                                 .notes = notes};
    json_t *object = tc_line_build(&line);
    assert_non_null(object);
    json_array_foreach(json_object_get(object, "counts"), i, each)
    {
        const char *name = json_string_value(json_object_get(each, "event"));
        count = count == NULL && strcmp(name, event) == 0 ? json_incref(each) : count;
    }
    assert_non_null(count);
    json_decref(object);
    json_decref(notes);
    return count;
}

static json_t *count_of(const struct tc_window *window, const struct tc_meter *meter,
                        const struct tc_window *idle)
{
    return count_called("page-faults", window, meter, idle);
}

static void give(struct tc_window *window, struct tc_reading begin, struct tc_reading end)
{
    window->begin.counters[0] = begin;
    window->end.counters[0] = end;
}

static const char *text(const json_t *count, const char *key)
{
    return json_string_value(json_object_get(count, key));
}

static void check_null(const struct tc_window *window, const struct tc_meter *meter,
                       const struct tc_window *idle, const char *reason)
{
    json_t *count = count_of(window, meter, idle);
    assert_string_equal(text(count, "status"), "failed");
    assert_non_null(strstr(text(count, "reason"), reason));
    assert_true(json_is_null(json_object_get(count, "raw")));
    assert_true(json_is_null(json_object_get(count, "corrected")));
    json_decref(count);
}

/* What a counter that was taken away, or lost its count, reads as. */
static void is_null_where_a_count_means_nothing(void **state)
{
    (void)state;
    struct tc_window window;
    struct tc_window idle;
    struct tc_meter meter;
    struct tc_meter idle_meter;
    measure(&window, &meter);
    measure(&idle, &idle_meter);
    if (meter.counters->slots[0].status != TC_STATUS_OK) {
        drop(&window, &meter);
        drop(&idle, &idle_meter);
        SKIP("page faults of this process may not be counted");
    }
    const struct tc_reading from = {.raw = 1000, .enabled_ns = 500, .running_ns = 500};
    const struct tc_reading to = {.raw = 3000, .enabled_ns = 1500, .running_ns = 1500};
    give(&idle, from, to);
    give(&window, to, from);
    check_null(&window, &meter, &idle, "went backwards");
    give(&window, from, (struct tc_reading){.raw = 3000, .enabled_ns = 1500, .running_ns = 400});
    check_null(&window, &meter, &idle, "went backwards");
    give(&window, from, (struct tc_reading){.raw = 1000, .enabled_ns = 1500, .running_ns = 500});
    check_null(&window, &meter, &idle, "never put it on a counter");
    give(&window, from, to);
    give(&idle, to, from);
    check_null(&window, &meter, &idle, "went backwards");
    drop(&window, &meter);
    drop(&idle, &idle_meter);
}

static void is_scaled_where_another_shared_the_counter(void **state)
{
    (void)state;
    struct tc_window window;
    struct tc_meter meter;
    measure(&window, &meter);
    if (meter.counters->slots[0].status != TC_STATUS_OK) {
        drop(&window, &meter);
        SKIP("page faults of this process may not be counted");
    }
    /* A quarter of the time on the counter; and as far as 64 bits go. */
    give(&window, (struct tc_reading){.raw = UINT64_C(1) << 47},
         (struct tc_reading){
             .raw = (UINT64_C(1) << 48) + 7, .enabled_ns = 4000, .running_ns = 1000});
    json_t *count = count_of(&window, &meter, NULL);
    assert_string_equal(text(count, "origin"), "scaled");
    assert_int_equal(json_integer_value(json_object_get(count, "raw")),
                     (json_int_t)((UINT64_C(1) << 47) + 7));
    json_decref(count);
    struct tc_window idle = window;
    struct tc_reading nothing[2] = {{0}, {.enabled_ns = 1000, .running_ns = 1000}};
    idle.begin.counters = &nothing[0];
    idle.end.counters = &nothing[1];
    count = count_of(&window, &meter, &idle);
    double corrected = json_real_value(json_object_get(count, "corrected"));
    assert_true(corrected == 4.0 * (double)((UINT64_C(1) << 47) + 7));
    json_decref(count);
    drop(&window, &meter);
}

/* 1000 counts in half of the time, of 64 bytes each. */
static void memory_traffic_is_in_bytes_of_a_socket(void **state)
{
    (void)state;
    struct tc_window window;
    struct tc_meter meter;
    measure(&window, &meter);
    struct tc_slot *slot = &meter.memory->slots[0];
    json_t *count = count_called("memory_read_bytes", &window, &meter, NULL);
    assert_string_equal(text(count, "status"), "unsupported");
    assert_string_equal(text(count, "source"), "uncore");
    assert_non_null(strstr(text(count, "reason"), "no memory controller's PMU"));
    assert_true(json_is_null(json_object_get(count, "corrected")));
    json_decref(count);
    slot->status = TC_STATUS_OK;
    slot->unit = "bytes";
    slot->scale = 64;
    slot->socket = 1;
    (void)snprintf(slot->pmu, sizeof(slot->pmu), "uncore_imc_3");
    window.begin.memory[0] = (struct tc_reading){.raw = 5};
    window.end.memory[0] = (struct tc_reading){.raw = 1005, .enabled_ns = 2000, .running_ns = 1000};
    struct tc_window idle = window;
    struct tc_reading nothing[2][2] = {{{0}}, {{.enabled_ns = 1000, .running_ns = 1000}}};
    idle.begin.memory = nothing[0];
    idle.end.memory = nothing[1];
    count = count_called("memory_read_bytes", &window, &meter, &idle);
    assert_string_equal(text(count, "origin"), "scaled");
    assert_string_equal(text(count, "unit"), "bytes");
    assert_string_equal(text(count, "pmu"), "uncore_imc_3");
    assert_int_equal(json_integer_value(json_object_get(count, "socket")), 1);
    assert_int_equal(json_integer_value(json_object_get(count, "raw")), 1000);
    assert_true(json_real_value(json_object_get(count, "scale")) == 64);
    assert_true(json_real_value(json_object_get(count, "corrected")) == 128000);
    json_decref(count);
    drop(&window, &meter);
}

/* Its difference would be a huge number in the record's columns. */
static void a_sample_that_goes_back_is_lost(void **state)
{
    (void)state;
    struct tc_slot slot = {.cpu = 0};
    const struct tc_counters counters = {.slots = &slot, .slots_count = 1};
    const struct tc_reading begin = {.raw = 1000};
    const struct tc_reading less = {.raw = 999};
    const struct tc_reading more = {.raw = 1007};
    struct tc_samples samples;
    assert_int_equal(tc_samples_open(&samples, &counters, 4, NULL), 0);
    tc_samples_add(&samples, 0, 1, &begin, &less);
    tc_samples_add(&samples, 0, 2, &begin, &more);
    assert_int_equal(samples.lost, 1);
    assert_int_equal(samples.series[0].rows, 1);
    assert_int_equal(samples.series[0].counts[0], 7);
    tc_samples_close(&samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_traffic_is_in_bytes_of_a_socket),
        cmocka_unit_test(is_null_where_a_count_means_nothing),
        cmocka_unit_test(a_sample_that_goes_back_is_lost),
        cmocka_unit_test(is_scaled_where_another_shared_the_counter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
