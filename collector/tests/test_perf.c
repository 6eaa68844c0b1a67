#include "collector/source_perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "collector/tests/check.h"

static void every_errno_names_its_remedy(void **state)
{
    (void)state;
    const struct tc_event event = {.name = "cycles", .mode = TC_MODE_KERNEL};
    static const struct {
        int code;
        enum tc_scope scope;
        enum tc_status status;
        const char *remedy;
    } cases[] = {
        {EACCES, TC_SCOPE_CPU, TC_STATUS_NOT_PERMITTED, "sysctl kernel.perf_event_paranoid=0"},
        {EPERM, TC_SCOPE_CPU, TC_STATUS_NOT_PERMITTED, "CAP_PERFMON"},
        {EACCES, TC_SCOPE_PROCESS, TC_STATUS_NOT_PERMITTED, "paranoid=1"},
        {ENOENT, TC_SCOPE_CPU, TC_STATUS_UNSUPPORTED, "passed through"},
        {EOPNOTSUPP, TC_SCOPE_CPU, TC_STATUS_UNSUPPORTED, "another mode"},
        {EINVAL, TC_SCOPE_CPU, TC_STATUS_UNSUPPORTED, "fewer events"},
        {ENODEV, TC_SCOPE_CPU, TC_STATUS_UNSUPPORTED, "offline"},
        {ENOSYS, TC_SCOPE_CPU, TC_STATUS_UNSUPPORTED, "sandbox"},
        {EBUSY, TC_SCOPE_CPU, TC_STATUS_FAILED, "another program"},
        {EMFILE, TC_SCOPE_CPU, TC_STATUS_FAILED, "ulimit -n"},
        {EIO, TC_SCOPE_CPU, TC_STATUS_FAILED, "Input/output error"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char reason[TC_REASON_MAX];
        assert_int_equal(
            tc_perf_explain(cases[i].code, &event, cases[i].scope, reason, sizeof(reason)),
            cases[i].status);
        assert_non_null(strstr(reason, cases[i].remedy));
    }
}

static struct tc_event encoded(const char *name, enum tc_mode mode)
{
    struct tc_event event = {.mode = mode};
    struct tc_error err = {""};
    (void)snprintf(event.name, sizeof(event.name), "%s", name);
    if (tc_event_encode(&event, &err) != 0) {
        fail_msg("%s", err.message);
    }
    return event;
}

static void encodes_what_the_kernel_counts(void **state)
{
    (void)state;
    struct tc_event event = encoded("page-faults", TC_MODE_USER);
    assert_int_equal(event.attr.type, PERF_TYPE_SOFTWARE);
    assert_int_equal(event.attr.config, PERF_COUNT_SW_PAGE_FAULTS);
    assert_int_equal(event.attr.exclude_user, 0);
    assert_int_equal(event.attr.exclude_kernel, 1);
    assert_false(event.hardware);
    event = encoded("context-switches", TC_MODE_BOTH);
    assert_int_equal(event.attr.config, PERF_COUNT_SW_CONTEXT_SWITCHES);
    assert_int_equal(event.attr.exclude_user, 0);
    assert_int_equal(event.attr.exclude_kernel, 0);
    event = encoded("perf::instructions", TC_MODE_KERNEL);
    assert_int_equal(event.attr.type, PERF_TYPE_HARDWARE);
    assert_int_equal(event.attr.config, PERF_COUNT_HW_INSTRUCTIONS);
    assert_int_equal(event.attr.exclude_user, 1);
    assert_int_equal(event.attr.exclude_kernel, 0);
    assert_true(event.hardware);
}

static void refuses_what_would_read_zero(void **state)
{
    (void)state;
    struct tc_event event = {.name = "context-switches", .mode = TC_MODE_USER};
    struct tc_error err;
    assert_int_equal(tc_event_encode(&event, &err), -EINVAL);
    assert_non_null(strstr(err.message, "would read 0"));
    event = (struct tc_event){.name = "no-such-event", .mode = TC_MODE_BOTH};
    assert_int_equal(tc_event_encode(&event, &err), -ENOENT);
    assert_non_null(strstr(err.message, "no-such-event"));
}

/* Counts of this process; NULL where this user may not count it. */
static struct tc_counters *open_on_self(const char *set)
{
    static struct tc_event events[TC_EVENTS_MAX];
    static const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    struct tc_source_request request = {
        .cpus = &cpus, .events = events, .scope = TC_SCOPE_PROCESS, .pid = 0};
    struct tc_counters *counters;
    struct tc_error err = {""};
    assert_int_equal(tc_events_parse(set, events, &request.events_count, &err), 0);
    assert_int_equal(tc_source_perf.open(&counters, &request, &err), 0);
    for (size_t i = 0; i < counters->slots_count; i++) {
        if (counters->slots[i].status != TC_STATUS_OK) {
            print_message("%s\n", counters->slots[i].reason);
            tc_source_perf.close(counters);
            return NULL;
        }
    }
    return counters;
}

static volatile char *map(size_t pages)
{
    size_t length = pages * (size_t)sysconf(_SC_PAGESIZE);
    void *area = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(area, MAP_FAILED);
    assert_int_equal(madvise(area, length, MADV_NOHUGEPAGE), 0);
    return area;
}

static void unmap(volatile char *area, size_t pages)
{
    assert_int_equal(munmap((void *)area, pages * (size_t)sysconf(_SC_PAGESIZE)), 0);
}

/* A fault per page, and none in a sanitizer's shadow of them. */
__attribute__((no_sanitize("address", "thread"))) static void fault_in(volatile char *area,
                                                                       size_t pages)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < pages; i++) {
        area[i * size] = 1;
    }
}

