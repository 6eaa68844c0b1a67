/* tlscost-serve: options, messages and exit codes. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "workloads/common/exposure.h"
#include "workloads/common/options.h"
#include "workloads/server/server.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2, EXIT_CANNOT = 3 };
enum { SIZES_MOST = 64, CPUS_MOST = CPU_SETSIZE };

enum option_key {
    OPTION_LISTEN = 'l',
    OPTION_PROFILE = 'p',
    OPTION_SIZE = 's',
    OPTION_CPUS = 'c',
    OPTION_CPU_LIST = 256,
    OPTION_RESUMPTION,
    OPTION_CERTIFICATE,
    OPTION_WRITE_CERTIFICATE,
    OPTION_WRITE_BODIES,
    OPTION_ALLOW_WEAK,
    OPTION_JSON,
    OPTION_MAX_CONNECTIONS,
    OPTION_MAX_HEADER,
    OPTION_MAX_REQUESTS,
    OPTION_HANDSHAKE_TIMEOUT,
    OPTION_HEADER_TIMEOUT,
    OPTION_KEEPALIVE_TIMEOUT,
    OPTION_WRITE_TIMEOUT,
    OPTION_DRAIN_TIMEOUT
};

struct arguments {
    struct tc_server_options server;
    struct tc_profile profile;
    const char *profile_path;
    const char *write_certificate;
    const char *write_bodies;
    uint64_t sizes[SIZES_MOST];
    size_t size_count;
    int cpus[CPUS_MOST];
    bool allow_weak;
    bool json;
};

static const char description[] =
    "Serves static bodies over HTTP/1.1, plain or over TLS: GET /SIZE answers with SIZE bytes.\n\n"
    "Exit codes: 0 drained after SIGTERM or SIGINT; 1 cannot listen or failed while serving; 2 bad "
    "options; 3 fewer CPUs than asked for, or an OpenSSL that cannot do what the profile asks for.";

static const struct argp_option options[] = {
    {"listen", OPTION_LISTEN, "ADDRESS:PORT", 0,
     "Numeric address (default 127.0.0.1:8443; port 0: any free one)", 0},
    {"profile", OPTION_PROFILE, "FILE", 0, "TLS profile; without one, plain HTTP", 0},
    {"size", OPTION_SIZE, "SIZE", 0, "A body to serve, such as 30, 36KiB, 1MiB; may be repeated",
     0},
    {"cpus", OPTION_CPUS, "N", 0,
     "One pinned worker on each of the first N CPUs it may use (default 1)", 0},
    {"cpu-list", OPTION_CPU_LIST, "LIST", 0, "On these CPUs instead, as in 2,4-7", 0},
    {"resumption", OPTION_RESUMPTION, "on|off", 0,
     "Sessions and tickets (default off: every handshake is full)", 0},
    {"certificate", OPTION_CERTIFICATE, "DIR", 0,
     "Use DIR/key.pem and DIR/cert.pem (default: made anew)", 0},
    {"write-certificate", OPTION_WRITE_CERTIFICATE, "DIR", 0,
     "Write a key and certificate of the profile's kind to DIR, and exit", 0},
    {"write-bodies", OPTION_WRITE_BODIES, "DIR", 0, "Write the bodies to DIR/SIZE, and exit", 0},
    {"allow-weak", OPTION_ALLOW_WEAK, NULL, 0,
     "Serve a weak profile on an address that others can reach", 0},
    {"json", OPTION_JSON, NULL, 0, "When ready, print a JSON line on standard output", 0},
    {NULL, 0, NULL, 0, "Limits (times in seconds, or as 250ms):", 1},
    {"max-connections", OPTION_MAX_CONNECTIONS, "N", 0,
     "At once (default: what open descriptors allow, at most 65536)", 1},
    {"max-header", OPTION_MAX_HEADER, "BYTES", 0, "Request line and header (default 8192)", 1},
    {"max-requests-per-connection", OPTION_MAX_REQUESTS, "N", 0, "Then close (default: no limit)",
     1},
    {"handshake-timeout", OPTION_HANDSHAKE_TIMEOUT, "TIME", 0, "TLS handshake (default 10)", 1},
    {"header-timeout", OPTION_HEADER_TIMEOUT, "TIME", 0, "A whole request (default 10)", 1},
    {"keepalive-timeout", OPTION_KEEPALIVE_TIMEOUT, "TIME", 0, "Between requests (default 60)", 1},
    {"write-timeout", OPTION_WRITE_TIMEOUT, "TIME", 0, "No progress in a response (default 30)", 1},
    {"drain-timeout", OPTION_DRAIN_TIMEOUT, "TIME", 0,
     "For what is under way at SIGTERM (default 10)", 1},
    {0}};

static int parse_limit(int key, const char *text, struct tc_limits *limits, struct tc_error *err)
{
    uint64_t bytes = 0;
    int rc = 0;
    switch (key) {
    case OPTION_MAX_CONNECTIONS:
        return tc_parse_count(text, 1, 1 << 20, &limits->connections, err);
    case OPTION_MAX_REQUESTS:
        return tc_parse_count(text, 1, UINT32_MAX, &limits->requests, err);
    case OPTION_MAX_HEADER:
        rc = tc_parse_count(text, 64, TC_REQUEST_HEADER_MOST, &bytes, err);
        limits->header_bytes = (uint32_t)bytes;
        return rc;
    case OPTION_HANDSHAKE_TIMEOUT:
        return tc_parse_duration(text, &limits->handshake_ns, err);
    case OPTION_HEADER_TIMEOUT:
        return tc_parse_duration(text, &limits->header_ns, err);
    case OPTION_KEEPALIVE_TIMEOUT:
        return tc_parse_duration(text, &limits->keepalive_ns, err);
    case OPTION_WRITE_TIMEOUT:
        return tc_parse_duration(text, &limits->write_ns, err);
    case OPTION_DRAIN_TIMEOUT:
        return tc_parse_duration(text, &limits->drain_ns, err);
    default:
        return -ENOSYS;
    }
}

static int add_size(struct arguments *arguments, const char *text, struct tc_error *err)
{
    if (arguments->size_count == SIZES_MOST) {
        return tc_error_set(err, EINVAL, "more than %d sizes", SIZES_MOST);
    }
    return tc_parse_size(text, &arguments->sizes[arguments->size_count++], err);
}

static int take_cpus(struct arguments *arguments, const char *text, struct tc_error *err)
{
    uint64_t count = 0;
    int rc = tc_parse_count(text, 1, CPUS_MOST, &count, err);
    arguments->server.cpu_count = (size_t)count;
    return rc == 0 ? tc_first_cpus((uint32_t)count, arguments->cpus, err) : rc;
}

static int parse_switch(const char *text, bool *on, struct tc_error *err)
{
    *on = strcmp(text, "on") == 0;
    return *on || strcmp(text, "off") == 0
               ? 0
               : tc_error_set(err, EINVAL, "'%s': expected on or off", text);
}

static int take(struct arguments *arguments, int key, char *text, struct tc_error *err)
{
    struct tc_server_options *server = &arguments->server;
    switch (key) {
    case OPTION_LISTEN:
        return tc_parse_address(text, &server->address, &server->address_length, err);
    case OPTION_PROFILE:
        arguments->profile_path = text;
        return 0;
    case OPTION_SIZE:
        return add_size(arguments, text, err);
    case OPTION_CPUS:
        return take_cpus(arguments, text, err);
    case OPTION_CPU_LIST:
        return tc_parse_cpus(text, arguments->cpus, CPUS_MOST, &server->cpu_count, err);
    case OPTION_RESUMPTION:
        return parse_switch(text, &server->resumption, err);
    case OPTION_CERTIFICATE:
        server->certificate_dir = text;
        return 0;
    case OPTION_WRITE_CERTIFICATE:
        arguments->write_certificate = text;
        return 0;
    case OPTION_WRITE_BODIES:
        arguments->write_bodies = text;
        return 0;
    case OPTION_ALLOW_WEAK:
        arguments->allow_weak = true;
        return 0;
    case OPTION_JSON:
        arguments->json = true;
        return 0;
    default:
        return parse_limit(key, text, &server->limits, err);
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    struct tc_error err;
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "unexpected argument '%s'", text);
    }
    if (key == ARGP_KEY_END) {
        bool tls = arguments->profile_path != NULL;
        if (!tls &&
            (arguments->write_certificate != NULL || arguments->server.certificate_dir != NULL)) {
            argp_error(state, "a certificate needs a --profile");
        }
        if (arguments->size_count == 0 && arguments->write_certificate == NULL) {
            argp_error(state, "no body to serve: give at least one --size");
        }
        return 0;
    }
    int rc = take(arguments, key, text, &err);
    if (rc == -ENOSYS) {
        return ARGP_ERR_UNKNOWN;
    }
    if (rc != 0) {
        const struct argp_option *option = options;
        while (option->key != key) {
            option++;
        }
        argp_failure(state, rc == -ENOTSUP ? EXIT_CANNOT : EXIT_BAD_INPUT, 0, "--%s: %s",
                     option->name, err.message);
    }
    return 0;
}

static int complain(int code, const struct tc_error *err)
{
    (void)fprintf(stderr, "tlscost-serve: %s\n", err->message);
    return code;
}

/* Room for what was asked for, or as much as there is: sockets, and some for everything else. */
static int set_descriptors(struct arguments *arguments, struct tc_error *err)
{
    enum { OTHERS = 64, CONNECTIONS_DEFAULT_MOST = 65536 };
    struct tc_limits *limits = &arguments->server.limits;
    struct rlimit limit;
    uint64_t others = OTHERS + 4 * arguments->server.cpu_count;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return tc_error_set(err, errno, "cannot ask for the limit of descriptors: %s",
                            strerror(errno));
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return tc_error_set(err, errno, "cannot raise the limit of descriptors: %s",
                            strerror(errno));
    }
    uint64_t room = limit.rlim_cur > others ? limit.rlim_cur - others : 1;
    if (limits->connections == 0) {
        limits->connections = room < CONNECTIONS_DEFAULT_MOST ? room : CONNECTIONS_DEFAULT_MOST;
    }
    uint64_t workers = arguments->server.cpu_count;
    limits->connections = (limits->connections + workers - 1) / workers;
    return 0;
}

