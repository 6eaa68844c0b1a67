#include "workloads/common/pattern.h"

#include <string.h>

static char text[TC_PATTERN_PERIOD];

/* Before main(), so that no caller needs a lock or a flag to use the text. */
__attribute__((constructor)) static void make_text(void)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t state = 1;
    for (size_t i = 0; i < TC_PATTERN_PERIOD; i++) {
        state = state * UINT32_C(1664525) + UINT32_C(1013904223);
        text[i] = alphabet[state >> 26]; /* the top bits: the low ones of an LCG repeat soon */
    }
}

void tc_pattern_fill(uint64_t offset, char *buffer, size_t length)
{
    size_t from = (size_t)(offset % TC_PATTERN_PERIOD);
    while (length > 0) {
        size_t part = TC_PATTERN_PERIOD - from;
        part = part < length ? part : length;
        memcpy(buffer, text + from, part);
        buffer += part;
        length -= part;
        from = 0;
    }
}

bool tc_pattern_matches(uint64_t offset, const char *buffer, size_t length)
{
    size_t from = (size_t)(offset % TC_PATTERN_PERIOD);
    while (length > 0) {
        size_t part = TC_PATTERN_PERIOD - from;
        part = part < length ? part : length;
        if (memcmp(buffer, text + from, part) != 0) {
            return false;
        }
        buffer += part;
        length -= part;
        from = 0;
    }
    return true;
}
