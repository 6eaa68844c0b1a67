#include "workloads/load/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 256 };

#define BACK_OFF_NS UINT64_C(10000000) /* after an error: a dead server is no reason to spin */
#define LATE_NS     UINT64_C(1000000)
#define NEVER_NS    UINT64_MAX

static bool is_open_loop(const struct tc_worker *worker)
{
    return worker->load->options->rate > 0;
}

/* This thread's share of n: the first threads get the remainder. */
static uint64_t share(uint64_t n, uint32_t threads, uint32_t index)
{
    return n / threads + (index < n % threads ? 1 : 0);
}

/* All threads walk the same schedule and each takes every n-th arrival: the load's arrivals are
 * those of one process, however many threads there are. */
static void skip_arrivals(struct tc_worker *worker, uint32_t arrivals)
{
    uint64_t offset_ns = 0;
    for (uint32_t i = 0; i < arrivals; i++) {
        offset_ns = tc_pacing_next(&worker->pacing);
    }
    worker->next_ns = worker->load->start_ns + offset_ns;
}

int tc_worker_open(struct tc_worker *worker, struct tc_load *load, uint32_t index,
                   struct tc_error *err)
{
    const struct tc_load_options *options = load->options;
    *worker = (struct tc_worker){
        .load = load,
        .index = index,
        .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
        .counts = &load->page.threads[index],
        .conn_count = (uint32_t)share(options->connections, options->threads, index),
        .left = options->transactions == 0 ? UINT64_MAX
                                           : share(options->transactions, options->threads, index),
    };
    TAILQ_INIT(&worker->under_way);
    TAILQ_INIT(&worker->closing);
    TAILQ_INIT(&worker->backing_off);
    if (worker->epoll_fd < 0) {
        return tc_error_set(err, errno, "epoll: %s", strerror(errno));
    }
    /* Once: each thread learns of the signal, and nobody has to read it. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = NULL};
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, load->signal_fd, &event) != 0) {
        return tc_error_set(err, errno, "epoll of signals: %s", strerror(errno));
    }
    worker->buffer = malloc(TC_WORKER_BUFFER_BYTES);
    worker->conns = calloc(worker->conn_count, sizeof(*worker->conns));
    worker->idle = calloc(worker->conn_count, sizeof(struct tc_conn *));
    if (worker->buffer == NULL || worker->conns == NULL || worker->idle == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for %" PRIu32 " connections",
                            worker->conn_count);
    }
    for (uint32_t i = 0; i < worker->conn_count; i++) {
        worker->conns[i].stream.fd = -1;
        worker->idle[worker->idle_count++] = &worker->conns[worker->conn_count - 1 - i];
    }
    if (is_open_loop(worker)) {
        int result = tc_pacing_init(&worker->pacing, options->arrivals, options->rate,
                                    options->shape, options->seed, err);
        if (result != 0) {
            return result;
        }
    }
    return load->target.tls ? tc_tls_client_open(&worker->tls, load->profile, options->resumption,
                                                 worker->counts, err)
                            : 0;
}

void tc_worker_close(struct tc_worker *worker)
{
    for (uint32_t i = 0; worker->conns != NULL && i < worker->conn_count; i++) {
        tc_conn_close(&worker->conns[i], true);
        tc_stream_close(&worker->conns[i].stream);
    }
    tc_tls_client_close(&worker->tls);
    free(worker->conns);
    free(worker->idle);
    free(worker->buffer);
    if (worker->epoll_fd >= 0) {
        (void)close(worker->epoll_fd);
    }
    *worker = (struct tc_worker){.epoll_fd = -1};
}

/* A connection that is not busy any more rests for a while, or is free for the next. */
static void release(struct tc_worker *worker, struct tc_conn *conn, uint64_t now_ns)
{
    if (conn->failed) {
        conn->failed = false;
        conn->due_ns = now_ns + BACK_OFF_NS;
        TAILQ_INSERT_TAIL(&worker->backing_off, conn, link);
    } else {
        worker->idle[worker->idle_count++] = conn;
    }
}

static uint64_t stop_ns(const struct tc_worker *worker)
{
    uint64_t duration_ns = worker->load->options->duration_ns;
    return duration_ns == 0 ? NEVER_NS : worker->load->start_ns + duration_ns;
}

static bool may_begin(const struct tc_worker *worker, uint64_t now_ns)
{
    if (worker->draining || worker->idle_count == 0 || worker->left == 0) {
        return false;
    }
    uint64_t due_ns = is_open_loop(worker) ? worker->next_ns : now_ns;
    return due_ns <= now_ns && due_ns < stop_ns(worker);
}

static void begin_due(struct tc_worker *worker)
{
    for (uint64_t now_ns = tc_now_ns(); may_begin(worker, now_ns); now_ns = tc_now_ns()) {
        struct tc_conn *conn = worker->idle[--worker->idle_count];
        uint64_t scheduled_ns = now_ns;
        if (is_open_loop(worker)) {
            scheduled_ns = worker->next_ns;
            skip_arrivals(worker, worker->load->options->threads);
            if (now_ns - scheduled_ns > LATE_NS) {
                tc_page_add(worker->counts, TC_COUNT_LATE, 1);
            }
        }
        worker->left--;
        tc_conn_begin(worker, conn, scheduled_ns, now_ns);
        if (conn->state == TC_CONN_IDLE) {
            release(worker, conn, now_ns);
        }
    }
}

static void expire_list(struct tc_worker *worker, const struct tc_conn_list *list, uint64_t now_ns)
{
    struct tc_conn *conn = NULL;
    while ((conn = TAILQ_FIRST(list)) != NULL && conn->due_ns <= now_ns) {
        tc_conn_expire(worker, conn);
        release(worker, conn, now_ns);
    }
}

static void expire_due(struct tc_worker *worker, uint64_t now_ns)
{
    struct tc_conn *conn = NULL;
    expire_list(worker, &worker->under_way, now_ns);
    expire_list(worker, &worker->closing, now_ns);
    while ((conn = TAILQ_FIRST(&worker->backing_off)) != NULL && conn->due_ns <= now_ns) {
        TAILQ_REMOVE(&worker->backing_off, conn, link);
        release(worker, conn, now_ns);
    }
}

static void begin_drain(struct tc_worker *worker, uint64_t now_ns)
{
    uint64_t last_ns = now_ns < stop_ns(worker) ? now_ns : stop_ns(worker);
    worker->draining = true;
    worker->drain_ns = now_ns + worker->load->options->drain_timeout_ns;
    atomic_store_explicit(&worker->load->page.header->state, 2, memory_order_relaxed);
    while (is_open_loop(worker) && worker->left > 0 && worker->next_ns < last_ns) {
        worker->unstarted++;
        worker->left--;
        skip_arrivals(worker, worker->load->options->threads);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How long there is nothing to do but wait for events. */
static uint64_t idle_until_ns(const struct tc_worker *worker)
{
    uint64_t until_ns = worker->draining ? worker->drain_ns : stop_ns(worker);
    const struct tc_conn *first[] = {TAILQ_FIRST(&worker->under_way), TAILQ_FIRST(&worker->closing),
                                     TAILQ_FIRST(&worker->backing_off)};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        if (first[i] != NULL) {
            until_ns = earlier(until_ns, first[i]->due_ns);
        }
    }
    if (is_open_loop(worker) && !worker->draining && worker->idle_count > 0 && worker->left > 0) {
        until_ns = earlier(until_ns, worker->next_ns);
    }
    return until_ns;
}

/* In ns, where the kernel can (5.11): an arrival is not to wait for the next whole ms. */
static int wait_for_events(struct tc_worker *worker, struct epoll_event *events, uint64_t now_ns)
{
    uint64_t until_ns = idle_until_ns(worker);
    uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait_ns / UINT64_C(1000000000)),
                               .tv_nsec = (long)(wait_ns % UINT64_C(1000000000))};
    int count = epoll_pwait2(worker->epoll_fd, events, EVENTS_AT_ONCE,
                             until_ns == NEVER_NS ? NULL : &timeout, NULL);
    if (count < 0 && errno == ENOSYS) {
        uint64_t wait_ms = earlier((wait_ns + 999999) / 1000000, INT32_MAX);
        count = epoll_wait(worker->epoll_fd, events, EVENTS_AT_ONCE,
                           until_ns == NEVER_NS ? -1 : (int)wait_ms);
    }
    return count < 0 && errno == EINTR ? 0 : count;
}