static int check_weakness(const struct arguments *arguments)
{
    const struct tc_profile *profile = &arguments->profile;
    if (arguments->profile_path == NULL || !profile->weak) {
        return EXIT_DONE;
    }
    if (!arguments->allow_weak && !tc_address_is_private(&arguments->server.address)) {
        (void)fprintf(stderr,
                      "tlscost-serve: profile %s is weak and others may reach this address; listen "
                      "on loopback, or give --allow-weak\n",
                      profile->name);
        return EXIT_BAD_INPUT;
    }
    (void)fprintf(stderr,
                  "tlscost-serve: warning: profile %s is weak: it protects nothing, and is for "
                  "measuring only\n",
                  profile->name);
    return EXIT_DONE;
}

static void say_ready(const struct arguments *arguments, const struct tc_server *server)
{
    char host[NI_MAXHOST] = "?";
    char port[NI_MAXSERV] = "0";
    const char *name = arguments->profile_path != NULL ? arguments->profile.name : NULL;
    (void)getnameinfo((const struct sockaddr *)&server->address, sizeof(server->address), host,
                      sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    (void)fprintf(stderr, "tlscost-serve: ready on %s port %s, %s, %zu worker%s\n", host, port,
                  name != NULL ? name : "plain", server->count, server->count == 1 ? "" : "s");
    if (arguments->json) {
        (void)printf("{\"ready\": true, \"address\": \"%s\", \"port\": %s, \"profile\": %s%s%s, "
                     "\"workers\": %zu, \"pid\": %d}\n",
                     host, port, name != NULL ? "\"" : "", name != NULL ? name : "null",
                     name != NULL ? "\"" : "", server->count, (int)getpid());
        (void)fflush(stdout);
    }
}

static int write_certificate(const struct arguments *arguments, struct tc_error *err)
{
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    int rc = tc_certificate_make(&arguments->profile, &key, &cert, err);
    if (rc == 0) {
        rc = tc_certificate_write(arguments->write_certificate, key, cert, err);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}

static int exit_code(int rc)
{
    switch (rc) {
    case 0:
        return EXIT_DONE;
    case -ENOTSUP:
        return EXIT_CANNOT;
    case -EINVAL:
    case -ENOENT:
        return EXIT_BAD_INPUT;
    default:
        return EXIT_FAILED;
    }
}

static int serve(const struct arguments *arguments, const struct tc_bodies *bodies,
                 const sigset_t *signals)
{
    struct tc_server server;
    struct tc_error err;
    struct tc_error close_err;
    uint64_t cut = 0;
    int signal_number = 0;
    int rc = tc_server_start(&server, &arguments->server, bodies, &err);
    if (rc == 0) {
        say_ready(arguments, &server);
        (void)sigwait(signals, &signal_number); /* fails only for an invalid set */
    }
    int close_rc = tc_server_close(&server, &cut, &close_err);
    if (rc != 0) {
        return complain(exit_code(rc), &err);
    }
    if (close_rc != 0) {
        return complain(EXIT_FAILED, &close_err);
    }
    if (cut > 0) {
        (void)fprintf(stderr,
                      "tlscost-serve: warning: %" PRIu64
                      " connections were not done within --drain-timeout and were cut\n",
                      cut);
    }
    return EXIT_DONE;
}

static int run(struct arguments *arguments, const sigset_t *signals)
{
    struct tc_error err;
    struct tc_bodies bodies;
    if (arguments->profile_path != NULL) {
        int rc = tc_profile_open(&arguments->profile, arguments->profile_path, &err);
        if (rc != 0) {
            return complain(EXIT_BAD_INPUT, &err);
        }
        arguments->server.profile = &arguments->profile;
    }
    if (arguments->write_certificate != NULL) {
        int rc = write_certificate(arguments, &err);
        if (rc != 0 || arguments->write_bodies == NULL) {
            return rc == 0 ? EXIT_DONE : complain(exit_code(rc), &err);
        }
    }
    int rc = tc_bodies_open(&bodies, arguments->sizes, arguments->size_count, &err);
    if (rc != 0) {
        return complain(EXIT_FAILED, &err);
    }
    int code = EXIT_DONE;
    if (arguments->write_bodies != NULL) {
        rc = tc_bodies_write(&bodies, arguments->write_bodies, &err);
        code = rc == 0 ? EXIT_DONE : complain(exit_code(rc), &err);
    } else {
        rc = set_descriptors(arguments, &err);
        code = rc == 0 ? check_weakness(arguments) : complain(EXIT_FAILED, &err);
        code = code == EXIT_DONE ? serve(arguments, &bodies, signals) : code;
    }
    tc_bodies_close(&bodies);
    return code;
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    (void)fprintf(stream, "tlscost-serve %s (%s)\n%s\n", TC_VERSION, TC_BUILD_NAME,
                  OpenSSL_version(OPENSSL_VERSION));
}

int main(int argc, char **argv)
{
    static struct arguments arguments = {.server.limits = {.handshake_ns = UINT64_C(10000000000),
                                                           .header_ns = UINT64_C(10000000000),
                                                           .keepalive_ns = UINT64_C(60000000000),
                                                           .write_ns = UINT64_C(30000000000),
                                                           .drain_ns = UINT64_C(10000000000),
                                                           .header_bytes = 8192}};
    static const struct argp argp = {options, parse_option, NULL, description, NULL, NULL, NULL};
    struct tc_error err;
    sigset_t signals;
    argp_program_version_hook = print_version;
    argp_err_exit_status = EXIT_BAD_INPUT;
    if (tc_parse_address("127.0.0.1:8443", &arguments.server.address,
                         &arguments.server.address_length, &err) != 0 ||
        take_cpus(&arguments, "1", &err) != 0) {
        return complain(EXIT_CANNOT, &err);
    }
    arguments.server.cpus = arguments.cpus;
    (void)argp_parse(&argp, argc, argv, 0, NULL, &arguments); /* exits by itself on bad options */
    /* Blocked before the workers start, so that they inherit it and sigwait() gets them all. */
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    int code = run(&arguments, &signals);
    tc_profile_close(&arguments.profile);
    return code;
}
