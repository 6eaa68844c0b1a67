#include "collector/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "collector/header.h"
#include "collector/lines.h"
#include "collector/provenance.h"
#include "collector/record.h"
#include "collector/source_perf.h"
#include "collector/source_proc.h"
#include "collector/window.h"

#define NS_PER_S           UINT64_C(1000000000)
#define COARSE_WINDOW_NS   (5 * NS_PER_S) /* where idle time comes in ticks */
#define POLL_NS            UINT64_C(20000000)
#define HALF_NS            (NS_PER_S / 2) /* of the throughputs that warm-up compares */
#define STEADY             0.05
#define CONNECT_TIMEOUT_MS 200
#define STOP_GRACE_MS      3000

struct session {
    const struct tc_session_options *options;
    struct tc_record record;
    struct tc_network network;
    struct tc_keeper server;
    struct tc_keeper load;
    bool load_runs;
    int page_fd;
    struct tc_page page;
    char **load_argv;
    char *page_path;
    struct tc_pass *passes;
    size_t passes_count;
    enum tc_scope scope;
    struct tc_counters *perf[TC_PASSES_MAX];
    struct tc_counters *proc;
    struct tc_window *idle; /* one per pass */
    bool overlap;
    uint64_t window_ns;
    uint64_t tsc_hz;
    const char *tsc_how;
    json_t *notes;
    const char *phase; /* for messages */
};

static int watch(void *context, struct tc_error *err)
{
    struct session *session = context;
    if (*session->options->interrupted) {
        return tc_error_set(err, EINTR, "interrupted by signal %d",
                            (int)*session->options->interrupted);
    }
    int rc = session->server.pid > 0 ? tc_keeper_check(&session->server, err) : 0;
    return rc == 0 && session->load_runs ? tc_keeper_check(&session->load, err) : rc;
}

static void pause_ns(uint64_t ns)
{
    const struct timespec pause = {.tv_sec = (time_t)(ns / NS_PER_S),
                                   .tv_nsec = (long)(ns % NS_PER_S)};
    (void)nanosleep(&pause, NULL); /* a signal ends it early; watch looks why */
}

/* Anchors in each mode; where there is no PMU they take no counter and so are not added. */
static void make_anchors(struct tc_event anchors[TC_MODE_BOTH + 1])
{
    for (int mode = TC_MODE_USER; mode <= TC_MODE_BOTH; mode++) {
        anchors[mode] = (struct tc_event){.name = TC_ANCHOR_EVENT, .mode = (enum tc_mode)mode};
        if (tc_event_encode(&anchors[mode], NULL) != 0) {
            anchors[mode].known = false;
        }
    }
}

static int make_passes(struct session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    struct tc_event anchors[TC_MODE_BOTH + 1] = {0};
    int cpu = options->server_cpus.ids[0];
    make_anchors(anchors);
    session->passes = calloc(TC_PASSES_MAX, sizeof(*session->passes));
    if (session->passes == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for passes");
    }
    for (size_t i = 0; i < options->sets_count; i++) {
        int rc = tc_passes_split(options->sets[i], options->sets_counts[i], anchors, tc_perf_fits,
                                 &cpu, session->passes, &session->passes_count, err);
        if (rc != 0) {
            return rc;
        }
    }
    session->idle = calloc(session->passes_count, sizeof(*session->idle));
    return session->idle != NULL ? 0 : tc_error_set(err, ENOMEM, "out of memory for passes");
}

/* The load's arguments with {page} replaced. */
static int make_load_argv(struct session *session, struct tc_error *err)
{
    char *const *argv = session->options->load_argv;
    size_t count = 0;
    while (argv[count] != NULL) {
        count++;
    }
    session->load_argv = calloc(count + 1, sizeof(*session->load_argv));
    session->page_fd = memfd_create("tlscost-page", MFD_CLOEXEC);
    if (session->load_argv == NULL || session->page_fd < 0 ||
        asprintf(&session->page_path, "/proc/self/fd/%d", session->page_fd) < 0) {
        session->page_path = NULL;
        return tc_error_set(err, ENOMEM, "no memory for the page shared with the load: %s",
                            strerror(errno));
    }
    for (size_t i = 0; i < count; i++) {
        session->load_argv[i] = strcmp(argv[i], "{page}") == 0 ? session->page_path : argv[i];
    }
    return 0;
}

