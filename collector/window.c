#include "collector/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collector/idle.h"
#include "collector/source_proc.h"

#define NS_PER_S UINT64_C(1000000000)

uint64_t tc_window_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static bool open_snapshot(struct tc_snapshot *snapshot, const struct tc_meter *meter,
                          size_t latency_len)
{
    snapshot->perf = calloc(meter->perf->slots_count, sizeof(*snapshot->perf));
    snapshot->proc = calloc(meter->proc->slots_count, sizeof(*snapshot->proc));
    bool whole = snapshot->perf != NULL && snapshot->proc != NULL;
    for (int i = 0; whole && latency_len > 0 && i < TC_LATENCY_KINDS; i++) {
        snapshot->latency[i] = calloc(latency_len, sizeof(int64_t));
        whole = snapshot->latency[i] != NULL;
    }
    return whole;
}

static void close_snapshot(struct tc_snapshot *snapshot)
{
    free(snapshot->perf);
    free(snapshot->proc);
    for (int i = 0; i < TC_LATENCY_KINDS; i++) {
        free(snapshot->latency[i]);
    }
}

int tc_window_open(struct tc_window *window, const struct tc_meter *meter,
                   const struct tc_window_rule *rule, struct tc_error *err)
{
    *window = (struct tc_window){.rule = *rule,
                                 .cpus = meter->cpus,
                                 .slots = meter->perf->slots_count,
                                 .samples_max = rule->max_ns / rule->sample_ns + 2};
    window->latency_len = meter->page == NULL ? 0 : meter->page->header->hist_counts_len;
    window->t_ns = calloc(window->samples_max, sizeof(uint64_t));
    window->transactions = calloc(window->samples_max, sizeof(uint64_t));
    window->idle_ns = calloc(window->samples_max, window->cpus * sizeof(uint64_t));
    window->counts = calloc(window->samples_max, window->slots * sizeof(uint64_t));
    window->scratch_perf = calloc(window->slots, sizeof(*window->scratch_perf));
    window->scratch_proc = calloc(meter->proc->slots_count, sizeof(*window->scratch_proc));
    bool whole = open_snapshot(&window->begin, meter, window->latency_len) &&
                 open_snapshot(&window->end, meter, window->latency_len) && window->t_ns != NULL &&
                 window->transactions != NULL && window->idle_ns != NULL &&
                 window->counts != NULL && window->scratch_perf != NULL &&
                 window->scratch_proc != NULL;
    return whole ? 0
                 : tc_error_set(err, ENOMEM, "out of memory for a window of %zu samples",
                                window->samples_max);
}

void tc_window_close(struct tc_window *window)
{
    close_snapshot(&window->begin);
    close_snapshot(&window->end);
    free(window->t_ns);
    free(window->transactions);
    free(window->idle_ns);
    free(window->counts);
    free(window->scratch_perf);
    free(window->scratch_proc);
    *window = (struct tc_window){0};
}

/* The same order at both ends, what changes fastest first. */
static int take_snapshot(struct tc_snapshot *snapshot, const struct tc_meter *meter,
                         struct tc_error *err)
{
    snapshot->t_ns = tc_window_now_ns();
    int rc = meter->perf->source->read(meter->perf, TC_DEPTH_END, snapshot->perf, err);
    if (rc != 0) {
        return rc;
    }
    if (meter->page != NULL) {
        tc_page_sum(meter->page, snapshot->counts);
    }
    rc = meter->proc->source->read(meter->proc, TC_DEPTH_END, snapshot->proc, err);
    for (int i = 0; rc == 0 && meter->page != NULL && i < TC_LATENCY_KINDS; i++) {
        tc_page_sum_histogram(meter->page, (enum tc_latency)i, snapshot->latency[i]);
    }
    return rc;
}

static void keep_sample(struct tc_window *window, uint64_t t_ns, uint64_t completed,
                        const struct tc_reading *perf, const struct tc_reading *proc)
{
    size_t row = window->samples_count++;
    window->t_ns[row] = t_ns - window->begin.t_ns;
    window->transactions[row] = completed - window->begin.counts[TC_COUNT_COMPLETED];
    for (size_t i = 0; i < window->cpus; i++) {
        size_t slot = tc_proc_cpu_slot(i, TC_PROC_IDLE);
        window->idle_ns[row * window->cpus + i] = proc[slot].raw - window->begin.proc[slot].raw;
    }
    for (size_t i = 0; i < window->slots; i++) {
        window->counts[row * window->slots + i] = perf[i].raw - window->begin.perf[i].raw;
    }
}

