#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "workloads/load/worker.h"

/* For the server to close first. Some wait for us instead (openssl s_server does). */
#define CLOSE_WAIT_NS UINT64_C(20000000)

/* What is read of one connection before others, deadlines and signals get their turn. */
enum { TURN_BYTES = 4 << 20 };

#define EVENTS (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

static void record(struct tc_worker *worker, enum tc_latency kind, uint64_t from_ns, uint64_t to_ns)
{
    tc_page_record(&worker->load->page, worker->index, kind, (int64_t)(to_ns - from_ns));
}

void tc_conn_close(struct tc_conn *conn, bool goodbye)
{
    if (conn->stream.fd < 0) {
        return;
    }
    if (goodbye && !conn->hangup) {
        conn->stream.transport->shutdown(&conn->stream);
    }
    /* Takes it out of the epoll too. */
    (void)close(conn->stream.fd);
    conn->stream.fd = -1;
}

static void settle(struct tc_worker *worker, struct tc_conn *conn)
{
    if (conn->state == TC_CONN_CLOSING) {
        TAILQ_REMOVE(&worker->closing, conn, link);
    } else {
        TAILQ_REMOVE(&worker->under_way, conn, link);
    }
    conn->state = TC_CONN_IDLE;
}

static void fail(struct tc_worker *worker, struct tc_conn *conn, enum tc_count kind)
{
    tc_page_add(worker->counts, kind, 1);
    tc_conn_close(conn, kind != TC_COUNT_ERROR_RESET && conn->state > TC_CONN_HANDSHAKING);
    conn->failed = true;
    worker->active--;
    settle(worker, conn);
}

static enum tc_count kind_of_errno(int code)
{
    switch (code) {
    case EADDRNOTAVAIL: /* every local port is taken */
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EAGAIN:
        return TC_COUNT_ERROR_RESOURCE;
    default:
        return TC_COUNT_ERROR_CONNECT;
    }
}

static int open_socket(const struct tc_load *load)
{
    int fd = socket(load->target.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || !load->target.tls) {
        return fd; /* a plain request is one segment, which nothing holds back */
    }
    /* Else the request would wait for the acknowledgement of the handshake's last flight. */
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
        int code = errno;
        (void)close(fd);
        errno = code;
        return -1;
    }
    return fd;
}

