/* Reads one HTTP/1.x response from pieces of a stream and checks it: a thin adapter over
 * libhttp-parser. Knows no socket; never allocates; one user per object. */
#ifndef TC_LOAD_RESPONSE_H
#define TC_LOAD_RESPONSE_H

#include <http_parser.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "workloads/common/page.h"

/* How much of a response is checked; each level checks what those before it do. */
enum tc_check {
    TC_CHECK_STATUS, /* 200, and a message that ends where it says */
    TC_CHECK_SIZE,   /* and Content-Length and body have the expected size */
    TC_CHECK_PATTERN /* and every byte of the body is tc_pattern's */
};

struct tc_response_rules {
    enum tc_check check;
    bool sized; /* whether expected_bytes is known */
    uint64_t expected_bytes;
};

enum tc_response_state {
    TC_RESPONSE_MORE,  /* feed it more */
    TC_RESPONSE_WHOLE, /* complete and as expected */
    TC_RESPONSE_BAD    /* see fault */
};

struct tc_response {
    http_parser parser;
    const struct tc_response_rules *rules;
    uint64_t body_bytes;      /* seen so far */
    uint64_t skippable_bytes; /* body bytes to come that the caller may throw away unread */
    enum tc_response_state state;
    enum tc_count fault; /* kind of error where state is TC_RESPONSE_BAD */
    bool headers_complete;
    bool skips;      /* the body's bytes are only counted, and not by the parser */
    bool keep_alive; /* the server will keep the connection open; valid once WHOLE */
};

/* Makes ready for a new response. rules must outlive it. */
void tc_response_begin(struct tc_response *response, const struct tc_response_rules *rules);

/* Takes the next bytes (length > 0) of the stream. Bytes after the end of the response are a
 * fault, TC_COUNT_ERROR_LENGTH. */
enum tc_response_state tc_response_feed(struct tc_response *response, const char *data,
                                        size_t length);

/* Says that the caller threw `bytes` <= skippable_bytes of the body away. */
enum tc_response_state tc_response_skip(struct tc_response *response, uint64_t bytes);

/* Says that the stream has ended: completes a response that is delimited by it, and is a fault,
 * TC_COUNT_ERROR_RESET, in any other that is not complete. */
enum tc_response_state tc_response_end(struct tc_response *response);

#endif