static int open_counters(struct session *session, pid_t command, pid_t keeper, struct tc_error *err)
{
    const char *interface = keeper > 0 ? session->network.server_interface : NULL;
    struct tc_source_request request = {.cpus = &session->options->server_cpus,
                                        .scope = session->scope,
                                        .pid = keeper,
                                        .interface = interface};
    int rc = tc_source_proc.open(&session->proc, &request, err);
    request.pid = command;
    for (size_t i = 0; rc == 0 && i < session->passes_count; i++) {
        request.events = session->passes[i].events;
        request.events_count = session->passes[i].count;
        rc = tc_source_perf.open(&session->perf[i], &request, err);
    }
    return rc;
}

static struct tc_meter meter_of(const struct session *session, size_t pass, bool loaded)
{
    return (struct tc_meter){.perf = session->perf[pass],
                             .proc = session->proc,
                             .page = loaded ? &session->page : NULL,
                             .cpus = session->options->server_cpus.count};
}

/* Idle time in ticks makes short windows worthless, unless their counts are null anyway. */
static void settle_window_length(struct session *session)
{
    const struct tc_meter meter = meter_of(session, 0, false);
    bool coarse = tc_window_idle_resolution_ns(&meter, 0) > 1;
    session->window_ns = session->options->rules.window_ns;
    if (coarse && !session->overlap && session->window_ns < COARSE_WINDOW_NS) {
        session->window_ns = COARSE_WINDOW_NS;
    }
}

static int write_header(struct session *session, bool connected, struct tc_error *err)
{
    const struct tc_meter meter = meter_of(session, 0, false);
    const struct tc_header header = {
        .options = session->options,
        .network = connected ? &session->network : NULL,
        .passes = session->passes,
        .passes_count = session->passes_count,
        .window_ns = session->window_ns,
        .idle_resolution_ns = tc_window_idle_resolution_ns(&meter, 0),
        .tsc_hz = session->tsc_hz,
        .tsc_how = session->tsc_how,
    };
    return tc_record_write(&session->record, tc_header_build(&header), err);
}

static int write_line(struct session *session, const char *type, size_t pass, size_t index,
                      const struct tc_window *window, const struct tc_window *idle,
                      const struct tc_meter *meter, uint64_t rss_bytes, struct tc_error *err)
{
    const struct tc_line line = {.type = type,
                                 .pass = pass,
                                 .index = index,
                                 .window = window,
                                 .idle = idle,
                                 .meter = meter,
                                 .cpus = &session->options->server_cpus,
                                 .overlap = session->overlap,
                                 .tsc_hz = session->tsc_hz,
                                 .server_rss_bytes = rss_bytes,
                                 .notes = session->notes};
    return tc_record_write(&session->record, tc_line_build(&line), err);
}

