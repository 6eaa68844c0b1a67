#include "workloads/server/connection.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

/* What one connection may do before others get their turn. */
enum { TURN_REQUESTS = 64, TURN_BYTES = 4 << 20, TURN_STEPS = 1024 };

/* How far an attempt got. */
enum step { STEP_ON, STEP_WAIT, STEP_CLOSED };

static void wait_for(struct tc_connection *connection, enum tc_wait kind)
{
    struct tc_worker *worker = connection->worker;
    tc_deadline_set(&worker->loop, &worker->waits[kind], &connection->deadline);
}

/* Connections that never have to wait are never watched. Being told of room to write is asked for
 * at the first full socket only: a socket has room from the start, and telling so would cost each
 * connection an event. */
static enum step watch(struct tc_connection *connection, uint32_t more)
{
    struct tc_worker *worker = connection->worker;
    uint32_t wanted = connection->watched | more | EPOLLIN | EPOLLRDHUP | EPOLLET;
    int rc = 0;
    if (connection->watched == 0) {
        rc = tc_loop_watch(&worker->loop, connection->stream.fd, wanted, &connection->watch);
    } else if (wanted != connection->watched) {
        rc = tc_loop_rewatch(&worker->loop, connection->stream.fd, wanted, &connection->watch);
    }
    connection->watched = wanted;
    if (rc != 0) {
        tc_connection_close(connection);
        return STEP_CLOSED;
    }
    return STEP_WAIT;
}

static enum step wait_or_close(struct tc_connection *connection, ssize_t why)
{
    switch (why) {
    case TC_IO_WANT_READ:
        return watch(connection, 0);
    case TC_IO_WANT_WRITE:
        return watch(connection, EPOLLOUT);
    default:
        tc_connection_close(connection);
        return STEP_CLOSED;
    }
}

static void await_request(struct tc_connection *connection)
{
    connection->phase = TC_PHASE_READ;
    tc_request_begin(&connection->request, connection->worker->limits->header_bytes);
}

static enum step shake_hands(struct tc_connection *connection)
{
    int rc = connection->stream.transport->handshake(&connection->stream);
    if (rc != 0) {
        return wait_or_close(connection, rc);
    }
    await_request(connection);
    wait_for(connection, TC_WAIT_HEADER);
    return STEP_ON;
}

static void answer(struct tc_connection *connection, int status)
{
    struct tc_worker *worker = connection->worker;
    struct tc_request *request = &connection->request;
    if (status == 200 && !tc_bodies_has(worker->bodies, request->size)) {
        status = 404;
    }
    uint64_t content = status == 200 ? request->size : 0;
    connection->requests++;
    /* Where we close: the rest of a request that could not be read may still come, and so may
     * the next one of a client that did not ask for the end. */
    connection->lingers = request->keep_alive || status != 200;
    request->keep_alive =
        request->keep_alive && !worker->draining &&
        (worker->limits->requests == 0 || connection->requests < worker->limits->requests);
    connection->stream.closes_next = !request->keep_alive;
    connection->head_length =
        (uint16_t)tc_response_head(connection->head, status, request, content, &worker->date);
    connection->head_sent = 0;
    connection->body_offset = 0;
    connection->body_left = request->is_head ? 0 : content;
    connection->phase = TC_PHASE_WRITE;
    wait_for(connection, TC_WAIT_WRITE);
}

static enum step read_request(struct tc_connection *connection)
{
    if (connection->in_start == connection->in_end) {
        ssize_t got = connection->stream.transport->read(&connection->stream, connection->in,
                                                         sizeof(connection->in));
        if (got <= 0) {
            return wait_or_close(connection, got);
        }
        connection->in_start = 0;
        connection->in_end = (uint16_t)got;
    }
    bool first = !tc_request_started(&connection->request);
    size_t used = 0;
    int status = tc_request_feed(&connection->request, connection->in + connection->in_start,
                                 (size_t)(connection->in_end - connection->in_start), &used);
    connection->in_start = (uint16_t)(connection->in_start + used);
    if (status != 0) {
        answer(connection, status);
    } else if (first && connection->requests > 0) {
        wait_for(connection, TC_WAIT_HEADER);
    }
    return STEP_ON;
}

/* The response is out: the next request, or goodbye. */
static enum step finish_response(struct tc_connection *connection)
{
    if (connection->request.keep_alive && !connection->worker->draining) {
        await_request(connection);
        wait_for(connection, TC_WAIT_KEEPALIVE);
        return STEP_ON;
    }
    connection->stream.transport->shutdown(&connection->stream);
    /* Closing a socket that holds unread data resets it, and with it the response's end. */
    if (!connection->lingers && tc_stream_is_drained(&connection->stream)) {
        tc_connection_close(connection);
        return STEP_CLOSED;
    }
    (void)shutdown(connection->stream.fd, SHUT_WR); /* a failure shows at the next read */
    connection->phase = TC_PHASE_LINGER;
    wait_for(connection, TC_WAIT_LINGER);
    return STEP_ON;
}

