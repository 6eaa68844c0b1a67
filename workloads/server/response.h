/* Heads of responses, made without allocation. */
#ifndef TC_SERVER_RESPONSE_H
#define TC_SERVER_RESPONSE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "workloads/server/request.h"

#define TC_RESPONSE_HEAD_MOST 256

/* The Date field's value, made anew once a second. Zeroed before first use; one per thread. */
struct tc_response_date {
    time_t second;
    char text[30];
};

/* Writes the head of the answer with this HTTP status to head; content_bytes of content follow
 * (unless the request's method is HEAD). Returns the head's length. */
size_t tc_response_head(char head[static TC_RESPONSE_HEAD_MOST], int status,
                        const struct tc_request *request, uint64_t content_bytes,
                        struct tc_response_date *date);

#endif