static int wait_until_ready(struct session *session, struct tc_error *err)
{
    uint64_t deadline_ns = tc_window_now_ns() + session->options->rules.ready_timeout_ns;
    struct tc_error last = {""};
    for (;;) {
        int rc = watch(session, err);
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

static int start_server(struct session *session, struct tc_error *err)
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
    if (rc != 0 ||
        (rc = open_counters(session, session->server.command, session->server.pid, err)) != 0) {
        return rc;
    }
    settle_window_length(session);
    if ((rc = tc_keeper_release(&session->server, err)) != 0) {
        return rc;
    }
    return wait_until_ready(session, err);
}

static int measure_idle(struct session *session, size_t pass, struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    const struct tc_meter meter = meter_of(session, pass, false);
    const struct tc_window_rule rule = {.duration_ns = rules->idle_ns,
                                        .max_ns = rules->idle_ns + NS_PER_S,
                                        .sample_ns = rules->sample_ns};
    struct tc_window *idle = &session->idle[pass];
    session->phase = "idle window";
    int rc = tc_window_open(idle, &meter, &rule, err);
    if (rc == 0 && (rc = tc_source_perf.start(meter.perf, err)) == 0 &&
        (rc = tc_window_run(idle, &meter, watch, session, err)) == 0 &&
        (rc = tc_source_perf.stop(meter.perf, err)) == 0) {
        rc = write_line(session, "idle", pass, 0, idle, NULL, &meter, 0, err);
    }
    return rc;
}

/* ", error_connect: 12": the errors by kind between two sums, into text. */
static void list_errors(const uint64_t *begin, const uint64_t *end, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = TC_COUNT_ERROR_FIRST; i < TC_COUNT_KINDS; i++) {
        if (end[i] > begin[i] && used < size) {
            used += (size_t)snprintf(text + used, size - used, ", %s: %lu",
                                     tc_count_name((enum tc_count)i),
                                     (unsigned long)(end[i] - begin[i]));
        }
    }
}

static int load_is_late(const struct session *session, struct tc_error *err)
{
    const uint64_t none[TC_COUNT_KINDS] = {0};
    uint64_t sums[TC_COUNT_KINDS] = {0};
    char errors[256];
    if (session->page.header != NULL) {
        tc_page_sum(&session->page, sums);
    }
    list_errors(none, sums, errors, sizeof(errors));
    return tc_error_set(err, ETIMEDOUT,
                        "the load is not under way within %.1f s (--ready-timeout-s); %s%s",
                        (double)session->options->rules.ready_timeout_ns / 1e9,
                        session->page.header == NULL ? "it made no page: does it take {page}?"
                                                     : "no transaction completed",
                        errors);
}