/* 0, or the kind of error. */
static int open_stream(struct tc_worker *worker, struct tc_conn *conn, int fd)
{
    if (tc_stream_open(&conn->stream, fd, worker->tls.ctx, false, NULL) != 0) {
        return TC_COUNT_ERROR_RESOURCE;
    }
    conn->stream.edge_triggered = true;
    conn->stream.drained = true; /* until an event says otherwise */
    conn->resumes = false;
    if (conn->stream.ssl != NULL &&
        tc_tls_client_begin(&worker->tls, conn->stream.ssl, &conn->resumes) != 0) {
        return TC_COUNT_ERROR_RESOURCE;
    }
    /* Once, for everything: what is not awaited does not come again, as edges do not repeat. */
    struct epoll_event event = {.events = EVENTS, .data.ptr = conn};
    return epoll_ctl(worker->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0
                                                                       : TC_COUNT_ERROR_RESOURCE;
}

static void begin_connection(struct tc_worker *worker, struct tc_conn *conn, uint64_t now_ns)
{
    const struct tc_load *load = worker->load;
    conn->state = TC_CONN_CONNECTING;
    conn->hangup = false;
    conn->mark_ns = now_ns;
    int fd = open_socket(load);
    if (fd < 0) {
        fail(worker, conn, TC_COUNT_ERROR_RESOURCE);
        return;
    }
    conn->stream.fd = fd;
    if (connect(fd, (const struct sockaddr *)&load->target.address, load->target.address_bytes) !=
            0 &&
        errno != EINPROGRESS) {
        fail(worker, conn, kind_of_errno(errno));
        return;
    }
    int kind = open_stream(worker, conn, fd);
    if (kind != 0) {
        fail(worker, conn, (enum tc_count)kind);
    }
}

/* The transaction is whole; what becomes of its connection? */
static void complete(struct tc_worker *worker, struct tc_conn *conn, uint64_t now_ns)
{
    record(worker, TC_LATENCY_LAST_BYTE, conn->scheduled_ns, now_ns);
    tc_page_add(worker->counts, TC_COUNT_COMPLETED, 1);
    tc_page_add(worker->counts, TC_COUNT_BYTES, conn->response.body_bytes);
    conn->failed = false;
    worker->active--;
    if (conn->full) {
        tc_tls_client_whole(&worker->tls);
    }
    if (worker->load->options->keepalive && conn->response.keep_alive && !conn->hangup) {
        settle(worker, conn);
        return;
    }
    if (conn->response.keep_alive || (conn->hangup && conn->stream.ssl == NULL)) {
        tc_conn_close(conn, true);
        settle(worker, conn);
        return;
    }
    /* The server has said that it closes. Letting it do so first leaves no port of ours in
     * TIME_WAIT, of which there are fewer than transactions in a minute. */
    TAILQ_REMOVE(&worker->under_way, conn, link);
    TAILQ_INSERT_TAIL(&worker->closing, conn, link);
    conn->state = TC_CONN_CLOSING;
    conn->due_ns = now_ns + CLOSE_WAIT_NS;
}

static void finish_closing(struct tc_worker *worker, struct tc_conn *conn)
{
    /* The server's close_notify, left unread, would turn our FIN into a reset. */
    if (conn->stream.ssl != NULL) {
        ssize_t got =
            conn->stream.transport->read(&conn->stream, worker->buffer, TC_WORKER_BUFFER_BYTES);
        /* Nor does anyone wait for the end of what follows a whole response. */
        conn->hangup = conn->hangup || got == TC_IO_FAILED || got > 0;
    }
    if (conn->hangup) {
        tc_conn_close(conn, false);
        settle(worker, conn);
    }
}

/* Lets the kernel throw away what nobody looks at. */
static ssize_t discard(struct tc_worker *worker, struct tc_conn *conn)
{
    uint64_t most = conn->response.skippable_bytes;
    size_t length = most < TC_WORKER_BUFFER_BYTES ? (size_t)most : TC_WORKER_BUFFER_BYTES;
    if (tc_stream_is_drained(&conn->stream)) {
        return TC_IO_WANT_READ;
    }
    ssize_t got = recv(conn->stream.fd, worker->buffer, length, MSG_TRUNC);
    conn->stream.drained = got < (ssize_t)length;
    if (got > 0) {
        (void)tc_response_skip(&conn->response, (uint64_t)got);
        return got;
    }
    if (got == 0) {
        return TC_IO_CLOSED;
    }
    return errno == EAGAIN ? TC_IO_WANT_READ : TC_IO_FAILED;
}

static ssize_t receive_some(struct tc_worker *worker, struct tc_conn *conn)
{
    if (conn->response.skippable_bytes > 0 && conn->stream.ssl == NULL) {
        return discard(worker, conn);
    }
    return conn->stream.transport->read(&conn->stream, worker->buffer, TC_WORKER_BUFFER_BYTES);
}

/* Ends its turn: edges do not repeat, but setting the events anew tells of those that hold. */
static void yield(struct tc_worker *worker, struct tc_conn *conn)
{
    struct epoll_event event = {.events = EVENTS, .data.ptr = conn};
    if (epoll_ctl(worker->epoll_fd, EPOLL_CTL_MOD, conn->stream.fd, &event) != 0) {
        fail(worker, conn, TC_COUNT_ERROR_RESOURCE);
    }
}

static void receive(struct tc_worker *worker, struct tc_conn *conn)
{
    struct tc_response *response = &conn->response;
    size_t received = 0;
    while (response->state == TC_RESPONSE_MORE) {
        if (received >= TURN_BYTES) {
            yield(worker, conn);
            return;
        }
        bool skipping = response->skippable_bytes > 0 && conn->stream.ssl == NULL;
        ssize_t got = receive_some(worker, conn);
        if (got == TC_IO_WANT_READ || got == TC_IO_WANT_WRITE) {
            return;
        }
        uint64_t now_ns = tc_now_ns();
        if (got == TC_IO_FAILED) {
            fail(worker, conn, TC_COUNT_ERROR_RESET);
            return;
        }
        if (got == TC_IO_CLOSED) {
            conn->hangup = conn->hangup || conn->stream.ssl == NULL;
            (void)tc_response_end(response);
        } else {
            received += (size_t)got;
            if (!conn->answered) {
                conn->answered = true;
                record(worker, TC_LATENCY_FIRST_BYTE, conn->scheduled_ns, now_ns);
            }
            if (!skipping) {
                (void)tc_response_feed(response, worker->buffer, (size_t)got);
            }
        }
        if (response->state == TC_RESPONSE_WHOLE) {
            complete(worker, conn, now_ns);
            if (conn->state == TC_CONN_CLOSING && conn->hangup) {
                finish_closing(worker, conn);
            }
            return;
        }
    }
    fail(worker, conn, response->fault);
}

static void send_request(struct tc_worker *worker, struct tc_conn *conn)
{
    const struct tc_target *target = &worker->load->target;
    while (conn->sent < target->request_bytes) {
        ssize_t sent = conn->stream.transport->write(&conn->stream, target->request + conn->sent,
                                                     target->request_bytes - conn->sent);
        if (sent == TC_IO_WANT_WRITE || sent == TC_IO_WANT_READ) {
            return;
        }
        if (sent < 0) {
            fail(worker, conn, TC_COUNT_ERROR_RESET);
            return;
        }
        conn->sent += (size_t)sent;
    }
    conn->state = TC_CONN_RECEIVING;
    if (conn->hangup) {
        receive(worker, conn); /* no further event will come */
    }
}

static void shake_hands(struct tc_worker *worker, struct tc_conn *conn)
{
    int result = conn->stream.transport->handshake(&conn->stream);
    if (result == TC_IO_WANT_READ || result == TC_IO_WANT_WRITE) {
        if (conn->hangup && result == TC_IO_WANT_READ) {
            fail(worker, conn, TC_COUNT_ERROR_HANDSHAKE);
        }
        return;
    }
    if (result != 0) {
        fail(worker, conn, TC_COUNT_ERROR_HANDSHAKE);
        return;
    }
    if (conn->stream.ssl != NULL) {
        record(worker, TC_LATENCY_HANDSHAKE, conn->mark_ns, tc_now_ns());
        conn->full = SSL_session_reused(conn->stream.ssl) == 0;
        int kind = tc_tls_client_check(&worker->tls, conn->stream.ssl, conn->resumes);
        if (kind != 0) {
            conn->state = TC_CONN_SENDING; /* past the handshake: the goodbye is in order */
            fail(worker, conn, (enum tc_count)kind);
            return;
        }
    }
    conn->state = TC_CONN_SENDING;
    send_request(worker, conn);
}

static void finish_connect(struct tc_worker *worker, struct tc_conn *conn, uint32_t events)
{
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        int code = 0;
        socklen_t bytes = sizeof(code);
        if (getsockopt(conn->stream.fd, SOL_SOCKET, SO_ERROR, &code, &bytes) != 0) {
            code = errno;
        }
        if (code != 0) {
            fail(worker, conn, kind_of_errno(code));
            return;
        }
    }
    if ((events & EPOLLOUT) == 0) {
        return;
    }
    uint64_t now_ns = tc_now_ns();
    record(worker, TC_LATENCY_CONNECT, conn->mark_ns, now_ns);
    tc_page_add(worker->counts, TC_COUNT_CONNECTIONS, 1);
    conn->mark_ns = now_ns;
    conn->state = TC_CONN_HANDSHAKING;
    shake_hands(worker, conn);
}

