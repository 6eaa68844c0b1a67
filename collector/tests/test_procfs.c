#include "collector/procfs.h"

#include <errno.h>
#include <string.h>

#include "collector/tests/check.h"

static const char stat_text[] = "cpu  8615 5 2819 207919 614 7 79 16 0 0\n"
                                "cpu0 1837 2 736 107396 18 3 22 2 0 0\n"
                                "cpu1 6777 3 2083 100522 595 4 56 13 0 0\n"
                                "cpu10 1 2 3 4 5 6 7 8 9 10\n"
                                "intr 225917 0 0 384\n"
                                "ctxt 1234567\n"
                                "btime 1795222611\n"
                                "procs_running 3\n";

static void reads_the_asked_for_cpus(void **state)
{
    (void)state;
    const struct tc_cpus cpus = {.count = 2, .ids = {1, 10}};
    struct tc_cpu_ticks ticks[2];
    assert_int_equal(tc_procfs_cpu_ticks(stat_text, &cpus, ticks, NULL), 0);
    assert_int_equal(ticks[0].user, 6780);
    assert_int_equal(ticks[0].system, 2083);
    assert_int_equal(ticks[0].idle, 101117);
    assert_int_equal(ticks[0].irq, 4);
    assert_int_equal(ticks[0].softirq, 56);
    assert_int_equal(ticks[0].steal, 13);
    assert_int_equal(ticks[1].idle, 9);
    assert_int_equal(ticks[1].steal, 8);
}

static void names_the_cpu_that_went_offline(void **state)
{
    (void)state;
    const struct tc_cpus cpus = {.count = 2, .ids = {0, 2}};
    struct tc_cpu_ticks ticks[2];
    struct tc_error err;
    assert_int_equal(tc_procfs_cpu_ticks(stat_text, &cpus, ticks, &err), -ENODATA);
    assert_non_null(strstr(err.message, "CPU 2"));
    assert_int_equal(tc_procfs_cpu_ticks("cpu0 1 2 3\n", &cpus, ticks, &err), -EBADMSG);
    assert_int_equal(tc_procfs_cpu_ticks("", &cpus, ticks, &err), -ENODATA);
}

static void finds_values_by_key(void **state)
{
    (void)state;
    uint64_t value;
    assert_int_equal(tc_procfs_keyed(stat_text, "ctxt", &value, NULL), 0);
    assert_int_equal(value, 1234567);
    assert_int_equal(tc_procfs_keyed(stat_text, "intr", &value, NULL), 0);
    assert_int_equal(value, 225917);
    assert_int_equal(tc_procfs_keyed("MemFree:  1 kB\nMemAvailable:   23812345 kB\n",
                                     "MemAvailable:", &value, NULL),
                     0);
    assert_int_equal(value, 23812345);
    assert_int_equal(tc_procfs_keyed(stat_text, "ct", &value, NULL), -ENODATA);
    assert_int_equal(tc_procfs_keyed("ctxt none\n", "ctxt", &value, NULL), -EBADMSG);
}

static const char timers_text[] = "Timer List Version: v0.10\n"
                                  "now at 1103181272001 nsecs\n"
                                  "\n"
                                  "cpu: 0\n"
                                  " clock 0:\n"
                                  "  .index:      0\n"
                                  "  .idle_sleeptime : 1291266038403 nsecs\n"
                                  "  .iowait_sleeptime: 724077009 nsecs\n"
                                  "cpu: 1\n"
                                  "  .idle_sleeptime : 1000 nsecs\n"
                                  "  .iowait_sleeptime: 23 nsecs\n";

