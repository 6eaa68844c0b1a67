#include "collector/paged.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool tc_paged_asked(char *const *argv)
{
    for (; *argv != NULL; argv++) {
        if (strstr(*argv, TC_PAGED_WORD) != NULL) {
            return true;
        }
    }
    return false;
}

/* NULL: no memory. */
static char *replace(const char *word, int fd)
{
    const char *place = strstr(word, TC_PAGED_WORD);
    char *replaced;
    if (place == NULL) {
        return strdup(word);
    }
    return asprintf(&replaced, "%.*s/proc/self/fd/%d%s", (int)(place - word), word, fd,
                    place + strlen(TC_PAGED_WORD)) < 0
               ? NULL
               : replaced;
}

int tc_paged_open(struct tc_paged *paged, const char *name, char *const *argv, struct tc_error *err)
{
    size_t count = 0;
    while (argv[count] != NULL) {
        count++;
    }
    *paged = (struct tc_paged){.fd = memfd_create(name, MFD_CLOEXEC)};
    if (paged->fd < 0) {
        return tc_error_set(err, errno, "%s: memfd_create: %s", name, strerror(errno));
    }
    paged->argv = calloc(count + 1, sizeof(*paged->argv));
    for (size_t i = 0; paged->argv != NULL && i < count; i++) {
        paged->argv[i] = replace(argv[i], paged->fd);
        if (paged->argv[i] == NULL) {
            return tc_error_set(err, ENOMEM, "out of memory for a command line");
        }
    }
    return paged->argv != NULL ? 0 : tc_error_set(err, ENOMEM, "out of memory for a command line");
}

void tc_paged_close(struct tc_paged *paged)
{
    for (char **word = paged->argv; word != NULL && *word != NULL; word++) {
        free(*word);
    }
    free(paged->argv);
    if (paged->fd >= 0) {
        (void)close(paged->fd);
    }
    *paged = (struct tc_paged){.fd = -1};
}
