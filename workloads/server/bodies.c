#include "workloads/server/bodies.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "workloads/common/pattern.h"

static int write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t done = write(fd, data, length);
        if (done < 0 && errno != EINTR) {
            return -errno;
        }
        data += done > 0 ? done : 0;
        length -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int fill(int fd, uint64_t bytes)
{
    static char part[1 << 20]; /* large writes make large folios */
    for (uint64_t at = 0; at < bytes; at += sizeof(part)) {
        size_t length = bytes - at < sizeof(part) ? (size_t)(bytes - at) : sizeof(part);
        tc_pattern_fill(at, part, length);
        int rc = write_all(fd, part, length);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Static files lie in a file system's page cache, whose large folios make sendfile cheaper than
 * shared memory's pages do: an unlinked file where there can be one, else shared memory. */
static int open_unlinked(void)
{
    const char *dir = getenv("TMPDIR");
    int fd = open(dir != NULL ? dir : P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd >= 0 ? fd : memfd_create("tlscost-bodies", MFD_CLOEXEC);
}

int tc_bodies_open(struct tc_bodies *bodies, const uint64_t *sizes, size_t count,
                   struct tc_error *err)
{
    memset(bodies, 0, sizeof(*bodies));
    bodies->sizes = sizes;
    bodies->count = count;
    bodies->text = ""; /* of no body but the empty one */
    for (size_t i = 0; i < count; i++) {
        bodies->bytes = sizes[i] > bodies->bytes ? sizes[i] : bodies->bytes;
    }
    bodies->fd = open_unlinked();
    int rc = bodies->fd >= 0 ? fill(bodies->fd, bodies->bytes) : -errno;
    if (rc == 0 && bodies->bytes > 0) {
        void *map = mmap(NULL, bodies->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, bodies->fd, 0);
        rc = map != MAP_FAILED ? 0 : -errno;
        bodies->text = map != MAP_FAILED ? map : "";
        bodies->mapped = map != MAP_FAILED;
    }
    if (rc != 0) {
        tc_bodies_close(bodies);
        return tc_error_set(err, -rc,
                            "cannot hold a body of %" PRIu64 " bytes in TMPDIR or memory: %s; "
                            "serve smaller ones or set TMPDIR to a directory with room",
                            bodies->bytes, strerror(-rc));
    }
    return 0;
}

void tc_bodies_close(struct tc_bodies *bodies)
{
    if (bodies == NULL) {
        return;
    }
    if (bodies->mapped) {
        (void)munmap((void *)bodies->text, bodies->bytes);
        bodies->mapped = false;
    }
    if (bodies->fd >= 0) {
        (void)close(bodies->fd);
        bodies->fd = -1;
    }
}

bool tc_bodies_has(const struct tc_bodies *bodies, uint64_t size)
{
    for (size_t i = 0; i < bodies->count; i++) {
        if (bodies->sizes[i] == size) {
            return true;
        }
    }
    return false;
}

int tc_bodies_write(const struct tc_bodies *bodies, const char *dir, struct tc_error *err)
{
    for (size_t i = 0; i < bodies->count; i++) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof(path), "%s/%" PRIu64, dir, bodies->sizes[i]);
        if (length < 0 || (size_t)length >= sizeof(path)) {
            return tc_error_set(err, ENAMETOOLONG, "%s: too long a directory name", dir);
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        int rc = fd >= 0 ? write_all(fd, bodies->text, bodies->sizes[i]) : -errno;
        if (fd >= 0 && close(fd) != 0 && rc == 0) {
            rc = -errno;
        }
        if (rc != 0) {
            return tc_error_set(err, -rc, "%s: cannot write: %s", path, strerror(-rc));
        }
    }
    return 0;
}
