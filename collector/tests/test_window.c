#include "collector/window.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collector/source_proc.h"
#include "collector/tests/check.h"

#define MS       UINT64_C(1000000)
#define SLACK_NS (20 * MS)
#define FAULTS   500

__attribute__((no_sanitize("address", "thread"))) static void touch(volatile char *area,
                                                                    size_t bytes, size_t step)
{
    for (size_t i = 0; i < bytes; i += step) {
        area[i] = 1;
    }
}

/* A page fault per page each time it is asked. */
static int fault_pages(void *context, struct tc_error *err)
{
    (void)context;
    (void)err;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *area =
        mmap(NULL, FAULTS * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(area, MAP_FAILED);
    assert_int_equal(madvise(area, FAULTS * page, MADV_NOHUGEPAGE), 0);
    touch(area, FAULTS * page, page);
    assert_int_equal(munmap(area, FAULTS * page), 0);
    return 0;
}

static struct tc_meter open_meter(const struct tc_cpus *cpus, const char *set, uint64_t sample_ns,
                                  enum tc_scope scope)
{
    static struct tc_event events[TC_EVENTS_MAX];
    struct tc_source_request request = {
        .cpus = cpus, .events = events, .sample_ns = sample_ns, .scope = scope};
    struct tc_meter meter = {.cpus = cpus->count};
    assert_int_equal(tc_events_parse(set, events, &request.events_count, NULL), 0);
    assert_int_equal(tc_source_perf.open(&meter.counters, &request, NULL), 0);
    assert_int_equal(tc_source_proc.open(&meter.system, &request, NULL), 0);
    return meter;
}

static void close_meter(struct tc_meter *meter)
{
    tc_source_perf.close(meter->counters);
    tc_source_proc.close(meter->system);
}

static void run(struct tc_window *window, const struct tc_meter *meter,
                const struct tc_window_rule *rule, tc_window_watch watch, void *context)
{
    struct tc_error err = {""};
    assert_int_equal(tc_window_open(window, meter, rule, &err), 0);
    assert_int_equal(tc_source_perf.start(meter->counters, &err), 0);
    if (tc_window_run(window, meter, watch, context, &err) != 0) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(tc_source_perf.stop(meter->counters, &err), 0);
}

/* Slots of the series: cpu-clock, page-faults. */
static void check_growth(const struct tc_window *window, const struct tc_series *series)
{
    const struct tc_reading *begin = &window->begin.counters[series->first_slot];
    const struct tc_reading *end = &window->end.counters[series->first_slot];
    size_t last = series->rows - 1;
    for (size_t row = 1; row < series->rows; row++) {
        const uint64_t *before = &series->counts[2 * (row - 1)];
        const uint64_t *now = &series->counts[2 * row];
        uint64_t passed_ns = series->t_ns[row] - series->t_ns[row - 1];
        assert_true(series->t_ns[row] > series->t_ns[row - 1]);
        assert_true(now[0] > before[0] && now[1] >= before[1]);
        /* Two clocks, stopped at the same instant, or, by a read(), at nearly the same. */
        assert_in_range(now[0] - before[0] + SLACK_NS, passed_ns, passed_ns + 2 * SLACK_NS);
    }
    assert_int_equal(series->t_ns[last], window->end.t_ns - window->begin.t_ns);
    assert_int_equal(series->counts[2 * last], end[0].raw - begin[0].raw);
    assert_int_equal(series->counts[2 * last + 1], end[1].raw - begin[1].raw);
}

/* As many as there are periods, but for those in which the machine stood still. */
static void check_series(const struct tc_window *window, const struct tc_series *series)
{
    uint64_t periods = (window->end.t_ns - window->begin.t_ns) / window->rule.sample_ns;
    assert_in_range(series->rows, periods - 3, 2 * periods + 2);
    check_growth(window, series);
}

/* What a load would share. */
static struct tc_page page;

static int make_page(uint32_t connections)
{
    int fd = memfd_create("page", 0);
    assert_int_equal(tc_page_create(&page, fd, 1, connections, NULL), 0);
    return fd;
}

static void drop_page(int fd)
{
    tc_page_close(&page);
    assert_int_equal(close(fd), 0);
}

/* Twice, as an idle window and a window follow each other. With a load every sample has a wake-up,
 * at which a CPU whose ring is silent is read. */
static void the_kernel_samples_every_cpu(void **state)
{
    (void)state;
    struct tc_cpus cpus;
    const struct tc_window_rule rule = {
        .duration_ns = 1150 * MS, .max_ns = 5000 * MS, .sample_ns = 50 * MS};
    assert_int_equal(tc_cpus_online(&cpus, NULL), 0);
    cpus.count = 1;
    assert_int_equal(tc_placement_apply(&cpus, NULL, NULL), 0); /* here it will fault */
    assert_int_equal(tc_cpus_online(&cpus, NULL), 0);
    cpus.count = cpus.count < 2 ? cpus.count : 2;
    struct tc_meter meter =
        open_meter(&cpus, "cpu-clock,page-faults", rule.sample_ns, TC_SCOPE_CPU);
    if (meter.counters->slots[0].status != TC_STATUS_OK) {
        close_meter(&meter);
        SKIP("whole CPUs may not be counted by this user");
    }
    if (meter.counters->sampling != TC_SAMPLING_RING) {
        print_message("%s\n", meter.counters->sampling_reason);
        close_meter(&meter);
        SKIP("this kernel does not sample groups by a clock");
    }
    int fd = make_page(1);
    meter.page = &page;
    for (int round = 0; round < 2; round++) {
        struct tc_window window;
        run(&window, &meter, &rule, fault_pages, NULL);
        assert_int_equal(window.counts.count, cpus.count);
        assert_int_equal(window.counts.lost, 0);
        assert_int_equal(window.drained.lost, 0);
        assert_true(window.drained.silent < window.counts.series[0].rows * cpus.count);
        for (size_t i = 0; i < cpus.count; i++) {
            check_series(&window, &window.counts.series[i]);
        }
        /* The faults of earlier wake-ups are in the last sample before the end. */
        const struct tc_series *here = &window.counts.series[0];
        assert_true(here->counts[2 * (here->rows - 2) + 1] >= FAULTS);
        tc_window_close(&window);
    }
    drop_page(fd);
    close_meter(&meter);
}

static int count_wakeups(void *context, struct tc_error *err)
{
    (void)err;
    *(size_t *)context += 1;
    return 0;
}

/* Not even where the kernel takes no samples of a CPU that idles, and still up to the end's. */
static void without_a_load_nobody_wakes_up_for_samples(void **state)
{
    (void)state;
    struct tc_cpus cpus;
    struct tc_window window;
    size_t wakeups = 0;
    const struct tc_window_rule rule = {
        .duration_ns = 1500 * MS, .max_ns = 5000 * MS, .sample_ns = 50 * MS};
    assert_int_equal(tc_cpus_online(&cpus, NULL), 0);
    struct tc_meter meter =
        open_meter(&cpus, "cpu-clock,page-faults", rule.sample_ns, TC_SCOPE_CPU);
    if (meter.counters->sampling != TC_SAMPLING_RING) {
        print_message("%s\n", meter.counters->sampling_reason);
        close_meter(&meter);
        SKIP("this kernel does not sample groups by a clock, or not for this user");
    }
    run(&window, &meter, &rule, count_wakeups, &wakeups);
    assert_in_range(wakeups, 1, 3); /* a look after a second, the end */
    for (size_t i = 0; i < window.counts.count; i++) {
        const struct tc_series *series = &window.counts.series[i];
        assert_true(series->rows >= wakeups);
        check_growth(&window, series);
    }
    tc_window_close(&window);
    close_meter(&meter);
}

static void a_process_tree_is_read_at_each_wakeup(void **state)
{
    (void)state;
    const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    const struct tc_window_rule rule = {
        .duration_ns = 50 * MS, .max_ns = 5000 * MS, .sample_ns = 10 * MS};
    struct tc_meter meter = open_meter(&cpus, "page-faults:u", rule.sample_ns, TC_SCOPE_PROCESS);
    assert_int_equal(meter.counters->sampling, TC_SAMPLING_READ);
    assert_true(meter.counters->sampling_reason[0] != '\0');
    if (meter.counters->slots[0].status != TC_STATUS_OK) {
        close_meter(&meter);
        SKIP("page faults of this process may not be counted");
    }
    struct tc_window window;
    run(&window, &meter, &rule, fault_pages, NULL);
    const struct tc_series *series = &window.counts.series[0];
    assert_int_equal(series->rows, window.rows);
    /* Each wake-up faulted before its sample was taken. */
    for (size_t row = 0; row < series->rows; row++) {
        assert_int_equal(series->t_ns[row], window.t_ns[row]);
        assert_true(series->counts[row] >= FAULTS * (row + 1));
    }
    assert_int_equal(series->counts[series->rows - 1],
                     window.end.counters[0].raw - window.begin.counters[0].raw);
    tc_window_close(&window);
    close_meter(&meter);
}

/* Between two looks four transactions end, one of them by an error, and four begin. */
static int end_four(void *context, struct tc_error *err)
{
    (void)context;
    (void)err;
    tc_page_add(&page.threads[0], TC_COUNT_STARTED, 4);
    tc_page_add(&page.threads[0], TC_COUNT_COMPLETED, 3);
    tc_page_add(&page.threads[0], TC_COUNT_ERROR_RESET, 1);
    return 0;
}

static void a_window_lasts_for_what_is_under_way(void **state)
{
    (void)state;
    static const struct {
        uint64_t under_way;
        uint32_t connections;
        uint64_t counted;
    } cases[] = {{8, 64, 8}, {64, 64, 64}, {80, 64, 64}, {0, 64, 0}};
    const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    const struct tc_window_rule rule = {
        .duration_ns = 1, .completions = 5, .max_ns = 60000 * MS, .sample_ns = MS};
    struct tc_meter meter = open_meter(&cpus, "page-faults:u", rule.sample_ns, TC_SCOPE_PROCESS);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tc_window window;
        int fd = make_page(cases[i].connections);
        tc_page_add(&page.threads[0], TC_COUNT_STARTED, cases[i].under_way);
        meter.page = &page;
        run(&window, &meter, &rule, end_four, NULL);
        uint64_t completed =
            window.end.counts[TC_COUNT_COMPLETED] - window.begin.counts[TC_COUNT_COMPLETED];
        assert_int_equal(window.under_way, cases[i].counted);
        assert_int_equal(tc_window_completions(&window), 5 * cases[i].counted);
        /* The first look that saw enough ended it. */
        assert_in_range(completed, 5 * cases[i].counted, 5 * cases[i].counted + 3);
        tc_window_close(&window);
        drop_page(fd);
    }
    close_meter(&meter);
}

