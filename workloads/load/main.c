/* tlscost-load: puts load on an HTTP(S) server. The only file here that prints or exits, but for
 * what argp does with the command line. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "workloads/load/options.h"
#include "workloads/load/summary.h"
#include "workloads/load/worker.h"

enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2, EXIT_CANNOT = 3 };

struct thread {
    struct tc_worker worker;
    pthread_t id;
    int result;
    struct tc_error err;
};

static enum exit_code complain(enum exit_code code, const struct tc_error *err)
{
    (void)fprintf(stderr, "tlscost-load: %s\n", err->message);
    return code;
}

/* Blocked in every thread and told to all of them through one descriptor. */
static int open_signals(struct tc_error *err)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    int code = pthread_sigmask(SIG_BLOCK, &stop, NULL);
    int fd = code == 0 ? signalfd(-1, &stop, SFD_NONBLOCK | SFD_CLOEXEC) : -1;
    return fd >= 0 ? fd : tc_error_set(err, code != 0 ? code : errno, "signals: cannot be had");
}

static int open_page(struct tc_load *load, struct tc_error *err)
{
    const char *path = load->options->page_path;
    int fd =
        path != NULL ? open(path, O_RDWR | O_CLOEXEC) : memfd_create("tlscost-load", MFD_CLOEXEC);
    if (fd < 0) {
        return tc_error_set(err, errno, "--page %s: %s", path != NULL ? path : "(none given)",
                            strerror(errno));
    }
    int result =
        tc_page_create(&load->page, fd, load->options->threads, load->options->connections, err);
    (void)close(fd);
    return result;
}

static int raise_file_limit(uint32_t connections, uint32_t threads, struct tc_error *err)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)connections + threads + 64; /* an epoll per thread, and some more */
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return tc_error_set(err, errno, "limit of open files: %s", strerror(errno));
    }
    if (limit.rlim_cur >= needed) {
        return 0;
    }
    limit.rlim_cur = needed;
    limit.rlim_max = limit.rlim_max < needed ? needed : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0
               ? 0
               : tc_error_set(err, EMFILE,
                              "--connections %u: more than this process may open; raise the limit "
                              "(ulimit -n %llu) or give fewer",
                              connections, (unsigned long long)needed);
}

static int pin(int cpu, struct tc_error *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    int code = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    return code == 0 ? 0 : tc_error_set(err, code, "CPU %d: %s", cpu, strerror(code));
}

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    thread->result = pin(thread->worker.load->options->cpus[thread->worker.index], &thread->err);
    if (thread->result == 0) {
        thread->result = tc_worker_run(&thread->worker, &thread->err);
    }
    return NULL;
}

/* The first worker runs on the main thread: a load of one CPU stays a process of one thread, for
 * which malloc and its like take no locks. */
static int run_threads(struct thread *threads, uint32_t count)
{
    uint32_t started = 1;
    int result = 0;
    threads[0].worker.load->start_ns = tc_now_ns();
    while (result == 0 && started < count) {
        int code = pthread_create(&threads[started].id, NULL, run_thread, &threads[started]);
        if (code != 0) {
            result = tc_error_set(&threads[0].err, code, "threads: %s", strerror(code));
            (void)raise(SIGTERM); /* the others are to stop */
        } else {
            started++;
        }
    }
    (void)run_thread(&threads[0]);
    for (uint32_t i = 1; i < started; i++) {
        (void)pthread_join(threads[i].id, NULL);
    }
    return result;
}

static uint64_t nanoseconds(struct timeval time)
{
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_usec * 1000;
}

static enum exit_code summarize(const struct tc_load *load, const struct thread *threads)
{
    struct tc_error err = {{0}};
    struct rusage usage;
    struct tc_load_summary summary = {.options = load->options, .page = &load->page};
    for (uint32_t i = 0; i < load->options->threads; i++) {
        uint64_t elapsed_ns = threads[i].worker.end_ns - load->start_ns;
        summary.elapsed_ns = elapsed_ns > summary.elapsed_ns ? elapsed_ns : summary.elapsed_ns;
        summary.unstarted += threads[i].worker.unstarted;
    }
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        summary.user_ns = nanoseconds(usage.ru_utime);
        summary.system_ns = nanoseconds(usage.ru_stime);
    }
    int result = load->options->json ? tc_load_summary_json(&summary, stdout, &err)
                                     : tc_load_summary_text(&summary, stdout, &err);
    if (result != 0) {
        return complain(EXIT_FAILED, &err);
    }
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&load->page, sums);
    if (sums[TC_COUNT_COMPLETED] == 0) {
        (void)snprintf(err.message, sizeof(err.message),
                       "no transaction completed; the summary's errors say why");
        return complain(EXIT_FAILED, &err);
    }
    return EXIT_DONE;
}

