#include "workloads/server/worker.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "workloads/server/connection.h"

enum {
    ACCEPT_BATCH = 64,
    POOL_MOST = 512, /* closed connections kept for reuse; a flood's rest is freed */
    BACKLOG = 4096,
    DEFER_S = 5 /* how long the kernel keeps a connection to itself until data comes */
};

#define PAUSE_NS  UINT64_C(100000000)
#define LINGER_NS UINT64_C(2000000000)
/* At the limit of connections, one that has kept us waiting for so long makes room for a new one.
 */
#define STALE_NS UINT64_C(1000000000)

#define OWNER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

static void set_accepting(struct tc_worker *worker, bool accepts)
{
    if (worker->accepts != accepts && worker->listener >= 0) {
        int rc = tc_loop_rewatch(&worker->loop, worker->listener, accepts ? EPOLLIN : 0,
                                 &worker->accepting);
        worker->rc = rc != 0 ? rc : worker->rc;
        worker->accepts = accepts;
    }
}

/* Accepting goes on when a connection closes, or after a while: what was lacking (descriptors,
 * memory) may be held by others. */
static void pause_accepting(struct tc_worker *worker)
{
    set_accepting(worker, false);
    tc_deadline_set(&worker->loop, &worker->pauses, &worker->pause);
}

static void on_pause_over(struct tc_deadline *deadline)
{
    set_accepting(OWNER(deadline, struct tc_worker, pause), true);
}

void tc_worker_release(struct tc_worker *worker, struct tc_connection *connection)
{
    worker->active--;
    worker->pooled++;
    TAILQ_INSERT_HEAD(&worker->pool, connection, link);
    if (!worker->accepts) {
        tc_deadline_clear(&worker->pause);
        set_accepting(worker, true);
    }
}

/* Frees what the pool need not keep; between runs of the loop only, as an event under way may
 * still name a closed connection. */
static void trim_pool(struct tc_worker *worker, uint64_t most)
{
    while (worker->pooled > most) {
        struct tc_connection *connection = TAILQ_LAST(&worker->pool, tc_connection_queue);
        TAILQ_REMOVE(&worker->pool, connection, link);
        worker->pooled--;
        tc_stream_close(&connection->stream);
        free(connection);
    }
}

static struct tc_connection *take_connection(struct tc_worker *worker)
{
    struct tc_connection *connection = TAILQ_FIRST(&worker->pool);
    if (connection != NULL) {
        TAILQ_REMOVE(&worker->pool, connection, link);
        worker->pooled--;
    } else {
        connection = calloc(1, sizeof(*connection));
        if (connection == NULL) {
            return NULL;
        }
        connection->worker = worker;
    }
    worker->active++;
    return connection;
}

/* Closes the connection that has been silent for the longest, if that is long. */
static bool make_room(struct tc_worker *worker)
{
    static const enum tc_wait silent[] = {TC_WAIT_HANDSHAKE, TC_WAIT_HEADER, TC_WAIT_KEEPALIVE};
    struct tc_deadline *oldest = NULL;
    uint64_t since = worker->loop.now_ns - STALE_NS;
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]); i++) {
        struct tc_deadlines *kind = &worker->waits[silent[i]];
        struct tc_deadline *first = TAILQ_FIRST(&kind->queue);
        if (first != NULL && first->at_ns - kind->timeout_ns <= since) {
            oldest = first;
            since = first->at_ns - kind->timeout_ns;
        }
    }
    if (oldest == NULL) {
        return false;
    }
    tc_connection_close(OWNER(oldest, struct tc_connection, deadline));
    return true;
}

/* True where there is more to accept, perhaps. */
static bool accept_one(struct tc_worker *worker)
{
    if (worker->active >= worker->limits->connections && !make_room(worker)) {
        pause_accepting(worker);
        return false;
    }
    int fd = accept4(worker->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        switch (errno) {
        case EAGAIN:
            return false;
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
            pause_accepting(worker);
            return false;
        default:
            return true; /* an error of that connection, not of ours: accept(2) */
        }
    }
    struct tc_connection *connection = take_connection(worker);
    if (connection == NULL) {
        (void)close(fd);
        pause_accepting(worker);
        return false;
    }
    tc_connection_open(connection, fd);
    return true;
}

static void on_accept(struct tc_watch *watch, uint32_t events)
{
    struct tc_worker *worker = OWNER(watch, struct tc_worker, accepting);
    (void)events;
    for (int i = 0; i < ACCEPT_BATCH && worker->listener >= 0 && accept_one(worker); i++) {
    }
}

static void on_stop(struct tc_watch *watch, uint32_t events)
{
    struct tc_worker *worker = OWNER(watch, struct tc_worker, stopping);
    struct tc_deadline *deadline = NULL;
    (void)events;
    if (worker->draining) {
        return;
    }
    /* Who is in the queue has been promised an answer; who comes after that has not, and could
     * keep us here for ever. */
    for (int i = 0; i < BACKLOG && accept_one(worker); i++) {
    }
    worker->draining = true;
    (void)close(worker->listener);
    worker->listener = -1;
    tc_deadline_set(&worker->loop, &worker->drains, &worker->drain);
    while ((deadline = TAILQ_FIRST(&worker->waits[TC_WAIT_KEEPALIVE].queue)) != NULL) {
        struct tc_connection *connection = OWNER(deadline, struct tc_connection, deadline);
        connection->stream.transport->shutdown(&connection->stream);
        tc_connection_close(connection);
    }
}

static void on_drain_over(struct tc_deadline *deadline)
{
    struct tc_worker *worker = OWNER(deadline, struct tc_worker, drain);
    for (size_t kind = 0; kind < TC_WAITS; kind++) {
        struct tc_deadline *first = NULL;
        while ((first = TAILQ_FIRST(&worker->waits[kind].queue)) != NULL) {
            tc_connection_close(OWNER(first, struct tc_connection, deadline));
            worker->cut++;
        }
    }
}

