#include "collector/ring.h"

#include <errno.h>
#include <string.h>

#include "collector/tests/check.h"

#define DATA_BYTES 256
#define VALUES     2
#define SAMPLE     56 /* bytes: header, time, number, enabled, running, two values */

/* A ring as the kernel leaves it, and what its reader makes of it. */
struct fixture {
    struct perf_event_mmap_page page;
    _Alignas(8) uint8_t data[DATA_BYTES];
    struct tc_ring ring;
    struct tc_ring_sample taken[64];
    size_t count;
    uint64_t lost;
};

static void set_up(struct fixture *f, uint64_t at)
{
    memset(f, 0, sizeof(*f));
    f->page.data_head = at;
    f->page.data_tail = at;
    f->ring = (struct tc_ring){.page = &f->page, .data = f->data, .data_bytes = DATA_BYTES};
}

static void put(struct fixture *f, const void *from, size_t bytes)
{
    uint8_t record[DATA_BYTES] = {0};
    assert_in_range(bytes, 1, sizeof(record));
    memcpy(record, from, bytes);
    for (size_t i = 0; i < bytes; i++) {
        f->data[f->page.data_head++ % DATA_BYTES] = record[i];
    }
}

static void put_header(struct fixture *f, uint32_t type, size_t size)
{
    const struct perf_event_header header = {.type = type, .size = (uint16_t)size};
    put(f, &header, sizeof(header));
}

static void put_sample(struct fixture *f, uint64_t t_ns)
{
    const uint64_t words[] = {t_ns, VALUES, t_ns + 1, t_ns + 2, t_ns + 3, t_ns + 4};
    put_header(f, PERF_RECORD_SAMPLE, SAMPLE);
    put(f, words, sizeof(words));
}

static void put_lost(struct fixture *f, uint64_t lost)
{
    const uint64_t words[] = {7, lost};
    put_header(f, PERF_RECORD_LOST, 24);
    put(f, words, sizeof(words));
}

static void take(void *context, const struct tc_ring_sample *sample)
{
    struct fixture *f = context;
    assert_in_range(f->count, 0, 63);
    f->taken[f->count++] = *sample;
}

static int drain(struct fixture *f, struct tc_error *err)
{
    return tc_ring_drain(&f->ring, take, f, &f->lost, err);
}

static void check_sample(const struct tc_ring_sample *sample, uint64_t t_ns)
{
    assert_int_equal(sample->t_ns, t_ns);
    assert_int_equal(sample->enabled_ns, t_ns + 1);
    assert_int_equal(sample->running_ns, t_ns + 2);
    assert_int_equal(sample->count, VALUES);
    assert_int_equal(sample->values[0], t_ns + 3);
    assert_int_equal(sample->values[1], t_ns + 4);
}

static void an_empty_ring_has_no_samples(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 1000);
    assert_int_equal(drain(&f, NULL), 0);
    assert_int_equal(f.count, 0);
    assert_int_equal(f.page.data_tail, 1000);
}

/* 56 does not divide 256: over these samples every split of a record at the end of the ring comes
 * about. */
static void samples_come_in_order_around_the_end(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 0);
    assert_int_equal(tc_ring_sample_bytes(VALUES), SAMPLE);
    for (uint64_t i = 0; i < 60; i += 3) {
        for (uint64_t k = i; k < i + 3; k++) {
            put_sample(&f, 100 * k);
        }
        assert_int_equal(drain(&f, NULL), 0);
        assert_int_equal(f.page.data_tail, f.page.data_head);
    }
    assert_int_equal(f.count, 60);
    for (uint64_t i = 0; i < 60; i++) {
        check_sample(&f.taken[i], 100 * i);
    }
    assert_int_equal(f.lost, 0);
}

/* The head counts bytes since ever. */
static void the_head_may_wrap_too(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, UINT64_MAX - 63);
    put_sample(&f, 5);
    put_sample(&f, 6);
    assert_true(f.page.data_head < f.page.data_tail);
    assert_int_equal(drain(&f, NULL), 0);
    assert_int_equal(f.count, 2);
    check_sample(&f.taken[1], 6);
}

static void losses_are_told(void **state)
{
    (void)state;
    struct fixture f;
    const uint64_t throttle[] = {1, 2, 3};
    set_up(&f, 200);
    put_sample(&f, 1);
    put_lost(&f, 12);
    put_lost(&f, 30);
    put_header(&f, PERF_RECORD_THROTTLE, 32);
    put(&f, throttle, sizeof(throttle));
    put_header(&f, PERF_RECORD_UNTHROTTLE, 32);
    put(&f, throttle, sizeof(throttle));
    put_sample(&f, 2);
    assert_int_equal(drain(&f, NULL), 0);
    assert_int_equal(f.count, 2);
    check_sample(&f.taken[1], 2);
    assert_int_equal(f.lost, 12 + 30 + 1);
}

static void each_cpu_has_its_own_ring(void **state)
{
    (void)state;
    struct fixture cpus[2];
    set_up(&cpus[0], 0);
    set_up(&cpus[1], 240);
    put_sample(&cpus[0], 10);
    put_sample(&cpus[1], 11);
    put_sample(&cpus[1], 21);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(drain(&cpus[i], NULL), 0);
    }
    assert_int_equal(cpus[0].count, 1);
    check_sample(&cpus[0].taken[0], 10);
    assert_int_equal(cpus[1].count, 2);
    check_sample(&cpus[1].taken[0], 11);
    check_sample(&cpus[1].taken[1], 21);
}

static void check_refused(struct fixture *f, const char *why)
{
    struct tc_error err = {""};
    assert_int_equal(drain(f, &err), -EBADMSG);
    assert_non_null(strstr(err.message, why));
}

static void what_is_no_ring_is_refused(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 4, 12, 64};
    const uint64_t words[] = {1, VALUES + 1, 0, 0, 0, 0};
    struct fixture f;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        set_up(&f, 0);
        put_header(&f, PERF_RECORD_SAMPLE, sizes[i]);
        put(&f, words, sizeof(words));
        check_refused(&f, "impossible size");
    }
    set_up(&f, 0);
    put_header(&f, PERF_RECORD_SAMPLE, SAMPLE);
    put(&f, words, sizeof(words));
    check_refused(&f, "a sample of another size");
    set_up(&f, 0);
    put_header(&f, PERF_RECORD_LOST, 16);
    put(&f, words, 8);
    check_refused(&f, "notice of loss");
    set_up(&f, 0);
    f.page.data_head = 4;
    check_refused(&f, "half a record");
    set_up(&f, 0);
    f.page.data_head = DATA_BYTES + 8;
    check_refused(&f, "more bytes than it holds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_ring_has_no_samples),
        cmocka_unit_test(samples_come_in_order_around_the_end),
        cmocka_unit_test(the_head_may_wrap_too),
        cmocka_unit_test(losses_are_told),
        cmocka_unit_test(each_cpu_has_its_own_ring),
        cmocka_unit_test(what_is_no_ring_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
