/* A connection's life: handshake, requests and responses, goodbye. Used by its worker only. */
#ifndef TC_SERVER_CONNECTION_H
#define TC_SERVER_CONNECTION_H

#include "workloads/server/worker.h"

enum tc_phase {
    TC_PHASE_CLOSED, /* in the pool */
    TC_PHASE_HANDSHAKE,
    TC_PHASE_READ,
    TC_PHASE_WRITE,
    TC_PHASE_LINGER /* answered and half-closed; drops what still comes, lest a reset overtake the
                       answer */
};

struct tc_connection {
    struct tc_watch watch;
    struct tc_deadline deadline;
    struct tc_worker *worker;
    TAILQ_ENTRY(tc_connection) link; /* in the pool */
    struct tc_stream stream;
    enum tc_phase phase;
    uint32_t watched; /* events that the loop watches for; 0: not yet watched */
    uint64_t requests;
    struct tc_request request;
    uint64_t body_offset;
    uint64_t body_left;
    uint16_t head_length;
    uint16_t head_sent;
    uint16_t in_start;
    uint16_t in_end;
    bool lingers; /* after this response */
    char head[TC_RESPONSE_HEAD_MOST];
    char in[4096];
};

/* Puts a pooled connection on an accepted socket, and serves what is there already. */
void tc_connection_open(struct tc_connection *connection, int fd);

/* Ends it at once and gives it back to the pool. */
void tc_connection_close(struct tc_connection *connection);

/* Goes on as far as the socket lets it. */
void tc_connection_advance(struct tc_connection *connection);

/* Goes on after its turn was over (TC_WAIT_TURN). */
void tc_connection_resume(struct tc_connection *connection);

#endif
