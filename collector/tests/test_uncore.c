/* Memory controllers as other machines' sysfs describes them, in a tree of files that is made here;
 * and, through the same files, a PMU of this machine, opened and read. */
#include "collector/uncore.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "collector/source_uncore.h"
#include "collector/tests/check.h"

#define NS_PER_S 1000000000

static char root[] = "/tmp/tlscost-uncore-XXXXXX";
static char pmus[64];
static char cpus[64];

static void make_folder(const char *path)
{
    assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
}

/* Writes root/NAME and the folders above it. */
static void put(const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        make_folder(path);
        *slash = '/';
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/tlscost-uncore-XXXXXX");
    assert_non_null(mkdtemp(root));
    (void)snprintf(pmus, sizeof(pmus), "%s/pmus", root);
    (void)snprintf(cpus, sizeof(cpus), "%s/cpus", root);
    put("pmus/software/type", "1\n");
    put("cpus/cpu0/topology/physical_package_id", "0\n");
    put("cpus/cpu28/topology/physical_package_id", "1\n");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command); /* NOLINT(cert-env33-c): the name is ours */
}

/* As Linux shows a Skylake server's controllers: two sockets, here two channels. */
static void put_intel(void)
{
    for (int channel = 0; channel < 2; channel++) {
        static const struct {
            const char *name;
            const char *text;
        } files[] = {
            {"cpumask", "0,28\n"},
            {"format/event", "config:0-7\n"},
            {"format/umask", "config:8-15\n"},
            {"events/cas_count_read", "event=0x04,umask=0x03\n"},
            {"events/cas_count_read.scale", "6.103515625e-5\n"},
            {"events/cas_count_read.unit", "MiB\n"},
            {"events/cas_count_write", "event=0x04,umask=0x0c\n"},
            {"events/cas_count_write.scale", "6.103515625e-5\n"},
            {"events/cas_count_write.unit", "MiB\n"},
            {"events/clockticks", "event=0x0\n"},
        };
        char name[128];
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
            (void)snprintf(name, sizeof(name), "pmus/uncore_imc_%d/%s", channel, files[i].name);
            put(name, files[i].text);
        }
        (void)snprintf(name, sizeof(name), "pmus/uncore_imc_%d/type", channel);
        put(name, channel == 0 ? "18\n" : "19\n");
    }
}

static struct tc_uncore_counter *find(size_t expected)
{
    struct tc_uncore_counter *counters = NULL;
    size_t count = 0;
    assert_int_equal(tc_uncore_find(pmus, cpus, &counters, &count, NULL), 0);
    assert_int_equal(count, expected);
    return counters;
}

static void places_bits(void **state)
{
    (void)state;
    static const struct {
        const char *format;
        uint64_t value;
        uint64_t config[3];
    } known[] = {
        {"config:0-7", 0xab, {0xab}},
        {"config:8-15", 0xab, {0xab00}},
        {"config:18", 1, {UINT64_C(1) << 18}},
        {"config:0-7,32-35", 0x1c7, {0xc7 | UINT64_C(1) << 32}},
        {"config:0-7,32-35,59-60", 0x3fff, {0xff | UINT64_C(0xf) << 32 | UINT64_C(3) << 59}},
        {"config1:0-63", UINT64_MAX, {0, UINT64_MAX}},
        {"config2:4-7", 0x9, {0, 0, 0x90}},
        {"config:0-0", 1, {1}},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint64_t config[3] = {0};
        assert_int_equal(tc_uncore_place(known[i].format, known[i].value, config, NULL), 0);
        assert_memory_equal(config, known[i].config, sizeof(config));
    }
}

static void refuses_formats(void **state)
{
    (void)state;
    static const char *const bad[] = {"",           "config",       "config:",      "config:a",
                                      "config:7-0", "config:0-64",  "config3:0-7",  "config:0-7;",
                                      "config:0-",  "config:0-7,,", "config1 :0-7", "event:0-7",
                                      "config:-1",  "config:0--7"};
    struct tc_error err;
    uint64_t config[3] = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tc_uncore_place(bad[i], 1, config, &err), -EBADMSG);
        assert_non_null(strstr(err.message, "expected as config1:0-7,32-35"));
    }
    assert_int_equal(tc_uncore_place("config:0-7", 0x100, config, &err), -ERANGE);
    assert_string_equal(err.message, "0x100 has more bits than format 'config:0-7'");
}