static enum step write_response(struct tc_connection *connection, size_t *budget)
{
    struct tc_stream *stream = &connection->stream;
    const struct tc_bodies *bodies = connection->worker->bodies;
    size_t head_left = (size_t)(connection->head_length - connection->head_sent);
    size_t part = connection->body_left < *budget ? (size_t)connection->body_left : *budget;
    ssize_t sent =
        stream->transport->send_body(stream, connection->head + connection->head_sent, head_left,
                                     bodies->fd, bodies->text, connection->body_offset, part);
    if (sent < 0) {
        return wait_or_close(connection, sent);
    }
    size_t of_head = (size_t)sent < head_left ? (size_t)sent : head_left;
    size_t of_body = (size_t)sent - of_head;
    connection->head_sent = (uint16_t)(connection->head_sent + of_head);
    connection->body_offset += of_body;
    connection->body_left -= of_body;
    *budget -= of_body;
    if (connection->head_sent == connection->head_length && connection->body_left == 0) {
        return finish_response(connection);
    }
    wait_for(connection, TC_WAIT_WRITE);
    return STEP_ON;
}

static enum step drop_input(struct tc_connection *connection)
{
    ssize_t got = recv(connection->stream.fd, connection->in, sizeof(connection->in), 0);
    if (got > 0) {
        return STEP_ON;
    }
    return wait_or_close(connection, got < 0 && errno == EAGAIN ? TC_IO_WANT_READ : TC_IO_CLOSED);
}

static void yield(struct tc_connection *connection)
{
    if (connection->phase == TC_PHASE_LINGER) {
        tc_connection_close(connection); /* it has sent megabytes that nobody wants */
    } else {
        wait_for(connection, TC_WAIT_TURN);
    }
}

void tc_connection_resume(struct tc_connection *connection)
{
    switch (connection->phase) {
    case TC_PHASE_WRITE:
        wait_for(connection, TC_WAIT_WRITE);
        break;
    case TC_PHASE_READ:
        wait_for(connection,
                 tc_request_started(&connection->request) ? TC_WAIT_HEADER : TC_WAIT_KEEPALIVE);
        break;
    default:
        wait_for(connection, TC_WAIT_HANDSHAKE);
        break;
    }
    tc_connection_advance(connection);
}

void tc_connection_advance(struct tc_connection *connection)
{
    enum step step = STEP_ON;
    size_t budget = TURN_BYTES;
    uint64_t last = connection->requests + TURN_REQUESTS;
    for (int steps = 0; step == STEP_ON; steps++) {
        if (budget == 0 || connection->requests >= last || steps >= TURN_STEPS) {
            yield(connection);
            return;
        }
        switch (connection->phase) {
        case TC_PHASE_HANDSHAKE:
            step = shake_hands(connection);
            break;
        case TC_PHASE_READ:
            step = read_request(connection);
            break;
        case TC_PHASE_WRITE:
            step = write_response(connection, &budget);
            break;
        case TC_PHASE_LINGER:
            step = drop_input(connection);
            break;
        default:
            return;
        }
    }
}

static void on_event(struct tc_watch *watch, uint32_t events)
{
    struct tc_connection *connection = (struct tc_connection *)watch; /* its first member */
    if (connection->phase == TC_PHASE_CLOSED) {
        return; /* an event that was under way when the connection was closed */
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0) {
        tc_stream_ready(&connection->stream, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
    }
    tc_connection_advance(connection);
}

void tc_connection_open(struct tc_connection *connection, int fd)
{
    struct tc_worker *worker = connection->worker;
    connection->watch.ready = on_event;
    connection->watched = 0;
    connection->requests = 0;
    connection->in_start = 0;
    connection->in_end = 0;
    connection->lingers = false;
    connection->phase = TC_PHASE_HANDSHAKE;
    if (tc_stream_open(&connection->stream, fd, worker->ctx, true, NULL) != 0) {
        tc_connection_close(connection);
        return;
    }
    connection->stream.edge_triggered = true;
    if (worker->ctx == NULL) {
        await_request(connection);
        wait_for(connection, TC_WAIT_HEADER);
    } else {
        wait_for(connection, TC_WAIT_HANDSHAKE);
    }
    tc_connection_advance(connection);
}

void tc_connection_close(struct tc_connection *connection)
{
    tc_deadline_clear(&connection->deadline);
    (void)close(connection->stream.fd);
    connection->phase = TC_PHASE_CLOSED;
    tc_worker_release(connection->worker, connection);
}
