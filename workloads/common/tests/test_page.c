#include "workloads/common/page.h"

/* cmocka.h needs these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <hdr_histogram_log.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct fixture {
    int fd;
    struct tc_page page;
    int64_t *begin; /* a histogram's counts at the two ends of an interval */
    int64_t *end;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        return -1;
    }
    f->fd = memfd_create("test-page", MFD_CLOEXEC);
    *state = f;
    struct tc_error err = {{0}};
    if (f->fd < 0 || tc_page_create(&f->page, f->fd, 3, 48, &err) != 0) {
        return -1;
    }
    f->begin = calloc(f->page.header->hist_counts_len, sizeof(*f->begin));
    f->end = calloc(f->page.header->hist_counts_len, sizeof(*f->end));
    return f->begin == NULL || f->end == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    tc_page_close(&f->page);
    (void)close(f->fd);
    free(f->begin);
    free(f->end);
    free(f);
    return 0;
}

static void test_reader_sees_what_the_writer_counts(void **state)
{
    struct fixture *f = *state;
    struct tc_page reader;
    struct tc_error err = {{0}};
    assert_int_equal(tc_page_open(&reader, f->fd, &err), 0);
    assert_int_equal(reader.header->threads, 3);
    assert_int_equal(reader.header->connections, 48);
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&reader, sums);
    for (size_t kind = 0; kind < TC_COUNT_KINDS; kind++) {
        assert_int_equal(sums[kind], 0);
    }
    for (uint32_t thread = 0; thread < 3; thread++) {
        for (size_t kind = 0; kind < TC_COUNT_KINDS; kind++) {
            tc_page_add(&f->page.threads[thread], (enum tc_count)kind, kind * 10 + thread);
        }
    }
    tc_page_sum(&reader, sums);
    for (size_t kind = 0; kind < TC_COUNT_KINDS; kind++) {
        assert_int_equal(sums[kind], kind * 30 + 3);
    }
    tc_page_close(&reader);
    assert_null(reader.header);
    tc_page_close(&reader);
    tc_page_close(NULL);
}

static void test_create_clears_what_was_there(void **state)
{
    struct fixture *f = *state;
    tc_page_add(&f->page.threads[2], TC_COUNT_BYTES, 99);
    struct tc_page again;
    assert_int_equal(tc_page_create(&again, f->fd, 3, 1, NULL), 0);
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&again, sums);
    assert_int_equal(sums[TC_COUNT_BYTES], 0);
    tc_page_close(&again);
}

static void test_create_refuses_no_threads_and_a_bad_fd(void **state)
{
    struct fixture *f = *state;
    struct tc_page page;
    struct tc_error err = {{0}};
    assert_int_equal(tc_page_create(&page, f->fd, 0, 1, &err), -EINVAL);
    assert_non_null(strstr(err.message, "at least one thread"));
    assert_int_equal(tc_page_create(&page, -1, 1, 1, &err), -EBADF);
}

static void test_open_says_not_yet(void **state)
{
    (void)state;
    int fd = memfd_create("empty", MFD_CLOEXEC);
    struct tc_page page;
    assert_int_equal(tc_page_open(&page, fd, NULL), -EAGAIN);
    assert_int_equal(ftruncate(fd, 65536), 0);
    assert_int_equal(tc_page_open(&page, fd, NULL), -EAGAIN); /* sized, header still empty */
    (void)close(fd);
}

/* Each byte of the header that describes the layout is altered in turn: none may be believed. */
static void test_open_refuses_an_altered_header(void **state)
{
    struct fixture *f = *state;
    size_t described = offsetof(struct tc_page_header, connections);
    for (size_t i = 0; i < described; i++) {
        uint8_t byte;
        uint8_t altered;
        assert_int_equal(pread(f->fd, &byte, 1, (off_t)i), 1);
        altered = byte ^ 0x41;
        assert_int_equal(pwrite(f->fd, &altered, 1, (off_t)i), 1);
        struct tc_page page;
        struct tc_error err = {{0}};
        assert_int_equal(tc_page_open(&page, f->fd, &err), -EPROTO);
        assert_true(strlen(err.message) > 0);
        assert_null(page.header);
        assert_int_equal(pwrite(f->fd, &byte, 1, (off_t)i), 1);
    }
    struct tc_page page;
    assert_int_equal(tc_page_open(&page, f->fd, NULL), 0);
    tc_page_close(&page);
}

static void test_open_refuses_a_file_cut_or_grown(void **state)
{
    (void)state;
    int fd = memfd_create("cut", MFD_CLOEXEC);
    struct tc_page page;
    assert_int_equal(tc_page_create(&page, fd, 1, 1, NULL), 0);
    off_t whole = (off_t)page.bytes;
    tc_page_close(&page);
    const off_t sizes[] = {1, (off_t)sizeof(struct tc_page_header) - 1,
                           (off_t)sizeof(struct tc_page_header), whole - 8};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        assert_int_equal(tc_page_open(&page, fd, NULL), -EPROTO);
    }
    assert_int_equal(tc_page_create(&page, fd, 1, 1, NULL), 0);
    tc_page_close(&page);
    assert_int_equal(ftruncate(fd, whole + 8), 0);
    assert_int_equal(tc_page_open(&page, fd, NULL), -EPROTO);
    (void)close(fd);
}

