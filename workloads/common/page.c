#include "workloads/common/page.h"

#include <errno.h>
#include <hdr_histogram_log.h>
#include <hdr_tests.h> /* counts_index_for(): where the count of a value stands */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(_Atomic uint64_t) == sizeof(uint64_t), "words of the page are plain words");

static const char *const count_names[TC_COUNT_KINDS] = {
    [TC_COUNT_STARTED] = "started",
    [TC_COUNT_COMPLETED] = "completed",
    [TC_COUNT_BYTES] = "bytes",
    [TC_COUNT_CONNECTIONS] = "connections",
    [TC_COUNT_HANDSHAKES_FULL] = "handshakes_full",
    [TC_COUNT_HANDSHAKES_RESUMED] = "handshakes_resumed",
    [TC_COUNT_TICKETS] = "tickets",
    [TC_COUNT_LATE] = "late",
    [TC_COUNT_CLAMPED] = "clamped",
    [TC_COUNT_ERROR_CONNECT] = "error_connect",
    [TC_COUNT_ERROR_HANDSHAKE] = "error_handshake",
    [TC_COUNT_ERROR_PROFILE] = "error_profile",
    [TC_COUNT_ERROR_RESUMPTION] = "error_resumption",
    [TC_COUNT_ERROR_TIMEOUT] = "error_timeout",
    [TC_COUNT_ERROR_RESET] = "error_reset",
    [TC_COUNT_ERROR_STATUS] = "error_status",
    [TC_COUNT_ERROR_LENGTH] = "error_length",
    [TC_COUNT_ERROR_CONTENT] = "error_content",
    [TC_COUNT_ERROR_PROTOCOL] = "error_protocol",
    [TC_COUNT_ERROR_RESOURCE] = "error_resource",
};

static const char *const latency_names[TC_LATENCY_KINDS] = {
    [TC_LATENCY_CONNECT] = "connect",
    [TC_LATENCY_HANDSHAKE] = "handshake",
    [TC_LATENCY_FIRST_BYTE] = "first_byte",
    [TC_LATENCY_LAST_BYTE] = "last_byte",
};

const char *tc_count_name(enum tc_count kind)
{
    return count_names[kind];
}

const char *tc_latency_name(enum tc_latency kind)
{
    return latency_names[kind];
}

static void layout_init(struct hdr_histogram *layout)
{
    struct hdr_histogram_bucket_config config;
    /* Cannot fail: the three constants are a valid configuration. */
    (void)hdr_calculate_bucket_config(TC_LATENCY_LOWEST_NS, TC_LATENCY_HIGHEST_NS,
                                      TC_LATENCY_SIGNIFICANT_FIGURES, &config);
    memset(layout, 0, sizeof(*layout));
    hdr_init_preallocated(layout, &config);
}

static size_t align_up(size_t bytes)
{
    const size_t line = 64;
    return (bytes + line - 1) & ~(line - 1);
}

/* What the header must say for so many threads; the rest of it is zero. */
static struct tc_page_header header_for(uint32_t threads, size_t counts_len)
{
    struct tc_page_header header = {
        .magic = TC_PAGE_MAGIC,
        .version = TC_PAGE_VERSION,
        .threads = threads,
        .count_kinds = TC_COUNT_KINDS,
        .latency_kinds = TC_LATENCY_KINDS,
        .hist_counts_len = counts_len,
        .threads_offset = align_up(sizeof(header)),
    };
    header.hist_offset = header.threads_offset + threads * sizeof(struct tc_page_thread);
    header.total_bytes =
        header.hist_offset + (uint64_t)threads * TC_LATENCY_KINDS * counts_len * sizeof(int64_t);
    return header;
}

static int map_page(struct tc_page *page, int fd, size_t bytes, int protection,
                    struct tc_error *err)
{
    char *base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return tc_error_set(err, errno, "shared page: mmap of %zu bytes: %s", bytes,
                            strerror(errno));
    }
    page->header = (struct tc_page_header *)base;
    page->bytes = bytes;
    return 0;
}

static void set_pointers(struct tc_page *page)
{
    char *base = (char *)page->header;
    page->threads = (struct tc_page_thread *)(base + page->header->threads_offset);
    page->histograms = (int64_t *)(base + page->header->hist_offset);
}

int tc_page_create(struct tc_page *page, int fd, uint32_t threads, uint32_t connections,
                   struct tc_error *err)
{
    memset(page, 0, sizeof(*page));
    layout_init(&page->layout);
    if (threads == 0) {
        return tc_error_set(err, EINVAL, "shared page: expected at least one thread, got 0");
    }
    struct tc_page_header header = header_for(threads, (size_t)page->layout.counts_len);
    /* To zero first: whatever an earlier user left in the file is not ours. */
    if (ftruncate(fd, 0) != 0 || ftruncate(fd, (off_t)header.total_bytes) != 0) {
        return tc_error_set(err, errno, "shared page: cannot size fd %d to %" PRIu64 " bytes: %s",
                            fd, header.total_bytes, strerror(errno));
    }
    int result = map_page(page, fd, header.total_bytes, PROT_READ | PROT_WRITE, err);
    if (result != 0) {
        return result;
    }
    /* The magic goes last: a reader that sees it sees a whole header. */
    header.connections = connections;
    header.magic = 0;
    *page->header = header;
    __atomic_store_n(&page->header->magic, TC_PAGE_MAGIC, __ATOMIC_RELEASE);
    set_pointers(page);
    return 0;
}

/* NULL where the header describes a page of this version in a file of so many bytes, else what is
 * wrong with it. */
