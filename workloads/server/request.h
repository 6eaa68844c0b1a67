/* Reads HTTP/1.x requests for static bodies out of a byte stream: http-parser with limits.
 *
 * What it says depends on the bytes alone, not on how they are split over calls. */
#ifndef TC_SERVER_REQUEST_H
#define TC_SERVER_REQUEST_H

#include <http_parser.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A longer target is none that we serve. */
#define TC_REQUEST_TARGET_MOST 255
/* Content that comes with a request, chunk headers and trailers included, is read and dropped up to
 * here. */
#define TC_REQUEST_CONTENT_MOST 65536
/* http-parser's own limit lies above any that may be asked for here. */
#define TC_REQUEST_HEADER_MOST 65536

struct tc_request {
    /* Set by tc_request_feed() when it returns a status. */
    bool is_head;
    bool keep_alive;
    bool is_http_1_0;
    uint64_t size; /* of the body asked for; meaningful with status 200 */
    /* The rest is the parser's own. */
    http_parser parser;
    uint32_t header_most;
    uint32_t header_bytes;
    uint32_t content_bytes;
    bool headers_done;
    bool message_done;
    bool started;
    uint8_t host_matched; /* bytes of the current field's name that are those of "host" */
    bool in_name;
    uint8_t hosts;
    uint16_t target_length; /* one more than TC_REQUEST_TARGET_MOST: too long */
    char target[TC_REQUEST_TARGET_MOST + 1];
};

/* Before each request on a connection. header_most: request line and header [bytes]. */
void tc_request_begin(struct tc_request *request, uint32_t header_most);

/* Takes up to length bytes, none beyond the end of this request; *used says how many. Returns 0:
 * needs more, or the HTTP status of the answer: 200 (for a target of the form /SIZE), 400, 404,
 * 405, 413, 431, 505. After any but 200, 404 and 405, keep_alive is false and the stream is of no
 * more use. */
int tc_request_feed(struct tc_request *request, const char *data, size_t length, size_t *used);

/* True where some bytes of the request have been seen. */
static inline bool tc_request_started(const struct tc_request *request)
{
    return request->started;
}

#endif
