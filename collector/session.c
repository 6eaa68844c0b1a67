#include "collector/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/core_pmus.h"
#include "collector/header.h"
#include "collector/provenance.h"
#include "collector/session_state.h"
#include "collector/source_perf.h"

#define STOP_GRACE_MS 3000

int tc_session_watch(void *context, struct tc_error *err)
{
    struct tc_session *session = context;
    if (*session->options->interrupted) {
        return tc_error_set(err, EINTR, "interrupted by signal %d",
                            (int)*session->options->interrupted);
    }
    int rc = session->server.pid > 0 ? tc_keeper_check(&session->server, err) : 0;
    return rc == 0 && session->load_runs ? tc_keeper_check(&session->load, err) : rc;
}

static int write_header(struct tc_session *session, bool connected, struct tc_error *err)
{
    const struct tc_meter meter = tc_session_meter(session, 0, false);
    const struct tc_header header = {
        .options = session->options,
        .network = connected ? &session->network : NULL,
        .machine = session->softpmu.page,
        .counters = session->counters,
        .counters_count = session->passes_count,
        .system = session->system,
        .window_ns = session->window_ns,
        .idle_resolution_ns = tc_window_idle_resolution_ns(&meter, 0),
        .tsc_hz = session->tsc_hz,
        .tsc_how = session->tsc_how,
    };
    return tc_record_write(&session->record, tc_header_build(&header), err);
}

static int start(struct tc_session *session, struct tc_error *err)
{
    return session->counting == &tc_source_softpmu ? tc_session_start_machine(session, err)
                                                   : tc_session_start_server(session, err);
}

static int warm_up(struct tc_session *session, struct tc_error *err)
{
    return session->counting == &tc_source_softpmu ? tc_session_warm_up_machine(session, err)
                                                   : tc_session_warm_up(session, err);
}

static int measure(struct tc_session *session, struct tc_error *err)
{
    int rc = start(session, err);
    if (rc == 0) {
        session->phase = "record";
        rc = write_header(session, true, err);
    }
    for (size_t pass = 0; rc == 0 && pass < session->passes_count; pass++) {
        rc = tc_session_measure_idle(session, pass, err);
    }
    if (rc != 0 || (rc = tc_session_start_load(session, err)) != 0 ||
        (rc = warm_up(session, err)) != 0) {
        return rc;
    }
    for (size_t pass = 0; rc == 0 && pass < session->passes_count; pass++) {
        for (size_t index = 0; rc == 0 && index < session->options->rules.windows; index++) {
            rc = tc_session_measure_window(session, pass, index, err);
        }
    }
    return rc;
}

static void close_session(struct tc_session *session)
{
    tc_keeper_close(&session->load);
    tc_keeper_close(&session->server);
    for (size_t i = 0; i < session->passes_count; i++) {
        session->counting->close(session->counters[i]);
        if (session->idle != NULL) {
            tc_window_close(&session->idle[i]);
        }
    }
    session->observing->close(session->system);
    tc_source_uncore.close(session->memory);
    tc_page_close(&session->page);
    tc_softpmu_unmap(&session->softpmu);
    tc_paged_close(&session->load_command);
    tc_paged_close(&session->machine_command);
    tc_network_close(&session->network);
    tc_record_close(&session->record);
    free(session->idle);
    free(session->passes);
    json_decref(session->notes);
}

/* The message names the phase first. */
static enum tc_outcome fail(const struct tc_session *session, enum tc_outcome outcome,
                            struct tc_error *err)
{
    struct tc_error bare = *err;
    (void)tc_error_set(err, EIO, "%s: %s", session->phase, bare.message);
    return outcome;
}

static void open_session(struct tc_session *session, const struct tc_session_options *options)
{
    bool simulated = options->simulated_cpus.count > 0;
    *session = (struct tc_session){
        .options = options,
        .cpus = tc_session_cpus(options),
        .counting = simulated ? &tc_source_softpmu : options->source,
        .observing = simulated ? &tc_source_softpmu_system : &tc_source_proc,
        .load_command = {.fd = -1},
        .machine_command = {.fd = -1},
        .notes = json_array(),
        .phase = "preparing",
    };
    session->record.fd = -1;
    session->network = (struct tc_network){.home = -1, .server = -1, .load = -1};
    /* A simulated machine's counts are its own, whatever else runs on this one's CPUs. */
    session->overlap = !simulated && tc_cpus_overlap(&options->server_cpus, &options->load_cpus);
    session->tsc_hz = tc_provenance_tsc_hz(&session->tsc_how);
}

/* Counts of CPUs of different kinds are of different events. */
static int check_kinds(const struct tc_cpus *cpus, struct tc_error *err)
{
    static struct tc_core_pmus pmus;
    int rc = tc_core_pmus_read(TC_CORE_PMUS_FOLDER, &pmus, err);
    return rc == 0 ? tc_core_pmus_check(&pmus, cpus, err) : rc;
}

static enum tc_outcome prepare(struct tc_session *session, struct tc_error *err)
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
    bool simulated = options->simulated_cpus.count > 0;
    rc = simulated ? 0 : check_kinds(&options->server_cpus, err);
    if (rc != 0) {
        return rc == -EINVAL ? TC_BAD_INPUT : TC_CANNOT;
    }
    session->scope = simulated ? TC_SCOPE_CPU : options->source->scope(options->server_cpus.ids[0]);
    rc = tc_session_make_passes(session, err);
    if (rc != 0) {
        return rc == -ENOMEM ? TC_FAILED : TC_BAD_INPUT;
    }
    rc = tc_paged_open(&session->load_command, "tlscost-page", options->load_argv, err);
    if (rc == 0 && simulated) {
        rc = tc_paged_open(&session->machine_command, "tlscost-softpmu", options->server_argv, err);
    }
    return rc == 0 ? TC_DONE : TC_FAILED;
}

enum tc_outcome tc_session_run(const struct tc_session_options *options,
                               struct tc_session_output *output, struct tc_error *err)
{
    struct tc_session session;
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

enum tc_outcome tc_session_sample(const struct tc_session_options *options, struct tc_error *err)
{
    struct tc_session session;
    open_session(&session, options);
    session.phase = "sampling";
    session.window_ns = options->rules.window_ns;
    session.scope = TC_SCOPE_CPU;
    enum tc_outcome outcome = TC_DONE;
    int rc = check_kinds(&options->server_cpus, err);
    if (rc == 0) {
        rc = tc_record_open(&session.record, options->record, err);
    }
    if (rc != 0) {
        outcome = fail(&session, TC_BAD_INPUT, err);
        goto done;
    }
    if ((rc = tc_session_make_passes(&session, err)) == 0 &&
        (rc = tc_session_open_counters(&session, 0, 0, err)) == 0) {
        rc = write_header(&session, false, err);
    }
    for (size_t pass = 0; rc == 0 && pass < session.passes_count; pass++) {
        rc = tc_session_measure_sample(&session, pass, err);
    }
    if (rc != 0 || tc_record_finish(&session.record, err) != 0) {
        outcome = fail(&session, TC_FAILED, err);
    }
done:
    close_session(&session);
    return outcome;
}
