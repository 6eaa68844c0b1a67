/* Command-line options of tlscost-collect. Prints what is wrong with them. */
#include "collector/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/paged.h"
#include "workloads/common/options.h"
#include "workloads/common/profile.h"

const char *argp_program_version = "tlscost-collect " TC_VERSION " (" TC_BUILD_NAME ")";

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

enum {
    OPT_RECORD = 256,
    OPT_HEADER,
    OPT_SERVER_CPUS,
    OPT_LOAD_CPUS,
    OPT_SIMULATED_CPUS,
    OPT_COLLECTOR_CPUS,
    OPT_NETWORK,
    OPT_SERVER_ADDRESS,
    OPT_LOAD_ADDRESS,
    OPT_CONNECT,
    OPT_READY_TIMEOUT,
    OPT_SOURCE,
    OPT_EVENTS,
    OPT_IDLE,
    OPT_WARMUP,
    OPT_WARMUP_MAX,
    OPT_WINDOW,
    OPT_WINDOW_MAX,
    OPT_COMPLETIONS,
    OPT_WINDOWS,
    OPT_SAMPLE,
    OPT_NUMA,
    OPT_PROBE,
    OPT_SAMPLE_ONLY,
    OPT_CPUS,
    OPT_DURATION
};

static const struct argp_option options_table[] = {
    {"record", OPT_RECORD, "FILE", 0, "Write the record to FILE (FILE.partial until it is whole)",
     0},
    {"header", OPT_HEADER, "FILE", 0,
     "JSON object whose `cell` and further facts go into the record", 0},
    {"server-cpus", OPT_SERVER_CPUS, "LIST", 0, "CPUs of the server: these are measured", 0},
    {"load-cpus", OPT_LOAD_CPUS, "LIST", 0, "CPUs of the load generator", 0},
    {"collector-cpus", OPT_COLLECTOR_CPUS, "LIST", 0,
     "CPUs of this program (those of neither, else the load's)", 0},
    {"simulated-cpus", OPT_SIMULATED_CPUS, "N", 0,
     "The server's command simulates a machine with N CPUs: these are measured, by the counters in "
     "the page whose path replaces {page} in its arguments, and --server-cpus are where it runs",
     0},
    {"network", OPT_NETWORK, "KIND", 0,
     "veth (needs root), loopback, or user (a simulated machine's)", 0},
    {"server-address", OPT_SERVER_ADDRESS, "IP", 0, "Server's veth address (" TC_NETWORK_SERVER ")",
     0},
    {"load-address", OPT_LOAD_ADDRESS, "IP", 0, "Load's veth address (" TC_NETWORK_CLIENT ")", 0},
    {"connect", OPT_CONNECT, "IP:PORT", 0, "Where the server answers once it is ready", 0},
    {"ready-timeout-s", OPT_READY_TIMEOUT, "S", 0, "Time for server and load to get ready (10)", 0},
    {"source", OPT_SOURCE, "NAME", 0, "Count through perf or papi (perf)", 0},
    {"events", OPT_EVENTS, "SET", 0,
     "Count NAME[:u|:k],... in a pass of their own (may be repeated; more passes where the PMU has "
     "too few counters)",
     0},
    {"idle-s", OPT_IDLE, "S", 0, "Length of each pass's idle window (0.5)", 0},
    {"warmup-s", OPT_WARMUP, "S", 0, "Warm up for at least this long (0.3)", 0},
    {"warmup-max-s", OPT_WARMUP_MAX, "S", 0, "Stop waiting for steady throughput (10)", 0},
    {"window-s", OPT_WINDOW, "S", 0, "Length of a window, at least (2)", 0},
    {"window-max-s", OPT_WINDOW_MAX, "S", 0, "Length of a window, at most (120)", 0},
    {"completions", OPT_COMPLETIONS, "N", 0,
     "Completions in a window for each transaction under way at once (100)", 0},
    {"windows", OPT_WINDOWS, "N", 0, "Windows per pass (1)", 0},
    {"sample-ms", OPT_SAMPLE, "MS", 0, "Sampling period (100)", 0},
    {"numa", OPT_NUMA, "POLICY", 0,
     "Server's memory: default, local, bind:NODES, interleave:NODES (default)", 0},
    {"probe", OPT_PROBE, NULL, 0,
     "Print as JSON what can be counted here (--events: of these), and if not why", 0},
    {"sample-only", OPT_SAMPLE_ONLY, NULL, 0, "Sample counters without server and load", 0},
    {"cpus", OPT_CPUS, "LIST", 0, "With --sample-only: these CPUs", 0},
    {"duration-s", OPT_DURATION, "S", 0, "With --sample-only: for this long (10)", 0},
    {0}};

