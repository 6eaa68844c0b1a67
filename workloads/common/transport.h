/* One table of five functions for plain TCP and for TLS: the rest of server and load never names
 * OpenSSL on a connection's way. All calls are non-blocking on a non-blocking socket. */
#ifndef TC_COMMON_TRANSPORT_H
#define TC_COMMON_TRANSPORT_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "workloads/common/error.h"

/* What a call says besides a byte count. */
enum tc_io {
    TC_IO_WANT_READ = -1,  /* call again when readable */
    TC_IO_WANT_WRITE = -2, /* call again when writable */
    TC_IO_CLOSED = -3,     /* the peer closed in order */
    TC_IO_FAILED = -4      /* reset, TLS failure: the stream is dead, call close */
};

/* Zeroed by its owner before the first tc_stream_open(), and not moved while it is open. */
struct tc_stream {
    const struct tc_transport *transport;
    int fd;
    SSL *ssl; /* NULL on plain; kept for reuse over connections by the owner of the stream */
    /* Set after tc_stream_open() by owners that use edge-triggered events and call
     * tc_stream_ready() at each: a short read then means that the socket is empty, and further
     * reads say TC_IO_WANT_READ without a system call. Others leave it false. */
    bool edge_triggered;
    bool drained; /* the last read of the socket was short */
    /* Set by owners that will close right after what they write next: its end then waits for the
     * close, and both leave in one packet. */
    bool closes_next;
    bool holds;          /* TLS: more follows the record being written */
    unsigned reads_left; /* TLS: of the socket, in the call under way */
    bool failed;         /* the TLS state is not fit for reuse */
};

struct tc_transport {
    const char *name;
    /* 0 when done, else enum tc_io. Plain: 0. */
    int (*handshake)(struct tc_stream *stream);
    /* Bytes read or written (> 0), else enum tc_io. */
    ssize_t (*read)(struct tc_stream *stream, void *buffer, size_t length);
    ssize_t (*write)(struct tc_stream *stream, const void *buffer, size_t length);
    /* Sends head (may be empty) and then length bytes from offset of the body, open as body_fd and
     * mapped at body: sendfile on plain, writes from the mapping on TLS. Counts head and body bytes
     * together; partial progress is possible and the caller calls again with the rest. */
    ssize_t (*send_body)(struct tc_stream *stream, const void *head, size_t head_length,
                         int body_fd, const char *body, uint64_t offset, size_t length);
    /* Says goodbye (close_notify on TLS) without waiting for the peer's; the fd stays open. */
    void (*shutdown)(struct tc_stream *stream);
};

extern const struct tc_transport tc_transport_plain;
extern const struct tc_transport tc_transport_tls;

/* Puts the stream on fd: plain where ctx is NULL, else TLS as server or client, making an SSL or
 * reusing the stream's own from an earlier connection. Errors: -ENOMEM, -EPROTO. */
TC_MUST_CHECK int tc_stream_open(struct tc_stream *stream, int fd, SSL_CTX *ctx, bool server,
                                 struct tc_error *err);

/* An event has come. hangup: it said that the peer has closed or reset, of which no further event
 * will tell, so that from now on every read asks the socket. */
static inline void tc_stream_ready(struct tc_stream *stream, bool hangup)
{
    stream->drained = false;
    stream->edge_triggered = stream->edge_triggered && !hangup;
}

static inline bool tc_stream_is_drained(const struct tc_stream *stream)
{
    return stream->edge_triggered && stream->drained;
}

/* Frees the SSL; the fd is the caller's. */
void tc_stream_close(struct tc_stream *stream);

#endif