static enum exit_code load_with_threads(struct tc_load *load)
{
    uint32_t count = load->options->threads;
    struct tc_error err = {{0}};
    enum exit_code code = EXIT_DONE;
    struct thread *threads = calloc(count, sizeof(*threads));
    if (threads == NULL) {
        (void)tc_error_set(&err, ENOMEM, "out of memory");
        return complain(EXIT_CANNOT, &err);
    }
    uint32_t opened = 0;
    for (; code == EXIT_DONE && opened < count; opened++) {
        int result = tc_worker_open(&threads[opened].worker, load, opened, &err);
        if (result != 0) {
            code = complain(result == -EINVAL ? EXIT_BAD_INPUT : EXIT_CANNOT, &err);
        }
    }
    if (code == EXIT_DONE) {
        int result = run_threads(threads, count);
        code = result != 0 ? complain(EXIT_CANNOT, &threads[0].err) : summarize(load, threads);
        for (uint32_t i = 0; result == 0 && i < count; i++) {
            if (threads[i].result != 0) {
                code = complain(EXIT_CANNOT, &threads[i].err);
            }
        }
    }
    for (uint32_t i = 0; i < opened; i++) {
        tc_worker_close(&threads[i].worker);
    }
    free(threads);
    return code;
}

/* Weak profiles are for the study of old ones, never for a network. */
static int allow(const struct tc_load *load, struct tc_error *err)
{
    if (load->profile == NULL || !load->profile->weak) {
        return 0;
    }
    if (!load->target.local) {
        return tc_error_set(err, EINVAL,
                            "profile %s is weak: expected a loopback address or a cell's own "
                            "network in --url",
                            load->profile->name);
    }
    (void)fprintf(stderr, "tlscost-load: warning: profile %s is weak; its traffic is not secret\n",
                  load->profile->name);
    return 0;
}

static enum exit_code run(const struct tc_load_options *options, struct tc_profile *profile)
{
    struct tc_error err = {{0}};
    struct tc_load load = {.options = options, .profile = profile};
    if (tc_target_parse(&load.target, options->url, options->keepalive, &err) != 0 ||
        allow(&load, &err) != 0) {
        return complain(EXIT_BAD_INPUT, &err);
    }
    if (!load.target.tls && (profile != NULL || options->resumption > 0)) {
        (void)tc_error_set(&err, EINVAL,
                           "--profile and --resumption are of TLS: give an https URL");
        return complain(EXIT_BAD_INPUT, &err);
    }
    if (raise_file_limit(options->connections, options->threads, &err) != 0) {
        return complain(EXIT_CANNOT, &err);
    }
    /* The open loop starts at instants; by default the kernel may be 50 us late on purpose. */
    (void)prctl(PR_SET_TIMERSLACK, 1UL);
    load.signal_fd = open_signals(&err);
    if (load.signal_fd < 0) {
        return complain(EXIT_CANNOT, &err);
    }
    int result = open_page(&load, &err);
    enum exit_code code = result == 0 ? load_with_threads(&load) : complain(EXIT_BAD_INPUT, &err);
    tc_page_close(&load.page);
    (void)close(load.signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    struct tc_load_options options;
    struct tc_error err = {{0}};
    struct tc_profile profile;
    tc_load_options_parse(&options, argc, argv);
    if (options.profile_path == NULL) {
        return (int)run(&options, NULL);
    }
    if (tc_profile_open(&profile, options.profile_path, &err) != 0) {
        return (int)complain(EXIT_BAD_INPUT, &err);
    }
    enum exit_code code = run(&options, &profile);
    tc_profile_close(&profile);
    return (int)code;
}
