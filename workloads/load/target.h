/* From a URL to an address and the request to send there. */
#ifndef TC_LOAD_TARGET_H
#define TC_LOAD_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "workloads/common/error.h"

struct tc_target {
    struct sockaddr_storage address;
    socklen_t address_bytes;
    bool tls;
    bool local; /* loopback, or a cell's own network: nothing leaves the machine */
    char request[4096];
    size_t request_bytes;
};

/* url: http(s)://ADDRESS[:PORT]/PATH. Errors: -EINVAL (the message says what is wrong with it). */
TC_MUST_CHECK int tc_target_parse(struct tc_target *target, const char *url, bool keepalive,
                                  struct tc_error *err);

#endif
