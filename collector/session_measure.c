/* A session's windows: measured, judged, written. */
#include <errno.h>
#include <stdio.h>

#include "collector/lines.h"
#include "collector/session_state.h"
#include "collector/source_perf.h"
#include "collector/source_proc.h"

/* A simulated machine serves few and long transactions, each a percent or more of a window. */
#define ALIGN_NS (2 * NS_PER_S)

struct tc_meter tc_session_meter(const struct tc_session *session, size_t pass, bool loaded)
{
    return (struct tc_meter){.counters = session->counters[pass],
                             .system = session->system,
                             .memory = session->memory,
                             .page = loaded ? &session->page : NULL,
                             .cpus = session->cpus->count};
}

int tc_session_note(struct tc_session *session, json_t *text, struct tc_error *err)
{
    return json_array_append_new(session->notes, text) == 0
               ? 0
               : tc_error_set(err, ENOMEM, "out of memory for a note");
}

void tc_session_list_errors(const uint64_t *begin, const uint64_t *end, char *text, size_t size)
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

/* Samples that are missing change no count; whoever looks at the samples is to know. */
static int check_samples(struct tc_session *session, const struct tc_window *window,
                         struct tc_error *err)
{
    uint64_t missing = tc_window_missing(window);
    uint64_t lost = window->counts.lost + window->drained.lost;
    if (missing == 0 && lost == 0) {
        return 0;
    }
    return tc_session_note(session,
                           json_sprintf("counters lack up to %llu samples of a CPU, %llu of all "
                                        "were lost on their way",
                                        (unsigned long long)missing, (unsigned long long)lost),
                           err);
}

/* Counters run in windows only. */
static int run_window(struct tc_session *session, const struct tc_meter *meter,
                      const struct tc_window_rule *rule, struct tc_window *window,
                      struct tc_error *err)
{
    int rc = tc_window_open(window, meter, rule, err);
    if (rc == 0 && (rc = session->counting->start(meter->counters, err)) == 0 &&
        (rc = tc_window_run(window, meter, tc_session_watch, session, err)) == 0 &&
        (rc = session->counting->stop(meter->counters, err)) == 0) {
        rc = check_samples(session, window, err);
    }
    return rc;
}

/* With the notes that hold for all lines and, last, those of this line alone. */
static int write_line(struct tc_session *session, struct tc_line line, size_t notes_of_all,
                      struct tc_error *err)
{
    line.cpus = session->cpus;
    line.overlap = session->overlap;
    line.tsc_hz = session->tsc_hz;
    line.notes = session->notes;
    int rc = tc_record_write(&session->record, tc_line_build(&line), err);
    while (rc == 0 && json_array_size(session->notes) > notes_of_all) {
        rc = json_array_remove(session->notes, notes_of_all);
    }
    return rc;
}

/* A window without a load; *window is the caller's to close. */
static int measure_quiet(struct tc_session *session, const char *type, size_t pass,
                         uint64_t duration_ns, struct tc_window *window, struct tc_error *err)
{
    const struct tc_meter meter = tc_session_meter(session, pass, false);
    const struct tc_window_rule rule = {.duration_ns = duration_ns,
                                        .max_ns = duration_ns + NS_PER_S,
                                        .sample_ns = session->options->rules.sample_ns};
    const struct tc_line line = {.type = type, .pass = pass, .window = window, .meter = &meter};
    size_t notes_of_all = json_array_size(session->notes);
    int rc = run_window(session, &meter, &rule, window, err);
    return rc == 0 ? write_line(session, line, notes_of_all, err) : rc;
}

int tc_session_measure_idle(struct tc_session *session, size_t pass, struct tc_error *err)
{
    session->phase = "idle window";
    return measure_quiet(session, "idle", pass, session->options->rules.idle_ns,
                         &session->idle[pass], err);
}

int tc_session_measure_sample(struct tc_session *session, size_t pass, struct tc_error *err)
{
    struct tc_window window;
    int rc = measure_quiet(session, "sample", pass, session->window_ns, &window, err);
    tc_window_close(&window);
    return rc;
}

/* A window without a transaction has no per-transaction figures; its errors say why. */
static int check_window(struct tc_session *session, const struct tc_window *window,
                        struct tc_error *err)
{
    uint64_t completions = tc_window_completions(window);
    uint64_t done =
        window->end.counts[TC_COUNT_COMPLETED] - window->begin.counts[TC_COUNT_COMPLETED];
    if (done == 0) {
        char errors[256];
        tc_session_list_errors(window->begin.counts, window->end.counts, errors, sizeof(errors));
        return tc_error_set(err, ENODATA, "no transaction completed in %.1f s%s",
                            (double)(window->end.t_ns - window->begin.t_ns) / 1e9, errors);
    }
    return done >= completions
               ? 0
               : tc_session_note(
                     session,
                     json_sprintf("window ended after %.1f s with %llu of %llu completions",
                                  (double)window->rule.max_ns / 1e9, (unsigned long long)done,
                                  (unsigned long long)completions),
                     err);
}

static bool is_simulated(const struct tc_session *session)
{
    return session->observing != &tc_source_proc;
}

/* What a simulated machine takes of this one's memory is not its server's. */
static int measure_memory(const struct tc_session *session, struct tc_line *line,
                          struct tc_error *err)
{
    line->server_rss_known = !is_simulated(session);
    return line->server_rss_known
               ? tc_proc_tree_rss(session->server.pid, &line->server_rss_bytes, err)
               : 0;
}

int tc_session_measure_window(struct tc_session *session, size_t pass, size_t index,
                              struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    const struct tc_meter meter = tc_session_meter(session, pass, true);
    uint64_t max_ns =
        rules->window_max_ns > session->window_ns ? rules->window_max_ns : session->window_ns;
    const struct tc_window_rule rule = {.duration_ns = session->window_ns,
                                        .completions = rules->completions,
                                        .max_ns = max_ns,
                                        .sample_ns = rules->sample_ns,
                                        .align_ns = is_simulated(session) ? ALIGN_NS : 0};
    struct tc_window window;
    struct tc_line line = {.type = "window",
                           .pass = pass,
                           .index = index,
                           .window = &window,
                           .idle = &session->idle[pass],
                           .meter = &meter};
    size_t notes_of_all = json_array_size(session->notes); /* what warm-up said holds for all */
    session->phase = "window";
    int rc = run_window(session, &meter, &rule, &window, err);
    if (rc == 0 && (rc = measure_memory(session, &line, err)) == 0 &&
        (rc = check_window(session, &window, err)) == 0) {
        rc = write_line(session, line, notes_of_all, err);
    }
    tc_window_close(&window);
    return rc;
}