/* Messages of the common parsers do not know the option's name. */
static _Noreturn void refuse(const struct argp_state *state, const char *option,
                             const struct tc_error *err)
{
    (void)fprintf(stderr, "%s: --%s: %s\n", state->name, option, err->message);
    exit(TC_BAD_INPUT);
}

static const char *option_name(int key)
{
    const struct argp_option *option = options_table;
    while (option->name != NULL && option->key != key) {
        option++;
    }
    return option->name;
}

static void parse_duration(const struct argp_state *state, int key, const char *text, uint64_t *ns)
{
    struct tc_error err;
    if (tc_parse_duration(text, ns, &err) != 0) {
        refuse(state, option_name(key), &err);
    }
}

static void parse_count(const struct argp_state *state, int key, const char *text, uint64_t most,
                        uint64_t *count)
{
    struct tc_error err;
    if (tc_parse_count(text, 1, most, count, &err) != 0) {
        refuse(state, option_name(key), &err);
    }
}

static void add_events(struct tc_options *options, const char *text, struct argp_state *state)
{
    struct tc_error err;
    size_t index = options->session.sets_count;
    if (index == TC_OPTIONS_SETS_MAX) {
        argp_failure(state, TC_BAD_INPUT, 0, "--events: more than %d sets", TC_OPTIONS_SETS_MAX);
        return;
    }
    struct tc_event *set = options->sets[index];
    size_t *count = &options->sets_counts[index];
    if (tc_events_parse(text, set, count, &err) != 0) {
        argp_failure(state, TC_BAD_INPUT, 0, "%s", err.message);
    }
    options->session.sets_count++;
}

static void choose_source(struct tc_options *options, const char *name, struct argp_state *state)
{
    const struct tc_source *const sources[] = {&tc_source_perf, &tc_source_papi};
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        if (strcmp(sources[i]->name, name) == 0) {
            options->session.source = sources[i];
            return;
        }
    }
    argp_failure(state, TC_BAD_INPUT, 0, "--source: '%s': expected perf or papi", name);
}

static bool parse_time(const struct argp_state *state, int key, const char *arg,
                       struct tc_options *options)
{
    struct tc_rules *rules = &options->session.rules;
    const struct {
        int key;
        uint64_t *ns;
    } times[] = {{OPT_READY_TIMEOUT, &rules->ready_timeout_ns},
                 {OPT_IDLE, &rules->idle_ns},
                 {OPT_WARMUP, &rules->warmup_ns},
                 {OPT_WARMUP_MAX, &rules->warmup_max_ns},
                 {OPT_WINDOW, &rules->window_ns},
                 {OPT_WINDOW_MAX, &rules->window_max_ns},
                 {OPT_DURATION, &options->duration_ns}};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (times[i].key == key) {
            parse_duration(state, key, arg, times[i].ns);
            return true;
        }
    }
    return false;
}

static bool parse_text(int key, const char *arg, struct tc_options *options)
{
    const struct {
        int key;
        const char **text;
    } texts[] = {{OPT_RECORD, &options->session.record},
                 {OPT_HEADER, &options->header_path},
                 {OPT_SERVER_CPUS, &options->server_cpus},
                 {OPT_LOAD_CPUS, &options->load_cpus},
                 {OPT_COLLECTOR_CPUS, &options->collector_cpus},
                 {OPT_CPUS, &options->cpus},
                 {OPT_NETWORK, &options->network},
                 {OPT_NUMA, &options->numa},
                 {OPT_SERVER_ADDRESS, &options->session.server_address},
                 {OPT_LOAD_ADDRESS, &options->session.load_address},
                 {OPT_CONNECT, &options->session.connect}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].key == key) {
            *texts[i].text = arg;
            return true;
        }
    }
    return false;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct tc_options *options = state->input;
    uint64_t sample_ms;
    if (parse_text(key, arg, options) || parse_time(state, key, arg, options)) {
        return 0;
    }
    switch (key) {
    case OPT_COMPLETIONS:
        parse_count(state, key, arg, 1000000000, &options->session.rules.completions);
        return 0;
    case OPT_WINDOWS:
        parse_count(state, key, arg, 100000, &options->session.rules.windows);
        return 0;
    case OPT_SIMULATED_CPUS:
        parse_count(state, key, arg, TC_CPUS_MAX, &options->simulated_cpus);
        return 0;
    case OPT_SAMPLE:
        parse_count(state, key, arg, 3600000, &sample_ms);
        options->session.rules.sample_ns = sample_ms * MS;
        return 0;
    case OPT_SOURCE:
        choose_source(options, arg, state);
        return 0;
    case OPT_EVENTS:
        add_events(options, arg, state);
        return 0;
    case OPT_PROBE:
        options->probe = true;
        return 0;
    case OPT_SAMPLE_ONLY:
        options->sample_only = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int bad_input(const char *message)
{
    (void)fprintf(stderr, "tlscost-collect: %s\n", message);
    return TC_BAD_INPUT;
}

/* "... -- SERVER ARGS -- LOAD ARGS": cuts argv at the two "--" and returns how many words are ours.
 */
static int split_commands(int argc, char **argv, struct tc_session_options *session)
{
    int own = argc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") != 0) {
            continue;
        }
        argv[i] = NULL;
        if (session->server_argv == NULL) {
            own = i;
            session->server_argv = &argv[i + 1];
        } else {
            session->load_argv = &argv[i + 1];
            break; /* further ones are the load's own */
        }
    }
    return own;
}

