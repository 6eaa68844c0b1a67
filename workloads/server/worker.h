/* One thread on one CPU with its own listener, event loop and pool of connections: workers share
 * nothing that is written while serving. */
#ifndef TC_SERVER_WORKER_H
#define TC_SERVER_WORKER_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "workloads/common/event_loop.h"
#include "workloads/common/transport.h"
#include "workloads/server/bodies.h"
#include "workloads/server/request.h"
#include "workloads/server/response.h"

struct tc_limits {
    uint64_t handshake_ns; /* TLS handshake */
    uint64_t header_ns;    /* a whole request, from its first byte (the first one: from accept) */
    uint64_t keepalive_ns; /* until the next request begins */
    uint64_t write_ns;     /* without any progress in writing */
    uint64_t drain_ns;     /* for what is under way at the end */
    uint64_t connections;  /* per worker */
    uint64_t requests;     /* per connection; 0: no limit */
    uint32_t header_bytes;
};

/* What connections wait for, and so which limit holds. */
enum tc_wait {
    TC_WAIT_HANDSHAKE,
    TC_WAIT_HEADER,
    TC_WAIT_KEEPALIVE,
    TC_WAIT_WRITE,
    TC_WAIT_LINGER,
    TC_WAIT_TURN,
    TC_WAITS
};

TAILQ_HEAD(tc_connection_queue, tc_connection);

struct tc_worker {
    /* Set by the owner before tc_worker_start(). */
    int cpu;
    int listener;
    SSL_CTX *ctx; /* NULL: plain; the caller's */
    const struct tc_bodies *bodies;
    const struct tc_limits *limits;
    /* The worker's own. */
    struct tc_loop loop;
    struct tc_deadlines waits[TC_WAITS];
    struct tc_deadlines pauses;
    struct tc_deadlines drains;
    struct tc_deadline pause;
    struct tc_deadline drain;
    struct tc_watch accepting;
    struct tc_watch stopping;
    struct tc_connection_queue pool; /* closed connections, most recently used first */
    uint64_t active;
    uint64_t pooled;
    int stop_fd;
    bool accepts;
    bool draining;
    uint64_t cut; /* connections closed at the end of the drain */
    struct tc_response_date date;
    pthread_t thread;
    bool running;
    int rc;
    struct tc_error err;
};

/* A listening socket; *address is given back as bound (port 0 gets one). shared: one of those that
 * share the address; else fails where any socket listens there. Errors: errno of socket, bind,
 * listen. */
TC_MUST_CHECK int tc_worker_listen(struct sockaddr_storage *address, socklen_t length, bool shared,
                                   int *fd, struct tc_error *err);

/* Starts the thread, pinned to its CPU. It takes the listener over. -errno. */
TC_MUST_CHECK int tc_worker_start(struct tc_worker *worker, struct tc_error *err);

/* A closed connection goes back to the pool; its TLS object stays with it for the next. */
void tc_worker_release(struct tc_worker *worker, struct tc_connection *connection);

/* Stop accepting, finish what is under way. From any thread, any number of times. */
void tc_worker_stop(struct tc_worker *worker);

/* Waits for the thread, and adds to *cut how many connections the end of the drain cut short. 0, or
 * what made the worker fail. */
TC_MUST_CHECK int tc_worker_join(struct tc_worker *worker, uint64_t *cut, struct tc_error *err);

#endif