static void record_some(struct tc_page *page)
{
    tc_page_record(page, 0, TC_LATENCY_LAST_BYTE, 1000000);
    tc_page_record(page, 1, TC_LATENCY_LAST_BYTE, 1000000);
    tc_page_record(page, 2, TC_LATENCY_LAST_BYTE, 70000000);
    tc_page_record(page, 2, TC_LATENCY_LAST_BYTE, 1);                          /* below */
    tc_page_record(page, 2, TC_LATENCY_LAST_BYTE, TC_LATENCY_HIGHEST_NS * 10); /* above */
    tc_page_record(page, 2, TC_LATENCY_CONNECT, 5000);
}

static void test_encoded_difference_decodes_to_the_same_counts(void **state)
{
    struct fixture *f = *state;
    size_t length = f->page.header->hist_counts_len;
    tc_page_record(&f->page, 0, TC_LATENCY_LAST_BYTE, 123456789); /* before the interval */
    tc_page_sum_histogram(&f->page, TC_LATENCY_LAST_BYTE, f->begin);
    record_some(&f->page);
    tc_page_sum_histogram(&f->page, TC_LATENCY_LAST_BYTE, f->end);

    char *text = NULL;
    assert_int_equal(tc_histogram_encode(f->begin, f->end, length, &text, NULL), 0);
    struct hdr_histogram *decoded = NULL;
    assert_int_equal(hdr_log_decode(&decoded, text, strlen(text)), 0);
    assert_int_equal(decoded->total_count, 5);
    assert_int_equal(hdr_count_at_value(decoded, 1000000), 2);
    assert_int_equal(hdr_count_at_value(decoded, 70000000), 1);
    assert_int_equal(hdr_count_at_value(decoded, TC_LATENCY_LOWEST_NS), 1);
    assert_int_equal(hdr_count_at_value(decoded, TC_LATENCY_HIGHEST_NS), 1);
    assert_int_equal(hdr_count_at_value(decoded, 123456789), 0);
    uint64_t sums[TC_COUNT_KINDS];
    tc_page_sum(&f->page, sums);
    assert_int_equal(sums[TC_COUNT_CLAMPED], 2);
    hdr_close(decoded);
    free(text);

    /* From zero, the earlier value is there too. */
    assert_int_equal(tc_histogram_encode(NULL, f->end, length, &text, NULL), 0);
    decoded = NULL;
    assert_int_equal(hdr_log_decode(&decoded, text, strlen(text)), 0);
    assert_int_equal(decoded->total_count, 6);
    hdr_close(decoded);
    free(text);
}

static void test_encode_refuses_counts_that_went_down_and_other_lengths(void **state)
{
    struct fixture *f = *state;
    size_t length = f->page.header->hist_counts_len;
    f->begin[7] = 1;
    char *text = NULL;
    struct tc_error err = {{0}};
    assert_int_equal(tc_histogram_encode(f->begin, f->end, length, &text, &err), -EINVAL);
    assert_non_null(strstr(err.message, "count 7 went down"));
    assert_int_equal(tc_histogram_encode(f->begin, f->end, length - 1, &text, &err), -EINVAL);
    assert_null(text);
}

static void test_every_kind_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < TC_COUNT_KINDS; i++) {
        assert_non_null(tc_count_name((enum tc_count)i));
        assert_int_equal(strncmp(tc_count_name((enum tc_count)i), "error_", 6) == 0,
                         i >= TC_COUNT_ERROR_FIRST);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(tc_count_name((enum tc_count)i),
                                    tc_count_name((enum tc_count)j));
        }
    }
    for (size_t i = 0; i < TC_LATENCY_KINDS; i++) {
        assert_non_null(tc_latency_name((enum tc_latency)i));
    }
}

#define TEST_WITH_PAGE(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_WITH_PAGE(test_reader_sees_what_the_writer_counts),
        TEST_WITH_PAGE(test_create_clears_what_was_there),
        TEST_WITH_PAGE(test_create_refuses_no_threads_and_a_bad_fd),
        cmocka_unit_test(test_open_says_not_yet),
        TEST_WITH_PAGE(test_open_refuses_an_altered_header),
        cmocka_unit_test(test_open_refuses_a_file_cut_or_grown),
        TEST_WITH_PAGE(test_encoded_difference_decodes_to_the_same_counts),
        TEST_WITH_PAGE(test_encode_refuses_counts_that_went_down_and_other_lengths),
        cmocka_unit_test(test_every_kind_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
