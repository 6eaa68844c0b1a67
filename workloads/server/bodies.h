/* The static bodies: every size is a prefix of one mapped file that no name leads to. */
#ifndef TC_SERVER_BODIES_H
#define TC_SERVER_BODIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "workloads/common/error.h"

struct tc_bodies {
    int fd;
    const char *text; /* `bytes` long, read-only */
    bool mapped;      /* text is; else it is empty, as no body has bytes */
    uint64_t bytes;   /* the largest size */
    const uint64_t *sizes;
    size_t count;
};

/* Sizes [bytes] stay the caller's and must outlive the bodies. -errno. */
TC_MUST_CHECK int tc_bodies_open(struct tc_bodies *bodies, const uint64_t *sizes, size_t count,
                                 struct tc_error *err);
void tc_bodies_close(struct tc_bodies *bodies);

/* True where a body of this size is served. */
bool tc_bodies_has(const struct tc_bodies *bodies, uint64_t size);

/* Writes each body to DIR/SIZE, for other servers to serve. -errno. */
TC_MUST_CHECK int tc_bodies_write(const struct tc_bodies *bodies, const char *dir,
                                  struct tc_error *err);

#endif