static int check_commands(const struct tc_session_options *session)
{
    if (session->server_argv == NULL || session->load_argv == NULL ||
        session->server_argv[0] == NULL || session->load_argv[0] == NULL) {
        return bad_input("expected the two commands: ... -- SERVER ARGS... -- LOAD ARGS...");
    }
    if (!tc_paged_asked(session->load_argv)) {
        return bad_input("the load's arguments lack the word {page}: without its counts there is "
                         "nothing to relate to; tlscost-load takes --page {page}");
    }
    if (session->simulated_cpus.count > 0 && !tc_paged_asked(session->server_argv)) {
        return bad_input("the simulated machine's arguments lack {page}: its counters would be "
                         "nowhere; QEMU's plugin takes page={page}");
    }
    return 0;
}

static int require(const char *option, const char *text)
{
    if (text != NULL) {
        return 0;
    }
    (void)fprintf(stderr, "tlscost-collect: --%s is missing; see --help\n", option);
    return TC_BAD_INPUT;
}

static int load_header(struct tc_options *options)
{
    json_error_t where;
    if (options->header_path == NULL) {
        return 0;
    }
    options->header = json_load_file(options->header_path, JSON_REJECT_DUPLICATES, &where);
    if (options->header == NULL || !json_is_object(options->header)) {
        (void)fprintf(stderr, "tlscost-collect: --header %s:%d: %s\n", options->header_path,
                      where.line, options->header == NULL ? where.text : "expected a JSON object");
        return TC_BAD_INPUT;
    }
    options->session.header = options->header;
    return 0;
}

static int check_network(struct tc_options *options)
{
    struct tc_session_options *session = &options->session;
    struct sockaddr_storage address;
    socklen_t length;
    struct tc_error err;
    if (strcmp(options->network, "veth") == 0) {
        session->network = TC_NETWORK_VETH;
    } else if (strcmp(options->network, "loopback") == 0) {
        session->network = TC_NETWORK_LOOPBACK;
    } else if (strcmp(options->network, "user") == 0) {
        session->network = TC_NETWORK_USER;
    } else {
        return bad_input("--network: expected veth, loopback or user");
    }
    if ((session->network == TC_NETWORK_USER) != (session->simulated_cpus.count > 0)) {
        return bad_input("--network user and --simulated-cpus go together: a simulated machine has "
                         "a network of its own");
    }
    if (session->network == TC_NETWORK_USER) {
        return 0; /* its first transaction shows that it answers */
    }
    if (session->connect == NULL) {
        return require("connect", session->connect);
    }
    if (tc_parse_address(session->connect, &address, &length, &err) != 0) {
        (void)fprintf(stderr, "tlscost-collect: --connect: %s\n", err.message);
        return TC_BAD_INPUT;
    }
    return 0;
}

static int check_placement(struct tc_options *options)
{
    struct tc_session_options *session = &options->session;
    struct tc_error err;
    int rc = tc_cpus_parse("--server-cpus", options->server_cpus, &session->server_cpus, &err);
    if (rc == 0) {
        rc = tc_cpus_parse("--load-cpus", options->load_cpus, &session->load_cpus, &err);
    }
    if (rc == 0) {
        rc = options->collector_cpus != NULL
                 ? tc_cpus_parse("--collector-cpus", options->collector_cpus,
                                 &session->collector_cpus, &err)
                 : tc_cpus_beside(&session->server_cpus, &session->load_cpus,
                                  &session->collector_cpus, &err);
    }
    if (rc == 0) {
        rc = tc_numa_parse(options->numa, &session->numa, &err);
    }
    if (rc == 0) {
        return 0;
    }
    (void)fprintf(stderr, "tlscost-collect: %s\n", err.message);
    return rc == -EINVAL ? TC_BAD_INPUT : TC_CANNOT;
}