static void encodes_terms(void **state)
{
    (void)state;
    char folder[128];
    uint64_t config[3];
    struct tc_error err;
    put_intel();
    put("pmus/uncore_imc_0/format/edge", "config:18\n");
    put("pmus/uncore_imc_0/format/filter", "config1:4-11\n");
    (void)snprintf(folder, sizeof(folder), "%s/uncore_imc_0", pmus);
    assert_int_equal(tc_uncore_encode(folder, "event=0x04,umask=0x03", config, NULL), 0);
    assert_int_equal(config[0], 0x0304);
    assert_int_equal(tc_uncore_encode(folder, "event=4,edge,filter=0x2", config, NULL), 0);
    assert_int_equal(config[0], 0x40004);
    assert_int_equal(config[1], 0x20);
    assert_int_equal(tc_uncore_encode(folder, "event=4,colour=2", config, &err), -ENOENT);
    assert_non_null(strstr(err.message, "uncore_imc_0: no term 'colour' in its format/"));
    assert_int_equal(tc_uncore_encode(folder, "event=?", config, &err), -EINVAL);
    assert_non_null(strstr(err.message, "'event=?': expected a number"));
    assert_int_equal(tc_uncore_encode(folder, "event=-1", config, &err), -EINVAL);
    assert_int_equal(tc_uncore_encode(folder, "../type=1", config, &err), -ENOENT);
    assert_int_equal(tc_uncore_encode(folder, "event=1,", config, &err), -ENOENT);
    assert_int_equal(tc_uncore_encode(folder, "event=0x100", config, &err), -ERANGE);
}

static void scales(void **state)
{
    (void)state;
    static const struct {
        const char *scale;
        const char *unit;
    } bad[] = {{"6e-5", NULL},  {NULL, "MiB"},  {"x", "MiB"},    {"", "MiB"},
               {"-1", "bytes"}, {"0", "bytes"}, {"1 ", "bytes"}, {"nan", "bytes"},
               {"inf", "MiB"},  {"1", "mib"},   {"1", "Joules"}, {"1", ""}};
    double bytes = 0;
    assert_int_equal(tc_uncore_bytes("6.103515625e-5", "MiB", &bytes, NULL), 0);
    assert_true(bytes == 64);
    assert_int_equal(tc_uncore_bytes("32", "Bytes", &bytes, NULL), 0);
    assert_true(bytes == 32);
    assert_int_equal(tc_uncore_bytes("0.0625", "KiB", &bytes, NULL), 0);
    assert_true(bytes == 64);
    assert_int_equal(tc_uncore_bytes(NULL, NULL, &bytes, NULL), 0); /* a cache line */
    assert_true(bytes == 64);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(tc_uncore_bytes(bad[i].scale, bad[i].unit, &bytes, NULL), -EINVAL);
    }
}

static void finds_every_channel_of_every_socket(void **state)
{
    (void)state;
    put_intel();
    put("pmus/uncore_imc_free_running_0/type", "30\n"); /* sees the same bytes again */
    put("pmus/uncore_imc_free_running_0/cpumask", "0\n");
    put("pmus/uncore_imc_free_running_0/events/read", "event=0xff,umask=0x20\n");
    struct tc_uncore_counter *counters = find(8);
    static const struct {
        const char *pmu;
        enum tc_uncore_what what;
        int cpu;
        int socket;
        uint32_t type;
        uint64_t config;
    } expected[] = {
        {"uncore_imc_0", TC_UNCORE_READ, 0, 0, 18, 0x304},
        {"uncore_imc_0", TC_UNCORE_READ, 28, 1, 18, 0x304},
        {"uncore_imc_1", TC_UNCORE_READ, 0, 0, 19, 0x304},
        {"uncore_imc_1", TC_UNCORE_READ, 28, 1, 19, 0x304},
        {"uncore_imc_0", TC_UNCORE_WRITE, 0, 0, 18, 0xc04},
        {"uncore_imc_0", TC_UNCORE_WRITE, 28, 1, 18, 0xc04},
        {"uncore_imc_1", TC_UNCORE_WRITE, 0, 0, 19, 0xc04},
        {"uncore_imc_1", TC_UNCORE_WRITE, 28, 1, 19, 0xc04},
    };
    for (size_t i = 0; i < 8; i++) {
        assert_string_equal(counters[i].pmu, expected[i].pmu);
        assert_int_equal(counters[i].what, expected[i].what);
        assert_int_equal(counters[i].cpu, expected[i].cpu);
        assert_int_equal(counters[i].socket, expected[i].socket);
        assert_int_equal(counters[i].type, expected[i].type);
        assert_int_equal(counters[i].config[0], expected[i].config);
        assert_true(counters[i].bytes == 64);
        assert_string_equal(counters[i].problem.message, "");
    }
    free(counters);
}

