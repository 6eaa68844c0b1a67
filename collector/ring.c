#include "collector/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Words of a sample before its values: header, time, number of values, enabled, running. */
enum { WORD_TIME = 1, WORD_COUNT, WORD_ENABLED, WORD_RUNNING, WORD_VALUES };

#define RECORD_WORDS_MAX (WORD_VALUES + TC_RING_VALUES_MAX)

union record {
    struct perf_event_header header;
    uint64_t words[RECORD_WORDS_MAX];
};

size_t tc_ring_sample_bytes(size_t values)
{
    return (WORD_VALUES + values) * sizeof(uint64_t);
}

int tc_ring_open(struct tc_ring *ring, int fd, size_t bytes, struct tc_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t data_bytes = page;
    *ring = (struct tc_ring){0};
    while (data_bytes < bytes) {
        data_bytes *= 2;
    }
    void *area = mmap(NULL, page + data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (area == MAP_FAILED) {
        return tc_error_set(err, errno,
                            "no memory of %zu KiB to sample into: %s; raise `ulimit -l` or "
                            "kernel.perf_event_mlock_kb",
                            data_bytes / 1024, strerror(errno));
    }
    *ring = (struct tc_ring){
        .page = area, .data = (const uint8_t *)area + page, .data_bytes = data_bytes};
    return 0;
}

void tc_ring_close(struct tc_ring *ring)
{
    if (ring->page != NULL) {
        (void)munmap(ring->page,
                     (size_t)(ring->data - (const uint8_t *)ring->page) + ring->data_bytes);
    }
    *ring = (struct tc_ring){0};
}

/* A record's first `bytes` in one piece: in the ring it may wrap around. */
static void copy_out(const struct tc_ring *ring, uint64_t at, void *to, size_t bytes)
{
    size_t offset = (size_t)(at & (ring->data_bytes - 1));
    size_t first = ring->data_bytes - offset < bytes ? ring->data_bytes - offset : bytes;
    memcpy(to, ring->data + offset, first);
    memcpy((uint8_t *)to + first, ring->data, bytes - first);
}

static int not_a_ring(struct tc_error *err, const char *what, uint64_t value)
{
    return tc_error_set(err, EBADMSG, "the kernel's samples cannot be read: %s (%llu)", what,
                        (unsigned long long)value);
}

static int take_sample(const union record *record, tc_ring_take take, void *context,
                       struct tc_error *err)
{
    struct tc_ring_sample sample;
    uint64_t count = record->words[WORD_COUNT];
    if (record->header.size < tc_ring_sample_bytes(0) || count > TC_RING_VALUES_MAX ||
        record->header.size != tc_ring_sample_bytes((size_t)count)) {
        return not_a_ring(err, "a sample of another size", record->header.size);
    }
    sample.t_ns = record->words[WORD_TIME];
    sample.enabled_ns = record->words[WORD_ENABLED];
    sample.running_ns = record->words[WORD_RUNNING];
    sample.count = (size_t)count;
    memcpy(sample.values, &record->words[WORD_VALUES], sample.count * sizeof(uint64_t));
    take(context, &sample);
    return 0;
}

static int take_record(const union record *record, tc_ring_take take, void *context, uint64_t *lost,
                       struct tc_error *err)
{
    switch (record->header.type) {
    case PERF_RECORD_SAMPLE:
        return take_sample(record, take, context, err);
    case PERF_RECORD_LOST: /* header, id, how many */
        if (record->header.size < 3 * sizeof(uint64_t)) {
            return not_a_ring(err, "a notice of loss of another size", record->header.size);
        }
        *lost += record->words[2];
        return 0;
    case PERF_RECORD_THROTTLE: /* the kernel held the clock back until its next tick */
        *lost += 1;
        return 0;
    default:
        return 0; /* nothing that bears on the samples */
    }
}

int tc_ring_drain(struct tc_ring *ring, tc_ring_take take, void *context, uint64_t *lost,
                  struct tc_error *err)
{
    /* Pairs with the kernel's: its data are written before its head, ours are read before tail. */
    uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE);
    uint64_t tail = ring->page->data_tail;
    int rc = 0;
    if (head - tail > ring->data_bytes) {
        return not_a_ring(err, "more bytes than it holds", head - tail);
    }
    while (rc == 0 && tail != head) {
        union record record = {.words = {0}};
        if (head - tail < sizeof(record.header)) {
            return not_a_ring(err, "half a record", head - tail);
        }
        copy_out(ring, tail, &record.header, sizeof(record.header));
        size_t size = record.header.size;
        if (size < sizeof(record.header) || size % sizeof(uint64_t) != 0 || size > head - tail ||
            size > sizeof(record)) {
            return not_a_ring(err, "a record of impossible size", size);
        }
        copy_out(ring, tail, &record, size);
        record.header.size = (uint16_t)size; /* whoever writes there meanwhile */
        rc = take_record(&record, take, context, lost, err);
        tail += size;
    }
    __atomic_store_n(&ring->page->data_tail, tail, __ATOMIC_RELEASE);
    return rc;
}
