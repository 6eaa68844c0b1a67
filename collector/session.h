/* A cell's phases: place and start the server, wait until it answers, idle windows, start the
 * load, warm up, windows, stop the load, stop the server, close the record. */
#ifndef TC_COLLECTOR_SESSION_H
#define TC_COLLECTOR_SESSION_H

#include <jansson.h>
#include <signal.h>
#include <stdint.h>

#include "collector/keeper.h"
#include "collector/network.h"
#include "collector/placement.h"
#include "collector/source.h"

struct tc_rules {
    uint64_t ready_timeout_ns;
    uint64_t idle_ns;
    uint64_t warmup_ns;
    uint64_t warmup_max_ns;
    uint64_t window_ns; /* at least; 5 s where idle time comes in ticks */
    uint64_t window_max_ns;
    uint64_t sample_ns;
    uint64_t completions; /* per connection */
    uint64_t windows;     /* per pass */
};

struct tc_session_options {
    const char *record;
    const json_t *header; /* borrowed: {"cell": {...}, more for the provenance}; NULL: none */
    char *const *collect_argv;
    /* {page} in the load's words, and in a simulated machine's, becomes a page's path. */
    char *const *server_argv;
    char *const *load_argv;
    struct tc_cpus server_cpus;    /* of this machine: where the server's command runs */
    struct tc_cpus simulated_cpus; /* the server is a machine with these CPUs; none: it is not */
    struct tc_cpus load_cpus;
    struct tc_cpus collector_cpus;
    struct tc_numa numa;
    enum tc_network_kind network;
    const char *server_address;
    const char *load_address;
    const char *connect;
    const struct tc_source *source;               /* of this machine's counts */
    const struct tc_event (*sets)[TC_EVENTS_MAX]; /* one per --events */
    const size_t *sets_counts;
    size_t sets_count;
    struct tc_rules rules;
    /* Set by a signal's handler: the session stops its children and fails. */
    const volatile sig_atomic_t *interrupted;
};

/* Exit codes. */
enum tc_outcome { TC_DONE = 0, TC_FAILED = 1, TC_BAD_INPUT = 2, TC_CANNOT = 3 };

/* The end of what a command wrote, for whoever has to find out why it failed. */
struct tc_session_output {
    char server[TC_KEEPER_TAIL + 1];
    char load[TC_KEEPER_TAIL + 1];
};

/* The CPUs that are measured. */
static inline const struct tc_cpus *tc_session_cpus(const struct tc_session_options *options)
{
    return options->simulated_cpus.count > 0 ? &options->simulated_cpus : &options->server_cpus;
}

/* Measures one cell. Whatever happens nothing of it runs afterwards; where it fails the windows
 * measured until then are in NAME.partial. */
TC_MUST_CHECK enum tc_outcome tc_session_run(const struct tc_session_options *options,
                                             struct tc_session_output *output,
                                             struct tc_error *err);

/* Samples counters on server_cpus for window_ns per pass, without server and load. */
TC_MUST_CHECK enum tc_outcome tc_session_sample(const struct tc_session_options *options,
                                                struct tc_error *err);

#endif
