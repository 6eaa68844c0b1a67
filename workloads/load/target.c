#include "workloads/load/target.h"

#include <errno.h>
#include <http_parser.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "workloads/common/exposure.h"

static int resolve(struct tc_target *target, const char *host, const char *port,
                   struct tc_error *err)
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) {
        return tc_error_set(err, EINVAL, "host %s, port %s: %s", host, port, gai_strerror(code));
    }
    memcpy(&target->address, found->ai_addr, found->ai_addrlen);
    target->address_bytes = found->ai_addrlen;
    target->local = tc_address_is_private(&target->address);
    freeaddrinfo(found);
    return 0;
}

/* A field of the URL, or "" where it has none. */
static void copy_field(const struct http_parser_url *parsed, const char *url,
                       enum http_parser_url_fields field, char *text, size_t size)
{
    bool there = (parsed->field_set & (1U << field)) != 0;
    int length = there ? parsed->field_data[field].len : 0;
    (void)snprintf(text, size, "%.*s", length, url + parsed->field_data[field].off);
}

int tc_target_parse(struct tc_target *target, const char *url, bool keepalive, struct tc_error *err)
{
    struct http_parser_url parsed;
    char scheme[8];
    char host[256];
    char port[8];
    *target = (struct tc_target){0};
    http_parser_url_init(&parsed);
    if (strlen(url) > 2048 || http_parser_parse_url(url, strlen(url), 0, &parsed) != 0) {
        return tc_error_set(err, EINVAL, "--url %.100s: expected http(s)://ADDRESS:PORT/PATH", url);
    }
    copy_field(&parsed, url, UF_SCHEMA, scheme, sizeof(scheme));
    copy_field(&parsed, url, UF_HOST, host, sizeof(host));
    copy_field(&parsed, url, UF_PORT, port, sizeof(port));
    target->tls = strcmp(scheme, "https") == 0;
    if (!target->tls && strcmp(scheme, "http") != 0) {
        return tc_error_set(err, EINVAL, "--url %.100s: expected http:// or https://", url);
    }
    if (port[0] == '\0') {
        (void)snprintf(port, sizeof(port), "%s", target->tls ? "443" : "80");
    }
    /* From the path on; a fragment is not sent. */
    const char *path = "/";
    size_t path_length = 1;
    if ((parsed.field_set & (1U << UF_PATH)) != 0) {
        path = url + parsed.field_data[UF_PATH].off;
        path_length = strcspn(path, "#");
    }
    const char *bracket = strchr(host, ':') != NULL ? "[" : "";
    int length = snprintf(target->request, sizeof(target->request),
                          "GET %.*s HTTP/1.1\r\nHost: %s%s%s:%s\r\n%s\r\n", (int)path_length, path,
                          bracket, host, bracket[0] != '\0' ? "]" : "", port,
                          keepalive ? "" : "Connection: close\r\n");
    if (length < 0 || (size_t)length >= sizeof(target->request)) {
        return tc_error_set(err, EINVAL, "--url is too long for a request");
    }
    target->request_bytes = (size_t)length;
    return resolve(target, host, port, err);
}
