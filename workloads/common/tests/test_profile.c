#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workloads/common/pattern.h"
#include "workloads/common/profile.h"
#include "workloads/common/transport.h"

static const char *const names[] = {
    "tls12-krsa2048-aes128gcm", "tls12-krsa3072-aes128gcm", "tls12-ecdhe-rsa2048-aes128gcm",
    "tls13-ecdsa-x25519",       "tls13-chacha20",           "tls12-krsa512-aes128gcm",
    "tls10-rsa1024-aes128",
};

#define GOOD_HEAD                                                                                  \
    "[profile]\nkey = ec:P-256\ndigest = SHA256\nexpect_protocol = TLSv1.3\n"                      \
    "expect_cipher = TLS_AES_128_GCM_SHA256\nweak = no\n"
#define GOOD_CONF "[ssl_conf]\nMinProtocol = TLSv1.3\nCiphersuites = TLS_AES_128_GCM_SHA256\n"

/* Opens a profile with the given text, and where that works makes a server's context of it. */
static int try_text(const char *text, struct tc_error *err)
{
    char path[] = "/tmp/tlscost-test-XXXXXX.cnf";
    int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
    struct tc_profile profile;
    SSL_CTX *ctx = NULL;
    int rc = tc_profile_open(&profile, path, err);
    if (rc == 0) {
        rc = tc_profile_context(&profile, true, &ctx, err);
        SSL_CTX_free(ctx);
        tc_profile_close(&profile);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ERR_peek_error(), 0);
    return rc;
}