static void put_amd_df(const char *event_format)
{
    put("pmus/amd_df/type", "9\n");
    put("pmus/amd_df/cpumask", "0,28\n");
    put("pmus/amd_df/format/event", event_format);
    put("pmus/amd_df/format/umask", "config:8-15\n");
}

static void finds_amds(void **state)
{
    (void)state;
    put_amd_df("config:0-7,32-35,59-60\n");
    struct tc_uncore_counter *counters = find(16); /* 8 channels, 2 sockets */
    assert_int_equal(counters[0].what, TC_UNCORE_BOTH);
    assert_int_equal(counters[0].config[0], 0x3807);
    assert_int_equal(counters[15].config[0], 0x38c7 | UINT64_C(1) << 32);
    assert_int_equal(counters[15].socket, 1);
    free(counters);
    put_amd_df("config:0-7,32-37\n"); /* Zen 4's: other events under these numbers */
    free(find(0));
    put("pmus/amd_umc_3/type", "21\n");
    put("pmus/amd_umc_3/cpumask", "28\n");
    put("pmus/amd_umc_3/format/event", "config:0-7\n");
    put("pmus/amd_umc_3/format/rdwrmask", "config:8-9\n");
    counters = find(2);
    assert_int_equal(counters[0].config[0], 0x10a);
    assert_int_equal(counters[1].config[0], 0x20a);
    assert_int_equal(counters[1].what, TC_UNCORE_WRITE);
    assert_int_equal(counters[1].socket, 1);
    free(counters);
}

static void finds_arms_mesh(void **state)
{
    (void)state;
    put("pmus/arm_cmn_0/type", "12\n");
    put("pmus/arm_cmn_0/cpumask", "3\n"); /* a CPU whose socket is not told */
    put("pmus/arm_cmn_0/format/type", "config:0-15\n");
    put("pmus/arm_cmn_0/format/eventid", "config:16-26\n");
    put("pmus/arm_cmn_0/events/hnf_mc_reqs", "type=0x5,eventid=0xd\n");
    struct tc_uncore_counter *counters = find(1);
    assert_int_equal(counters[0].config[0], 0xd0005);
    assert_int_equal(counters[0].socket, -1);
    assert_true(counters[0].bytes == 64);
    free(counters);
}

static void says_what_is_wrong_with_a_pmu(void **state)
{
    (void)state;
    put_intel();
    put("pmus/uncore_imc_1/events/cas_count_read", "event=0x04,colour=0x03\n");
    put("pmus/uncore_imc_1/events/cas_count_write.unit", "furlongs\n");
    put("pmus/uncore_imc_0/cpumask", "none\n");
    struct tc_uncore_counter *counters = find(6);
    assert_non_null(strstr(counters[0].problem.message, "CPUs in `cpumask`"));
    assert_non_null(strstr(counters[1].problem.message, "no term 'colour'"));
    assert_non_null(strstr(counters[5].problem.message, "unit 'furlongs'"));
    free(counters);
}

static void a_machine_without_one_says_so(void **state)
{
    (void)state;
    struct tc_counters *counters;
    assert_int_equal(tc_uncore_open(&counters, pmus, cpus, NULL), 0);
    assert_int_equal(counters->slots_count, 2);
    assert_string_equal(counters->slots[0].event, "memory_read_bytes");
    assert_string_equal(counters->slots[1].event, "memory_write_bytes");
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(counters->slots[i].status, TC_STATUS_UNSUPPORTED);
        assert_non_null(strstr(counters->slots[i].reason, "no memory controller's PMU in /sys"));
    }
    tc_source_uncore.close(counters);
    assert_int_equal(tc_uncore_open(&counters, "/nowhere", "/nowhere", NULL), 0);
    assert_int_equal(counters->slots_count, 2);
    tc_source_uncore.close(counters);
}

