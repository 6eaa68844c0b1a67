/* A loop whose instructions are known, counted through each source by process and by CPU: within
 * 1 %. On machines without a PMU these skip; the guest with the emulated one runs them. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collector/known_loop.h"
#include "collector/source.h"
#include "collector/tests/check.h"

#define ITERATIONS   UINT64_C(10000000)
#define INSTRUCTIONS (2 * ITERATIONS)
#define ROUNDS       5 /* whoever else runs on the CPU is counted, too: the least counts */
#define EVENTS       2
#define SAMPLE_NS    UINT64_C(5000000)

static const struct tc_cpus one_cpu = {.count = 1, .ids = {0}};

/* The set, or NULL where one of its events cannot be counted. */
static struct tc_counters *open_set(const struct tc_source *source, enum tc_scope scope, pid_t pid,
                                    const char *set, uint64_t sample_ns)
{
    static struct tc_event events[TC_EVENTS_MAX];
    struct tc_source_request request = {
        .cpus = &one_cpu, .events = events, .scope = scope, .pid = pid, .sample_ns = sample_ns};
    struct tc_counters *counters;
    struct tc_error err = {""};
    assert_int_equal(tc_events_parse(set, events, &request.events_count, &err), 0);
    if (source->open(&counters, &request, &err) != 0) {
        fail_msg("%s", err.message);
    }
    for (size_t i = 0; i < counters->slots_count; i++) {
        if (counters->slots[i].status != TC_STATUS_OK) {
            print_message("%s\n", counters->slots[i].reason);
            source->close(counters);
            return NULL;
        }
    }
    assert_int_equal(counters->slots_count, EVENTS);
    return counters;
}

static void count_loop(struct tc_counters *counters, struct tc_reading counted[EVENTS])
{
    struct tc_reading before[EVENTS];
    const struct tc_source *source = counters->source;
    assert_int_equal(source->start(counters, NULL), 0);
    assert_int_equal(source->read(counters, TC_DEPTH_END, before, NULL), 0);
    tc_known_loop(ITERATIONS);
    assert_int_equal(source->read(counters, TC_DEPTH_END, counted, NULL), 0);
    assert_int_equal(source->stop(counters, NULL), 0);
    for (size_t i = 0; i < EVENTS; i++) {
        counted[i].raw -= before[i].raw;
        counted[i].enabled_ns -= before[i].enabled_ns;
        counted[i].running_ns -= before[i].running_ns;
    }
}

/* set: instructions first, then cycles, in user mode. */
static void check_loop(const struct tc_source *source, enum tc_scope scope, const char *set)
{
    assert_int_equal(tc_placement_apply(&one_cpu, NULL, NULL), 0);
    struct tc_counters *counters = open_set(source, scope, 0, set, 0);
    uint64_t least = UINT64_MAX;
    if (counters == NULL) {
        skip();
        return;
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct tc_reading counted[EVENTS];
        count_loop(counters, counted);
        assert_int_equal(counted[0].running_ns, counted[0].enabled_ns);
        assert_true(counted[0].raw >= INSTRUCTIONS);
        assert_true(counted[1].raw > 0);
        least = counted[0].raw < least ? counted[0].raw : least;
    }
    print_message("%s, %s: %lu of %lu instructions\n", source->name, tc_scope_name(scope),
                  (unsigned long)least, (unsigned long)INSTRUCTIONS);
    assert_true(least - INSTRUCTIONS <= INSTRUCTIONS / 100);
    source->close(counters);
}

static void perf_counts_a_process(void **state)
{
    (void)state;
    check_loop(&tc_source_perf, TC_SCOPE_PROCESS, "instructions:u,cycles:u");
}

static void perf_counts_a_cpu(void **state)
{
    (void)state;
    check_loop(&tc_source_perf, TC_SCOPE_CPU, "instructions:u,cycles:u");
}

static void papi_counts_a_process(void **state)
{
    (void)state;
    check_loop(&tc_source_papi, TC_SCOPE_PROCESS, "PAPI_TOT_INS:u,PAPI_TOT_CYC:u");
}

static void papi_counts_a_cpu(void **state)
{
    (void)state;
    check_loop(&tc_source_papi, TC_SCOPE_CPU, "PAPI_TOT_INS:u,PAPI_TOT_CYC:u");
}

/* Ends with a process of its own that has counted the loop, as soon as bytes come: one to start it,
 * one for the loop. */
static void be_counted(int commands)
{
    char byte;
    pid_t worker = read(commands, &byte, 1) == 1 ? fork() : -1;
    if (worker == 0) {
        bool told = read(commands, &byte, 1) == 1;
        tc_known_loop(told ? ITERATIONS : 0);
        _exit(told ? 0 : 1);
    }
    int status = 1;
    _exit(worker < 0 || waitpid(worker, &status, 0) < 0 || status != 0);
}

/* As a server's worker is counted: started when the counters are attached to the server, before
 * they count. */