void tc_conn_begin(struct tc_worker *worker, struct tc_conn *conn, uint64_t scheduled_ns,
                   uint64_t now_ns)
{
    conn->scheduled_ns = scheduled_ns;
    conn->due_ns = now_ns + worker->load->options->timeout_ns;
    conn->sent = 0;
    conn->answered = false;
    tc_response_begin(&conn->response, &worker->load->options->rules);
    tc_page_add(worker->counts, TC_COUNT_STARTED, 1);
    worker->active++;
    TAILQ_INSERT_TAIL(&worker->under_way, conn, link);
    if (conn->stream.fd < 0) {
        begin_connection(worker, conn, now_ns);
    } else {
        conn->state = TC_CONN_SENDING;
        conn->full = false; /* no handshake in this transaction */
        send_request(worker, conn);
    }
}

void tc_conn_event(struct tc_worker *worker, struct tc_conn *conn, uint32_t events)
{
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        conn->hangup = true;
    }
    if ((events & ~(uint32_t)EPOLLOUT) != 0) {
        tc_stream_ready(&conn->stream, conn->hangup);
    }
    switch (conn->state) {
    case TC_CONN_IDLE:
        if (conn->hangup) {
            tc_conn_close(conn, false); /* the server has tired of an idle connection */
        }
        break;
    case TC_CONN_CONNECTING:
        finish_connect(worker, conn, events);
        break;
    case TC_CONN_HANDSHAKING:
        shake_hands(worker, conn);
        break;
    case TC_CONN_SENDING:
        send_request(worker, conn);
        break;
    case TC_CONN_RECEIVING:
        receive(worker, conn);
        break;
    case TC_CONN_CLOSING:
        finish_closing(worker, conn);
        break;
    }
}

void tc_conn_expire(struct tc_worker *worker, struct tc_conn *conn)
{
    if (conn->state == TC_CONN_CLOSING) {
        tc_conn_close(conn, true);
        settle(worker, conn);
    } else {
        fail(worker, conn, TC_COUNT_ERROR_TIMEOUT);
    }
}
