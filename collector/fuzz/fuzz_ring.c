/* The reader of sample rings on any memory and any position: within its bounds, and with an error
 * or only samples that the ring holds. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "collector/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

#define DATA_BYTES 512

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

struct tally {
    size_t bytes;
};

static void take(void *context, const struct tc_ring_sample *sample)
{
    struct tally *tally = context;
    check(sample->count <= TC_RING_VALUES_MAX);
    tally->bytes += tc_ring_sample_bytes(sample->count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    uint64_t ends[2] = {0};
    struct perf_event_mmap_page page = {0};
    struct tally tally = {0};
    uint64_t lost = 0;
    /* A block of its own, so that a read beyond it is seen. */
    uint8_t *memory = calloc(1, DATA_BYTES);
    check(memory != NULL);
    memcpy(ends, data, length < sizeof(ends) ? length : sizeof(ends));
    if (length > sizeof(ends)) {
        size_t rest = length - sizeof(ends);
        memcpy(memory, data + sizeof(ends), rest < DATA_BYTES ? rest : DATA_BYTES);
    }
    page.data_head = ends[0];
    page.data_tail = ends[1];
    struct tc_ring ring = {.page = &page, .data = memory, .data_bytes = DATA_BYTES};
    int rc = tc_ring_drain(&ring, take, &tally, &lost, NULL);
    check(rc == 0 || rc == -EBADMSG);
    check(tally.bytes <= DATA_BYTES);
    check(rc != 0 || page.data_tail == page.data_head);
    free(memory);
    return 0;
}
