/* A session's start where the server is a simulated machine: boot, serve, count. */
#include <errno.h>
#include <time.h>

#include "collector/session_state.h"

#define POLL_NS       UINT64_C(10000000)
#define TRIAL_STOP_MS 3000 /* what is under way would go on in the guest's idle window */

static void pause_ns(uint64_t ns)
{
    const struct timespec pause = {.tv_sec = (time_t)(ns / NS_PER_S),
                                   .tv_nsec = (long)(ns % NS_PER_S)};
    (void)nanosleep(&pause, NULL); /* a signal ends it early; watch looks why */
}

/* Waits until `done` returns other than -EAGAIN, for as long as a server may take to get ready. */
static int wait_until(struct tc_session *session,
                      int (*done)(struct tc_session *session, struct tc_error *err),
                      const char *what, struct tc_error *err)
{
    uint64_t limit_ns = session->options->rules.ready_timeout_ns;
    uint64_t deadline_ns = tc_window_now_ns() + limit_ns;
    for (;;) {
        int rc = tc_session_watch(session, err);
        if (rc != 0 || (rc = done(session, err)) != -EAGAIN) {
            return rc;
        }
        if (tc_window_now_ns() >= deadline_ns) {
            return tc_error_set(err, ETIMEDOUT,
                                "the machine runs, but %s within %.1f s; see "
                                "--ready-timeout-s",
                                what, (double)limit_ns / 1e9);
        }
        pause_ns(POLL_NS);
    }
}

static int map_page(struct tc_session *session, struct tc_error *err)
{
    return tc_softpmu_map(&session->softpmu, session->machine_command.fd, session->cpus->count,
                          err);
}

static int is_counting(struct tc_session *session, struct tc_error *err)
{
    return tc_softpmu_check(&session->softpmu, err);
}

static int start_command(struct tc_session *session, struct tc_error *err)
{
    const struct tc_keeper_spec spec = {.what = "simulated machine",
                                        .argv = session->machine_command.argv,
                                        .cpus = &session->options->server_cpus,
                                        .network = -1,
                                        .page = session->machine_command.fd};
    int rc = tc_keeper_start(&session->server, &spec, err);
    return rc == 0 ? tc_keeper_release(&session->server, err) : rc;
}

/* User-mode networking accepts connections before there is a guest to answer them: only a complete
 * transaction shows that the server is there. */
static int wait_until_it_serves(struct tc_session *session, struct tc_error *err)
{
    int rc = tc_session_start_load(session, err);
    session->phase = "waiting for the simulated machine to serve";
    if (rc == 0) {
        tc_keeper_stop(&session->load, TRIAL_STOP_MS);
        tc_page_close(&session->page);
        session->load_runs = false;
    }
    return rc;
}

int tc_session_start_machine(struct tc_session *session, struct tc_error *err)
{
    session->phase = "machine start";
    int rc = start_command(session, err);
    if (rc != 0 || (rc = wait_until(session, map_page, "made no page of counters", err)) != 0 ||
        (rc = wait_until_it_serves(session, err)) != 0) {
        return rc;
    }
    session->phase = "arming";
    tc_softpmu_arm(&session->softpmu);
    if ((rc = wait_until(session, is_counting, "did not begin to count", err)) != 0) {
        return rc;
    }
    /* The caches begin empty: what an idle guest fetches once is not what it does while idle. */
    pause_ns(session->options->rules.warmup_ns);
    session->window_ns = session->options->rules.window_ns;
    return tc_session_open_counters(session, 0, 0, err);
}

/* How fast a simulated machine is says nothing about it: it is warm once every connection has been
 * served twice. */
int tc_session_warm_up_machine(struct tc_session *session, struct tc_error *err)
{
    const struct tc_rules *rules = &session->options->rules;
    uint64_t start_ns = tc_window_now_ns();
    uint64_t enough = UINT64_C(2) * session->page.header->connections;
    uint64_t sums[TC_COUNT_KINDS];
    session->phase = "warm-up";
    for (;;) {
        int rc = tc_session_watch(session, err);
        if (rc != 0) {
            return rc;
        }
        uint64_t passed_ns = tc_window_now_ns() - start_ns;
        tc_page_sum(&session->page, sums);
        if (passed_ns >= rules->warmup_ns && sums[TC_COUNT_COMPLETED] >= enough) {
            return 0;
        }
        if (passed_ns >= rules->warmup_max_ns) {
            return tc_session_note(
                session,
                json_sprintf("only %llu of %llu transactions in %.1f s of warm-up",
                             (unsigned long long)sums[TC_COUNT_COMPLETED],
                             (unsigned long long)enough, (double)rules->warmup_max_ns / 1e9),
                err);
        }
        pause_ns(POLL_NS);
    }
}
