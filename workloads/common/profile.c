#include "workloads/common/profile.h"

#include <errno.h>
#include <openssl/conf.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static int bad(const char *path, struct tc_error *err, const char *key, const char *value,
               const char *expected)
{
    return tc_error_set(err, EINVAL, "%s: [profile] %s = %s: expected %s", path, key, value,
                        expected);
}

/* The profile's name is its file's: data/profiles/NAME.cnf. */
static int take_name(struct tc_profile *profile, const char *path, struct tc_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t length = strlen(base);
    if (length > 4 && strcmp(base + length - 4, ".cnf") == 0) {
        length -= 4;
    }
    if (length == 0 || length >= sizeof(profile->name)) {
        return tc_error_set(err, EINVAL,
                            "%s: a profile's file name is NAME.cnf, NAME of 1 to %zu bytes", path,
                            sizeof(profile->name) - 1);
    }
    memcpy(profile->name, base, length);
    profile->name[length] = '\0';
    return 0;
}

static int load(struct tc_profile *profile, const char *path, struct tc_error *err)
{
    BIO *file = BIO_new_file(path, "r");
    if (file == NULL) {
        int code = errno != 0 ? errno : ENOENT;
        ERR_clear_error();
        return tc_error_set(err, code,
                            "%s: cannot open the profile: %s; ./tlscost profiles lists them", path,
                            strerror(code));
    }
    long line = 0;
    int rc = 0;
    profile->conf = NCONF_new(NULL);
    if (profile->conf == NULL) {
        rc = tc_error_set(err, ENOMEM, "%s: out of memory", path);
    } else if (NCONF_load_bio(profile->conf, file, &line) <= 0) {
        rc = tc_error_set(err, EINVAL, "%s:%ld: not OpenSSL's configuration syntax: %s", path, line,
                          ERR_reason_error_string(ERR_peek_last_error()));
    }
    BIO_free(file);
    ERR_clear_error();
    return rc;
}

static int take(const CONF_VALUE *pair, char *field, size_t size, const char *path,
                struct tc_error *err)
{
    size_t length = strlen(pair->value);
    if (length == 0 || length >= size) {
        return tc_error_set(err, EINVAL, "%s: [profile] %s: expected 1 to %zu bytes, got %zu", path,
                            pair->name, size - 1, length);
    }
    memcpy(field, pair->value, length + 1);
    return 0;
}

static int take_pair(struct tc_profile *profile, const CONF_VALUE *pair, const char *path,
                     struct tc_error *err)
{
    const struct {
        const char *key;
        char *field;
        size_t size;
    } texts[] = {
        {"key", profile->key, sizeof(profile->key)},
        {"digest", profile->digest, sizeof(profile->digest)},
        {"providers", profile->providers, sizeof(profile->providers)},
        {"expect_protocol", profile->expect_protocol, sizeof(profile->expect_protocol)},
        {"expect_cipher", profile->expect_cipher, sizeof(profile->expect_cipher)},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strcmp(pair->name, texts[i].key) == 0) {
            return take(pair, texts[i].field, texts[i].size, path, err);
        }
    }
    if (strcmp(pair->name, "weak") == 0) {
        profile->weak = strcmp(pair->value, "yes") == 0;
        return profile->weak || strcmp(pair->value, "no") == 0
                   ? 0
                   : bad(path, err, "weak", pair->value, "yes or no");
    }
    if (strcmp(pair->name, "openssl") == 0 || strcmp(pair->name, "description") == 0) {
        return 0; /* for whoever starts the program: what it runs with is settled by then */
    }
    return tc_error_set(err, EINVAL,
                        "%s: [profile] %s: unknown key; expected key, digest, providers, "
                        "expect_protocol, expect_cipher, weak, openssl or description",
                        path, pair->name);
}

static int check(const struct tc_profile *profile, const char *path, struct tc_error *err)
{
    static const char *const needed[] = {"key", "digest", "expect_protocol", "expect_cipher"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (NCONF_get_string(profile->conf, "profile", needed[i]) == NULL) {
            ERR_clear_error();
            return tc_error_set(err, EINVAL, "%s: [profile] lacks %s", path, needed[i]);
        }
    }
    int rc = tc_certificate_check(profile, err);
    if (rc != 0) {
        return rc;
    }
    if (tc_profile_protocol(profile->expect_protocol) == 0) {
        return bad(path, err, "expect_protocol", profile->expect_protocol,
                   "SSLv3, TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3");
    }
    STACK_OF(CONF_VALUE) *commands = NCONF_get_section(profile->conf, "ssl_conf");
    if (commands == NULL || sk_CONF_VALUE_num(commands) == 0) {
        ERR_clear_error();
        return tc_error_set(err, EINVAL, "%s: lacks an [ssl_conf] section with commands", path);
    }
    return 0;
}

int tc_profile_open(struct tc_profile *profile, const char *path, struct tc_error *err)
{
    memset(profile, 0, sizeof(*profile));
    memcpy(profile->providers, "default", sizeof("default"));
    int rc = take_name(profile, path, err);
    if (rc == 0) {
        rc = load(profile, path, err);
    }
    STACK_OF(CONF_VALUE) *pairs = rc == 0 ? NCONF_get_section(profile->conf, "profile") : NULL;
    if (rc == 0 && pairs == NULL) {
        ERR_clear_error();
        rc = tc_error_set(err, EINVAL, "%s: lacks a [profile] section", path);
    }
    for (int i = 0; rc == 0 && i < sk_CONF_VALUE_num(pairs); i++) {
        rc = take_pair(profile, sk_CONF_VALUE_value(pairs, i), path, err);
    }
    if (rc == 0) {
        rc = check(profile, path, err);
    }
    if (rc != 0) {
        tc_profile_close(profile);
    }
    return rc;
}

void tc_profile_close(struct tc_profile *profile)
{
    if (profile != NULL) {
        NCONF_free(profile->conf);
        profile->conf = NULL;
    }
}
