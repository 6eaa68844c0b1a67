#include "collector/core_pmus.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collector/tests/check.h"

static char folder[] = "/tmp/tlscost-core-pmus-XXXXXX";

static void put(const char *pmu, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, pmu);
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof(path), "%s/%s/%s", folder, pmu, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* As /sys of a hybrid machine has it: two kinds, an uncore PMU, and one for the whole machine. */
static int make_hybrid(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    put("cpu_core", "type", "4\n");
    put("cpu_core", "cpus", "0-3,8\n");
    put("cpu_atom", "type", "10\n");
    put("cpu_atom", "cpus", "4-7\n");
    put("uncore_imc_0", "type", "18\n");
    put("uncore_imc_0", "cpumask", "0\n");
    put("software", "type", "1\n");
    return 0;
}

static int remove_hybrid(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command); /* NOLINT(cert-env33-c): the name is ours */
}

static void knows_the_kinds(void **state)
{
    (void)state;
    static struct tc_core_pmus pmus;
    assert_int_equal(tc_core_pmus_read(folder, &pmus, NULL), 0);
    assert_int_equal(pmus.count, 2);
    assert_string_equal(pmus.list[0].name, "cpu_atom");
    assert_int_equal(pmus.list[0].type, 10);
    assert_int_equal(pmus.list[0].cpus.count, 4);
    assert_string_equal(pmus.list[1].name, "cpu_core");
    assert_int_equal(pmus.list[1].cpus.ids[4], 8);
    assert_int_equal(tc_core_pmus_read("/nowhere", &pmus, NULL), 0);
    assert_int_equal(pmus.count, 0);
}

static void refuses_cpus_of_several_kinds(void **state)
{
    (void)state;
    static struct tc_core_pmus pmus;
    static const struct tc_cpus cores = {.count = 3, .ids = {0, 1, 8}};
    static const struct tc_cpus atoms = {.count = 2, .ids = {4, 5}};
    static const struct tc_cpus mixed = {.count = 3, .ids = {0, 1, 4}};
    struct tc_error err;
    assert_int_equal(tc_core_pmus_read(folder, &pmus, NULL), 0);
    assert_int_equal(tc_core_pmus_check(&pmus, &cores, &err), 0);
    assert_int_equal(tc_core_pmus_check(&pmus, &atoms, &err), 0);
    assert_int_equal(tc_core_pmus_check(&pmus, &mixed, &err), -EINVAL);
    assert_non_null(strstr(err.message, "CPU 0 is counted by cpu_core, CPU 4 by cpu_atom"));
    assert_non_null(strstr(err.message, "name CPUs of one kind"));
    pmus.count = 1; /* one kind: no list of its CPUs is needed */
    assert_int_equal(tc_core_pmus_check(&pmus, &mixed, &err), 0);
}

static void directs_events_to_their_pmu(void **state)
{
    (void)state;
    static struct tc_core_pmus pmus;
    assert_int_equal(tc_core_pmus_read(folder, &pmus, NULL), 0);
    struct perf_event_attr cycles = {.type = PERF_TYPE_HARDWARE,
                                     .config = PERF_COUNT_HW_CPU_CYCLES};
    struct perf_event_attr raw = {.type = PERF_TYPE_RAW, .config = 0x412e};
    struct perf_event_attr faults = {.type = PERF_TYPE_SOFTWARE,
                                     .config = PERF_COUNT_SW_PAGE_FAULTS};
    tc_core_pmus_direct(&pmus, 4, &cycles);
    tc_core_pmus_direct(&pmus, 4, &raw);
    tc_core_pmus_direct(&pmus, 4, &faults);
    assert_int_equal(cycles.type, PERF_TYPE_HARDWARE);
    assert_true(cycles.config == (UINT64_C(10) << 32));
    assert_int_equal(raw.type, 10);
    assert_int_equal(raw.config, 0x412e);
    assert_int_equal(faults.config, PERF_COUNT_SW_PAGE_FAULTS);
    pmus.count = 1;
    cycles.config = PERF_COUNT_HW_CPU_CYCLES;
    tc_core_pmus_direct(&pmus, 4, &cycles);
    assert_int_equal(cycles.config, PERF_COUNT_HW_CPU_CYCLES);
}

static void says_what_it_cannot_read(void **state)
{
    (void)state;
    static struct tc_core_pmus pmus;
    struct tc_error err;
    put("cpu_lowpower", "type", "11\n");
    put("cpu_lowpower", "cpus", "some\n");
    assert_int_equal(tc_core_pmus_read(folder, &pmus, &err), -EBADMSG);
    assert_non_null(strstr(err.message, "cpu_lowpower"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_the_kinds),
        cmocka_unit_test(refuses_cpus_of_several_kinds),
        cmocka_unit_test(directs_events_to_their_pmu),
        cmocka_unit_test(says_what_it_cannot_read),
    };
    return cmocka_run_group_tests(tests, make_hybrid, remove_hybrid);
}
