/* tlscost-encode: says how libpfm4 encodes events for perf_event_open, of processors that are not
 * here, too. Standard input has a name a line (PMU::EVENT:MASK...); standard output gets the same
 * name, a tab, and "TYPE CONFIG CONFIG1" (decimal, hexadecimal, hexadecimal) or "error: why". */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/events.h"

#define LINE_BYTES 512

static void encode(const char *name)
{
    struct tc_event event = {.mode = TC_MODE_BOTH};
    struct tc_error err = {.message = "too long a name"};
    size_t length = strlen(name);
    int rc = -EINVAL;
    if (length < sizeof(event.name)) {
        memcpy(event.name, name, length + 1);
        rc = tc_event_encode(&event, &err);
    }
    if (rc != 0) {
        (void)printf("%s\terror: %s\n", name, err.message);
    } else {
        (void)printf("%s\t%" PRIu32 " %" PRIx64 " %" PRIx64 "\n", name, event.attr.type,
                     (uint64_t)event.attr.config, (uint64_t)event.attr.config1);
    }
}

int main(void)
{
    char line[LINE_BYTES];
    if (setenv("LIBPFM_ENCODE_INACTIVE", "1", 1) != 0) {
        perror("tlscost-encode");
        return 1;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        encode(line);
    }
    return ferror(stdin) != 0 || fflush(stdout) != 0 ? 1 : 0;
}
