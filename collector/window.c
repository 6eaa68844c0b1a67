#include "collector/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collector/idle.h"
#include "collector/source_proc.h"

#define NS_PER_S UINT64_C(1000000000)
/* How often a window looks whether it is to end, and empties the rings, where nothing else wakes
 * it up. */
#define LOOK_NS NS_PER_S
/* How often it is looked for a completion at which a window may begin or end: 500 us are 0.5 % of
 * a transaction of 100 ms. */
#define POLL_NS 500000

uint64_t tc_window_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static bool open_snapshot(struct tc_snapshot *snapshot, const struct tc_meter *meter,
                          size_t latency_len)
{
    snapshot->counters = calloc(meter->counters->slots_count, sizeof(*snapshot->counters));
    snapshot->system = calloc(meter->system->slots_count, sizeof(*snapshot->system));
    bool whole = snapshot->counters != NULL && snapshot->system != NULL;
    if (whole && meter->memory != NULL) {
        snapshot->memory = calloc(meter->memory->slots_count, sizeof(*snapshot->memory));
        whole = snapshot->memory != NULL;
    }
    for (int i = 0; whole && latency_len > 0 && i < TC_LATENCY_KINDS; i++) {
        snapshot->latency[i] = calloc(latency_len, sizeof(int64_t));
        whole = snapshot->latency[i] != NULL;
    }
    return whole;
}

static void close_snapshot(struct tc_snapshot *snapshot)
{
    free(snapshot->counters);
    free(snapshot->system);
    free(snapshot->memory);
    for (int i = 0; i < TC_LATENCY_KINDS; i++) {
        free(snapshot->latency[i]);
    }
}

/* Whether something changes between the ends that nobody but this process can sample. */
static bool samples_at_wakeups(const struct tc_meter *meter)
{
    return meter->page != NULL || meter->counters->sampling == TC_SAMPLING_READ;
}

int tc_window_open(struct tc_window *window, const struct tc_meter *meter,
                   const struct tc_window_rule *rule, struct tc_error *err)
{
    *window = (struct tc_window){
        .rule = *rule, .cpus = meter->cpus, .rows_max = rule->max_ns / rule->sample_ns + 2};
    window->latency_len = meter->page == NULL ? 0 : meter->page->header->hist_counts_len;
    window->t_ns = calloc(window->rows_max, sizeof(uint64_t));
    window->transactions = calloc(window->rows_max, sizeof(uint64_t));
    window->idle_ns = calloc(window->rows_max, window->cpus * sizeof(uint64_t));
    window->scratch_counters =
        calloc(meter->counters->slots_count, sizeof(*window->scratch_counters));
    window->scratch_system = calloc(meter->system->slots_count, sizeof(*window->scratch_system));
    bool whole = open_snapshot(&window->begin, meter, window->latency_len) &&
                 open_snapshot(&window->end, meter, window->latency_len) && window->t_ns != NULL &&
                 window->transactions != NULL && window->idle_ns != NULL &&
                 window->scratch_counters != NULL && window->scratch_system != NULL;
    /* The kernel's samples go on while the last wake-up is late. */
    size_t late = LOOK_NS / rule->sample_ns + 2;
    return whole ? tc_samples_open(&window->counts, meter->counters, window->rows_max + late, err)
                 : tc_error_set(err, ENOMEM, "out of memory for a window of %zu samples",
                                window->rows_max);
}

void tc_window_close(struct tc_window *window)
{
    close_snapshot(&window->begin);
    close_snapshot(&window->end);
    free(window->t_ns);
    free(window->transactions);
    free(window->idle_ns);
    tc_samples_close(&window->counts);
    free(window->scratch_counters);
    free(window->scratch_system);
    *window = (struct tc_window){0};
}

/* The same order at both ends, what changes fastest first. */
static int take_snapshot(struct tc_snapshot *snapshot, const struct tc_meter *meter,
                         struct tc_error *err)
{
    snapshot->t_ns = tc_window_now_ns();
    int rc = meter->counters->source->read(meter->counters, TC_DEPTH_END, snapshot->counters, err);
    if (rc != 0) {
        return rc;
    }
    snapshot->counted_ns = tc_window_now_ns();
    if (meter->page != NULL) {
        tc_page_sum(meter->page, snapshot->counts);
    }
    if (meter->memory != NULL) {
        rc = meter->memory->source->read(meter->memory, TC_DEPTH_END, snapshot->memory, err);
    }
    if (rc == 0) {
        rc = meter->system->source->read(meter->system, TC_DEPTH_END, snapshot->system, err);
    }
    for (int i = 0; rc == 0 && meter->page != NULL && i < TC_LATENCY_KINDS; i++) {
        tc_page_sum_histogram(meter->page, (enum tc_latency)i, snapshot->latency[i]);
    }
    return rc;
}