static void on_wait_over(struct tc_deadline *deadline)
{
    tc_connection_close(OWNER(deadline, struct tc_connection, deadline));
}

static void on_turn(struct tc_deadline *deadline)
{
    tc_connection_resume(OWNER(deadline, struct tc_connection, deadline));
}

static void *run(void *argument)
{
    struct tc_worker *worker = argument;
    while (worker->rc == 0 && !(worker->draining && worker->active == 0)) {
        int rc = tc_loop_run(&worker->loop, -1);
        worker->rc = rc != 0 ? rc : worker->rc;
        trim_pool(worker, POOL_MOST);
    }
    worker->cut += worker->active;
    for (size_t kind = 0; kind < TC_WAITS; kind++) {
        struct tc_deadline *first = NULL;
        while ((first = TAILQ_FIRST(&worker->waits[kind].queue)) != NULL) {
            tc_connection_close(OWNER(first, struct tc_connection, deadline));
        }
    }
    trim_pool(worker, 0);
    if (worker->rc != 0) {
        (void)kill(getpid(), SIGTERM); /* one worker less is not what was asked for: end it all */
    }
    return NULL;
}

int tc_worker_listen(struct sockaddr_storage *address, socklen_t length, bool shared, int *fd,
                     struct tc_error *err)
{
    static const int yes = 1;
    static const int defer_s = DEFER_S;
    socklen_t bound = sizeof(*address);
    *fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (*fd >= 0 && setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        (!shared || setsockopt(*fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes)) == 0) &&
        setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) == 0 &&
        setsockopt(*fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &defer_s, sizeof(defer_s)) == 0 &&
        bind(*fd, (const struct sockaddr *)address, length) == 0 && listen(*fd, BACKLOG) == 0 &&
        getsockname(*fd, (struct sockaddr *)address, &bound) == 0) {
        return 0;
    }
    int code = errno;
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = -1;
    }
    return tc_error_set(err, code, "cannot listen: %s%s", strerror(code),
                        code == EADDRINUSE ? "; choose another port or stop who holds it" : "");
}

static void set_up_waits(struct tc_worker *worker)
{
    const struct tc_limits *limits = worker->limits;
    const struct {
        enum tc_wait kind;
        uint64_t timeout_ns;
        void (*expired)(struct tc_deadline *deadline);
    } waits[] = {
        {TC_WAIT_HANDSHAKE, limits->handshake_ns, on_wait_over},
        {TC_WAIT_HEADER, limits->header_ns, on_wait_over},
        {TC_WAIT_KEEPALIVE, limits->keepalive_ns, on_wait_over},
        {TC_WAIT_WRITE, limits->write_ns, on_wait_over},
        {TC_WAIT_LINGER, LINGER_NS, on_wait_over},
        {TC_WAIT_TURN, 0, on_turn},
    };
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        tc_loop_add_deadlines(&worker->loop, &worker->waits[waits[i].kind], waits[i].timeout_ns,
                              waits[i].expired);
    }
    tc_loop_add_deadlines(&worker->loop, &worker->pauses, PAUSE_NS, on_pause_over);
    tc_loop_add_deadlines(&worker->loop, &worker->drains, limits->drain_ns, on_drain_over);
}

static int start_thread(struct tc_worker *worker)
{
    pthread_attr_t attributes;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET((size_t)worker->cpu, &cpus);
    int code = pthread_attr_init(&attributes);
    if (code != 0) {
        return code;
    }
    code = pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
    if (code == 0) {
        code = pthread_create(&worker->thread, &attributes, run, worker);
    }
    (void)pthread_attr_destroy(&attributes);
    return code;
}

int tc_worker_start(struct tc_worker *worker, struct tc_error *err)
{
    TAILQ_INIT(&worker->pool);
    worker->accepting.ready = on_accept;
    worker->stopping.ready = on_stop;
    worker->accepts = true;
    worker->stop_fd = -1;
    int rc = tc_loop_open(&worker->loop, err);
    if (rc != 0) {
        return rc;
    }
    set_up_waits(worker);
    worker->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = worker->stop_fd >= 0 ? 0 : -errno;
    if (rc == 0) {
        rc = tc_loop_watch(&worker->loop, worker->stop_fd, EPOLLIN, &worker->stopping);
    }
    if (rc == 0) {
        rc = tc_loop_watch(&worker->loop, worker->listener, EPOLLIN, &worker->accepting);
    }
    if (rc == 0) {
        rc = -start_thread(worker);
        worker->running = rc == 0;
    }
    return rc == 0 ? 0
                   : tc_error_set(err, -rc, "cannot start a worker on CPU %d: %s", worker->cpu,
                                  strerror(-rc));
}

void tc_worker_stop(struct tc_worker *worker)
{
    const uint64_t one = 1;
    /* Fails only where the counter is full: then the worker has been told before. */
    (void)!write(worker->stop_fd, &one, sizeof(one));
}

int tc_worker_join(struct tc_worker *worker, uint64_t *cut, struct tc_error *err)
{
    int rc = 0;
    if (worker->running) {
        rc = -pthread_join(worker->thread, NULL);
        worker->running = false;
        *cut += worker->cut;
        rc = rc != 0 ? rc : worker->rc;
    }
    if (worker->listener >= 0) {
        (void)close(worker->listener);
    }
    if (worker->stop_fd >= 0) {
        (void)close(worker->stop_fd);
    }
    tc_loop_close(&worker->loop);
    return rc == 0 ? 0
                   : tc_error_set(err, -rc, "the worker on CPU %d failed: %s", worker->cpu,
                                  strerror(-rc));
}
