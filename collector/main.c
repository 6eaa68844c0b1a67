/* tlscost-collect: options in, one record out. Only this file and options.c print or exit. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "collector/options.h"
#include "collector/probe.h"

#define FAILED_LINES 12

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

static void catch_signals(void)
{
    const struct sigaction stop = {.sa_handler = on_signal};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct rlimit files;
    (void)sigaction(SIGINT, &stop, NULL);
    (void)sigaction(SIGTERM, &stop, NULL);
    (void)sigaction(SIGHUP, &stop, NULL);
    (void)sigaction(SIGPIPE, &ignore, NULL);
    /* Past RLIMIT_FSIZE a write is to fail, as on a full disk, not to kill. */
    (void)sigaction(SIGXFSZ, &ignore, NULL);
    /* A file descriptor per CPU and event: as many as this user may have. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* The last lines of what a command wrote, each with its name before it. */
static void print_tail(const char *what, char *text)
{
    size_t length = strlen(text);
    size_t lines = 0;
    while (length > 0 && text[length - 1] == '\n') {
        text[--length] = '\0';
    }
    char *start = text + length;
    while (start > text && lines < FAILED_LINES) {
        start--;
        lines += *start == '\n';
    }
    start += *start == '\n';
    char *rest = NULL;
    for (char *line = strtok_r(start, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        (void)fprintf(stderr, "%s: %s\n", what, line);
    }
}

static int run_session(const struct tc_session_options *session)
{
    static struct tc_session_output output;
    struct tc_error err = {""};
    enum tc_outcome outcome = tc_session_run(session, &output, &err);
    if (outcome != TC_DONE) {
        print_tail("server", output.server);
        print_tail("load", output.load);
        (void)fprintf(stderr, "tlscost-collect: %s\n", err.message);
    }
    return (int)outcome;
}

static int run_sampling(const struct tc_session_options *session)
{
    struct tc_error err = {""};
    enum tc_outcome outcome = tc_session_sample(session, &err);
    if (outcome != TC_DONE) {
        (void)fprintf(stderr, "tlscost-collect: %s\n", err.message);
    }
    return (int)outcome;
}

/* The first that this process may run on. */
static int first_cpu(int *cpu, struct tc_error *err)
{
    cpu_set_t allowed;
    struct tc_cpus online;
    int rc = tc_cpus_online(&online, err);
    if (rc != 0) {
        return rc;
    }
    size_t first = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        while (first + 1 < online.count && !CPU_ISSET((size_t)online.ids[first], &allowed)) {
            first++;
        }
    }
    *cpu = online.ids[first];
    return 0;
}

static int run_probe(const struct tc_session_options *options)
{
    int cpu;
    struct tc_error err;
    if (first_cpu(&cpu, &err) != 0) {
        (void)fprintf(stderr, "tlscost-collect: %s\n", err.message);
        return TC_CANNOT;
    }
    json_t *probe = tc_probe_build(cpu, options);
    int rc = probe == NULL ? -1 : json_dumpf(probe, stdout, JSON_INDENT(2));
    json_decref(probe);
    if (rc != 0 || puts("") == EOF || fflush(stdout) != 0) {
        (void)fprintf(stderr, "tlscost-collect: cannot print what was found: %s\n",
                      strerror(errno));
        return TC_FAILED;
    }
    return TC_DONE;
}

int main(int argc, char **argv)
{
    static struct tc_options options;
    int rc = tc_options_parse(&options, argc, argv);
    if (rc == 0) {
        options.session.interrupted = &interrupted;
        if (options.probe) { /* with the limits as they are */
            rc = run_probe(&options.session);
            tc_options_close(&options);
            return rc;
        }
        catch_signals();
        rc = options.sample_only ? run_sampling(&options.session) : run_session(&options.session);
    }
    tc_options_close(&options);
    return rc;
}