static int check_sampling(struct tc_options *options)
{
    struct tc_session_options *session = &options->session;
    struct tc_error err = {""};
    int rc;
    if ((rc = require("record", session->record)) != 0 ||
        (rc = require("cpus", options->cpus)) != 0) {
        return rc;
    }
    if (tc_cpus_parse("--cpus", options->cpus, &session->server_cpus, &err) != 0) {
        return bad_input(err.message);
    }
    session->rules.window_ns = options->duration_ns;
    return load_header(options);
}

static int check_session(struct tc_options *options)
{
    int rc;
    for (int cpu = 0; cpu < (int)options->simulated_cpus; cpu++) {
        options->session.simulated_cpus.ids[options->session.simulated_cpus.count++] = cpu;
    }
    if ((rc = require("record", options->session.record)) != 0 ||
        (rc = require("server-cpus", options->server_cpus)) != 0 ||
        (rc = require("load-cpus", options->load_cpus)) != 0 ||
        (rc = require("network", options->network)) != 0 ||
        (rc = check_commands(&options->session)) != 0 || (rc = check_network(options)) != 0 ||
        (rc = check_placement(options)) != 0) {
        return rc;
    }
    return load_header(options);
}

/* The events' names are the source's, which may be named after them. Where no PMU is, its events'
 * names are unknown: that is the record's to say, as it is for the default set. A mode that would
 * read 0 is a mistake. */
static int encode_events(struct tc_options *options)
{
    for (size_t set = 0; set < options->session.sets_count; set++) {
        for (size_t i = 0; i < options->sets_counts[set]; i++) {
            struct tc_error err;
            if (options->session.source->encode(&options->sets[set][i], &err) == -EINVAL) {
                (void)fprintf(stderr, "tlscost-collect: --events: %s\n", err.message);
                return TC_BAD_INPUT;
            }
        }
    }
    return 0;
}

/* What holds where no option says otherwise. */
static void set_defaults(struct tc_options *options, char *const *argv)
{
    options->session =
        (struct tc_session_options){.server_address = TC_NETWORK_SERVER,
                                    .load_address = TC_NETWORK_CLIENT,
                                    .collect_argv = argv,
                                    .source = &tc_source_perf,
                                    .sets = (const struct tc_event(*)[TC_EVENTS_MAX])options->sets,
                                    .sets_counts = options->sets_counts,
                                    .rules = {.ready_timeout_ns = 10 * S,
                                              .idle_ns = 500 * MS,
                                              .warmup_ns = 300 * MS,
                                              .warmup_max_ns = 10 * S,
                                              .window_ns = 2 * S,
                                              .window_max_ns = 120 * S,
                                              .sample_ns = 100 * MS,
                                              .completions = 100,
                                              .windows = 1}};
    options->numa = "default";
    options->duration_ns = 10 * S;
}

int tc_options_parse(struct tc_options *options, int argc, char **argv)
{
    static const struct argp argp = {
        options_table,
        parse_option,
        "-- SERVER ARGS... -- LOAD ARGS...",
        "Starts a server and a load generator, counts what the server's CPUs do and writes a "
        "record."
        "\vIn the load's arguments the word {page} becomes the path of the page in which it keeps "
        "its counts. Exit codes: 0 done, 1 a measurement failed (FILE.partial has what was "
        "measured), 2 bad input, 3 this machine cannot do it.",
        NULL,
        NULL,
        NULL};
    options->argv = calloc((size_t)argc + 1, sizeof(*options->argv));
    if (options->argv == NULL) {
        return bad_input("out of memory");
    }
    memcpy(options->argv, argv, (size_t)argc * sizeof(*argv));
    set_defaults(options, options->argv);
    argp_err_exit_status = TC_BAD_INPUT;
    int own = split_commands(argc, argv, &options->session);
    /* argp gets our words only; a word that is no option has no place among them. */
    if (argp_parse(&argp, own, argv, 0, NULL, options) != 0) {
        return TC_BAD_INPUT;
    }
    if (options->session.sets_count == 0) {
        struct argp_state state = {.name = argv[0], .err_stream = stderr};
        add_events(options, options->session.source->events, &state);
    }
    int rc = encode_events(options);
    if (rc != 0) {
        return rc;
    }
    return options->probe         ? 0
           : options->sample_only ? check_sampling(options)
                                  : check_session(options);
}

void tc_options_close(struct tc_options *options)
{
    json_decref(options->header);
    free(options->argv);
}