static int wait_for_page(struct session *session, struct tc_error *err)
{
    uint64_t deadline_ns = tc_window_now_ns() + session->options->rules.ready_timeout_ns;
    for (;;) {
        int rc = watch(session, err);
        if (rc != 0) {
            return rc;
        }
        if (session->page.header == NULL &&
            (rc = tc_page_open(&session->page, session->page_fd, err)) != 0 && rc != -EAGAIN) {
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

static int start_load(struct session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    const struct tc_keeper_spec spec = {.what = "load",
                                        .argv = session->load_argv,
                                        .cpus = &options->load_cpus,
                                        .network = session->network.load,
                                        .page = session->page_fd};
    session->phase = "load start";
    int rc = tc_keeper_start(&session->load, &spec, err);
    session->load_runs = rc == 0;
    if (rc != 0 || (rc = tc_keeper_release(&session->load, err)) != 0) {
        return rc;
    }
    return wait_for_page(session, err);
}

static uint64_t completed(const struct session *session)
{
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&session->page, sums);
    return sums[TC_COUNT_COMPLETED];
}

static int note(struct session *session, json_t *text, struct tc_error *err)
{
    return json_array_append_new(session->notes, text) == 0
               ? 0
               : tc_error_set(err, ENOMEM, "out of memory for a note");
}

/* Until two halves of a second one after the other agree, and for warmup_ns at least. */
static int warm_up(struct session *session, struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    uint64_t start_ns = tc_window_now_ns();
    uint64_t half_start_ns = start_ns;
    uint64_t at_half_start = completed(session);
    double before = 0;
    session->phase = "warm-up";
    for (;;) {
        int rc = watch(session, err);
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
            return note(session,
                        json_sprintf("throughput was not steady within %.1f s of warm-up",
                                     (double)rules->warmup_max_ns / 1e9),
                        err);
        }
        pause_ns(POLL_NS);
    }
}

/* A window without a transaction has no per-transaction figures; its errors say why. */
static int check_window(struct session *session, const struct tc_window *window,
                        uint64_t completions, struct tc_error *err)
{
    uint64_t done =
        window->end.counts[TC_COUNT_COMPLETED] - window->begin.counts[TC_COUNT_COMPLETED];
    if (done == 0) {
        char errors[256];
        list_errors(window->begin.counts, window->end.counts, errors, sizeof(errors));
        return tc_error_set(err, ENODATA, "no transaction completed in %.1f s%s",
                            (double)(window->end.t_ns - window->begin.t_ns) / 1e9, errors);
    }
    return done >= completions
               ? 0
               : note(session,
                      json_sprintf("window ended after %.1f s with %llu of %llu completions",
                                   (double)window->rule.max_ns / 1e9, (unsigned long long)done,
                                   (unsigned long long)completions),
                      err);
}

static int measure_window(struct session *session, size_t pass, size_t index, struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    const struct tc_meter meter = meter_of(session, pass, true);
    uint64_t max_ns =
        rules->window_max_ns > session->window_ns ? rules->window_max_ns : session->window_ns;
    const struct tc_window_rule rule = {.duration_ns = session->window_ns,
                                        .completions =
                                            rules->completions * session->page.header->connections,
                                        .max_ns = max_ns,
                                        .sample_ns = rules->sample_ns};
    struct tc_window window;
    uint64_t rss_bytes = 0;
    size_t notes_before = json_array_size(session->notes); /* what warm-up said holds for all */
    session->phase = "window";
    int rc = tc_window_open(&window, &meter, &rule, err);
    if (rc != 0 || (rc = tc_source_perf.start(meter.perf, err)) != 0 ||
        (rc = tc_window_run(&window, &meter, watch, session, err)) != 0 ||
        (rc = tc_source_perf.stop(meter.perf, err)) != 0 ||
        (rc = tc_proc_tree_rss(session->server.pid, &rss_bytes, err)) != 0 ||
        (rc = check_window(session, &window, rule.completions, err)) != 0) {
        goto done;
    }
    rc = write_line(session, "window", pass, index, &window, &session->idle[pass], &meter,
                    rss_bytes, err);
    while (rc == 0 && json_array_size(session->notes) > notes_before) {
        rc = json_array_remove(session->notes, notes_before);
    }
done:
    tc_window_close(&window);
    return rc;
}

static int measure(struct session *session, struct tc_error *err)
{
    int rc = start_server(session, err);
    if (rc == 0) {
        session->phase = "record";
        rc = write_header(session, true, err);
    }
    for (size_t pass = 0; rc == 0 && pass < session->passes_count; pass++) {
        rc = measure_idle(session, pass, err);
    }
    if (rc != 0 || (rc = start_load(session, err)) != 0 || (rc = warm_up(session, err)) != 0) {
        return rc;
    }
    for (size_t pass = 0; rc == 0 && pass < session->passes_count; pass++) {
        for (size_t index = 0; rc == 0 && index < session->options->rules.windows; index++) {
            rc = measure_window(session, pass, index, err);
        }
    }
    return rc;
}

static void close_session(struct session *session)
{
    tc_keeper_close(&session->load);
    tc_keeper_close(&session->server);
    for (size_t i = 0; i < session->passes_count; i++) {
        tc_source_perf.close(session->perf[i]);
        if (session->idle != NULL) {
            tc_window_close(&session->idle[i]);
        }
    }
    tc_source_proc.close(session->proc);
    tc_page_close(&session->page);
    if (session->page_fd >= 0) {
        (void)close(session->page_fd);
    }
    tc_network_close(&session->network);
    tc_record_close(&session->record);
    free(session->idle);
    free(session->passes);
    free(session->load_argv);
    free(session->page_path);
    json_decref(session->notes);
}

/* The message names the phase first. */
static enum tc_outcome fail(const struct session *session, enum tc_outcome outcome,
                            struct tc_error *err)
{
    struct tc_error bare = *err;
    (void)tc_error_set(err, EIO, "%s: %s", session->phase, bare.message);
    return outcome;
}

static void open_session(struct session *session, const struct tc_session_options *options)
{
    *session = (struct session){
        .options = options, .page_fd = -1, .notes = json_array(), .phase = "preparing"};
    session->record.fd = -1;
    session->network = (struct tc_network){.home = -1, .server = -1, .load = -1};
    session->overlap = tc_cpus_overlap(&options->server_cpus, &options->load_cpus);
    session->scope = tc_perf_scope(options->server_cpus.ids[0]);
    session->tsc_hz = tc_provenance_tsc_hz(&session->tsc_how);
}

static enum tc_outcome prepare(struct session *session, struct tc_error *err)
{
    const struct tc_session_options *options = session->options;
    int rc = tc_record_open(&session->record, options->record, err);
    if (rc != 0) {
        return rc == -ENOSPC || rc == -ENOMEM ? TC_FAILED : TC_BAD_INPUT;
    }
    rc = tc_network_open(&session->network, options->network, options->server_address,
                         options->load_address, &options->server_cpus, &options->load_cpus, err);
    if (rc != 0) {
        return rc == -EINVAL ? TC_BAD_INPUT : TC_CANNOT;
    }
    if (tc_placement_apply(&options->collector_cpus, NULL, err) != 0) {
        return TC_CANNOT;
    }
    rc = make_passes(session, err);
    if (rc != 0) {
        return rc == -ENOMEM ? TC_FAILED : TC_BAD_INPUT;
    }
    return make_load_argv(session, err) == 0 ? TC_DONE : TC_FAILED;
}

enum tc_outcome tc_session_run(const struct tc_session_options *options,
                               struct tc_session_output *output, struct tc_error *err)
{
    struct session session;
    open_session(&session, options);
    enum tc_outcome outcome = prepare(&session, err);
    if (outcome != TC_DONE) {
        outcome = fail(&session, outcome, err);
        goto done;
    }
    int rc = measure(&session, err);
    /* Stopping is done before the record is closed: a whole record says that nothing is left. */
    tc_keeper_stop(&session.load, STOP_GRACE_MS);
    tc_keeper_stop(&session.server, STOP_GRACE_MS);
    (void)snprintf(output->server, sizeof(output->server), "%s", session.server.tail);
    (void)snprintf(output->load, sizeof(output->load), "%s", session.load.tail);
    if (rc == 0) {
        session.phase = "record";
        rc = tc_record_finish(&session.record, err);
    }
    if (rc != 0) {
        outcome = fail(&session, TC_FAILED, err);
    }
done:
    close_session(&session);
    return outcome;
}

static int sample_pass(struct session *session, size_t pass, struct tc_error *err)
{
    const struct tc_meter meter = meter_of(session, pass, false);
    const struct tc_window_rule rule = {.duration_ns = session->window_ns,
                                        .max_ns = session->window_ns + NS_PER_S,
                                        .sample_ns = session->options->rules.sample_ns};
    struct tc_window window;
    int rc = tc_window_open(&window, &meter, &rule, err);
    if (rc == 0 && (rc = tc_source_perf.start(meter.perf, err)) == 0 &&
        (rc = tc_window_run(&window, &meter, watch, session, err)) == 0 &&
        (rc = tc_source_perf.stop(meter.perf, err)) == 0) {
        rc = write_line(session, "sample", pass, 0, &window, NULL, &meter, 0, err);
    }
    tc_window_close(&window);
    return rc;
}

enum tc_outcome tc_session_sample(const struct tc_session_options *options, struct tc_error *err)
{
    struct session session;
    open_session(&session, options);
    session.phase = "sampling";
    session.window_ns = options->rules.window_ns;
    session.scope = TC_SCOPE_CPU;
    enum tc_outcome outcome = TC_DONE;
    int rc = tc_record_open(&session.record, options->record, err);
    if (rc != 0) {
        outcome = fail(&session, TC_BAD_INPUT, err);
        goto done;
    }
    if ((rc = make_passes(&session, err)) == 0 && (rc = open_counters(&session, 0, 0, err)) == 0) {
        rc = write_header(&session, false, err);
    }
    for (size_t pass = 0; rc == 0 && pass < session.passes_count; pass++) {
        rc = sample_pass(&session, pass, err);
    }
    if (rc != 0 || tc_record_finish(&session.record, err) != 0) {
        outcome = fail(&session, TC_FAILED, err);
    }
done:
    close_session(&session);
    return outcome;
}