static const char *header_fault(const struct tc_page_header *header, size_t bytes,
                                size_t counts_len)
{
    if (header->version != TC_PAGE_VERSION) {
        return "of another version";
    }
    if (header->threads == 0 || header->threads > bytes / sizeof(struct tc_page_thread)) {
        return "its number of threads does not fit its size";
    }
    struct tc_page_header want = header_for(header->threads, counts_len);
    if (header->count_kinds != want.count_kinds || header->latency_kinds != want.latency_kinds ||
        header->hist_counts_len != want.hist_counts_len) {
        return "its counts or histograms are of another layout";
    }
    if (header->threads_offset != want.threads_offset || header->hist_offset != want.hist_offset ||
        header->total_bytes != want.total_bytes || header->total_bytes != bytes) {
        return "its offsets do not fit its size";
    }
    return NULL;
}

int tc_page_open(struct tc_page *page, int fd, struct tc_error *err)
{
    struct stat status;
    memset(page, 0, sizeof(*page));
    layout_init(&page->layout);
    if (fstat(fd, &status) != 0) {
        return tc_error_set(err, errno, "shared page: fstat of fd %d: %s", fd, strerror(errno));
    }
    if (status.st_size == 0) {
        return tc_error_set(err, EAGAIN, "shared page: not created yet");
    }
    if ((size_t)status.st_size < sizeof(struct tc_page_header)) {
        return tc_error_set(err, EPROTO, "shared page: %lld bytes are too few for one",
                            (long long)status.st_size);
    }
    int result = map_page(page, fd, (size_t)status.st_size, PROT_READ, err);
    if (result != 0) {
        return result;
    }
    uint64_t magic = __atomic_load_n(&page->header->magic, __ATOMIC_ACQUIRE);
    if (magic != TC_PAGE_MAGIC) {
        result = magic == 0 ? tc_error_set(err, EAGAIN, "shared page: not created yet")
                            : tc_error_set(err, EPROTO, "shared page: fd %d is not one", fd);
    } else {
        const char *fault =
            header_fault(page->header, page->bytes, (size_t)page->layout.counts_len);
        if (fault != NULL) {
            result = tc_error_set(err, EPROTO,
                                  "shared page: %s; expected version %d as this program writes it: "
                                  "use programs of one build",
                                  fault, TC_PAGE_VERSION);
        }
    }
    if (result != 0) {
        tc_page_close(page);
        return result;
    }
    set_pointers(page);
    return 0;
}

void tc_page_close(struct tc_page *page)
{
    if (page == NULL || page->header == NULL) {
        return;
    }
    (void)munmap(page->header, page->bytes);
    memset(page, 0, sizeof(*page));
}

static int64_t *histogram_of(const struct tc_page *page, uint32_t thread, enum tc_latency kind)
{
    size_t index = (size_t)thread * TC_LATENCY_KINDS + (size_t)kind;
    return page->histograms + index * (size_t)page->layout.counts_len;
}

void tc_page_record(struct tc_page *page, uint32_t index, enum tc_latency kind, int64_t value_ns)
{
    if (value_ns < TC_LATENCY_LOWEST_NS || value_ns > TC_LATENCY_HIGHEST_NS) {
        value_ns = value_ns < TC_LATENCY_LOWEST_NS ? TC_LATENCY_LOWEST_NS : TC_LATENCY_HIGHEST_NS;
        tc_page_add(&page->threads[index], TC_COUNT_CLAMPED, 1);
    }
    int64_t *count = histogram_of(page, index, kind) + counts_index_for(&page->layout, value_ns);
    __atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

void tc_page_sum(const struct tc_page *page, uint64_t sums[TC_COUNT_KINDS])
{
    memset(sums, 0, TC_COUNT_KINDS * sizeof(*sums));
    for (uint32_t thread = 0; thread < page->header->threads; thread++) {
        for (size_t kind = 0; kind < TC_COUNT_KINDS; kind++) {
            sums[kind] +=
                atomic_load_explicit(&page->threads[thread].counts[kind], memory_order_relaxed);
        }
    }
}

void tc_page_sum_histogram(const struct tc_page *page, enum tc_latency kind, int64_t *counts)
{
    size_t length = (size_t)page->layout.counts_len;
    memset(counts, 0, length * sizeof(*counts));
    for (uint32_t thread = 0; thread < page->header->threads; thread++) {
        const int64_t *from = histogram_of(page, thread, kind);
        for (size_t i = 0; i < length; i++) {
            counts[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        }
    }
}

int tc_histogram_encode(const int64_t *begin, const int64_t *end, size_t counts_len, char **text,
                        struct tc_error *err)
{
    struct hdr_histogram histogram;
    layout_init(&histogram);
    if (counts_len != (size_t)histogram.counts_len) {
        return tc_error_set(err, EINVAL, "histogram: %zu counts given, expected %d", counts_len,
                            (int)histogram.counts_len);
    }
    histogram.counts = malloc(counts_len * sizeof(*histogram.counts));
    if (histogram.counts == NULL) {
        return tc_error_set(err, ENOMEM, "histogram: out of memory");
    }
    int result = 0;
    for (size_t i = 0; i < counts_len; i++) {
        histogram.counts[i] = end[i] - (begin == NULL ? 0 : begin[i]);
        if (histogram.counts[i] < 0) {
            result = tc_error_set(err, EINVAL,
                                  "histogram: count %zu went down from %" PRId64 " to %" PRId64
                                  "; expected begin to be taken before end",
                                  i, begin == NULL ? 0 : begin[i], end[i]);
            goto out;
        }
    }
    hdr_reset_internal_counters(&histogram);
    int code = hdr_log_encode(&histogram, text);
    if (code != 0) {
        result = tc_error_set(err, ENOMEM, "histogram: cannot encode: %s", hdr_strerror(code));
    }
out:
    free(histogram.counts);
    return result;
}