static void check_worker(const struct tc_source *source, const char *set)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    struct tc_reading counted[EVENTS];
    int commands[2];
    int status;
    assert_int_equal(pipe(commands), 0);
    pid_t server = fork();
    if (server == 0) {
        (void)close(commands[1]);
        be_counted(commands[0]);
    }
    (void)close(commands[0]);
    struct tc_counters *counters = open_set(source, TC_SCOPE_PROCESS, server, set, 0);
    if (counters != NULL) {
        assert_int_equal(write(commands[1], "", 1), 1);
        (void)nanosleep(&pause, NULL);
        assert_int_equal(source->start(counters, NULL), 0);
        assert_int_equal(write(commands[1], "", 1), 1);
    }
    (void)close(commands[1]);
    assert_int_equal(waitpid(server, &status, 0), server);
    if (counters == NULL) {
        skip();
        return;
    }
    assert_int_equal(status, 0);
    assert_int_equal(source->read(counters, TC_DEPTH_END, counted, NULL), 0);
    print_message("%s, worker: %lu of %lu instructions\n", source->name,
                  (unsigned long)counted[0].raw, (unsigned long)INSTRUCTIONS);
    assert_in_range(counted[0].raw, INSTRUCTIONS, INSTRUCTIONS + INSTRUCTIONS / 100);
    source->close(counters);
}

static void perf_counts_a_worker(void **state)
{
    (void)state;
    check_worker(&tc_source_perf, "instructions:u,cycles:u");
}

static void papi_counts_a_worker(void **state)
{
    (void)state;
    check_worker(&tc_source_papi, "PAPI_TOT_INS:u,PAPI_TOT_CYC:u");
}

/* The kernel's part is refused to an ordinary user where kernel.perf_event_paranoid is 2. */
static void check_beside(const struct tc_source *source, const char *set)
{
    static struct tc_event events[TC_EVENTS_MAX];
    struct tc_source_request request = {
        .cpus = &one_cpu, .events = events, .scope = TC_SCOPE_PROCESS};
    struct tc_counters *counters;
    struct tc_reading counted[EVENTS];
    assert_int_equal(tc_events_parse(set, events, &request.events_count, NULL), 0);
    assert_int_equal(source->open(&counters, &request, NULL), 0);
    bool user = counters->slots[0].status == TC_STATUS_OK;
    enum tc_status kernel = counters->slots[1].status;
    if (!user || kernel == TC_STATUS_OK) {
        print_message("%s\n", user ? "this user may count the kernel" : counters->slots[0].reason);
        source->close(counters);
        skip();
        return;
    }
    count_loop(counters, counted);
    assert_int_equal(kernel, TC_STATUS_NOT_PERMITTED);
    assert_non_null(strstr(counters->slots[1].reason, "perf_event_paranoid"));
    assert_in_range(counted[0].raw, INSTRUCTIONS, INSTRUCTIONS + INSTRUCTIONS / 100);
    source->close(counters);
}

static void perf_counts_beside_what_it_may_not(void **state)
{
    (void)state;
    check_beside(&tc_source_perf, "instructions:u,instructions:k");
}

static void papi_counts_beside_what_it_may_not(void **state)
{
    (void)state;
    check_beside(&tc_source_papi, "PAPI_TOT_INS:u,PAPI_TOT_INS:k");
}

struct taken {
    size_t count;
    struct tc_reading last;
    uint64_t t_ns;
};

static void take(void *context, const struct tc_sample *sample)
{
    struct taken *taken = context;
    const struct tc_reading *now = &sample->readings[sample->first_slot];
    assert_true(sample->t_ns > taken->t_ns);
    assert_true(now->raw >= taken->last.raw);
    *taken = (struct taken){taken->count + 1, *now, sample->t_ns};
}

/* The kernel's samples of counters of the PMU, led by a clock. */
static void perf_samples_a_cpu(void **state)
{
    (void)state;
    assert_int_equal(tc_placement_apply(&one_cpu, NULL, NULL), 0);
    struct tc_counters *counters =
        open_set(&tc_source_perf, TC_SCOPE_CPU, 0, "instructions:u,cycles:u", SAMPLE_NS);
    struct tc_reading counted[EVENTS];
    struct tc_drained drained = {0};
    struct taken taken = {0};
    if (counters == NULL) {
        skip();
        return;
    }
    assert_int_equal(counters->sampling, TC_SAMPLING_RING);
    assert_int_equal(tc_source_perf.start(counters, NULL), 0);
    tc_known_loop(ITERATIONS);
    assert_int_equal(tc_source_perf.read(counters, TC_DEPTH_END, counted, NULL), 0);
    assert_int_equal(tc_source_perf.drain(counters, 0, take, &taken, &drained, NULL), 0);
    assert_int_equal(tc_source_perf.stop(counters, NULL), 0);
    assert_int_equal(drained.lost, 0);
    assert_true(taken.count >= 2);
    assert_true(taken.last.raw > 0);
    assert_true(taken.last.raw <= counted[0].raw);
    /* What the last sample lacks was counted after it. */
    uint64_t missing_ns = counted[0].enabled_ns - taken.last.enabled_ns;
    assert_true(missing_ns <= 2 * SAMPLE_NS);
    tc_source_perf.close(counters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perf_counts_beside_what_it_may_not),
        cmocka_unit_test(papi_counts_beside_what_it_may_not),
        cmocka_unit_test(perf_counts_a_process),
        cmocka_unit_test(perf_counts_a_worker),
        cmocka_unit_test(perf_counts_a_cpu),
        cmocka_unit_test(perf_samples_a_cpu),
        cmocka_unit_test(papi_counts_a_process),
        cmocka_unit_test(papi_counts_a_worker),
        cmocka_unit_test(papi_counts_a_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
