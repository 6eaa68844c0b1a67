/* A command's words, of which {page} has become the path of a memfd that the command inherits: a
 * page through which it tells its counts. The page vanishes with its last user. */
#ifndef TC_COLLECTOR_PAGED_H
#define TC_COLLECTOR_PAGED_H

#include <stdbool.h>

#include "workloads/common/error.h"

#define TC_PAGED_WORD "{page}"

struct tc_paged {
    int fd;
    char **argv;
};

/* Whether a word has {page} in it. */
bool tc_paged_asked(char *const *argv);

/* Makes the memfd and the words. name: of the memfd, for whoever looks at /proc. Errors: errno of
 * memfd_create, -ENOMEM. tc_paged_close() in every case. */
TC_MUST_CHECK int tc_paged_open(struct tc_paged *paged, const char *name, char *const *argv,
                                struct tc_error *err);

void tc_paged_close(struct tc_paged *paged);

#endif