static void a_fabric_without_directions_says_so(void **state)
{
    (void)state;
    struct tc_counters *counters;
    put_amd_df("config:0-7,32-35,59-60\n");
    put("pmus/amd_df/type", "4294967\n"); /* no PMU of this machine */
    assert_int_equal(tc_uncore_open(&counters, pmus, cpus, NULL), 0);
    assert_int_equal(counters->slots_count, 18);
    assert_string_equal(counters->slots[0].event, "memory_bytes");
    assert_int_not_equal(counters->slots[0].status, TC_STATUS_OK);
    assert_string_not_equal(counters->slots[0].reason, "");
    assert_string_equal(counters->slots[17].event, "memory_write_bytes");
    assert_non_null(strstr(counters->slots[17].reason, "amd_df counts reads and writes together"));
    tc_source_uncore.close(counters);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static bool copy_line(const char *from, const char *to)
{
    char text[64];
    FILE *file = fopen(from, "re");
    bool got = file != NULL && fgets(text, sizeof(text), file) != NULL;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (got) {
        put(to, text);
    }
    return got;
}

/* The whole way on a PMU that this machine has: msr/tsc/ counts the time stamp counter. Read twice,
 * its pace is the same over both intervals, and in the unit that the files give. */
static void counts_a_real_pmu_by_its_files(void **state)
{
    (void)state;
    const struct timespec pause = {.tv_nsec = 100000000};
    struct tc_counters *counters;
    struct tc_reading readings[3][3] = {0};
    uint64_t at[3];
    if (!copy_line(TC_UNCORE_PMUS "/msr/type", "pmus/uncore_imc_0/type") ||
        !copy_line(TC_UNCORE_PMUS "/msr/format/event", "pmus/uncore_imc_0/format/event") ||
        !copy_line(TC_UNCORE_PMUS "/msr/events/tsc", "pmus/uncore_imc_0/events/cas_count_read")) {
        SKIP("this machine has no PMU msr");
    }
    put("pmus/uncore_imc_0/cpumask", "0\n");
    assert_int_equal(tc_uncore_open(&counters, pmus, cpus, NULL), 0);
    assert_int_equal(counters->slots_count, 2); /* it has no writes */
    if (counters->slots[0].status == TC_STATUS_NOT_PERMITTED) {
        tc_source_uncore.close(counters);
        SKIP("this user may not count whole CPUs");
    }
    assert_string_equal(counters->slots[0].reason, "");
    assert_int_equal(counters->slots[0].socket, 0);
    assert_string_equal(counters->slots[0].pmu, "uncore_imc_0");
    assert_true(counters->slots[0].scale == 64);
    assert_int_equal(counters->slots[1].status, TC_STATUS_UNSUPPORTED);
    assert_int_equal(tc_source_uncore.start(counters, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        at[i] = now_ns();
        assert_int_equal(tc_source_uncore.read(counters, TC_DEPTH_SAMPLE, readings[i], NULL), 0);
        assert_int_equal(readings[i][0].raw, 0); /* at the ends only */
        assert_int_equal(tc_source_uncore.read(counters, TC_DEPTH_END, readings[i], NULL), 0);
        (void)nanosleep(&pause, NULL);
    }
    assert_int_equal(tc_source_uncore.stop(counters, NULL), 0);
    double pace[2];
    for (size_t i = 0; i < 2; i++) {
        uint64_t ticks = readings[i + 1][0].raw - readings[i][0].raw;
        uint64_t enabled_ns = readings[i + 1][0].enabled_ns - readings[i][0].enabled_ns;
        pace[i] = (double)ticks / (double)enabled_ns;
        assert_true(enabled_ns > (at[i + 1] - at[i]) / 2);
        assert_int_equal(readings[i + 1][0].running_ns, readings[i + 1][0].enabled_ns);
    }
    assert_true(pace[0] > 0.1 && pace[0] < 10); /* 100 MHz to 10 GHz */
    assert_true(pace[1] > 0.99 * pace[0] && pace[1] < 1.01 * pace[0]);
    tc_source_uncore.close(counters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_bits),
        cmocka_unit_test(refuses_formats),
        cmocka_unit_test_setup_teardown(encodes_terms, make_root, remove_root),
        cmocka_unit_test(scales),
        cmocka_unit_test_setup_teardown(finds_every_channel_of_every_socket, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(finds_amds, make_root, remove_root),
        cmocka_unit_test_setup_teardown(finds_arms_mesh, make_root, remove_root),
        cmocka_unit_test_setup_teardown(says_what_is_wrong_with_a_pmu, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_machine_without_one_says_so, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_fabric_without_directions_says_so, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(counts_a_real_pmu_by_its_files, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
