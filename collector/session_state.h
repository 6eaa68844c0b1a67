/* What the parts of a session share: session.c (the order of things), session_start.c,
 * session_measure.c. */
#ifndef TC_COLLECTOR_SESSION_STATE_H
#define TC_COLLECTOR_SESSION_STATE_H

#include "collector/paged.h"
#include "collector/record.h"
#include "collector/session.h"
#include "collector/source_softpmu.h"
#include "collector/window.h"

#define NS_PER_S UINT64_C(1000000000)

struct tc_session {
    const struct tc_session_options *options;
    const struct tc_cpus *cpus; /* that are measured */
    /* Who tells what the measured machine does. */
    const struct tc_source *counting;
    const struct tc_source *observing;
    struct tc_record record;
    struct tc_network network;
    struct tc_keeper server;
    struct tc_keeper load;
    bool load_runs;
    struct tc_paged load_command;
    struct tc_page page;
    struct tc_paged machine_command; /* of a simulated machine */
    struct tc_softpmu softpmu;
    struct tc_pass *passes;
    size_t passes_count;
    enum tc_scope scope;
    struct tc_counters *counters[TC_PASSES_MAX];
    struct tc_counters *system;
    struct tc_counters *memory; /* NULL: a simulated machine */
    struct tc_window *idle;     /* one per pass */
    bool overlap;
    uint64_t window_ns;
    uint64_t tsc_hz;
    const char *tsc_how;
    json_t *notes;
    const char *phase; /* for messages */
};

/* 0, or why to stop now: a signal, or the end of server or load. A tc_window_watch. */
TC_MUST_CHECK int tc_session_watch(void *context, struct tc_error *err);

/* A text for the notes of the windows to come. */
TC_MUST_CHECK int tc_session_note(struct tc_session *session, json_t *text, struct tc_error *err);

/* ", error_connect: 12": the errors by kind between two sums, into text. */
void tc_session_list_errors(const uint64_t *begin, const uint64_t *end, char *text, size_t size);

struct tc_meter tc_session_meter(const struct tc_session *session, size_t pass, bool loaded);

TC_MUST_CHECK int tc_session_make_passes(struct tc_session *session, struct tc_error *err);
/* command: whose tree is counted where CPUs may not be; keeper: above the server (0: none). */
TC_MUST_CHECK int tc_session_open_counters(struct tc_session *session, pid_t command, pid_t keeper,
                                           struct tc_error *err);
TC_MUST_CHECK int tc_session_start_server(struct tc_session *session, struct tc_error *err);
/* A simulated machine as the server: started, serving, and counting. */
TC_MUST_CHECK int tc_session_start_machine(struct tc_session *session, struct tc_error *err);
TC_MUST_CHECK int tc_session_warm_up_machine(struct tc_session *session, struct tc_error *err);
TC_MUST_CHECK int tc_session_start_load(struct tc_session *session, struct tc_error *err);
TC_MUST_CHECK int tc_session_warm_up(struct tc_session *session, struct tc_error *err);

/* A window each, into a line of the record. */
TC_MUST_CHECK int tc_session_measure_idle(struct tc_session *session, size_t pass,
                                          struct tc_error *err);
TC_MUST_CHECK int tc_session_measure_window(struct tc_session *session, size_t pass, size_t index,
                                            struct tc_error *err);
TC_MUST_CHECK int tc_session_measure_sample(struct tc_session *session, size_t pass,
                                            struct tc_error *err);

#endif
