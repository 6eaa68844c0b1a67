#include "workloads/server/request.h"

#include <string.h>

#include "workloads/common/options.h"

static const char host[] = "host";
enum { HOST_LENGTH = sizeof(host) - 1, NO_MATCH = 255 };

static struct tc_request *of(const http_parser *parser)
{
    return parser->data;
}

static int on_url(http_parser *parser, const char *at, size_t length)
{
    struct tc_request *request = of(parser);
    size_t room = sizeof(request->target) - request->target_length;
    size_t part = length < room ? length : room;
    memcpy(request->target + request->target_length, at, part);
    request->target_length = (uint16_t)(request->target_length + part);
    return 0;
}

/* HTTP/1.1 demands exactly one Host, so its name must be told from others, over any split. */
static int on_field(http_parser *parser, const char *at, size_t length)
{
    struct tc_request *request = of(parser);
    if (!request->in_name) {
        request->in_name = true;
        request->host_matched = 0;
    }
    for (size_t i = 0; i < length && request->host_matched != NO_MATCH; i++) {
        bool same = request->host_matched < HOST_LENGTH &&
                    ((unsigned char)at[i] | 0x20) == (unsigned char)host[request->host_matched];
        request->host_matched = same ? (uint8_t)(request->host_matched + 1) : NO_MATCH;
    }
    return 0;
}

static int on_value(http_parser *parser, const char *at, size_t length)
{
    struct tc_request *request = of(parser);
    (void)at;
    (void)length;
    if (request->in_name && request->host_matched == HOST_LENGTH && request->hosts < 2) {
        request->hosts++;
    }
    request->in_name = false;
    return 0;
}

static int on_headers(http_parser *parser)
{
    struct tc_request *request = of(parser);
    request->headers_done = true;
    request->keep_alive = http_should_keep_alive(parser) != 0;
    /* We know no other protocol to change to, and may ignore the wish. */
    parser->upgrade = 0;
    if ((parser->flags & F_CHUNKED) != 0 ||
        (parser->content_length != 0 && parser->content_length != UINT64_MAX)) {
        http_parser_pause(parser, 1); /* content has a limit of its own */
    }
    return 0;
}

static int on_message(http_parser *parser)
{
    of(parser)->message_done = true;
    http_parser_pause(parser, 1); /* what follows is the next request */
    return 0;
}

static const http_parser_settings settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers,
    .on_message_complete = on_message,
};

void tc_request_begin(struct tc_request *request, uint32_t header_most)
{
    memset(request, 0, offsetof(struct tc_request, target));
    http_parser_init(&request->parser, HTTP_REQUEST);
    request->parser.data = request;
    request->header_most = header_most;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "/SIZE", as no other spelling: digits without leading zeros; a query is ignored. */
static bool parse_path(const char *path, size_t length, uint64_t *size)
{
    size_t i = 1;
    *size = 0;
    if (length < 2 || path[0] != '/' || (path[1] == '0' && length > 2 && is_digit(path[2]))) {
        return false;
    }
    for (; i < length && is_digit(path[i]) && *size <= TC_SIZE_MOST_BYTES; i++) {
        *size = *size * 10 + (uint64_t)(path[i] - '0');
    }
    return i > 1 && (i == length || path[i] == '?');
}

static bool parse_target(const struct tc_request *request, uint64_t *size)
{
    const char *target = request->target;
    size_t length = request->target_length;
    struct http_parser_url url;
    if (length > TC_REQUEST_TARGET_MOST) {
        return false;
    }
    if (length > 0 && target[0] == '/') {
        return parse_path(target, length, size);
    }
    http_parser_url_init(&url); /* the absolute form, which proxies send */
    if (http_parser_parse_url(target, length, 0, &url) != 0 ||
        (url.field_set & (1U << UF_PATH)) == 0) {
        return false;
    }
    return parse_path(target + url.field_data[UF_PATH].off, url.field_data[UF_PATH].len, size);
}

static int finish(struct tc_request *request)
{
    const http_parser *parser = &request->parser;
    request->is_head = parser->method == HTTP_HEAD;
    request->is_http_1_0 = parser->http_minor == 0;
    if (parser->http_major != 1) {
        request->keep_alive = false;
        return 505;
    }
    if (request->hosts > 1 || (request->hosts == 0 && !request->is_http_1_0)) {
        request->keep_alive = false;
        return 400;
    }
    if (parser->method != HTTP_GET && !request->is_head) {
        return 405;
    }
    return parse_target(request, &request->size) ? 200 : 404;
}

static int give_up(struct tc_request *request, int status)
{
    request->keep_alive = false;
    return status;
}

int tc_request_feed(struct tc_request *request, const char *data, size_t length, size_t *used)
{
    *used = 0;
    while (*used < length) {
        /* Never more at once than the limit leaves, so that it strikes at the same byte however the
         * input is split. */
        uint32_t *spent = request->headers_done ? &request->content_bytes : &request->header_bytes;
        uint32_t most = request->headers_done ? TC_REQUEST_CONTENT_MOST : request->header_most;
        size_t part = length - *used;
        part = part < most - *spent ? part : most - *spent;
        if (part == 0) {
            return give_up(request, request->headers_done ? 413 : 431);
        }
        size_t taken = http_parser_execute(&request->parser, &settings, data + *used, part);
        request->started = true;
        *spent += (uint32_t)taken;
        *used += taken;
        if (request->message_done) {
            return finish(request);
        }
        if (HTTP_PARSER_ERRNO(&request->parser) == HPE_PAUSED) {
            http_parser_pause(&request->parser, 0);
        } else if (HTTP_PARSER_ERRNO(&request->parser) != HPE_OK) {
            return give_up(request, 400);
        }
    }
    return 0;
}
