#include "collector/pmuv3.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collector/tests/check.h"

#define TYPE 8

struct listed {
    const char *name;
    const char *text;
};

/* As QEMU 7.2's emulated PMU shows itself. */
static const struct listed emulated[] = {{"cpu_cycles", "event=0x0011\n"},
                                         {"inst_retired", "event=0x0008\n"},
                                         {"stall_backend", "event=0x0024\n"},
                                         {"stall_frontend", "event=0x0023\n"}};
/* A real one of an older kernel: nothing past 30H is listed; L2I_TLB (30H) is not counted. */
static const struct listed real[] = {
    {"cpu_cycles", "event=0x11\n"},    {"inst_retired", "event=0x08\n"},
    {"l1d_cache", "event=0x04\n"},     {"l1d_cache_refill", "event=0x03\n"},
    {"br_mis_pred", "event=0x10\n"},   {"br_pred", "event=0x12\n"},
    {"l2d_cache", "event=0x16\n"},     {"stall_backend", "event=0x24\n"},
    {"no_format", "something else\n"}, {"far", "event=0x4004\n"}};

static struct tc_pmuv3 pmu_of(const char *name, const struct listed *events, size_t count)
{
    char folder[] = "/tmp/tlscost-pmuv3-XXXXXX";
    char path[256];
    struct tc_pmuv3 pmu;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/events", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/events/%s", folder, events[i].name);
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        assert_true(fputs(events[i].text, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
    tc_pmuv3_read(folder, name, &pmu);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/events/%s", folder, events[i].name);
        assert_int_equal(unlink(path), 0);
    }
    (void)snprintf(path, sizeof(path), "%s/events", folder);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
    return pmu;
}

static void refuse(const struct tc_pmuv3 *pmu, uint32_t type, uint64_t config, const char *why)
{
    const struct perf_event_attr attr = {.type = type, .config = config};
    struct tc_error err = {""};
    assert_int_equal(tc_pmuv3_check(pmu, TYPE, &attr, "arm_n1::SOME", &err), -ENOENT);
    assert_non_null(strstr(err.message, why));
    assert_non_null(strstr(err.message, "arm_n1::SOME"));
}

static void accept(const struct tc_pmuv3 *pmu, uint32_t type, uint64_t config)
{
    const struct perf_event_attr attr = {.type = type, .config = config};
    assert_int_equal(tc_pmuv3_check(pmu, TYPE, &attr, "arm_n1::SOME", NULL), 0);
}

static void refuses_what_a_real_pmu_lacks(void **state)
{
    (void)state;
    struct tc_pmuv3 pmu = pmu_of("armv8_pmuv3_0", real, sizeof(real) / sizeof(real[0]));
    assert_true(pmu.known);
    accept(&pmu, PERF_TYPE_RAW, 0x03);
    accept(&pmu, TYPE, 0x16);
    accept(&pmu, PERF_TYPE_RAW, 0x36); /* the kernel is too old to tell */
    accept(&pmu, PERF_TYPE_RAW, 0x6f); /* the processor's own: nobody lists those */
    accept(&pmu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_BACKEND);
    refuse(&pmu, PERF_TYPE_RAW, 0x30, "does not count");
    refuse(&pmu, TYPE, 0x23, "23H");
    refuse(&pmu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_FRONTEND, "does not count");
}

static void believes_an_emulated_pmu_two_events(void **state)
{
    (void)state;
    struct tc_pmuv3 pmu = pmu_of("armv8_pmuv3", emulated, sizeof(emulated) / sizeof(emulated[0]));
    assert_true(pmu.known);
    accept(&pmu, PERF_TYPE_RAW, 0x08);
    accept(&pmu, PERF_TYPE_RAW, 0x11);
    accept(&pmu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS);
    accept(&pmu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES); /* the kernel refuses it itself */
    accept(&pmu, PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS);
    refuse(&pmu, PERF_TYPE_RAW, 0x03, "does not count");
    refuse(&pmu, PERF_TYPE_RAW, 0x24, "emulated");
    refuse(&pmu, PERF_TYPE_RAW, 0x6f, "emulated");
    refuse(&pmu, PERF_TYPE_HARDWARE, PERF_COUNT_HW_STALLED_CYCLES_BACKEND, "emulated");
}

static void judges_no_other_pmu(void **state)
{
    (void)state;
    struct tc_pmuv3 pmu = pmu_of("cpu_core", emulated, 2);
    assert_false(pmu.known);
    accept(&pmu, PERF_TYPE_RAW, 0x03);
    pmu = pmu_of("armv8_pmuv3", NULL, 0);
    assert_false(pmu.known);
    accept(&pmu, PERF_TYPE_RAW, 0x03);
    tc_pmuv3_read("/no/such/folder", "armv8_pmuv3", &pmu);
    assert_false(pmu.known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_a_real_pmu_lacks),
        cmocka_unit_test(believes_an_emulated_pmu_two_events),
        cmocka_unit_test(judges_no_other_pmu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
