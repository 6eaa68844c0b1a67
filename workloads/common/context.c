#include <errno.h>
#include <openssl/conf.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
#include <openssl/provider.h>
#endif

#include "workloads/common/profile.h"

int tc_profile_protocol(const char *name)
{
    static const struct {
        const char *name;
        int version;
    } protocols[] = {
        {"SSLv3", SSL3_VERSION},     {"TLSv1", TLS1_VERSION},     {"TLSv1.1", TLS1_1_VERSION},
        {"TLSv1.2", TLS1_2_VERSION}, {"TLSv1.3", TLS1_3_VERSION},
    };
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        if (strcmp(name, protocols[i].name) == 0) {
            return protocols[i].version;
        }
    }
    return 0;
}

static int lacks(const struct tc_profile *profile, const char *kind, const char *name,
                 struct tc_error *err)
{
    ERR_clear_error();
    return tc_error_set(err, ENOTSUP,
                        "profile %s: this OpenSSL (%s) lacks or forbids %s %s at the profile's "
                        "security level; use another profile or an OpenSSL built with it",
                        profile->name, OpenSSL_version(OPENSSL_VERSION), kind, name);
}

/* Calls check() for each word of a list; stops at the first that fails. */
typedef bool (*word_check)(SSL_CTX *ctx, const char *word);

static bool each_word(const char *list, const char *separators, SSL_CTX *ctx, word_check check,
                      char word[static 128])
{
    for (list += strspn(list, separators); *list != '\0'; list += strspn(list, separators)) {
        size_t length = strcspn(list, separators);
        size_t kept = length < 127 ? length : 127;
        memcpy(word, list, kept);
        word[kept] = '\0';
        if (length > 127 || !check(ctx, word)) {
            return false;
        }
        list += length;
    }
    return true;
}

#if OPENSSL_VERSION_NUMBER >= 0x30000000L
static bool load_provider(SSL_CTX *ctx, const char *name)
{
    (void)ctx;
    /* Providers stay loaded for the life of the process, as OpenSSL itself keeps its default. */
    return OSSL_PROVIDER_available(NULL, name) == 1 || OSSL_PROVIDER_load(NULL, name) != NULL;
}
#else
static bool load_provider(SSL_CTX *ctx, const char *name)
{
    (void)ctx; /* before OpenSSL 3 both providers' algorithms are built in */
    return strcmp(name, "default") == 0 || strcmp(name, "legacy") == 0;
}
#endif

/* A suite up to TLS 1.2 by itself: OpenSSL skips unknown ones in a list without a word. Words that
 * remove or reorder suites, or set the security level, name nothing that could be lacking. */
static bool knows_suite(SSL_CTX *ctx, const char *word)
{
    char alone[160];
    if (strchr("!-+@", word[0]) != NULL) {
        return true;
    }
    (void)snprintf(alone, sizeof(alone), "%s:@SECLEVEL=0", word);
    return SSL_CTX_set_cipher_list(ctx, alone) == 1;
}

static bool has_cipher(const STACK_OF(SSL_CIPHER) * ciphers, const char *name)
{
    for (int i = 0; i < sk_SSL_CIPHER_num(ciphers); i++) {
        if (strcmp(SSL_CIPHER_get_name(sk_SSL_CIPHER_value(ciphers, i)), name) == 0) {
            return true;
        }
    }
    return false;
}

static bool knows_tls13_suite(SSL_CTX *ctx, const char *word)
{
    return has_cipher(SSL_CTX_get_ciphers(ctx), word);
}

/* OpenSSL 3.5 skips an unknown group or signature algorithm that is marked so. */
static bool is_not_optional(SSL_CTX *ctx, const char *word)
{
    (void)ctx;
    return strchr(word, '?') == NULL;
}

/* With the range narrowed to one protocol: some suite is left, and where `cipher` is given, that
 * one. This asks OpenSSL itself, so compiled-out protocols and security levels are seen. */
static bool serves(SSL_CTX *ctx, int version, const char *cipher)
{
    SSL *ssl = SSL_new(ctx);
    STACK_OF(SSL_CIPHER) *ciphers = NULL;
    if (ssl != NULL && SSL_set_min_proto_version(ssl, version) == 1 &&
        SSL_set_max_proto_version(ssl, version) == 1) {
        ciphers = SSL_get1_supported_ciphers(ssl);
    }
    bool found = ciphers != NULL && sk_SSL_CIPHER_num(ciphers) > 0 &&
                 (cipher == NULL || has_cipher(ciphers, cipher));
    sk_SSL_CIPHER_free(ciphers);
    SSL_free(ssl);
    return found;
}

