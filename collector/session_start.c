/* A session until the load is steady: passes, server, load, warm-up. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collector/session_state.h"
#include "collector/source_perf.h"
#include "collector/source_proc.h"

#define COARSE_WINDOW_NS   (5 * NS_PER_S) /* where idle time comes in ticks */
#define POLL_NS            UINT64_C(20000000)
#define HALF_NS            (NS_PER_S / 2) /* of the throughputs that warm-up compares */
#define STEADY             0.05
#define CONNECT_TIMEOUT_MS 200

static void pause_ns(uint64_t ns)
{
    const struct timespec pause = {.tv_sec = (time_t)(ns / NS_PER_S),
                                   .tv_nsec = (long)(ns % NS_PER_S)};
    (void)nanosleep(&pause, NULL); /* a signal ends it early; watch looks why */
}

/* Anchors in each mode; where there is no PMU they take no counter and so are not added. */
static void make_anchors(const struct tc_source *source, struct tc_event anchors[TC_MODE_BOTH + 1])
{
    for (int mode = TC_MODE_USER; mode <= TC_MODE_BOTH; mode++) {
        anchors[mode] = (struct tc_event){.mode = (enum tc_mode)mode};
        (void)snprintf(anchors[mode].name, sizeof(anchors[mode].name), "%s", source->anchor);
        if (source->encode(&anchors[mode], NULL) != 0) {
            anchors[mode].known = false;
        }
    }
}