static void sums_idle_and_iowait_sleep(void **state)
{
    (void)state;
    const struct tc_cpus both = {.count = 2, .ids = {0, 1}};
    const struct tc_cpus second = {.count = 1, .ids = {1}};
    const struct tc_cpus third = {.count = 1, .ids = {2}};
    uint64_t idle_ns[2];
    assert_int_equal(tc_procfs_idle_ns(timers_text, &both, idle_ns, NULL), 0);
    assert_int_equal(idle_ns[0], UINT64_C(1291266038403) + 724077009);
    assert_int_equal(idle_ns[1], 1023);
    assert_int_equal(tc_procfs_idle_ns(timers_text, &second, idle_ns, NULL), 0);
    assert_int_equal(idle_ns[0], 1023);
    assert_int_equal(tc_procfs_idle_ns(timers_text, &third, idle_ns, NULL), -ENODATA);
    assert_int_equal(tc_procfs_idle_ns("cpu: 2\n clock 0:\n", &third, idle_ns, NULL), -ENODATA);
}

static const char dev_text[] =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
    "    lo:  348638    1000    0    0    0     0          0         0   348638    1000    0\n"
    "server0: 2859032   100    0    0    0     0          0         0 4266442      99    0\n";

static void sums_bytes_by_interface(void **state)
{
    (void)state;
    uint64_t rx;
    uint64_t tx;
    assert_int_equal(tc_procfs_net_bytes(dev_text, "server0", &rx, &tx, NULL), 0);
    assert_int_equal(rx, 2859032);
    assert_int_equal(tx, 4266442);
    assert_int_equal(tc_procfs_net_bytes(dev_text, NULL, &rx, &tx, NULL), 0);
    assert_int_equal(rx, 2859032 + 348638);
    assert_int_equal(tc_procfs_net_bytes(dev_text, "server", &rx, &tx, NULL), -ENODATA);
    assert_int_equal(tc_procfs_net_bytes("lo: 1 2\n", "lo", &rx, &tx, NULL), -EBADMSG);
}

static void reads_snmp_by_name(void **state)
{
    (void)state;
    const char *text = "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
                       "Tcp: RtoAlgorithm MaxConn RetransSegs InErrs\nTcp: 1 -1 42 0\n";
    uint64_t value;
    assert_int_equal(tc_procfs_snmp(text, "Tcp:", "RetransSegs", &value, NULL), 0);
    assert_int_equal(value, 42);
    assert_int_equal(tc_procfs_snmp(text, "Ip:", "Forwarding", &value, NULL), 0);
    assert_int_equal(value, 1);
    assert_int_equal(tc_procfs_snmp(text, "Tcp:", "MaxConn", &value, NULL), -EBADMSG);
    assert_int_equal(tc_procfs_snmp(text, "Tcp:", "Retrans", &value, NULL), -ENODATA);
    assert_int_equal(tc_procfs_snmp("Tcp: RetransSegs", "Tcp:", "RetransSegs", &value, NULL),
                     -ENODATA);
}

static void reads_the_disks_queue(void **state)
{
    (void)state;
    uint64_t value;
    assert_int_equal(
        tc_procfs_disk_queue_ms("  10 20 30 40 50 60 70 80 90 100 110 0 0\n", &value, NULL), 0);
    assert_int_equal(value, 110);
    assert_int_equal(tc_procfs_disk_queue_ms("1 2 3\n", &value, NULL), -EBADMSG);
}

static void survives_any_command_name(void **state)
{
    (void)state;
    const char *text = "77 (a) S 1 (b) S 42 77 77 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 12345 "
                       "1000000 321 18446744073709551615 1 1\n";
    pid_t parent;
    uint64_t rss;
    assert_int_equal(tc_procfs_pid_stat(text, &parent, &rss, NULL), 0);
    assert_int_equal(parent, 42);
    assert_int_equal(rss, 321);
    assert_int_equal(tc_procfs_pid_stat("77 (a) S", &parent, &rss, NULL), -EBADMSG);
    assert_int_equal(tc_procfs_pid_stat("", &parent, &rss, NULL), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_asked_for_cpus),
        cmocka_unit_test(names_the_cpu_that_went_offline),
        cmocka_unit_test(finds_values_by_key),
        cmocka_unit_test(sums_idle_and_iowait_sleep),
        cmocka_unit_test(sums_bytes_by_interface),
        cmocka_unit_test(reads_snmp_by_name),
        cmocka_unit_test(reads_the_disks_queue),
        cmocka_unit_test(survives_any_command_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