static int take_sample(struct tc_window *window, const struct tc_meter *meter, uint64_t now_ns,
                       uint64_t completed, struct tc_error *err)
{
    int rc = meter->perf->source->read(meter->perf, TC_DEPTH_SAMPLE, window->scratch_perf, err);
    if (rc == 0) {
        rc = meter->proc->source->read(meter->proc, TC_DEPTH_SAMPLE, window->scratch_proc, err);
    }
    if (rc == 0) {
        keep_sample(window, now_ns, completed, window->scratch_perf, window->scratch_proc);
    }
    return rc;
}

static uint64_t completed_now(const struct tc_meter *meter)
{
    uint64_t sums[TC_COUNT_KINDS] = {0};
    if (meter->page != NULL) {
        tc_page_sum(meter->page, sums);
    }
    return sums[TC_COUNT_COMPLETED];
}

/* Sleeps to the next multiple of the sampling period since begin. */
static void wait_for_sample(const struct tc_window *window)
{
    uint64_t period_ns = window->rule.sample_ns;
    uint64_t passed = (tc_window_now_ns() - window->begin.t_ns) / period_ns;
    uint64_t next_ns = window->begin.t_ns + (passed + 1) * period_ns;
    const struct timespec at = {.tv_sec = (time_t)(next_ns / NS_PER_S),
                                .tv_nsec = (long)(next_ns % NS_PER_S)};
    /* A signal ends the sleep early; watch looks why. */
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int tc_window_run(struct tc_window *window, const struct tc_meter *meter, tc_window_watch watch,
                  void *context, struct tc_error *err)
{
    const struct tc_window_rule *rule = &window->rule;
    window->samples_count = 0;
    (void)clock_gettime(CLOCK_REALTIME, &window->start_utc);
    int rc = take_snapshot(&window->begin, meter, err);
    while (rc == 0) {
        wait_for_sample(window);
        if ((rc = watch(context, err)) != 0) {
            break;
        }
        uint64_t now_ns = tc_window_now_ns();
        uint64_t elapsed_ns = now_ns - window->begin.t_ns;
        uint64_t completed = completed_now(meter);
        bool enough = elapsed_ns >= rule->duration_ns &&
                      completed - window->begin.counts[TC_COUNT_COMPLETED] >= rule->completions;
        if (enough || elapsed_ns >= rule->max_ns ||
            window->samples_count + 1 == window->samples_max) {
            break;
        }
        rc = take_sample(window, meter, now_ns, completed, err);
    }
    if (rc != 0 || (rc = take_snapshot(&window->end, meter, err)) != 0) {
        return rc;
    }
    keep_sample(window, window->end.t_ns, window->end.counts[TC_COUNT_COMPLETED], window->end.perf,
                window->end.proc);
    return 0;
}

static uint64_t proc_delta(const struct tc_window *window, size_t slot)
{
    return window->end.proc[slot].raw - window->begin.proc[slot].raw;
}

uint64_t tc_window_idle_resolution_ns(const struct tc_meter *meter, size_t i)
{
    bool fine = meter->proc->slots[tc_proc_cpu_slot(i, TC_PROC_IDLE_FINE)].status == TC_STATUS_OK;
    return fine ? 1 : tc_proc_tick_ns();
}

uint64_t tc_window_idle_ns(const struct tc_window *window, const struct tc_meter *meter, size_t i)
{
    uint64_t elapsed_ns = window->end.t_ns - window->begin.t_ns;
    uint64_t ticked_ns = proc_delta(window, tc_proc_cpu_slot(i, TC_PROC_IDLE));
    uint64_t fine_ns = tc_window_idle_resolution_ns(meter, i) == 1
                           ? proc_delta(window, tc_proc_cpu_slot(i, TC_PROC_IDLE_FINE))
                           : ticked_ns;
    return tc_idle_combine(ticked_ns, fine_ns, tc_proc_tick_ns(), elapsed_ns);
}
