#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "workloads/common/transport.h"

/* Up to here copying a body into the socket is cheaper than a second system call for sendfile. */
enum { COPY_MOST_BYTES = 16 * 1024 };

static ssize_t failure(int want)
{
    return errno == EAGAIN || errno == EWOULDBLOCK ? want : TC_IO_FAILED;
}

static int plain_handshake(struct tc_stream *stream)
{
    (void)stream;
    return 0;
}

static ssize_t plain_read(struct tc_stream *stream, void *buffer, size_t length)
{
    if (tc_stream_is_drained(stream)) {
        return TC_IO_WANT_READ;
    }
    ssize_t got = recv(stream->fd, buffer, length, 0);
    stream->drained = got < (ssize_t)length;
    if (got > 0) {
        return got;
    }
    return got == 0 ? TC_IO_CLOSED : failure(TC_IO_WANT_READ);
}

static ssize_t plain_write(struct tc_stream *stream, const void *buffer, size_t length)
{
    ssize_t sent = send(stream->fd, buffer, length, MSG_NOSIGNAL);
    return sent >= 0 ? sent : failure(TC_IO_WANT_WRITE);
}

static ssize_t send_small(struct tc_stream *stream, const void *head, size_t head_length,
                          const char *body, size_t length)
{
    struct iovec parts[2] = {{(void *)head, head_length}, {(void *)body, length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    int more = stream->closes_next ? MSG_MORE : 0;
    ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | more);
    return sent >= 0 ? sent : failure(TC_IO_WANT_WRITE);
}

static ssize_t plain_send_body(struct tc_stream *stream, const void *head, size_t head_length,
                               int body_fd, const char *body, uint64_t offset, size_t length)
{
    if (length <= COPY_MOST_BYTES) {
        return send_small(stream, head, head_length, body + offset, length);
    }
    ssize_t sent = 0;
    if (head_length > 0) {
        /* MSG_MORE: the head travels in the body's first segment. */
        sent = send(stream->fd, head, head_length, MSG_NOSIGNAL | MSG_MORE);
        if (sent < 0) {
            return failure(TC_IO_WANT_WRITE);
        }
        if ((size_t)sent < head_length) {
            return sent;
        }
    }
    off_t at = (off_t)offset;
    ssize_t body_sent = sendfile(stream->fd, body_fd, &at, length);
    if (body_sent > 0) {
        return sent + body_sent;
    }
    if (body_sent == 0) {
        return TC_IO_FAILED; /* the body's file is shorter than promised */
    }
    return sent > 0 ? sent : failure(TC_IO_WANT_WRITE);
}

static void plain_shutdown(struct tc_stream *stream)
{
    (void)stream; /* close() says it all */
}

const struct tc_transport tc_transport_plain = {
    .name = "plain",
    .handshake = plain_handshake,
    .read = plain_read,
    .write = plain_write,
    .send_body = plain_send_body,
    .shutdown = plain_shutdown,
};
