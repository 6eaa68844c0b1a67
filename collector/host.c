#include "collector/host.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "collector/known_loop.h"
#include "collector/placement.h"
#include "collector/procfs.h"
#include "collector/source_proc.h"
#include "collector/sysfile.h"
#include "collector/window.h"

#define CPU_DIR    "/sys/devices/system/cpu"
#define KERNEL_DIR "/proc/sys/kernel"

#define STEAL_INTERVAL_NS UINT64_C(500000000)
#define SPIN_ITERATIONS   UINT64_C(100000)
#define STAT_BYTES        ((size_t)256 * 1024) /* the lines of the CPUs come first */

static json_t *limit_or_null(rlim_t limit)
{
    return limit == RLIM_INFINITY ? json_null() : json_integer((json_int_t)limit);
}

static json_t *build_limits(void)
{
    struct rlimit files = {0, 0};
    struct rlimit locked = {0, 0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_MEMLOCK, &locked);
    return json_pack("{s:o, s:o, s:o}", "files", limit_or_null(files.rlim_cur), "files_most",
                     limit_or_null(files.rlim_max), "locked_bytes", limit_or_null(locked.rlim_cur));
}

static json_t *build_user(void)
{
    return json_pack("{s:i, s:o, s:o}", "uid", (int)geteuid(), "capabilities",
                     tc_sysfile_field("/proc/self/status", "CapEff"), "seccomp",
                     tc_sysfile_field("/proc/self/status", "Seccomp"));
}

static json_t *build_perf(void)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "paranoid",
                     tc_sysfile_number(KERNEL_DIR "/perf_event_paranoid"), "sample_rate_max",
                     tc_sysfile_number(KERNEL_DIR "/perf_event_max_sample_rate"),
                     "cpu_time_max_percent",
                     tc_sysfile_number(KERNEL_DIR "/perf_cpu_time_max_percent"), "locked_kib",
                     tc_sysfile_number(KERNEL_DIR "/perf_event_mlock_kb"), "nmi_watchdog",
                     tc_sysfile_number(KERNEL_DIR "/nmi_watchdog"));
}

/* {text: how many CPUs have it} of a file of each CPU; null where none has. */
static json_t *tally(const struct tc_cpus *cpus, const char *file)
{
    json_t *counts = json_object();
    for (size_t i = 0; i < cpus->count; i++) {
        char path[128];
        char text[512];
        (void)snprintf(path, sizeof(path), CPU_DIR "/cpu%d/%s", cpus->ids[i], file);
        if (!tc_sysfile_read(path, text, sizeof(text))) {
            continue;
        }
        json_int_t before = json_integer_value(json_object_get(counts, text));
        if (json_object_set_new(counts, text, json_integer(before + 1)) != 0) {
            json_decref(counts);
            return NULL;
        }
    }
    if (json_object_size(counts) > 0) {
        return counts;
    }
    json_decref(counts);
    return json_null();
}

static json_t *build_cpus(const struct tc_cpus *online)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "possible", tc_sysfile_line(CPU_DIR "/possible"),
        "online", tc_sysfile_line(CPU_DIR "/online"), "offline",
        tc_sysfile_line(CPU_DIR "/offline"), "isolated", tc_sysfile_line(CPU_DIR "/isolated"),
        "nohz_full", tc_sysfile_line(CPU_DIR "/nohz_full"), "allowed",
        tc_sysfile_field("/proc/self/status", "Cpus_allowed_list"), "siblings",
        tally(online, "topology/thread_siblings_list"));
}

static json_t *build_frequency(const struct tc_cpus *online)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "driver",
                     tc_sysfile_line(CPU_DIR "/cpu0/cpufreq/scaling_driver"), "governors",
                     tally(online, "cpufreq/scaling_governor"), "boost",
                     tc_sysfile_number(CPU_DIR "/cpufreq/boost"), "no_turbo",
                     tc_sysfile_number(CPU_DIR "/intel_pstate/no_turbo"));
}

static json_t *build_virtual(void)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "type", tc_sysfile_line("/sys/hypervisor/type"),
                     "vendor", tc_sysfile_line("/sys/class/dmi/id/sys_vendor"), "product",
                     tc_sysfile_line("/sys/class/dmi/id/product_name"), "device_tree",
                     tc_sysfile_line("/proc/device-tree/compatible"));
}

static bool read_ticks(const struct tc_cpus *cpus, struct tc_cpu_ticks *ticks)
{
    static char text[STAT_BYTES];
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL) {
        return false;
    }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    return tc_procfs_cpu_ticks(text, cpus, ticks, NULL) == 0;
}

static void spin(void *context)
{
    uint64_t end_ns = tc_window_now_ns() + *(const uint64_t *)context;
    while (tc_window_now_ns() < end_ns) {
        tc_known_loop(SPIN_ITERATIONS);
    }
}

static json_t *ticks_ns(uint64_t ticks)
{
    uint64_t ns = ticks * tc_proc_tick_ns();
    return json_integer((json_int_t)ns);
}

static json_t *build_steal(int cpu)
{
    const struct tc_cpus one = {.count = 1, .ids = {cpu}};
    struct tc_cpu_ticks begin;
    struct tc_cpu_ticks end;
    if (!read_ticks(&one, &begin)) {
        return json_null();
    }
    uint64_t start_ns = tc_window_now_ns();
    uint64_t duration_ns = STEAL_INTERVAL_NS;
    if (!tc_placement_on(cpu, spin, &duration_ns)) {
        return json_null(); /* an idle CPU has nothing that could be stolen */
    }
    uint64_t interval_ns = tc_window_now_ns() - start_ns;
    if (!read_ticks(&one, &end)) {
        return json_null();
    }
    uint64_t busy = end.user + end.system + end.irq + end.softirq;
    return json_pack("{s:i, s:I, s:o, s:o, s:o, s:o}", "cpu", cpu, "interval_ns",
                     (json_int_t)interval_ns, "stolen_ns", ticks_ns(end.steal - begin.steal),
                     "tick_ns", ticks_ns(1), "stolen_since_boot_ns", ticks_ns(end.steal),
                     "busy_since_boot_ns", ticks_ns(busy));
}

json_t *tc_host_build(int cpu)
{
    static struct tc_cpus online;
    struct tc_error err;
    if (tc_cpus_online(&online, &err) != 0) {
        online.count = 0;
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "user", build_user(), "limits",
                     build_limits(), "perf", build_perf(), "cpus", build_cpus(&online), "frequency",
                     build_frequency(&online), "virtual", build_virtual(), "steal",
                     build_steal(cpu));
}
