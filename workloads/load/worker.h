/* One load thread: an epoll, its connections, its block of the page. Not common/event_loop.h: here
 * arrivals are awaited in ns and begun before each wait, and who ends a transaction goes back to
 * the idle stack at once, of which that loop, with its deadlines in ms and callbacks, knows
 * nothing. Nothing of it is written by another thread; while it runs it allocates nothing (but what
 * OpenSSL does within a handshake), locks nothing and logs nothing. */
#ifndef TC_LOAD_WORKER_H
#define TC_LOAD_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <time.h>

#include "workloads/common/page.h"
#include "workloads/common/profile.h"
#include "workloads/common/transport.h"
#include "workloads/load/options.h"
#include "workloads/load/target.h"
#include "workloads/load/tls_client.h"

/* What all threads share, read-only while they run. */
struct tc_load {
    const struct tc_load_options *options;
    struct tc_target target;
    const struct tc_profile *profile; /* NULL: none given */
    struct tc_page page;
    int signal_fd; /* readable once the load is to stop */
    uint64_t start_ns;
};

enum tc_conn_state {
    TC_CONN_IDLE, /* no transaction; keep-alive may hold a connection */
    TC_CONN_CONNECTING,
    TC_CONN_HANDSHAKING,
    TC_CONN_SENDING,
    TC_CONN_RECEIVING,
    TC_CONN_CLOSING /* the transaction is whole; the server is to close first */
};

struct tc_conn {
    struct tc_stream stream; /* fd -1: no connection */
    enum tc_conn_state state;
    bool failed;   /* the last transaction did */
    bool hangup;   /* the peer has closed or reset */
    bool resumes;  /* what was asked of this handshake */
    bool full;     /* this connection's handshake was full */
    bool answered; /* the first byte has come */
    uint64_t scheduled_ns;
    uint64_t mark_ns; /* start of connect, then of handshake */
    uint64_t due_ns;  /* when to give up, or to end the back-off */
    size_t sent;
    struct tc_response response;
    TAILQ_ENTRY(tc_conn) link; /* in one of the worker's lists, which are sorted by due_ns */
};

TAILQ_HEAD(tc_conn_list, tc_conn);

struct tc_worker {
    struct tc_load *load;
    uint32_t index;
    int epoll_fd;
    struct tc_page_thread *counts;
    struct tc_tls_client tls;
    char *buffer; /* TC_WORKER_BUFFER_BYTES, for whatever is read */
    struct tc_conn *conns;
    uint32_t conn_count;
    struct tc_conn **idle; /* a stack: the connection used last is the warmest */
    uint32_t idle_count;
    uint32_t active; /* transactions under way */
    struct tc_conn_list under_way;
    struct tc_conn_list closing;
    struct tc_conn_list backing_off; /* after an error */
    struct tc_pacing pacing;
    uint64_t next_ns;   /* open loop: the next arrival; it waits here while no connection is idle */
    uint64_t unstarted; /* open loop: arrivals that were still waiting at the end */
    uint64_t left;      /* transactions that may still be begun */
    bool draining;
    uint64_t drain_ns; /* when draining ends */
    uint64_t end_ns;   /* when run() returned */
};

#define TC_WORKER_BUFFER_BYTES (256UL * 1024)

/* CLOCK_MONOTONIC through the vDSO: tens of ns, so that each event has a reading of its own. */
static inline uint64_t tc_now_ns(void)
{
    struct timespec now;
    /* Cannot fail: the clock exists and the pointer is ours. */
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Makes thread `index` of the load ready. Errors: errno, or those of the TLS profile. */
TC_MUST_CHECK int tc_worker_open(struct tc_worker *worker, struct tc_load *load, uint32_t index,
                                 struct tc_error *err);

/* Runs until the load is over, on the calling thread. Errors: errno of epoll. */
TC_MUST_CHECK int tc_worker_run(struct tc_worker *worker, struct tc_error *err);
void tc_worker_close(struct tc_worker *worker);

/* conn.c: a transaction's way through its connection. Each leaves the connection in a state that
 * waits for an event, or in TC_CONN_IDLE. */

/* Begins a transaction that was scheduled for then; `now_ns` is the present. */
void tc_conn_begin(struct tc_worker *worker, struct tc_conn *conn, uint64_t scheduled_ns,
                   uint64_t now_ns);
void tc_conn_event(struct tc_worker *worker, struct tc_conn *conn, uint32_t events);

/* Gives up what the connection does; a transaction under way becomes an error. */
void tc_conn_expire(struct tc_worker *worker, struct tc_conn *conn);

/* Closes the socket, politely where `goodbye`; no transaction may be under way. */
void tc_conn_close(struct tc_conn *conn, bool goodbye);

#endif
