/* The load generator's counts, in a page shared with whoever measures.
 *
 * The load generator keeps the page up to date at every transaction; a reader maps it read-only and
 * may take a snapshot at any time. Each thread writes its own block only, with relaxed atomic
 * stores of 64-bit words: a reader sees every word whole, and words of one transaction at most one
 * transaction apart. The page is a file (usually a memfd, named as /proc/self/fd/N), so it vanishes
 * with its last user and nothing is left behind when processes are killed. */
#ifndef TC_COMMON_PAGE_H
#define TC_COMMON_PAGE_H

#include <hdr_histogram.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "workloads/common/error.h"

#define TC_PAGE_MAGIC   UINT64_C(0x31656761706c7374) /* "tslpage1", little-endian */
#define TC_PAGE_VERSION 1

/* Latency histograms: HdrHistogram, values in ns, 1 us to 120 s, 3 significant figures. Values
 * beyond the range are recorded as its end and counted in TC_COUNT_CLAMPED. */
#define TC_LATENCY_LOWEST_NS           INT64_C(1000)
#define TC_LATENCY_HIGHEST_NS          INT64_C(120000000000)
#define TC_LATENCY_SIGNIFICANT_FIGURES 3

enum tc_latency {
    TC_LATENCY_CONNECT,    /* TCP connect: start to established */
    TC_LATENCY_HANDSHAKE,  /* TLS: established to handshake complete */
    TC_LATENCY_FIRST_BYTE, /* scheduled start (closed loop: start) to first response byte */
    TC_LATENCY_LAST_BYTE,  /* scheduled start (closed loop: start) to last response byte */
    TC_LATENCY_KINDS
};

/* What a thread counts; names for records and for messages from tc_count_name(). Everything
 * from TC_COUNT_ERROR_FIRST on is a kind of error: one per transaction that did not complete. */
enum tc_count {
    TC_COUNT_STARTED,     /* transactions begun */
    TC_COUNT_COMPLETED,   /* complete, checked responses: the transactions of every metric */
    TC_COUNT_BYTES,       /* body bytes of completed transactions */
    TC_COUNT_CONNECTIONS, /* TCP connections established */
    TC_COUNT_HANDSHAKES_FULL,
    TC_COUNT_HANDSHAKES_RESUMED,
    TC_COUNT_TICKETS, /* NewSessionTicket messages (TLS 1.3) or session tickets received */
    TC_COUNT_LATE,    /* open loop: transactions begun after their scheduled start by > 1 ms */
    TC_COUNT_CLAMPED, /* latencies outside the histograms' range */
    TC_COUNT_ERROR_FIRST,
    TC_COUNT_ERROR_CONNECT = TC_COUNT_ERROR_FIRST, /* refused, reset or unreachable on connect */
    TC_COUNT_ERROR_HANDSHAKE,                      /* TLS alert or failure before completion */
    TC_COUNT_ERROR_PROFILE,                        /* negotiated something else than the profile */
    TC_COUNT_ERROR_RESUMPTION, /* resumed though full was asked for, or the other way round */
    TC_COUNT_ERROR_TIMEOUT,    /* no completion within the limit */
    TC_COUNT_ERROR_RESET,      /* connection lost or closed before the last byte */
    TC_COUNT_ERROR_STATUS,     /* not 200 */
    TC_COUNT_ERROR_LENGTH,     /* Content-Length or body length not the expected one */
    TC_COUNT_ERROR_CONTENT,    /* body differs from the expected one */
    TC_COUNT_ERROR_PROTOCOL,   /* not HTTP/1.x that can be parsed */
    TC_COUNT_ERROR_RESOURCE,   /* out of sockets, ports or memory at the load generator */
    TC_COUNT_KINDS
};

/* One thread's block; the histogram counts of its TC_LATENCY_KINDS histograms follow the blocks
 * in the file: histogram k of thread t starts at hist_offset + (t * TC_LATENCY_KINDS + k) *
 * hist_counts_len * 8 bytes, as HdrHistogram's counts array. */
struct tc_page_thread {
    _Alignas(64) _Atomic uint64_t counts[TC_COUNT_KINDS];
};

struct tc_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t threads;
    uint32_t count_kinds;
    uint32_t latency_kinds;
    uint64_t hist_counts_len; /* words per histogram */
    uint64_t threads_offset;  /* bytes from the start of the file */
    uint64_t hist_offset;     /* bytes from the start of the file */
    uint64_t total_bytes;
    uint32_t connections; /* of the closed loop, all threads; the limit in open loop */
    /* 0 while connecting, 1 once the load runs, 2 once it drains. */
    _Atomic uint32_t state;
};

/* A mapped page. Fields are read-only to callers. */
struct tc_page {
    struct tc_page_header *header;
    struct tc_page_thread *threads;
    int64_t *histograms;
    size_t bytes;
    struct hdr_histogram layout; /* maps values to counts; holds no counts of its own */
};

/* Names as used in records: "completed", "error_timeout", "first_byte" ... */
const char *tc_count_name(enum tc_count kind);
const char *tc_latency_name(enum tc_latency kind);

/* Sizes the file open as fd for `threads` threads, writes the header and maps it read-write.
 * Errors: -EINVAL (threads 0), errno of ftruncate and mmap. The caller keeps fd. */
TC_MUST_CHECK int tc_page_create(struct tc_page *page, int fd, uint32_t threads,
                                 uint32_t connections, struct tc_error *err);

/* Maps an existing page read-only after checking magic, version and every offset and size against
 * the file's. Errors: -EAGAIN (not yet created: size 0 or the header still empty), -EPROTO (not a
 * page, or another version's), errno of fstat and mmap. The caller keeps fd. */
TC_MUST_CHECK int tc_page_open(struct tc_page *page, int fd, struct tc_error *err);

/* Unmaps; NULL and an unmapped page are accepted. */
void tc_page_close(struct tc_page *page);

/* Adds `amount` to one count of one thread: a plain load and store, one writer per block. */
static inline void tc_page_add(struct tc_page_thread *thread, enum tc_count kind, uint64_t amount)
{
    uint64_t now = atomic_load_explicit(&thread->counts[kind], memory_order_relaxed);
    atomic_store_explicit(&thread->counts[kind], now + amount, memory_order_relaxed);
}

/* Records a latency [ns] into histogram `kind` of thread `index`; out of range is clamped. */
void tc_page_record(struct tc_page *page, uint32_t index, enum tc_latency kind, int64_t value_ns);

/* Sum over threads of every count. sums: TC_COUNT_KINDS words. No allocation: safe while measuring.
 */
void tc_page_sum(const struct tc_page *page, uint64_t sums[TC_COUNT_KINDS]);

/* Sum over threads of histogram `kind` into counts[hist_counts_len]. No allocation: the caller
 * allocates hist_counts_len words beforehand. */
void tc_page_sum_histogram(const struct tc_page *page, enum tc_latency kind, int64_t *counts);

/* Encodes the difference `end - begin` of two sums of one histogram (hist_counts_len words each)
 * in HdrHistogram's compressed base64 encoding; *text is the caller's to free(). begin NULL: zeros.
 * Errors: -ENOMEM, -EINVAL (a count went down, or the length does not fit the configuration). */
TC_MUST_CHECK int tc_histogram_encode(const int64_t *begin, const int64_t *end, size_t counts_len,
                                      char **text, struct tc_error *err);

#endif