static int check_words(const struct tc_profile *profile, SSL_CTX *ctx, const CONF_VALUE *command,
                       struct tc_error *err)
{
    char word[128];
    const char *value = command->value;
    if (strcmp(command->name, "CipherString") == 0) {
        SSL_CTX *scratch = SSL_CTX_new(TLS_method());
        bool known = scratch != NULL && each_word(value, ":, ;", scratch, knows_suite, word);
        SSL_CTX_free(scratch);
        return known ? 0 : lacks(profile, "suite", word, err);
    }
    if (strcmp(command->name, "Ciphersuites") == 0) {
        return each_word(value, ":", ctx, knows_tls13_suite, word)
                   ? 0
                   : lacks(profile, "suite", word, err);
    }
    if (strcmp(command->name, "Groups") == 0 || strcmp(command->name, "Curves") == 0 ||
        strcmp(command->name, "SignatureAlgorithms") == 0) {
        return each_word(value, ":", ctx, is_not_optional, word)
                   ? 0
                   : tc_error_set(err, EINVAL,
                                  "profile %s: %s: %s: a profile names what it needs, so nothing "
                                  "in it is optional; drop the question mark",
                                  profile->name, command->name, word);
    }
    return 0;
}

static int apply(const struct tc_profile *profile, SSL_CTX *ctx, bool server, struct tc_error *err)
{
    SSL_CONF_CTX *conf = SSL_CONF_CTX_new();
    if (conf == NULL) {
        return tc_error_set(err, ENOMEM, "profile %s: out of memory", profile->name);
    }
    (void)SSL_CONF_CTX_set_flags(conf, SSL_CONF_FLAG_FILE | SSL_CONF_FLAG_SHOW_ERRORS |
                                           (server ? SSL_CONF_FLAG_SERVER : SSL_CONF_FLAG_CLIENT));
    SSL_CONF_CTX_set_ssl_ctx(conf, ctx);
    STACK_OF(CONF_VALUE) *commands = NCONF_get_section(profile->conf, "ssl_conf");
    int rc = 0;
    for (int i = 0; rc == 0 && i < sk_CONF_VALUE_num(commands); i++) {
        const CONF_VALUE *command = sk_CONF_VALUE_value(commands, i);
        int done = SSL_CONF_cmd(conf, command->name, command->value);
        if (done == -2) {
            rc = tc_error_set(err, EINVAL,
                              "profile %s: [ssl_conf] %s: this OpenSSL (%s) has no such "
                              "command",
                              profile->name, command->name, OpenSSL_version(OPENSSL_VERSION));
        } else if (done <= 0) {
            rc = lacks(profile, command->name, command->value, err);
        } else {
            rc = check_words(profile, ctx, command, err);
        }
    }
    if (rc == 0 && SSL_CONF_CTX_finish(conf) != 1) {
        rc = lacks(profile, "all of", "[ssl_conf]", err);
    }
    SSL_CONF_CTX_free(conf);
    return rc;
}

static int check_effect(const struct tc_profile *profile, SSL_CTX *ctx, struct tc_error *err)
{
    static const char *const bounds[] = {"MinProtocol", "MaxProtocol"};
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        const char *name = NCONF_get_string(profile->conf, "ssl_conf", bounds[i]);
        ERR_clear_error();
        if (name != NULL && tc_profile_protocol(name) != 0 &&
            !serves(ctx, tc_profile_protocol(name), NULL)) {
            return lacks(profile, "protocol", name, err);
        }
    }
    long least = SSL_CTX_get_min_proto_version(ctx);
    long most = SSL_CTX_get_max_proto_version(ctx);
    int expected = tc_profile_protocol(profile->expect_protocol);
    if (expected < least || (most != 0 && expected > most)) {
        return tc_error_set(err, EINVAL,
                            "profile %s: expect_protocol = %s lies outside MinProtocol to "
                            "MaxProtocol",
                            profile->name, profile->expect_protocol);
    }
    if (!serves(ctx, expected, NULL)) {
        return lacks(profile, "protocol", profile->expect_protocol, err);
    }
    return serves(ctx, expected, profile->expect_cipher)
               ? 0
               : lacks(profile, "suite", profile->expect_cipher, err);
}

int tc_profile_context(const struct tc_profile *profile, bool server, SSL_CTX **ctx,
                       struct tc_error *err)
{
    char word[128];
    *ctx = NULL;
    if (!each_word(profile->providers, ", ", NULL, load_provider, word)) {
        return lacks(profile, "provider", word, err);
    }
    SSL_CTX *made = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (made == NULL) {
        ERR_clear_error();
        return tc_error_set(err, ENOMEM, "profile %s: OpenSSL cannot make a context",
                            profile->name);
    }
    int rc = apply(profile, made, server, err);
    if (rc == 0) {
        rc = check_effect(profile, made, err);
    }
    ERR_clear_error();
    if (rc != 0) {
        SSL_CTX_free(made);
        return rc;
    }
    /* What the transports rely on: partial writes, and retries from another address. Reading ahead
     * gets a record's header and body in one system call. */
    (void)SSL_CTX_set_mode(made,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(made, 1);
    *ctx = made;
    return 0;
}
