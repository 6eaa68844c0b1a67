#include "workloads/server/server.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int use_files(SSL_CTX *ctx, const char *dir, struct tc_error *err)
{
    char key[PATH_MAX];
    char cert[PATH_MAX];
    if (snprintf(key, sizeof(key), "%s/key.pem", dir) >= PATH_MAX ||
        snprintf(cert, sizeof(cert), "%s/cert.pem", dir) >= PATH_MAX) {
        return tc_error_set(err, ENAMETOOLONG, "%s: too long a directory name", dir);
    }
    const char *bad = cert;
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) == 1) {
        bad = key;
        if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) == 1) {
            return 0;
        }
    }
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return tc_error_set(err, EINVAL, "%s: cannot use it: %s; --write-certificate makes a pair", bad,
                        why != NULL ? why : "no reason given by OpenSSL");
}

static int use_pair(SSL_CTX *ctx, EVP_PKEY *key, X509 *cert, struct tc_error *err)
{
    if (SSL_CTX_use_certificate(ctx, cert) == 1 && SSL_CTX_use_PrivateKey(ctx, key) == 1) {
        return 0;
    }
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return tc_error_set(err, EINVAL, "the certificate made does not fit its profile: %s",
                        why != NULL ? why : "no reason given by OpenSSL");
}

/* Neither sessions nor tickets: every handshake is full, and no NewSessionTicket is sent. */
static int forbid_resumption(SSL_CTX *ctx, struct tc_error *err)
{
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    return SSL_CTX_set_num_tickets(ctx, 0) == 1
               ? 0
               : tc_error_set(err, ENOTSUP, "OpenSSL does not let tickets be turned off");
}

static int make_context(const struct tc_server_options *options, EVP_PKEY *key, X509 *cert,
                        SSL_CTX **ctx, struct tc_error *err)
{
    static const unsigned char id[] = "tlscost";
    int rc = tc_profile_context(options->profile, true, ctx, err);
    if (rc == 0) {
        /* No client may have many handshakes on one connection: OpenSSL 1.1.1 would let it. */
        (void)SSL_CTX_set_options(*ctx, SSL_OP_NO_RENEGOTIATION);
        rc = options->certificate_dir != NULL ? use_files(*ctx, options->certificate_dir, err)
                                              : use_pair(*ctx, key, cert, err);
    }
    if (rc == 0 && SSL_CTX_set_session_id_context(*ctx, id, sizeof(id) - 1) != 1) {
        rc = tc_error_set(err, ENOTSUP, "OpenSSL does not take the session id context");
    }
    if (rc == 0 && !options->resumption) {
        rc = forbid_resumption(*ctx, err);
    }
    if (rc != 0) {
        SSL_CTX_free(*ctx);
        *ctx = NULL;
    }
    return rc;
}

/* A copy that shares nothing, so that workers do not contend for the key's blinding and counts. */
static EVP_PKEY *copy_key(EVP_PKEY *key)
{
    unsigned char *der = NULL;
    int length = i2d_PrivateKey(key, &der);
    const unsigned char *at = der;
    EVP_PKEY *copy = length > 0 ? d2i_AutoPrivateKey(NULL, &at, length) : NULL;
    OPENSSL_clear_free(der, length > 0 ? (size_t)length : 0);
    return copy;
}

/* Without resumption each worker has a context of its own; with it they share one, and its sessions
 * and ticket keys, as a client may come back to another worker. */
static int make_contexts(struct tc_server *server, const struct tc_server_options *options,
                         struct tc_error *err)
{
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    int rc = options->certificate_dir == NULL
                 ? tc_certificate_make(options->profile, &key, &cert, err)
                 : 0;
    if (rc == 0 && options->resumption) {
        rc = make_context(options, key, cert, &server->shared_ctx, err);
    }
    for (size_t i = 0; rc == 0 && i < server->count; i++) {
        if (options->resumption) {
            (void)SSL_CTX_up_ref(server->shared_ctx);
            server->workers[i].ctx = server->shared_ctx;
            continue;
        }
        EVP_PKEY *own = key != NULL ? copy_key(key) : NULL;
        rc = key != NULL && own == NULL
                 ? tc_error_set(err, ENOMEM, "cannot copy the private key")
                 : make_context(options, own, cert, &server->workers[i].ctx, err);
        EVP_PKEY_free(own);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}

static int listen_all(struct tc_server *server, const struct tc_server_options *options,
                      struct tc_error *err)
{
    /* Once without sharing: else a second server of the same user would get half of the first
     * one's connections, and neither would know. */
    int alone = -1;
    int rc = tc_worker_listen(&server->address, options->address_length, false, &alone, err);
    if (alone >= 0) {
        (void)close(alone);
    }
    for (size_t i = 0; rc == 0 && i < server->count; i++) {
        rc = tc_worker_listen(&server->address, options->address_length, true,
                              &server->workers[i].listener, err);
    }
    return rc;
}

int tc_server_start(struct tc_server *server, const struct tc_server_options *options,
                    const struct tc_bodies *bodies, struct tc_error *err)
{
    memset(server, 0, sizeof(*server));
    server->address = options->address;
    server->workers = calloc(options->cpu_count, sizeof(*server->workers));
    if (server->workers == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for %zu workers", options->cpu_count);
    }
    server->count = options->cpu_count;
    for (size_t i = 0; i < server->count; i++) {
        struct tc_worker *worker = &server->workers[i];
        worker->cpu = options->cpus[i];
        worker->listener = -1;
        worker->stop_fd = -1;
        worker->loop.epoll_fd = -1;
        worker->bodies = bodies;
        worker->limits = &options->limits;
    }
    int rc = options->profile != NULL ? make_contexts(server, options, err) : 0;
    if (rc == 0) {
        rc = listen_all(server, options, err);
    }
    for (size_t i = 0; rc == 0 && i < server->count; i++) {
        rc = tc_worker_start(&server->workers[i], err);
    }
    return rc;
}

int tc_server_close(struct tc_server *server, uint64_t *cut, struct tc_error *err)
{
    int rc = 0;
    *cut = 0;
    for (size_t i = 0; i < server->count; i++) {
        if (server->workers[i].running) {
            tc_worker_stop(&server->workers[i]);
        }
    }
    for (size_t i = 0; i < server->count; i++) {
        int failed = tc_worker_join(&server->workers[i], cut, rc == 0 ? err : NULL);
        rc = rc == 0 ? failed : rc;
        SSL_CTX_free(server->workers[i].ctx);
    }
    SSL_CTX_free(server->shared_ctx);
    free(server->workers);
    memset(server, 0, sizeof(*server));
    return rc;
}
