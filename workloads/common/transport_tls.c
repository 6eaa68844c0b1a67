#include <errno.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "workloads/common/transport.h"

enum { RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH };

/* A read of ours takes one record, which two reads of the socket bring. More of them bring messages
 * of the protocol's own, KeyUpdate say, which OpenSSL takes for as long as they come: a flood of
 * them would keep all others waiting. */
enum { READS_MOST = 4 };

/* OpenSSL's way to the socket. Its own socket BIO cannot tell that the socket is known to be
 * empty, and would ask the kernel once more after every flight. */
static BIO_METHOD *socket_method;
static pthread_once_t socket_method_once = PTHREAD_ONCE_INIT;

static int socket_read(BIO *bio, char *buffer, int length)
{
    struct tc_stream *stream = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (tc_stream_is_drained(stream)) {
        BIO_set_retry_read(bio);
        return -1;
    }
    if (stream->reads_left == 0) {
        return -1;
    }
    stream->reads_left--;
    ssize_t got = recv(stream->fd, buffer, (size_t)length, 0);
    stream->drained = got < length;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        BIO_set_retry_read(bio);
    }
    return (int)got;
}

static int socket_write(BIO *bio, const char *buffer, int length)
{
    struct tc_stream *stream = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    int more = stream->holds ? MSG_MORE : 0;
    ssize_t sent = send(stream->fd, buffer, (size_t)length, MSG_NOSIGNAL | more);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        BIO_set_retry_write(bio);
    }
    return (int)sent;
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0; /* nothing is held back */
}

static void make_socket_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tlscost socket");
    if (method != NULL && BIO_meth_set_read(method, socket_read) == 1 &&
        BIO_meth_set_write(method, socket_write) == 1 &&
        BIO_meth_set_ctrl(method, socket_control) == 1) {
        socket_method = method;
        return;
    }
    BIO_meth_free(method);
}

/* OpenSSL's error queue must be empty before a call for SSL_get_error() to be right. It is emptied
 * here, after each failure, and so costs nothing where all goes well. */
