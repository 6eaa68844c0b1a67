/* The request reader says the same of a stream however it is split, takes every byte once, and
 * keeps its limits. Input: a byte that seeds the pieces' lengths, then the stream. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "workloads/common/options.h"
#include "workloads/server/request.h"

enum { ANSWERS_MOST = 32, HEADER_MOST = 256 };

struct answer {
    uint64_t size;
    size_t end; /* of the request in the stream */
    int status;
    bool is_head;
    bool keep_alive;
    bool is_http_1_0;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* seed 0: all at once. Pieces are copied to blocks of their own, so that a read beyond one is seen.
 */
static size_t answers(const char *data, size_t length, uint32_t seed, struct answer *list)
{
    struct tc_request request;
    size_t count = 0;
    size_t at = 0;
    tc_request_begin(&request, HEADER_MOST);
    while (at < length && count < ANSWERS_MOST) {
        size_t part = length - at;
        if (seed != 0) {
            seed = seed * UINT32_C(1664525) + UINT32_C(1013904223);
            size_t wanted = 1 + (seed >> 24) % 23;
            part = wanted < part ? wanted : part;
        }
        char *piece = malloc(part);
        check(piece != NULL);
        memcpy(piece, data + at, part);
        size_t used = 0;
        int status = tc_request_feed(&request, piece, part, &used);
        free(piece);
        at += used;
        check(used <= part && (status != 0 || used == part));
        if (status == 0) {
            continue;
        }
        check(status != 200 || request.size <= UINT64_C(10) * TC_SIZE_MOST_BYTES + 9);
        list[count++] = (struct answer){.status = status,
                                        .size = status == 200 ? request.size : 0,
                                        .end = at,
                                        .is_head = request.is_head,
                                        .keep_alive = request.keep_alive,
                                        .is_http_1_0 = request.is_http_1_0};
        if (!request.keep_alive) {
            break;
        }
        tc_request_begin(&request, HEADER_MOST);
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    struct answer whole[ANSWERS_MOST];
    struct answer split[ANSWERS_MOST];
    if (length < 2) {
        return 0;
    }
    const char *stream = (const char *)data + 1;
    size_t count = answers(stream, length - 1, 0, whole);
    check(answers(stream, length - 1, 1 + (uint32_t)data[0], split) == count);
    for (size_t i = 0; i < count; i++) {
        check(whole[i].status == split[i].status && whole[i].size == split[i].size &&
              whole[i].end == split[i].end && whole[i].is_head == split[i].is_head &&
              whole[i].keep_alive == split[i].keep_alive &&
              whole[i].is_http_1_0 == split[i].is_http_1_0);
    }
    return 0;
}