static void bad_profiles_are_refused_by_name(void **state)
{
    static const struct {
        const char *text;
        int rc;
        const char *says;
    } cases[] = {
        {GOOD_HEAD GOOD_CONF, 0, ""},
        {GOOD_HEAD "openssl = 1.1.1 3.5\n" GOOD_CONF, 0, ""},
        {"[profile\n", -EINVAL, ":1:"},
        {GOOD_CONF, -EINVAL, "[profile]"},
        {GOOD_HEAD, -EINVAL, "[ssl_conf]"},
        {"[profile]\nkey = ec:P-256\n" GOOD_CONF, -EINVAL, "lacks digest"},
        {GOOD_HEAD "colour = red\n" GOOD_CONF, -EINVAL, "colour"},
        {GOOD_HEAD "key = rsa:12\n" GOOD_CONF, -EINVAL, "rsa:12"},
        {GOOD_HEAD "key = rsa:2048x\n" GOOD_CONF, -EINVAL, "rsa:2048x"},
        {GOOD_HEAD "key = ec:P-999\n" GOOD_CONF, -EINVAL, "ec:P-999"},
        {GOOD_HEAD "key =\n" GOOD_CONF, -EINVAL, "key"},
        {GOOD_HEAD "digest = SHA257\n" GOOD_CONF, -EINVAL, "SHA257"},
        {GOOD_HEAD "weak = maybe\n" GOOD_CONF, -EINVAL, "maybe"},
        {GOOD_HEAD "expect_protocol = TLSv2\n" GOOD_CONF, -EINVAL, "TLSv2"},
        {GOOD_HEAD "expect_protocol = TLSv1.2\n" GOOD_CONF, -EINVAL, "MinProtocol"},
        {GOOD_HEAD "providers = default nosuch\n" GOOD_CONF, -ENOTSUP, "nosuch"},
        {GOOD_HEAD GOOD_CONF "Colour = red\n", -EINVAL, "Colour"},
        {GOOD_HEAD GOOD_CONF "CipherString = AES128-SHA:NO-SUCH\n", -ENOTSUP, "NO-SUCH"},
        {GOOD_HEAD GOOD_CONF "Ciphersuites = TLS_AES_128_GCM_SHA256:TLS_NO\n", -ENOTSUP, "TLS_NO"},
        {GOOD_HEAD GOOD_CONF "Groups = X25519:X1\n", -ENOTSUP, "X1"},
        {GOOD_HEAD GOOD_CONF "MaxProtocol = TLSv9\n", -ENOTSUP, "TLSv9"},
        {GOOD_HEAD "expect_cipher = TLS_AES_256_GCM_SHA384\n" GOOD_CONF, -ENOTSUP,
         "TLS_AES_256_GCM_SHA384"},
        /* Level 3 forbids TLS 1.0, and OpenSSL would serve 1.2 alone without a word. */
        {"[profile]\nkey = rsa:2048\ndigest = SHA256\nexpect_protocol = TLSv1.2\nexpect_cipher = "
         "ECDHE-RSA-AES128-SHA\n[ssl_conf]\nMinProtocol = TLSv1\nCipherString = "
         "ECDHE-RSA-AES128-SHA:@SECLEVEL=3\n",
         -ENOTSUP, "TLSv1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tc_error err = {""};
        int rc = try_text(cases[i].text, &err);
        if (rc != cases[i].rc || strstr(err.message, cases[i].says) == NULL) {
            fail_msg("case %zu: %d (%s), expected %d with %s", i, rc, err.message, cases[i].rc,
                     cases[i].says);
        }
    }
    struct tc_profile profile;
    struct tc_error err;
    assert_int_equal(tc_profile_open(&profile, "/nonexistent/x.cnf", &err), -ENOENT);
    assert_non_null(strstr(err.message, "/nonexistent/x.cnf"));
}

static void a_written_key_is_private(void **state)
{
    char dir[] = "/tmp/tlscost-test-XXXXXX";
    char path[64];
    struct stat info;
    struct tc_profile profile = {.name = "x", .key = "ec:P-256", .digest = "SHA256"};
    struct tc_error err;
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(tc_certificate_make(&profile, &key, &cert, &err), 0);
    assert_int_equal(X509_check_private_key(cert, key), 1);
    assert_int_equal(X509_check_host(cert, "localhost", 0, 0, NULL), 1);
    assert_int_equal(X509_check_ip_asc(cert, "127.0.0.1", 0), 1);
    mode_t mask = umask(0);
    (void)snprintf(path, sizeof(path), "%s/key.pem", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0666); /* an older file, readable by all */
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(tc_certificate_write(dir, key, cert, &err), 0);
    (void)umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof(path), "%s/cert.pem", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(tc_certificate_write(dir, key, cert, &err), -ENOENT);
    X509_free(cert);
    EVP_PKEY_free(key);
}

/* Both ends of a connection; kept over connections, so that the TLS objects are used again. */
struct pair {
    struct tc_profile profile;
    SSL_CTX *server_ctx;
    SSL_CTX *client_ctx;
    struct tc_stream server;
    struct tc_stream client;
};

static void open_pair(struct pair *pair, const char *name)
{
    char path[512];
    struct tc_error err;
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    memset(pair, 0, sizeof(*pair));
    (void)snprintf(path, sizeof(path), "%s/%s.cnf", TC_PROFILES_DIR, name);
    if (tc_profile_open(&pair->profile, path, &err) != 0 ||
        tc_profile_context(&pair->profile, true, &pair->server_ctx, &err) != 0 ||
        tc_profile_context(&pair->profile, false, &pair->client_ctx, &err) != 0 ||
        tc_certificate_make(&pair->profile, &key, &cert, &err) != 0) {
        fail_msg("%s", err.message);
    }
    assert_int_equal(SSL_CTX_use_certificate(pair->server_ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(pair->server_ctx, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void close_pair(struct pair *pair)
{
    tc_stream_close(&pair->server);
    tc_stream_close(&pair->client);
    SSL_CTX_free(pair->server_ctx);
    SSL_CTX_free(pair->client_ctx);
    tc_profile_close(&pair->profile);
}

static void connect_pair(struct pair *pair, int fds[2])
{
    struct tc_error err;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(tc_stream_open(&pair->server, fds[0], pair->server_ctx, true, &err), 0);
    assert_int_equal(tc_stream_open(&pair->client, fds[1], pair->client_ctx, false, &err), 0);
}

static void shake_hands(struct pair *pair)
{
    int ours = TC_IO_WANT_READ;
    int theirs = TC_IO_WANT_READ;
    for (int i = 0; i < 10 && (ours != 0 || theirs != 0); i++) {
        theirs = pair->client.transport->handshake(&pair->client);
        ours = pair->server.transport->handshake(&pair->server);
    }
    if (ours != 0 || theirs != 0) {
        fail_msg("%s: handshake: server %d, client %d", pair->profile.name, ours, theirs);
    }
    assert_string_equal(SSL_get_version(pair->client.ssl), pair->profile.expect_protocol);
    assert_string_equal(SSL_get_cipher_name(pair->client.ssl), pair->profile.expect_cipher);
}

/* A body from server to client, checked; the client's reads drain what the server may send. */
static void transfer(struct pair *pair, const char *body, int body_fd, size_t length)
{
    static const char head[] = "HEAD";
    char buffer[20000];
    const size_t head_length = sizeof(head) - 1;
    size_t sent = 0;
    size_t got = 0;
    for (int idle = 0; got < head_length + length && idle < 1000; idle++) {
        if (sent < head_length + length) {
            bool in_head = sent < head_length;
            size_t done = in_head ? 0 : sent - head_length;
            ssize_t n = pair->server.transport->send_body(
                &pair->server, in_head ? head + sent : NULL, in_head ? head_length - sent : 0,
                body_fd, body, done, length - done);
            assert_true(n > 0 || n == TC_IO_WANT_WRITE);
            sent += n > 0 ? (size_t)n : 0;
        }
        ssize_t n = pair->client.transport->read(&pair->client, buffer, sizeof(buffer));
        assert_true(n > 0 || n == TC_IO_WANT_READ);
        for (ssize_t i = 0; i < n; i++, got++) {
            assert_int_equal(buffer[i], got < head_length ? head[got] : body[got - head_length]);
        }
        idle = n > 0 ? 0 : idle;
    }
    assert_int_equal(got, head_length + length);
}

static void disconnect_pair(struct pair *pair, int fds[2])
{
    char byte;
    pair->server.transport->shutdown(&pair->server);
    assert_int_equal(pair->client.transport->read(&pair->client, &byte, 1), TC_IO_CLOSED);
    assert_int_equal(close(fds[0]), 0);
    assert_int_equal(close(fds[1]), 0);
}

static void every_profile_connects_again_and_again(void **state)
{
    static char body[300000];
    (void)state;
    tc_pattern_fill(0, body, sizeof(body));
    int body_fd = memfd_create("body", MFD_CLOEXEC);
    assert_int_equal(write(body_fd, body, sizeof(body)), sizeof(body));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct pair pair;
        open_pair(&pair, names[i]);
        SSL_CTX_set_options(pair.server_ctx, SSL_OP_NO_TICKET);
        (void)SSL_CTX_set_session_cache_mode(pair.server_ctx, SSL_SESS_CACHE_OFF);
        assert_int_equal(SSL_CTX_set_num_tickets(pair.server_ctx, 0), 1);
        SSL *before = NULL;
        unsigned char secret[2][48];
        for (int turn = 0; turn < 6; turn++) {
            int fds[2];
            connect_pair(&pair, fds);
            if (turn == 3) { /* an abandoned handshake must not spoil the next */
                (void)pair.client.transport->handshake(&pair.client);
                assert_int_equal(close(fds[0]), 0);
                assert_int_equal(close(fds[1]), 0);
                continue;
            }
            assert_true(turn == 0 || pair.server.ssl == before ||
                        OPENSSL_VERSION_NUMBER < 0x30000000L);
            before = pair.server.ssl;
            shake_hands(&pair);
            assert_false(SSL_session_reused(pair.client.ssl));
            assert_false(SSL_session_reused(pair.server.ssl));
            (void)SSL_get_client_random(pair.server.ssl, secret[turn % 2], 32);
            assert_true(turn == 0 || memcmp(secret[0], secret[1], 32) != 0);
            transfer(&pair, body, body_fd, turn % 2 == 0 ? sizeof(body) : 30);
            disconnect_pair(&pair, fds);
        }
        close_pair(&pair);
    }
    assert_int_equal(close(body_fd), 0);
}

static void plain_streams_carry_bodies(void **state)
{
    static char body[300000];
    struct pair pair = {.server_ctx = NULL};
    int fds[2];
    (void)state;
    tc_pattern_fill(0, body, sizeof(body));
    int body_fd = memfd_create("body", MFD_CLOEXEC);
    assert_int_equal(write(body_fd, body, sizeof(body)), sizeof(body));
    connect_pair(&pair, fds);
    transfer(&pair, body, body_fd, sizeof(body));
    transfer(&pair, body, body_fd, 30);
    assert_int_equal(close(fds[0]), 0);
    char byte;
    assert_int_equal(pair.client.transport->read(&pair.client, &byte, 1), TC_IO_CLOSED);
    assert_int_equal(pair.client.transport->write(&pair.client, "x", 1), TC_IO_FAILED);
    assert_int_equal(close(fds[1]), 0);
    assert_int_equal(close(body_fd), 0);
}

/* Edge-triggered owners: a short read ends in TC_IO_WANT_READ until the next event is told. */
static void a_drained_stream_waits_for_its_event(void **state)
{
    struct pair pair = {.server_ctx = NULL};
    int fds[2];
    char buffer[8];
    (void)state;
    connect_pair(&pair, fds);
    pair.server.edge_triggered = true;
    const struct tc_transport *plain = pair.server.transport;
    assert_int_equal(write(fds[1], "abc", 3), 3);
    assert_int_equal(plain->read(&pair.server, buffer, sizeof(buffer)), 3);
    assert_int_equal(write(fds[1], "def", 3), 3);
    assert_int_equal(plain->read(&pair.server, buffer, sizeof(buffer)), TC_IO_WANT_READ);
    tc_stream_ready(&pair.server, false);
    assert_int_equal(plain->read(&pair.server, buffer, 3), 3);
    assert_int_equal(close(fds[1]), 0);
    assert_int_equal(plain->read(&pair.server, buffer, 3), TC_IO_CLOSED);
    tc_stream_ready(&pair.server, true);
    assert_int_equal(plain->read(&pair.server, buffer, 3), TC_IO_CLOSED);
    assert_int_equal(plain->read(&pair.server, buffer, 3), TC_IO_CLOSED);
    assert_int_equal(close(fds[0]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_profiles_are_refused_by_name),
        cmocka_unit_test(a_written_key_is_private),
        cmocka_unit_test(every_profile_connects_again_and_again),
        cmocka_unit_test(plain_streams_carry_bodies),
        cmocka_unit_test(a_drained_stream_waits_for_its_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