static int failure(struct tc_stream *stream, int result)
{
    switch (SSL_get_error(stream->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return TC_IO_WANT_READ;
    case SSL_ERROR_WANT_WRITE:
        return TC_IO_WANT_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return TC_IO_CLOSED;
    default:
        ERR_clear_error();
        stream->failed = true;
        return TC_IO_FAILED;
    }
}

static int tls_handshake(struct tc_stream *stream)
{
    stream->reads_left = UINT_MAX; /* it has limits of its own, and ends */
    int result = SSL_do_handshake(stream->ssl);
    return result == 1 ? 0 : failure(stream, result);
}

static ssize_t tls_read(struct tc_stream *stream, void *buffer, size_t length)
{
    int most = length < INT_MAX ? (int)length : INT_MAX;
    stream->reads_left = READS_MOST;
    int got = SSL_read(stream->ssl, buffer, most);
    return got > 0 ? got : failure(stream, got);
}

/* A record at a time: what OpenSSL would do with more too, as partial writes are on. Only the end
 * of what is said is held, for close_notify and FIN to share its packet: holding the records of a
 * long body leaves their sending to the peer's acknowledgements, which nearly doubled the CPU time
 * of 1 MiB. */
static ssize_t write_record(struct tc_stream *stream, const void *buffer, size_t length, bool last)
{
    stream->holds = last && length <= RECORD_BYTES && stream->closes_next;
    int sent = SSL_write(stream->ssl, buffer, length < RECORD_BYTES ? (int)length : RECORD_BYTES);
    stream->holds = false;
    return sent > 0 ? sent : failure(stream, sent);
}

static ssize_t tls_write(struct tc_stream *stream, const void *buffer, size_t length)
{
    return write_record(stream, buffer, length, true);
}

static ssize_t tls_send_body(struct tc_stream *stream, const void *head, size_t head_length,
                             int body_fd, const char *body, uint64_t offset, size_t length)
{
    static _Thread_local char first_record[RECORD_BYTES];
    (void)body_fd;
    if (head_length == 0) {
        return tls_write(stream, body + offset, length);
    }
    if (head_length >= RECORD_BYTES) {
        return write_record(stream, head, head_length, false);
    }
    /* Head and body in one record. A call repeated after TC_IO_WANT_WRITE has the same arguments,
     * so the record is the same again, as OpenSSL demands. */
    size_t part = RECORD_BYTES - head_length;
    part = part < length ? part : length;
    memcpy(first_record, head, head_length);
    memcpy(first_record + head_length, body + offset, part);
    return write_record(stream, first_record, head_length + part, part == length);
}

static void tls_shutdown(struct tc_stream *stream)
{
    if (stream->failed || SSL_in_init(stream->ssl)) {
        return; /* OpenSSL forbids a goodbye within a handshake or after a failure */
    }
    stream->holds = stream->closes_next;
    if (SSL_shutdown(stream->ssl) < 0) {
        ERR_clear_error();
    }
    stream->holds = false;
}

const struct tc_transport tc_transport_tls = {
    .name = "tls",
    .handshake = tls_handshake,
    .read = tls_read,
    .write = tls_write,
    .send_body = tls_send_body,
    .shutdown = tls_shutdown,
};

/* SSL_clear() keeps what a server has counted of the tickets sent, so an object that sends tickets
 * is not used twice. OpenSSL 1.1.1 keeps a TLS 1.3 client's extensions too, and answers those to
 * the next client. */
static bool is_reusable(const struct tc_stream *stream, SSL_CTX *ctx, bool server)
{
#if OPENSSL_VERSION_NUMBER < 0x30000000L
    if (stream->ssl != NULL && SSL_version(stream->ssl) >= TLS1_3_VERSION) {
        return false;
    }
#endif
    return stream->ssl != NULL && !stream->failed && SSL_get_SSL_CTX(stream->ssl) == ctx &&
           SSL_is_server(stream->ssl) == (server ? 1 : 0) &&
           (!server || (SSL_CTX_get_options(ctx) & SSL_OP_NO_TICKET) != 0);
}

static int renew(struct tc_stream *stream, SSL_CTX *ctx, bool server)
{
    if (stream->ssl != NULL && !stream->failed) {
        /* As if closed in order: else OpenSSL takes the session for bad, and no one could resume
         * it. */
        SSL_set_shutdown(stream->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    }
    /* The next connection must not resume by itself. */
    if (is_reusable(stream, ctx, server) && SSL_clear(stream->ssl) == 1 &&
        (server || SSL_set_session(stream->ssl, NULL) == 1)) {
        return 0;
    }
    ERR_clear_error();
    SSL_free(stream->ssl);
    stream->ssl = SSL_new(ctx);
    BIO *bio = stream->ssl != NULL && socket_method != NULL ? BIO_new(socket_method) : NULL;
    if (bio == NULL) {
        SSL_free(stream->ssl);
        stream->ssl = NULL;
        ERR_clear_error();
        return -ENOMEM;
    }
    BIO_set_init(bio, 1);
    SSL_set_bio(stream->ssl, bio, bio);
    return 0;
}

int tc_stream_open(struct tc_stream *stream, int fd, SSL_CTX *ctx, bool server,
                   struct tc_error *err)
{
    stream->transport = ctx != NULL ? &tc_transport_tls : &tc_transport_plain;
    stream->fd = fd;
    stream->edge_triggered = false;
    stream->drained = false;
    stream->closes_next = false;
    stream->holds = false;
    if (ctx == NULL) {
        return 0;
    }
    (void)pthread_once(&socket_method_once, make_socket_method);
    if (renew(stream, ctx, server) != 0) {
        return tc_error_set(err, ENOMEM, "out of memory for a TLS connection");
    }
    stream->failed = false;
    BIO_set_data(SSL_get_rbio(stream->ssl), stream);
    if (server) {
        SSL_set_accept_state(stream->ssl);
    } else {
        SSL_set_connect_state(stream->ssl);
    }
    return 0;
}

void tc_stream_close(struct tc_stream *stream)
{
    if (stream != NULL) {
        SSL_free(stream->ssl);
        stream->ssl = NULL;
    }
}
