/* The memory into which the kernel writes samples of a group of counters: its reader.
 *
 * The group's leader is a clock with PERF_SAMPLE_TIME | PERF_SAMPLE_READ, so that each sample holds
 * every counter of its CPU at one instant and nobody is woken for it. */
#ifndef TC_COLLECTOR_RING_H
#define TC_COLLECTOR_RING_H

#include <linux/perf_event.h>
#include <stddef.h>
#include <stdint.h>

#include "workloads/common/error.h"

#define TC_RING_VALUES_MAX 96 /* of one sample */

struct tc_ring {
    struct perf_event_mmap_page *page; /* shared with the kernel; NULL: none */
    const uint8_t *data;
    size_t data_bytes; /* a power of two */
};

struct tc_ring_sample {
    uint64_t t_ns; /* CLOCK_MONOTONIC */
    uint64_t enabled_ns;
    uint64_t running_ns;
    size_t count;
    uint64_t values[TC_RING_VALUES_MAX]; /* in the order of opening, the leader first */
};

typedef void (*tc_ring_take)(void *context, const struct tc_ring_sample *sample);

/* Bytes that a sample of so many values takes. */
size_t tc_ring_sample_bytes(size_t values);

/* Maps a ring of at least `bytes` for the leader fd. Errors: -ENOMEM, -EPERM (more than this user
 * may lock). tc_ring_close() in every case. */
TC_MUST_CHECK int tc_ring_open(struct tc_ring *ring, int fd, size_t bytes, struct tc_error *err);
void tc_ring_close(struct tc_ring *ring);

/* Hands over and frees all samples in the ring; adds to *lost those that the kernel says it could
 * not take or keep. -EBADMSG: what is there is no ring of such samples. No allocation. */
TC_MUST_CHECK int tc_ring_drain(struct tc_ring *ring, tc_ring_take take, void *context,
                                uint64_t *lost, struct tc_error *err);

#endif