static void note_running(struct tc_worker *worker)
{
    uint32_t connecting = 0;
    (void)atomic_compare_exchange_strong_explicit(&worker->load->page.header->state, &connecting, 1,
                                                  memory_order_relaxed, memory_order_relaxed);
}

/* True where a signal was among the events. */
static bool handle(struct tc_worker *worker, const struct epoll_event *events, int count)
{
    bool signalled = false;
    for (int i = 0; i < count; i++) {
        struct tc_conn *conn = events[i].data.ptr;
        if (conn == NULL) {
            signalled = true;
            continue;
        }
        bool was_idle = conn->state == TC_CONN_IDLE;
        tc_conn_event(worker, conn, events[i].events);
        if (!was_idle && conn->state == TC_CONN_IDLE) {
            release(worker, conn, conn->failed ? tc_now_ns() : 0);
        }
    }
    return signalled;
}

int tc_worker_run(struct tc_worker *worker, struct tc_error *err)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    bool running = false;
    bool signalled = false;
    if (is_open_loop(worker)) {
        skip_arrivals(worker, worker->index + 1);
    }
    for (;;) {
        begin_due(worker);
        uint64_t now_ns = tc_now_ns();
        if (!worker->draining && (signalled || now_ns >= stop_ns(worker))) {
            begin_drain(worker, now_ns);
        }
        bool done = worker->active == 0 && (worker->draining || worker->left == 0);
        if (done || (worker->draining && now_ns >= worker->drain_ns)) {
            break;
        }
        int count = wait_for_events(worker, events, now_ns);
        if (count < 0) {
            return tc_error_set(err, errno, "epoll_wait: %s", strerror(errno));
        }
        signalled = handle(worker, events, count) || signalled;
        expire_due(worker, tc_now_ns());
        if (!running && atomic_load_explicit(&worker->counts->counts[TC_COUNT_COMPLETED],
                                             memory_order_relaxed) > 0) {
            running = true;
            note_running(worker);
        }
    }
    atomic_store_explicit(&worker->load->page.header->state, 2, memory_order_relaxed);
    worker->end_ns = tc_now_ns();
    return 0;
}
