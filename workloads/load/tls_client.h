/* The load generator's side of TLS: which handshakes resume a session, and whether each was what
 * was asked for. One per thread: nothing is shared, so nothing is locked. */
#ifndef TC_LOAD_TLS_CLIENT_H
#define TC_LOAD_TLS_CLIENT_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "workloads/common/page.h"
#include "workloads/common/profile.h"

/* Unused tickets that a thread keeps; a full ring forgets its oldest. */
#define TC_TLS_CLIENT_TICKETS 256

struct tc_tls_client {
    SSL_CTX *ctx;
    const struct tc_profile *profile; /* NULL: nothing to assert */
    struct tc_page_thread *counts;
    double resumption; /* fraction asked for */
    uint64_t begun;    /* handshakes begun, and how many of them were to resume */
    uint64_t resuming;
    bool had_full;     /* a whole transaction since a full handshake: its tickets are here */
    SSL_SESSION *last; /* the session last used, used again where there is no unused one */
    SSL_SESSION *unused[TC_TLS_CLIENT_TICKETS];
    size_t unused_count;
    size_t unused_next; /* where the next one goes */
};

/* A context by the profile, or this OpenSSL's defaults without one. The peer is not authenticated:
 * its certificate is self-signed per run. The client must not move while open. */
TC_MUST_CHECK int tc_tls_client_open(struct tc_tls_client *client, const struct tc_profile *profile,
                                     double resumption, struct tc_page_thread *counts,
                                     struct tc_error *err);
void tc_tls_client_close(struct tc_tls_client *client);

/* Chooses the session of the next handshake so that, of n handshakes begun, floor(n x fraction)
 * are to resume. Returns whether this one is. The first ones are full as long as no session can be
 * had yet; they are made up for later. Errors: -ENOMEM. */
TC_MUST_CHECK int tc_tls_client_begin(struct tc_tls_client *client, SSL *ssl, bool *resumes);

/* Counts the handshake and asserts it: 0, or the kind of error where it is not what the profile
 * and `resumes` say. */
TC_MUST_CHECK int tc_tls_client_check(struct tc_tls_client *client, SSL *ssl, bool resumes);

/* Says that the transaction after a full handshake is whole: tickets sent with it have come. */
static inline void tc_tls_client_whole(struct tc_tls_client *client)
{
    client->had_full = true;
}

#endif
