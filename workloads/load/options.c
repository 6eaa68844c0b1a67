#include "workloads/load/options.h"

#include <argp.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "workloads/common/options.h"

enum {
    EXIT_BAD_INPUT = 2,
    EXIT_CANNOT = 3,
};

enum option_key {
    KEY_URL = 256,
    KEY_PROFILE,
    KEY_CPUS,
    KEY_CPU_LIST,
    KEY_CONNECTIONS,
    KEY_RATE,
    KEY_ARRIVALS,
    KEY_SEED,
    KEY_DURATION,
    KEY_TRANSACTIONS,
    KEY_KEEPALIVE,
    KEY_RESUMPTION,
    KEY_EXPECT_SIZE,
    KEY_CHECK,
    KEY_TIMEOUT,
    KEY_DRAIN_TIMEOUT,
    KEY_PAGE,
    KEY_JSON,
};

static const struct argp_option described[] = {
    {"url", KEY_URL, "URL", 0, "What to fetch: http(s)://ADDRESS:PORT/PATH", 1},
    {"profile", KEY_PROFILE, "FILE", 0, "TLS profile; asserted after each handshake", 1},
    {"connections", KEY_CONNECTIONS, "N", 0,
     "Connections over all threads: closed loop (default 16), or the limit of the open loop", 2},
    {"rate", KEY_RATE, "R", 0, "Open loop: R transactions a second, whatever the server does", 2},
    {"arrivals", KEY_ARRIVALS, "KIND", 0,
     "Of the open loop: constant, poisson (default), pareto[:SHAPE] (bounded, default 1.5)", 2},
    {"seed", KEY_SEED, "N", 0, "Of the arrivals' random numbers (default 1)", 2},
    {"duration", KEY_DURATION, "S", 0, "Stop after S seconds (default: on SIGTERM or SIGINT)", 3},
    {"transactions", KEY_TRANSACTIONS, "N", 0, "Stop after N transactions", 3},
    {"timeout", KEY_TIMEOUT, "S", 0, "Give a transaction up after S seconds (default 10)", 3},
    {"drain-timeout", KEY_DRAIN_TIMEOUT, "S", 0,
     "When stopping, wait S seconds for transactions under way (default 2)", 3},
    {"keepalive", KEY_KEEPALIVE, NULL, 0,
     "Keep connections open (default: a connection and full handshake per transaction)", 4},
    {"resumption", KEY_RESUMPTION, "FRACTION", 0,
     "Resume this fraction of the TLS sessions, evenly (default 0), but for those begun before the "
     "first sessions have come; a handshake that is not as asked is an error",
     4},
    {"expect-size", KEY_EXPECT_SIZE, "SIZE", 0, "Size that the body must have", 5},
    {"check", KEY_CHECK, "LEVEL", 0,
     "status, size, or pattern (default): every byte is compared with what tlscost-serve sends", 5},
    {"cpus", KEY_CPUS, "N", 0,
     "One pinned thread on each of the first N CPUs it may use (default 1), but no more than "
     "connections",
     6},
    {"cpu-list", KEY_CPU_LIST, "LIST", 0, "On these CPUs instead, as in 2,4-7", 6},
    {"page", KEY_PAGE, "FILE", 0, "Keep the counts in FILE (a collector's memfd)", 7},
    {"json", KEY_JSON, NULL, 0, "Print the summary as one JSON document", 7},
    {0},
};

static double number(struct argp_state *state, const char *option, const char *text, double least,
                     double most)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most)) {
        argp_error(state, "--%s: '%s': expected a number from %g to %g", option, text, least, most);
    }
    return value;
}

/* The parsers of workloads/common name the value; this names the option. */
static void require(struct argp_state *state, const char *option, int result,
                    const struct tc_error *err)
{
    if (result != 0) {
        argp_error(state, "--%s: %s", option, err->message);
    }
}

static uint64_t integer(struct argp_state *state, const char *option, const char *text,
                        uint64_t least, uint64_t most)
{
    struct tc_error err;
    uint64_t value = 0;
    require(state, option, tc_parse_count(text, least, most, &value, &err), &err);
    return value;
}

static uint64_t size_bytes(struct argp_state *state, const char *option, const char *text)
{
    struct tc_error err;
    uint64_t value = 0;
    require(state, option, tc_parse_size(text, &value, &err), &err);
    return value;
}

static uint64_t duration_ns(struct argp_state *state, const char *option, const char *text)
{
    struct tc_error err;
    uint64_t value = 0;
    require(state, option, tc_parse_duration(text, &value, &err), &err);
    return value;
}

static uint32_t cpu_list(struct argp_state *state, const char *option, const char *text, int *cpus)
{
    struct tc_error err;
    size_t count = 0;
    require(state, option, tc_parse_cpus(text, cpus, TC_LOAD_MOST_THREADS, &count, &err), &err);
    return (uint32_t)count;
}

static void parse_arrivals(struct tc_load_options *options, struct argp_state *state,
                           const char *text)
{
    options->shape = TC_PACING_PARETO_SHAPE;
    if (strcmp(text, "constant") == 0) {
        options->arrivals = TC_ARRIVALS_CONSTANT;
    } else if (strcmp(text, "poisson") == 0) {
        options->arrivals = TC_ARRIVALS_POISSON;
    } else if (strcmp(text, "pareto") == 0) {
        options->arrivals = TC_ARRIVALS_PARETO;
    } else if (strncmp(text, "pareto:", strlen("pareto:")) == 0) {
        options->arrivals = TC_ARRIVALS_PARETO;
        options->shape = number(state, "arrivals", text + strlen("pareto:"), 0.01, 100);
    } else {
        argp_error(state, "--arrivals: '%s': expected constant, poisson or pareto[:SHAPE]", text);
    }
}

