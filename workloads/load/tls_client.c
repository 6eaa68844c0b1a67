#include "workloads/load/tls_client.h"

#include <errno.h>
#include <math.h>
#include <openssl/err.h>
#include <string.h>

/* A record of every size and what follows it, in one read. */
enum { READ_BUFFER_BYTES = 64 * 1024 };

static void count_tickets(int write_p, int version, int content_type, const void *buffer,
                          size_t length, SSL *ssl, void *argument)
{
    const unsigned char *message = buffer;
    struct tc_tls_client *client = argument;
    (void)version;
    (void)ssl;
    if (write_p == 0 && content_type == SSL3_RT_HANDSHAKE && length > 0 &&
        message[0] == SSL3_MT_NEWSESSION_TICKET) {
        tc_page_add(client->counts, TC_COUNT_TICKETS, 1);
    }
}

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    struct tc_tls_client *client = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION **slot = &client->unused[client->unused_next];
    SSL_SESSION_free(*slot);
    *slot = session;
    client->unused_next = (client->unused_next + 1) % TC_TLS_CLIENT_TICKETS;
    if (client->unused_count < TC_TLS_CLIENT_TICKETS) {
        client->unused_count++;
    }
    return 1; /* the reference is ours now */
}

/* OpenSSL would build and verify a chain even where nobody asks for the result. */
static int accept_any_certificate(X509_STORE_CTX *store, void *argument)
{
    (void)store;
    (void)argument;
    return 1;
}

int tc_tls_client_open(struct tc_tls_client *client, const struct tc_profile *profile,
                       double resumption, struct tc_page_thread *counts, struct tc_error *err)
{
    *client =
        (struct tc_tls_client){.profile = profile, .counts = counts, .resumption = resumption};
    if (profile != NULL) {
        int result = tc_profile_context(profile, false, &client->ctx, err);
        if (result != 0) {
            return result;
        }
    } else {
        client->ctx = SSL_CTX_new(TLS_client_method());
        if (client->ctx == NULL) {
            return tc_error_set(err, ENOMEM, "OpenSSL cannot make a context");
        }
        (void)SSL_CTX_set_mode(client->ctx,
                               SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_read_ahead(client->ctx, 1);
    }
    SSL_CTX_set_verify(client->ctx, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_cert_verify_callback(client->ctx, accept_any_certificate, NULL);
    SSL_CTX_set_default_read_buffer_len(client->ctx, READ_BUFFER_BYTES);
    SSL_CTX_set_app_data(client->ctx, client);
    SSL_CTX_set_msg_callback(client->ctx, count_tickets);
    SSL_CTX_set_msg_callback_arg(client->ctx, client);
    if (resumption > 0) {
        SSL_CTX_set_session_cache_mode(client->ctx,
                                       SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(client->ctx, keep_session);
    } else {
        SSL_CTX_set_session_cache_mode(client->ctx, SSL_SESS_CACHE_OFF);
    }
    return 0;
}

void tc_tls_client_close(struct tc_tls_client *client)
{
    SSL_SESSION_free(client->last);
    for (size_t i = 0; i < TC_TLS_CLIENT_TICKETS; i++) {
        SSL_SESSION_free(client->unused[i]);
    }
    SSL_CTX_free(client->ctx);
    *client = (struct tc_tls_client){0};
}

/* The newest unused session; TLS 1.3 asks for a ticket to be used once, and servers may insist. */
static SSL_SESSION *take_session(struct tc_tls_client *client)
{
    if (client->unused_count > 0) {
        client->unused_next =
            (client->unused_next + TC_TLS_CLIENT_TICKETS - 1) % TC_TLS_CLIENT_TICKETS;
        client->unused_count--;
        SSL_SESSION_free(client->last);
        client->last = client->unused[client->unused_next];
        client->unused[client->unused_next] = NULL;
    }
    return client->last;
}

int tc_tls_client_begin(struct tc_tls_client *client, SSL *ssl, bool *resumes)
{
    client->begun++;
    /* The small part forgives the fraction its rounding: 0.29 x 100 is below 29. */
    double due = floor((double)client->begun * client->resumption + 1e-9);
    *resumes = (double)client->resuming < due;
    if (!*resumes) {
        return 0;
    }
    SSL_SESSION *session = take_session(client);
    if (session == NULL && !client->had_full) {
        *resumes = false;
        return 0;
    }
    client->resuming++;
    /* Without a session the handshake will be full, and the check says so. */
    if (session != NULL && SSL_set_session(ssl, session) != 1) {
        ERR_clear_error();
        return -ENOMEM;
    }
    return 0;
}

int tc_tls_client_check(struct tc_tls_client *client, SSL *ssl, bool resumes)
{
    bool resumed = SSL_session_reused(ssl) != 0;
    const struct tc_profile *profile = client->profile;
    tc_page_add(client->counts, resumed ? TC_COUNT_HANDSHAKES_RESUMED : TC_COUNT_HANDSHAKES_FULL,
                1);
    if (profile != NULL &&
        (strcmp(SSL_get_version(ssl), profile->expect_protocol) != 0 ||
         strcmp(SSL_CIPHER_get_name(SSL_get_current_cipher(ssl)), profile->expect_cipher) != 0)) {
        return TC_COUNT_ERROR_PROFILE;
    }
    return resumed == resumes ? 0 : TC_COUNT_ERROR_RESUMPTION;
}