static uint64_t under_way(const uint64_t counts[TC_COUNT_KINDS])
{
    uint64_t over = counts[TC_COUNT_COMPLETED];
    for (int i = TC_COUNT_ERROR_FIRST; i < TC_COUNT_KINDS; i++) {
        over += counts[i];
    }
    /* Read one after the other while the load counts on: an end may be seen without its start. */
    return counts[TC_COUNT_STARTED] > over ? counts[TC_COUNT_STARTED] - over : 0;
}

static void look_at_load(struct tc_window *window, const struct tc_meter *meter,
                         const uint64_t counts[TC_COUNT_KINDS])
{
    if (meter->page == NULL) {
        return;
    }
    uint64_t most = meter->page->header->connections;
    uint64_t now = under_way(counts);
    now = now < most ? now : most;
    window->under_way = now > window->under_way ? now : window->under_way;
}

uint64_t tc_window_completions(const struct tc_window *window)
{
    return window->rule.completions * window->under_way;
}

static void keep_row(struct tc_window *window, uint64_t t_ns, const uint64_t counts[TC_COUNT_KINDS],
                     const struct tc_reading *proc)
{
    size_t row = window->rows++;
    window->t_ns[row] = t_ns - window->begin.t_ns;
    window->transactions[row] =
        counts[TC_COUNT_COMPLETED] - window->begin.counts[TC_COUNT_COMPLETED];
    for (size_t i = 0; i < window->cpus; i++) {
        size_t slot = tc_proc_cpu_slot(i, TC_PROC_IDLE);
        window->idle_ns[row * window->cpus + i] = proc[slot].raw - window->begin.system[slot].raw;
    }
}

/* What the kernel sampled within the window: it began before and goes on after. */
static void keep_sample(void *context, const struct tc_sample *sample)
{
    struct tc_window *window = context;
    bool ended = window->end.t_ns != 0;
    if (sample->t_ns > window->begin.counted_ns && (!ended || sample->t_ns < window->end.t_ns)) {
        tc_samples_add(&window->counts, sample->first_slot, sample->t_ns - window->begin.t_ns,
                       window->begin.counters, sample->readings);
    }
}

/* since_ns: a CPU without a sample from then on is read. */
static int drain(struct tc_window *window, const struct tc_meter *meter, uint64_t since_ns,
                 struct tc_error *err)
{
    return meter->counters->sampling == TC_SAMPLING_RING
               ? meter->counters->source->drain(meter->counters, since_ns, keep_sample, window,
                                                &window->drained, err)
               : 0;
}

static int take_sample(struct tc_window *window, const struct tc_meter *meter, uint64_t now_ns,
                       const uint64_t counts[TC_COUNT_KINDS], struct tc_error *err)
{
    int rc = drain(window, meter, now_ns - window->rule.sample_ns, err);
    if (rc != 0 || !samples_at_wakeups(meter)) {
        return rc;
    }
    if (meter->counters->sampling == TC_SAMPLING_READ) {
        rc = meter->counters->source->read(meter->counters, TC_DEPTH_SAMPLE,
                                           window->scratch_counters, err);
        if (rc != 0) {
            return rc;
        }
        tc_samples_add_all(&window->counts, now_ns - window->begin.t_ns, window->begin.counters,
                           window->scratch_counters);
    }
    rc = meter->system->source->read(meter->system, TC_DEPTH_SAMPLE, window->scratch_system, err);
    if (rc == 0) {
        keep_row(window, now_ns, counts, window->scratch_system);
    }
    return rc;
}

/* Sleeps to the next multiple of the period since begin, or to the shortest window's end. Without a
 * load nobody is woken up for a sample, not even where the kernel takes none of an idle CPU: the
 * wake-ups would be counted among what the machine does when nothing is asked of it. */