static void parse_check(struct tc_load_options *options, struct argp_state *state, const char *text)
{
    static const char *const names[] = {
        [TC_CHECK_STATUS] = "status", [TC_CHECK_SIZE] = "size", [TC_CHECK_PATTERN] = "pattern"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i]) == 0) {
            options->rules.check = (enum tc_check)i;
            return;
        }
    }
    argp_error(state, "--check: '%s': expected status, size or pattern", text);
}

struct parsing {
    struct tc_load_options *options;
    bool cpus_listed;
    bool arrivals_given;
};

static void finish(struct parsing *parsing, struct argp_state *state)
{
    struct tc_load_options *options = parsing->options;
    if (options->url == NULL) {
        argp_error(state, "--url is missing: expected http(s)://ADDRESS:PORT/PATH");
    }
    if (parsing->arrivals_given && !(options->rate > 0)) {
        argp_error(state, "--arrivals is of the open loop: give --rate too");
    }
    /* A thread without a connection would have nothing to do. */
    if (options->threads > options->connections) {
        options->threads = options->connections;
    }
    struct tc_error err;
    if (!parsing->cpus_listed && tc_first_cpus(options->threads, options->cpus, &err) != 0) {
        argp_failure(state, EXIT_CANNOT, 0, "--cpus: %s", err.message);
    }
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct parsing *parsing = state->input;
    struct tc_load_options *options = parsing->options;
    switch (key) {
    case KEY_URL:
        options->url = text;
        break;
    case KEY_PROFILE:
        options->profile_path = text;
        break;
    case KEY_CPUS:
        options->threads = (uint32_t)integer(state, "cpus", text, 1, TC_LOAD_MOST_THREADS);
        parsing->cpus_listed = false;
        break;
    case KEY_CPU_LIST:
        options->threads = cpu_list(state, "cpu-list", text, options->cpus);
        parsing->cpus_listed = true;
        break;
    case KEY_CONNECTIONS:
        options->connections =
            (uint32_t)integer(state, "connections", text, 1, TC_LOAD_MOST_CONNECTIONS);
        break;
    case KEY_RATE:
        options->rate = number(state, "rate", text, 1e-3, 1e7);
        break;
    case KEY_ARRIVALS:
        parse_arrivals(options, state, text);
        parsing->arrivals_given = true;
        break;
    case KEY_SEED:
        options->seed = (uint32_t)integer(state, "seed", text, 0, UINT32_MAX);
        break;
    case KEY_DURATION:
        options->duration_ns = duration_ns(state, "duration", text);
        break;
    case KEY_TRANSACTIONS:
        options->transactions = integer(state, "transactions", text, 1, UINT64_MAX / 2);
        break;
    case KEY_KEEPALIVE:
        options->keepalive = true;
        break;
    case KEY_RESUMPTION:
        options->resumption = number(state, "resumption", text, 0, 1);
        break;
    case KEY_EXPECT_SIZE:
        options->rules.expected_bytes = size_bytes(state, "expect-size", text);
        options->rules.sized = true;
        break;
    case KEY_CHECK:
        parse_check(options, state, text);
        break;
    case KEY_TIMEOUT:
        options->timeout_ns = duration_ns(state, "timeout", text);
        break;
    case KEY_DRAIN_TIMEOUT:
        options->drain_timeout_ns = duration_ns(state, "drain-timeout", text);
        break;
    case KEY_PAGE:
        options->page_path = text;
        break;
    case KEY_JSON:
        options->json = true;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': expected options only", text);
        break;
    case ARGP_KEY_END:
        finish(parsing, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    (void)fprintf(stream, "tlscost-load %s (%s)\n%s\n", TC_VERSION, TC_BUILD_NAME,
                  OpenSSL_version(OPENSSL_VERSION));
}

void tc_load_options_parse(struct tc_load_options *options, int argc, char **argv)
{
    static const struct argp argp = {
        .options = described,
        .parser = parse,
        .doc = "Puts load on an HTTP(S) server and checks what it answers.\v"
               "Exit status: 0 done, 1 no transaction completed, 2 bad input, 3 this machine "
               "cannot do it.",
    };
    *options = (struct tc_load_options){
        .threads = 1,
        .connections = 16,
        .arrivals = TC_ARRIVALS_POISSON,
        .shape = TC_PACING_PARETO_SHAPE,
        .seed = 1,
        .rules = {.check = TC_CHECK_PATTERN},
        .timeout_ns = UINT64_C(10000000000),
        .drain_timeout_ns = UINT64_C(2000000000),
    };
    struct parsing parsing = {.options = options};
    argp_err_exit_status = EXIT_BAD_INPUT;
    argp_program_version_hook = print_version;
    error_t code = argp_parse(&argp, argc, argv, 0, NULL, &parsing);
    if (code != 0) {
        (void)fprintf(stderr, "tlscost-load: %s\n", strerror(code));
        exit(EXIT_BAD_INPUT);
    }
}