static void counts_page_faults(void **state)
{
    (void)state;
    struct tc_counters *counters = open_on_self("page-faults:u");
    if (counters == NULL) {
        SKIP("page faults of this process may not be counted");
    }
    struct tc_reading before;
    struct tc_reading after;
    volatile char *area = map(1003);
    assert_int_equal(tc_source_perf.start(counters, NULL), 0);
    /* Whatever the code itself faults in it has by then. */
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, &after, NULL), 0);
    fault_in(area, 3);
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, &before, NULL), 0);
    fault_in(area + (size_t)3 * (size_t)sysconf(_SC_PAGESIZE), 1000);
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, &after, NULL), 0);
    /* Pages of the code between the two readings may come in too, as under a sanitizer. */
    assert_in_range(after.raw - before.raw, 1000, 1004);
    assert_true(after.enabled_ns > before.enabled_ns);
    assert_int_equal(after.enabled_ns - before.enabled_ns, after.running_ns - before.running_ns);
    unmap(area, 1003);
    assert_int_equal(tc_source_perf.stop(counters, NULL), 0);
    tc_source_perf.close(counters);
}

static void counts_context_switches_as_the_kernel_does(void **state)
{
    (void)state;
    struct tc_counters *counters = open_on_self("context-switches");
    if (counters == NULL) {
        SKIP("context switches of this process may not be counted");
    }
    const struct timespec nap = {.tv_nsec = 100000};
    struct rusage used[2];
    struct tc_reading before;
    struct tc_reading after;
    assert_int_equal(tc_source_perf.start(counters, NULL), 0);
    (void)getrusage(RUSAGE_SELF, &used[0]);
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, &before, NULL), 0);
    for (int i = 0; i < 50; i++) {
        (void)nanosleep(&nap, NULL);
    }
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, &after, NULL), 0);
    (void)getrusage(RUSAGE_SELF, &used[1]);
    long switches = used[1].ru_nvcsw - used[0].ru_nvcsw + used[1].ru_nivcsw - used[0].ru_nivcsw;
    /* A nap that is over before the CPU is given up is none. */
    assert_in_range(after.raw - before.raw, 40, switches);
    tc_source_perf.close(counters);
}

/* Stopped and started again, as between an idle window and a window, every member goes on. */
static void goes_on_after_a_stop(void **state)
{
    (void)state;
    static struct tc_event events[TC_EVENTS_MAX];
    static const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    struct tc_source_request request = {.cpus = &cpus, .events = events, .scope = TC_SCOPE_CPU};
    struct tc_counters *counters;
    struct tc_reading readings[2][3];
    assert_int_equal(tc_events_parse("cpu-clock,context-switches,page-faults", events,
                                     &request.events_count, NULL),
                     0);
    assert_int_equal(tc_source_perf.open(&counters, &request, NULL), 0);
    if (counters->slots[0].status != TC_STATUS_OK) {
        tc_source_perf.close(counters);
        SKIP("whole CPUs may not be counted by this user");
    }
    assert_int_equal(tc_placement_apply(&cpus, NULL, NULL), 0);
    for (int round = 0; round < 3; round++) {
        volatile char *area = map(100);
        assert_int_equal(tc_source_perf.start(counters, NULL), 0);
        assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, readings[0], NULL), 0);
        fault_in(area, 100);
        const struct timespec nap = {.tv_nsec = 1000000};
        (void)nanosleep(&nap, NULL);
        assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, readings[1], NULL), 0);
        assert_int_equal(tc_source_perf.stop(counters, NULL), 0);
        unmap(area, 100);
        assert_true(readings[1][0].raw > readings[0][0].raw);
        assert_true(readings[1][1].raw > readings[0][1].raw);
        assert_true(readings[1][2].raw >= readings[0][2].raw + 100);
    }
    tc_source_perf.close(counters);
}

static void says_why_an_event_is_not_counted(void **state)
{
    (void)state;
    static struct tc_event events[TC_EVENTS_MAX];
    static const struct tc_cpus cpus = {.count = 1, .ids = {0}};
    struct tc_source_request request = {.cpus = &cpus, .events = events, .scope = TC_SCOPE_CPU};
    struct tc_counters *counters;
    assert_int_equal(tc_events_parse("no-such-event:u", events, &request.events_count, NULL), 0);
    assert_int_equal(tc_source_perf.open(&counters, &request, NULL), 0);
    assert_int_equal(counters->slots[0].status, TC_STATUS_UNSUPPORTED);
    assert_non_null(strstr(counters->slots[0].reason, "no-such-event"));
    assert_int_equal(tc_source_perf.start(counters, NULL), 0);
    assert_int_equal(tc_source_perf.stop(counters, NULL), 0);
    tc_source_perf.close(counters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_errno_names_its_remedy),
        cmocka_unit_test(encodes_what_the_kernel_counts),
        cmocka_unit_test(refuses_what_would_read_zero),
        cmocka_unit_test(counts_page_faults),
        cmocka_unit_test(counts_context_switches_as_the_kernel_does),
        cmocka_unit_test(goes_on_after_a_stop),
        cmocka_unit_test(says_why_an_event_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