/* Every seventh look a transaction ends. context: looks since. */
static int end_every_seventh(void *context, struct tc_error *err)
{
    int *since = context;
    (void)err;
    *since = (*since + 1) % 7;
    tc_page_add(&page.threads[0], TC_COUNT_COMPLETED, *since == 0);
    return 0;
}

static void an_aligned_window_begins_and_ends_at_completions(void **state)
{
    (void)state;
    const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    const struct tc_window_rule rule = {
        .duration_ns = 20 * MS, .max_ns = 60000 * MS, .sample_ns = MS, .align_ns = 60000 * MS};
    struct tc_meter meter = open_meter(&cpus, "page-faults:u", rule.sample_ns, TC_SCOPE_PROCESS);
    struct tc_window window;
    int since = 0;
    int fd = make_page(1);
    meter.page = &page;
    run(&window, &meter, &rule, end_every_seventh, &since);
    assert_int_equal(window.begin.counts[TC_COUNT_COMPLETED], 1);
    assert_int_equal(since, 0);
    assert_true(window.end.counts[TC_COUNT_COMPLETED] > 1);
    tc_window_close(&window);
    drop_page(fd);
    close_meter(&meter);
}

static void an_aligned_window_does_not_wait_for_ever(void **state)
{
    (void)state;
    const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    const struct tc_window_rule rule = {
        .duration_ns = 5 * MS, .max_ns = 60000 * MS, .sample_ns = MS, .align_ns = 10 * MS};
    struct tc_meter meter = open_meter(&cpus, "page-faults:u", rule.sample_ns, TC_SCOPE_PROCESS);
    struct tc_window window;
    int fd = make_page(1);
    meter.page = &page;
    run(&window, &meter, &rule, fault_pages, NULL);
    assert_int_equal(window.end.counts[TC_COUNT_COMPLETED], 0);
    tc_window_close(&window);
    drop_page(fd);
    close_meter(&meter);
}