static int split_into_passes(struct tc_session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    struct tc_event anchors[TC_MODE_BOTH + 1] = {0};
    int cpu = options->server_cpus.ids[0];
    make_anchors(session->counting, anchors);
    for (size_t i = 0; i < options->sets_count; i++) {
        int rc = tc_passes_split(options->sets[i], options->sets_counts[i], anchors,
                                 session->counting->fits, &cpu, session->passes,
                                 &session->passes_count, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int tc_session_make_passes(struct tc_session *session, struct tc_error *err)
{
    session->passes = calloc(TC_PASSES_MAX, sizeof(*session->passes));
    session->idle = calloc(TC_PASSES_MAX, sizeof(*session->idle));
    if (session->passes == NULL || session->idle == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for passes");
    }
    /* A simulated machine counts all that it can in one. */
    session->passes_count = session->counting == &tc_source_softpmu ? 1 : 0;
    return session->passes_count > 0 ? 0 : split_into_passes(session, err);
}

int tc_session_open_counters(struct tc_session *session, pid_t command, pid_t keeper,
                             struct tc_error *err)
{
    const char *interface = keeper > 0 ? session->network.server_interface : NULL;
    struct tc_source_request request = {.cpus = session->cpus,
                                        .softpmu = &session->softpmu,
                                        .sample_ns = session->options->rules.sample_ns,
                                        .scope = session->scope,
                                        .pid = keeper,
                                        .interface = interface};
    int rc = session->observing->open(&session->system, &request, err);
    if (rc == 0 && session->options->simulated_cpus.count == 0) {
        rc = tc_source_uncore.open(&session->memory, &request, err);
    }
    request.pid = command;
    for (size_t i = 0; rc == 0 && i < session->passes_count; i++) {
        request.events = session->passes[i].events;
        request.events_count = session->passes[i].count;
        rc = session->counting->open(&session->counters[i], &request, err);
    }
    return rc;
}

/* Idle time in ticks makes short windows worthless, unless their counts are null anyway. */
static void settle_window_length(struct tc_session *session)
{
    const struct tc_meter meter = tc_session_meter(session, 0, false);
    bool coarse = tc_window_idle_resolution_ns(&meter, 0) > 1;
    session->window_ns = session->options->rules.window_ns;
    if (coarse && !session->overlap && session->window_ns < COARSE_WINDOW_NS) {
        session->window_ns = COARSE_WINDOW_NS;
    }
}

static int wait_until_ready(struct tc_session *session, struct tc_error *err)
{
    uint64_t deadline_ns = tc_window_now_ns() + session->options->rules.ready_timeout_ns;
    struct tc_error last = {""};
    for (;;) {
        int rc = tc_session_watch(session, err);
        if (rc != 0) {
            return rc;
        }
        rc =
            tc_network_try(&session->network, session->options->connect, CONNECT_TIMEOUT_MS, &last);
        if (rc == 0) {
            return 0;
        }
        if (tc_window_now_ns() >= deadline_ns) {
            return tc_error_set(err, ETIMEDOUT,
                                "the server runs but does not answer within %.1f s: %s; does it "
                                "listen there? (--ready-timeout-s)",
                                (double)session->options->rules.ready_timeout_ns / 1e9,
                                last.message);
        }
        pause_ns(POLL_NS);
    }
}

int tc_session_start_server(struct tc_session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    const struct tc_keeper_spec spec = {.what = "server",
                                        .argv = options->server_argv,
                                        .cpus = &options->server_cpus,
                                        .numa = &options->numa,
                                        .network = session->network.server,
                                        .page = -1};
    session->phase = "server start";
    int rc = tc_keeper_start(&session->server, &spec, err);
    /* Before the command begins: a process tree's counters are inherited by what it forks. */
    if (rc != 0 || (rc = tc_session_open_counters(session, session->server.command,
                                                  session->server.pid, err)) != 0) {
        return rc;
    }
    settle_window_length(session);
    if ((rc = tc_keeper_release(&session->server, err)) != 0) {
        return rc;
    }
    return wait_until_ready(session, err);
}

static int load_is_late(const struct tc_session *session, struct tc_error *err)
{
    const uint64_t none[TC_COUNT_KINDS] = {0};
    uint64_t sums[TC_COUNT_KINDS] = {0};
    char errors[256];
    if (session->page.header != NULL) {
        tc_page_sum(&session->page, sums);
    }
    tc_session_list_errors(none, sums, errors, sizeof(errors));
    return tc_error_set(err, ETIMEDOUT,
                        "the load is not under way within %.1f s (--ready-timeout-s); %s%s",
                        (double)session->options->rules.ready_timeout_ns / 1e9,
                        session->page.header == NULL ? "it made no page: does it take {page}?"
                                                     : "no transaction completed",
                        errors);
}

static int wait_for_page(struct tc_session *session, struct tc_error *err)
{
    uint64_t deadline_ns = tc_window_now_ns() + session->options->rules.ready_timeout_ns;
    for (;;) {
        int rc = tc_session_watch(session, err);
        if (rc != 0) {
            return rc;
        }
        if (session->page.header == NULL &&
            (rc = tc_page_open(&session->page, session->load_command.fd, err)) != 0 &&
            rc != -EAGAIN) {
            return rc;
        }
        if (session->page.header != NULL &&
            atomic_load_explicit(&session->page.header->state, memory_order_relaxed) == 1) {
            return 0;
        }
        if (tc_window_now_ns() >= deadline_ns) {
            return load_is_late(session, err);
        }
        pause_ns(POLL_NS);
    }
}

int tc_session_start_load(struct tc_session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    const struct tc_keeper_spec spec = {.what = "load",
                                        .argv = session->load_command.argv,
                                        .cpus = &options->load_cpus,
                                        .network = session->network.load,
                                        .page = session->load_command.fd};
    session->phase = "load start";
    int rc = tc_keeper_start(&session->load, &spec, err);
    session->load_runs = rc == 0;
    if (rc != 0 || (rc = tc_keeper_release(&session->load, err)) != 0) {
        return rc;
    }
    return wait_for_page(session, err);
}

static uint64_t completed(const struct tc_session *session)
{
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&session->page, sums);
    return sums[TC_COUNT_COMPLETED];
}

/* Until two halves of a second one after the other agree, and for warmup_ns at least. */
int tc_session_warm_up(struct tc_session *session, struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    uint64_t start_ns = tc_window_now_ns();
    uint64_t half_start_ns = start_ns;
    uint64_t at_half_start = completed(session);
    double before = 0;
    session->phase = "warm-up";
    for (;;) {
        int rc = tc_session_watch(session, err);
        if (rc != 0) {
            return rc;
        }
        uint64_t now_ns = tc_window_now_ns();
        if (now_ns - half_start_ns >= HALF_NS) {
            uint64_t count = completed(session);
            double rate = (double)(count - at_half_start) / (double)(now_ns - half_start_ns);
            double more = rate > before ? rate : before;
            double less = rate > before ? before : rate;
            if (more > 0 && more - less <= STEADY * more && now_ns - start_ns >= rules->warmup_ns) {
                return 0;
            }
            before = rate;
            at_half_start = count;
            half_start_ns = now_ns;
        }
        if (now_ns - start_ns >= rules->warmup_max_ns) {
            return tc_session_note(
                session,
                json_sprintf("throughput was not steady within %.1f s of warm-up",
                             (double)rules->warmup_max_ns / 1e9),
                err);
        }
        pause_ns(POLL_NS);
    }
}
