#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workloads/common/profile.h"

enum { RSA_LEAST_BITS = 512, RSA_MOST_BITS = 16384, VALID_S = 30 * 24 * 3600, EARLIER_S = 3600 };

/* What a key name asks for: bits of an RSA key, or the curve of an EC key. */
struct key_kind {
    int rsa_bits;
    int curve_nid;
};

static bool parse_key(const char *text, struct key_kind *kind)
{
    memset(kind, 0, sizeof(*kind));
    if (strncmp(text, "ec:", 3) == 0) {
        kind->curve_nid = EC_curve_nist2nid(text + 3);
        return kind->curve_nid != NID_undef;
    }
    if (strncmp(text, "rsa:", 4) != 0 || text[4] < '1' || text[4] > '9') {
        return false;
    }
    char *end = NULL;
    errno = 0;
    long bits = strtol(text + 4, &end, 10);
    kind->rsa_bits = bits >= RSA_LEAST_BITS && bits <= RSA_MOST_BITS ? (int)bits : 0;
    return errno == 0 && *end == '\0' && kind->rsa_bits != 0;
}

int tc_certificate_check(const struct tc_profile *profile, struct tc_error *err)
{
    struct key_kind kind;
    if (!parse_key(profile->key, &kind)) {
        return tc_error_set(err, EINVAL,
                            "profile %s: key = %s: expected rsa:BITS (%d to %d) or ec:CURVE "
                            "(P-256, P-384, P-521)",
                            profile->name, profile->key, RSA_LEAST_BITS, RSA_MOST_BITS);
    }
    if (EVP_get_digestbyname(profile->digest) == NULL) {
        return tc_error_set(err, EINVAL, "profile %s: digest = %s: OpenSSL knows no such digest",
                            profile->name, profile->digest);
    }
    return 0;
}

static int failed(const struct tc_profile *profile, const char *what, struct tc_error *err)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return tc_error_set(err, ENOTSUP, "profile %s: cannot %s: %s", profile->name, what,
                        why != NULL ? why : "no reason given by OpenSSL");
}

static EVP_PKEY *make_key(const struct key_kind *kind)
{
    EVP_PKEY *key = NULL;
    int id = kind->rsa_bits != 0 ? EVP_PKEY_RSA : EVP_PKEY_EC;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(id, NULL);
    bool ready = ctx != NULL && EVP_PKEY_keygen_init(ctx) > 0;
    if (ready && kind->rsa_bits != 0) {
        ready = EVP_PKEY_CTX_set_rsa_keygen_bits(ctx, kind->rsa_bits) > 0;
    } else if (ready) {
        ready = EVP_PKEY_CTX_set_ec_paramgen_curve_nid(ctx, kind->curve_nid) > 0 &&
                EVP_PKEY_CTX_set_ec_param_enc(ctx, OPENSSL_EC_NAMED_CURVE) > 0;
    }
    if (ready && EVP_PKEY_keygen(ctx, &key) <= 0) {
        key = NULL;
    }
    EVP_PKEY_CTX_free(ctx);
    return key;
}

static bool add_extension(X509 *cert, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool added = extension != NULL && X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool fill_certificate(X509 *cert, EVP_PKEY *key)
{
    X509_NAME *name = X509_get_subject_name(cert);
    BIGNUM *serial = BN_new();
    bool filled = serial != NULL &&
                  BN_rand(serial, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
                  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(cert)) != NULL &&
                  X509_set_version(cert, 2 /* X.509 v3 */) == 1 &&
                  X509_gmtime_adj(X509_getm_notBefore(cert), -EARLIER_S) != NULL &&
                  X509_gmtime_adj(X509_getm_notAfter(cert), VALID_S) != NULL &&
                  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                             (const unsigned char *)"localhost", -1, -1, 0) == 1 &&
                  X509_set_issuer_name(cert, name) == 1 && X509_set_pubkey(cert, key) == 1 &&
                  add_extension(cert, NID_subject_key_identifier, "hash") &&
                  add_extension(cert, NID_basic_constraints, "critical,CA:TRUE") &&
                  add_extension(cert, NID_key_usage,
                                "critical,digitalSignature,keyEncipherment,keyCertSign") &&
                  add_extension(cert, NID_ext_key_usage, "serverAuth") &&
                  add_extension(cert, NID_subject_alt_name,
                                "DNS:localhost,IP:127.0.0.1,IP:::1,IP:" TC_NETWORK_SERVER);
    BN_free(serial);
    return filled;
}

int tc_certificate_make(const struct tc_profile *profile, EVP_PKEY **key, X509 **cert,
                        struct tc_error *err)
{
    struct key_kind kind;
    *key = NULL;
    *cert = NULL;
    int rc = tc_certificate_check(profile, err);
    if (rc != 0) {
        return rc;
    }
    (void)parse_key(profile->key, &kind);
    *key = make_key(&kind);
    if (*key == NULL) {
        return failed(profile, "make a key", err);
    }
    *cert = X509_new();
    if (*cert == NULL || !fill_certificate(*cert, *key) ||
        X509_sign(*cert, *key, EVP_get_digestbyname(profile->digest)) <= 0) {
        rc = failed(profile, "make a certificate", err);
        X509_free(*cert);
        EVP_PKEY_free(*key);
        *cert = NULL;
        *key = NULL;
    }
    return rc;
}

/* A new file, whose mode holds from the first byte on whatever the umask: who has an older one of
 * that name open, or linked, does not see what is written. */
static int open_file(const char *dir, const char *name, mode_t mode, FILE **file,
                     struct tc_error *err)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return tc_error_set(err, ENAMETOOLONG, "%s: too long a directory name", dir);
    }
    (void)unlink(path); /* a failure shows in what follows */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 || fchmod(fd, mode) != 0) {
        int code = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return tc_error_set(err, code, "%s: cannot create: %s", path, strerror(code));
    }
    *file = fdopen(fd, "w");
    if (*file == NULL) {
        (void)close(fd);
        return tc_error_set(err, ENOMEM, "%s: out of memory", path);
    }
    return 0;
}

static int finish_file(FILE *file, bool written, const char *dir, const char *name,
                       struct tc_error *err)
{
    errno = 0;
    if (fclose(file) != 0 || !written) {
        int code = errno != 0 ? errno : EIO;
        ERR_clear_error();
        return tc_error_set(err, code, "%s/%s: cannot write: %s", dir, name, strerror(code));
    }
    return 0;
}

int tc_certificate_write(const char *dir, EVP_PKEY *key, X509 *cert, struct tc_error *err)
{
    FILE *file = NULL;
    int rc = open_file(dir, "key.pem", 0600, &file, err);
    if (rc == 0) {
        bool written = PEM_write_PKCS8PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1;
        rc = finish_file(file, written, dir, "key.pem", err);
    }
    if (rc == 0) {
        rc = open_file(dir, "cert.pem", 0644, &file, err);
    }
    if (rc == 0) {
        rc = finish_file(file, PEM_write_X509(file, cert) == 1, dir, "cert.pem", err);
    }
    return rc;
}
