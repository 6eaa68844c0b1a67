/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * tlscost-softpmu-report PAGE: prints what a simulated machine has counted, even where QEMU was
 * killed. Exit codes: 0 printed; 1 not a whole page; 2 bad arguments. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collector/softpmu/report.h"

static const struct tc_softpmu_page *map(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return NULL;
    }
    size_t bytes = (size_t)status.st_size;
    const struct tc_softpmu_page *page = MAP_FAILED;
    if (bytes >= sizeof *page)
        page = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (page == MAP_FAILED || atomic_load(&page->magic) != TC_SOFTPMU_MAGIC ||
        page->version != TC_SOFTPMU_VERSION || page->total_bytes != bytes) {
        (void)fprintf(stderr, "%s: not a whole page of counters\n", path);
        return NULL;
    }
    return page;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s PAGE\n", argv[0]);
        return 2;
    }
    const struct tc_softpmu_page *page = map(argv[1]);
    if (page == NULL)
        return 1;
    json_t *report = tc_report_build(page);
    int rc =
        report != NULL && json_dumpf(report, stdout, JSON_INDENT(1)) == 0 && fflush(stdout) == 0
            ? 0
            : 1;
    if (rc != 0)
        (void)fprintf(stderr, "%s: cannot report it\n", argv[1]);
    json_decref(report);
    return rc;
}