static void sleep_on(const struct tc_window *window, const struct tc_meter *meter)
{
    uint64_t passed_ns = tc_window_now_ns() - window->begin.t_ns;
    uint64_t period_ns = samples_at_wakeups(meter) ? window->rule.sample_ns : LOOK_NS;
    uint64_t next_ns = (passed_ns / period_ns + 1) * period_ns;
    if (passed_ns < window->rule.duration_ns && next_ns > window->rule.duration_ns) {
        next_ns = window->rule.duration_ns;
    }
    next_ns += window->begin.t_ns;
    const struct timespec at = {.tv_sec = (time_t)(next_ns / NS_PER_S),
                                .tv_nsec = (long)(next_ns % NS_PER_S)};
    /* A signal ends the sleep early; watch looks why. */
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static bool is_over(const struct tc_window *window, uint64_t now_ns,
                    const uint64_t counts[TC_COUNT_KINDS])
{
    uint64_t elapsed_ns = now_ns - window->begin.t_ns;
    uint64_t completed = counts[TC_COUNT_COMPLETED] - window->begin.counts[TC_COUNT_COMPLETED];
    bool enough =
        elapsed_ns >= window->rule.duration_ns && completed >= tc_window_completions(window);
    return enough || elapsed_ns >= window->rule.max_ns || window->rows + 1 == window->rows_max;
}

/* Waits for the next completion, so that an end of the window does not cut the transactions under
 * way at any place: where they are few and long their parts are much of a count. Watched like a
 * sample. */
static int await_completion(const struct tc_window *window, const struct tc_meter *meter,
                            tc_window_watch watch, void *context, struct tc_error *err)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};
    uint64_t limit_ns = tc_window_now_ns() + window->rule.align_ns;
    uint64_t before = 0;
    int rc = 0;
    for (bool first = true; rc == 0 && tc_window_now_ns() < limit_ns; first = false) {
        uint64_t counts[TC_COUNT_KINDS] = {0};
        tc_page_sum(meter->page, counts);
        if (!first && counts[TC_COUNT_COMPLETED] != before) {
            break;
        }
        before = counts[TC_COUNT_COMPLETED];
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        rc = watch(context, err);
    }
    return rc;
}

static int finish(struct tc_window *window, const struct tc_meter *meter, struct tc_error *err)
{
    int rc = take_snapshot(&window->end, meter, err);
    if (rc == 0) {
        rc = drain(window, meter, 0, err);
    }
    if (rc == 0) {
        keep_row(window, window->end.t_ns, window->end.counts, window->end.system);
        tc_samples_add_all(&window->counts, window->end.t_ns - window->begin.t_ns,
                           window->begin.counters, window->end.counters);
    }
    return rc;
}

int tc_window_run(struct tc_window *window, const struct tc_meter *meter, tc_window_watch watch,
                  void *context, struct tc_error *err)
{
    bool aligned = window->rule.align_ns > 0 && meter->page != NULL;
    int rc = aligned ? await_completion(window, meter, watch, context, err) : 0;
    (void)clock_gettime(CLOCK_REALTIME, &window->start_utc);
    if (rc == 0) {
        rc = take_snapshot(&window->begin, meter, err);
    }
    look_at_load(window, meter, window->begin.counts);
    while (rc == 0) {
        uint64_t counts[TC_COUNT_KINDS] = {0};
        sleep_on(window, meter);
        if ((rc = watch(context, err)) != 0) {
            break;
        }
        uint64_t now_ns = tc_window_now_ns();
        if (meter->page != NULL) {
            tc_page_sum(meter->page, counts);
        }
        look_at_load(window, meter, counts);
        if (is_over(window, now_ns, counts)) {
            rc = aligned ? await_completion(window, meter, watch, context, err) : 0;
            return rc == 0 ? finish(window, meter, err) : rc;
        }
        rc = take_sample(window, meter, now_ns, counts, err);
    }
    return rc;
}

uint64_t tc_window_missing(const struct tc_window *window)
{
    uint64_t expected = (window->end.t_ns - window->begin.t_ns) / window->rule.sample_ns;
    uint64_t missing = 0;
    for (size_t i = 0; i < window->counts.count; i++) {
        /* The last row is the end's own; the one that was due then may come after it. */
        uint64_t kept = window->counts.series[i].rows;
        uint64_t of_one = kept < expected ? expected - kept : 0;
        missing = of_one > missing ? of_one : missing;
    }
    return missing;
}

static uint64_t proc_delta(const struct tc_window *window, size_t slot)
{
    return window->end.system[slot].raw - window->begin.system[slot].raw;
}

uint64_t tc_window_idle_resolution_ns(const struct tc_meter *meter, size_t i)
{
    bool fine = meter->system->slots[tc_proc_cpu_slot(i, TC_PROC_IDLE_FINE)].status == TC_STATUS_OK;
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
