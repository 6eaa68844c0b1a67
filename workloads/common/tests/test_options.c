#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "workloads/common/options.h"

static void sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},      {"30", 30},        {"30B", 30},          {"36KiB", 36864},
                {"2kB", 2000}, {"1MiB", 1048576}, {"250MB", 250000000}, {"250000000", 250000000}};
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "x",
                                      "1.5KiB",
                                      "1KIB",
                                      "1GiB",
                                      "251MB",
                                      "KiB",
                                      "0x10",
                                      "1B ",
                                      "99999999999999999999",
                                      "18446744073709551615MiB"};
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 1;
        assert_int_equal(tc_parse_size(good[i].text, &bytes, NULL), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes = 0;
        struct tc_error err;
        assert_int_equal(tc_parse_size(bad[i], &bytes, &err), -EINVAL);
        assert_non_null(strstr(err.message, bad[i]));
    }
}

static void counts_and_durations(void **state)
{
    static const char *const bad_times[] = {"",    "0",     "-1",  "1h", "nan",
                                            "inf", "86401", "5 s", "1e9"};
    uint64_t value = 0;
    (void)state;
    assert_int_equal(tc_parse_count("7", 1, 10, &value, NULL), 0);
    assert_int_equal(value, 7);
    assert_int_equal(tc_parse_count("0", 1, 10, &value, NULL), -EINVAL);
    assert_int_equal(tc_parse_count("11", 1, 10, &value, NULL), -EINVAL);
    assert_int_equal(tc_parse_count("7x", 1, 10, &value, NULL), -EINVAL);
    assert_int_equal(tc_parse_duration("5", &value, NULL), 0);
    assert_int_equal(value, UINT64_C(5000000000));
    assert_int_equal(tc_parse_duration("0.25s", &value, NULL), 0);
    assert_int_equal(value, 250000000);
    assert_int_equal(tc_parse_duration("250ms", &value, NULL), 0);
    assert_int_equal(value, 250000000);
    for (size_t i = 0; i < sizeof(bad_times) / sizeof(bad_times[0]); i++) {
        assert_int_equal(tc_parse_duration(bad_times[i], &value, NULL), -EINVAL);
    }
}

static void cpu_lists(void **state)
{
    static const char *const bad[] = {"", ",", "0,", "1-0", "a", "0-", "-1", "0,0", "99999"};
    int cpus[4];
    size_t count = 0;
    char text[32];
    cpu_set_t allowed;
    int last = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        last = CPU_ISSET((size_t)cpu, &allowed) ? cpu : last;
    }
    (void)snprintf(text, sizeof(text), "%d-%d", last, last);
    assert_int_equal(tc_parse_cpus(text, cpus, 4, &count, NULL), 0);
    assert_int_equal(count, 1);
    assert_int_equal(cpus[0], last);
    (void)snprintf(text, sizeof(text), "%d", last + 1);
    assert_int_equal(tc_parse_cpus(text, cpus, 4, &count, NULL), -EINVAL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tc_parse_cpus(bad[i], cpus, 4, &count, NULL), -EINVAL);
    }
}

static void addresses(void **state)
{
    static const char *const bad[] = {"",           "8443",   ":8443",           "127.0.0.1",
                                      "127.0.0.1:", "::1:80", "127.0.0.1:65536", "localhost:80",
                                      "[::1]",      "[]:80",  "127.0.0.1:8x",    "1.2.3:99999"};
    struct sockaddr_storage address;
    socklen_t length = 0;
    (void)state;
    assert_int_equal(tc_parse_address("127.0.0.1:8443", &address, &length, NULL), 0);
    const struct sockaddr_in *in = (const struct sockaddr_in *)&address;
    assert_int_equal(in->sin_family, AF_INET);
    assert_int_equal(ntohs(in->sin_port), 8443);
    assert_int_equal(ntohl(in->sin_addr.s_addr), INADDR_LOOPBACK);
    assert_int_equal(tc_parse_address("[::1]:0", &address, &length, NULL), 0);
    assert_int_equal(address.ss_family, AF_INET6);
    assert_int_equal(length, sizeof(struct sockaddr_in6));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tc_parse_address(bad[i], &address, &length, NULL), -EINVAL);
    }
}

static void first_cpus(void **state)
{
    (void)state;
    int cpus[CPU_SETSIZE];
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    uint32_t count = (uint32_t)CPU_COUNT(&allowed);
    assert_int_equal(tc_first_cpus(count, cpus, NULL), 0);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(CPU_ISSET((size_t)cpus[i], &allowed));
        assert_true(i == 0 || cpus[i - 1] < cpus[i]);
    }
    if (count < CPU_SETSIZE) {
        assert_int_equal(tc_first_cpus(count + 1, cpus, NULL), -ENOTSUP);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),     cmocka_unit_test(counts_and_durations),
        cmocka_unit_test(cpu_lists), cmocka_unit_test(first_cpus),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
