/* TLS profiles: named data files (data/profiles/NAME.cnf, OpenSSL's configuration syntax) that say
 * which protocol versions, suites, groups, security level and key a server and a client use.
 *
 *   [profile]
 *   key = rsa:2048            key of the certificate: rsa:BITS or ec:CURVE (P-256, P-384, P-521)
 *   digest = SHA256           of the certificate's signature
 *   providers = default       OpenSSL 3: providers to load, e.g. "default legacy"
 *   expect_protocol = TLSv1.2 what SSL_get_version() must say after each handshake
 *   expect_cipher = AES128-GCM-SHA256   and SSL_CIPHER_get_name(): OpenSSL's name
 *   weak = no                 yes: needs to be asked for by name, loopback only, with a warning
 *   openssl = 1.1.1 3.5       where the system's OpenSSL will not do: which of
 *                             workloads/openssl-legacy/recipe.toml have it, the preferred one first
 *   description = ...
 *   [ssl_conf]                commands for SSL_CONF_cmd(), server and client alike
 *   MinProtocol = TLSv1.2
 *   CipherString = AES128-GCM-SHA256:@SECLEVEL=2
 */
#ifndef TC_COMMON_PROFILE_H
#define TC_COMMON_PROFILE_H

#include <openssl/ssl.h>
#include <stdbool.h>

#include "workloads/common/error.h"

/* A cell's own network is 198.18.0.0/15, set apart for benchmarks (RFC 2544): it never leaves the
 * machine. The server's address there stands in certificates. */
#define TC_NETWORK_SERVER "198.18.0.1"
#define TC_NETWORK_CLIENT "198.18.0.2"

struct tc_profile {
    char name[64];
    char key[32];
    char digest[32];
    char providers[64];
    char expect_protocol[16];
    char expect_cipher[64];
    bool weak;
    CONF *conf; /* owned; the [ssl_conf] commands */
};

/* Reads and checks a profile file. Errors: -ENOENT, -EINVAL (syntax, unknown or missing key, bad
 * value: the message names file and key). tc_profile_close() on success. */
TC_MUST_CHECK int tc_profile_open(struct tc_profile *profile, const char *path,
                                  struct tc_error *err);
void tc_profile_close(struct tc_profile *profile);

/* OpenSSL's number of a protocol version by its SSL_get_version() name; 0: unknown. */
int tc_profile_protocol(const char *name);

/* A context for a server (server true) or a client with every command of the profile applied and
 * its providers loaded. Fails loudly, -ENOTSUP, where this OpenSSL lacks a named suite, group,
 * protocol or provider: none may vanish silently. SSL_CTX_free() by the caller. */
TC_MUST_CHECK int tc_profile_context(const struct tc_profile *profile, bool server, SSL_CTX **ctx,
                                     struct tc_error *err);

/* Checks the profile's key and digest names. Errors: -EINVAL. */
TC_MUST_CHECK int tc_certificate_check(const struct tc_profile *profile, struct tc_error *err);

/* Makes a key of the profile's kind and a self-signed certificate for localhost, the loopback
 * addresses and those of measured network namespaces (TC_NETWORK_*), valid from an hour ago for 30
 * days. The caller frees both. Errors: -EINVAL, -ENOTSUP. */
TC_MUST_CHECK int tc_certificate_make(const struct tc_profile *profile, EVP_PKEY **key, X509 **cert,
                                      struct tc_error *err);

/* Writes DIR/key.pem (created 0600) and DIR/cert.pem. Errors: errno of the files. */
TC_MUST_CHECK int tc_certificate_write(const char *dir, EVP_PKEY *key, X509 *cert,
                                       struct tc_error *err);

#endif