/* 10 periods in which a CPU left 7 rows, its end's among them. */
static void missing_samples_are_counted(void **state)
{
    (void)state;
    struct tc_series series = {.rows = 7};
    struct tc_window window = {.rule = {.sample_ns = 100 * MS},
                               .begin = {.t_ns = 5},
                               .end = {.t_ns = 5 + 1001 * MS},
                               .counts = {.series = &series, .count = 1}};
    assert_int_equal(tc_window_missing(&window), 3);
    series.rows = 11;
    assert_int_equal(tc_window_missing(&window), 0);
}

static void samples_beyond_the_room_are_lost_not_written(void **state)
{
    (void)state;
    struct tc_slot slots[2] = {{.cpu = 3}, {.cpu = 4}};
    const struct tc_counters counters = {.slots = slots, .slots_count = 2};
    const struct tc_reading begin[2] = {{.raw = 100}, {.raw = 200}};
    const struct tc_reading now[2] = {{.raw = 107}, {.raw = 209}};
    struct tc_samples samples;
    assert_int_equal(tc_samples_open(&samples, &counters, 2, NULL), 0);
    assert_int_equal(samples.count, 2);
    tc_samples_add(&samples, 1, 11, begin, now);
    tc_samples_add_all(&samples, 12, begin, now);
    tc_samples_add_all(&samples, 13, begin, now);
    assert_int_equal(samples.series[0].rows, 2);
    assert_int_equal(samples.series[1].rows, 2);
    assert_int_equal(samples.lost, 1);
    assert_int_equal(samples.series[0].t_ns[0], 12);
    assert_int_equal(samples.series[0].counts[1], 7);
    assert_int_equal(samples.series[1].t_ns[0], 11);
    assert_int_equal(samples.series[1].counts[0], 9);
    tc_samples_close(&samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_samples_every_cpu),
        cmocka_unit_test(without_a_load_nobody_wakes_up_for_samples),
        cmocka_unit_test(a_process_tree_is_read_at_each_wakeup),
        cmocka_unit_test(a_window_lasts_for_what_is_under_way),
        cmocka_unit_test(an_aligned_window_begins_and_ends_at_completions),
        cmocka_unit_test(an_aligned_window_does_not_wait_for_ever),
        cmocka_unit_test(missing_samples_are_counted),
        cmocka_unit_test(samples_beyond_the_room_are_lost_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
