/* What perf_event_open can count here, found by trying: nothing else tells it. */
#include <errno.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "collector/core_pmus.h"
#include "collector/idle.h"
#include "collector/known_loop.h"
#include "collector/source_perf.h"

#define SINGLE_FORMAT (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)

/* Some 0.1 ms: enough to be told from what a counter that does not count may hold. */
#define LOOP_ITERATIONS   UINT64_C(100000)
#define LOOP_INSTRUCTIONS (2 * LOOP_ITERATIONS)

enum tc_scope tc_perf_scope(int cpu)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                   .size = sizeof(attr),
                                   .config = PERF_COUNT_SW_PAGE_FAULTS,
                                   .disabled = 1};
    int fd = tc_perf_open(&attr, -1, cpu, -1);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd == -EACCES || fd == -EPERM ? TC_SCOPE_PROCESS : TC_SCOPE_CPU;
}

/* Where whole CPUs may not be counted, the counters are tried on this process. */
bool tc_perf_fits(const struct tc_event *events, size_t count, void *context)
{
    int cpu = *(const int *)context;
    bool per_cpu = tc_perf_scope(cpu) == TC_SCOPE_CPU;
    int fds[TC_EVENTS_MAX + 2];
    size_t opened = 0;
    while (opened < count && tc_core_pmus_counts(tc_core_pmus_here(), cpu, &events[opened].attr,
                                                 events[opened].name, NULL) == 0) {
        struct perf_event_attr attr = events[opened].attr;
        attr.read_format = SINGLE_FORMAT;
        attr.disabled = 0;
        tc_core_pmus_direct(tc_core_pmus_here(), cpu, &attr);
        fds[opened] =
            tc_perf_open(&attr, per_cpu ? -1 : 0, per_cpu ? cpu : -1, opened == 0 ? -1 : fds[0]);
        if (fds[opened] < 0) {
            break;
        }
        opened++;
    }
    bool fits = opened == count && count > 0;
    uint64_t values[3] = {0};
    if (fits) {
        /* The kernel accepts groups that can never run, as when a watchdog keeps a counter. */
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
        fits = read(fds[0], values, sizeof(values)) == (ssize_t)sizeof(values) && values[2] > 0;
    }
    while (opened > 0) {
        (void)close(fds[--opened]);
    }
    return fits;
}

struct loop {
    int cpu;
    bool counted; /* there is such a counter, and it ran */
    uint64_t instructions;
};

static void count_loop(void *context)
{
    struct loop *loop = context;
    struct tc_event event = {.name = TC_PERF_ANCHOR, .mode = TC_MODE_USER};
    uint64_t values[3] = {0}; /* count, enabled, running */
    if (tc_event_encode(&event, NULL) != 0) {
        return;
    }
    event.attr.read_format = SINGLE_FORMAT;
    event.attr.disabled = 1;
    tc_core_pmus_direct(tc_core_pmus_here(), loop->cpu, &event.attr);
    int fd = tc_perf_open(&event.attr, 0, -1, -1);
    if (fd < 0) {
        return;
    }
    bool enabled = ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) == 0;
    tc_known_loop(LOOP_ITERATIONS);
    loop->counted = enabled && ioctl(fd, PERF_EVENT_IOC_DISABLE, 0) == 0 &&
                    read(fd, values, sizeof(values)) == (ssize_t)sizeof(values) && values[2] > 0;
    loop->instructions =
        loop->counted ? (uint64_t)tc_idle_scale(values[0], values[1], values[2]) : 0;
    (void)close(fd);
}

bool tc_perf_counts(int cpu, char *reason, size_t size)
{
    struct loop loop = {.cpu = cpu};
    *reason = '\0';
    if (!tc_placement_on(cpu, count_loop, &loop) || !loop.counted ||
        loop.instructions >= LOOP_INSTRUCTIONS / 2) {
        return true;
    }
    (void)snprintf(reason, size,
                   "broken PMU: it accepts events but counted %" PRIu64
                   " instructions in a loop of %" PRIu64 " on CPU %d; have the host pass a "
                   "working PMU through, else measure on a simulated machine",
                   loop.instructions, LOOP_INSTRUCTIONS, cpu);
    return false;
}

enum tc_status tc_perf_pmu(int cpu, char *reason, size_t size)
{
    struct tc_event cycles = {.name = "cycles", .mode = TC_MODE_USER};
    struct tc_error err = {""};
    enum tc_scope scope = tc_perf_scope(cpu);
    *reason = '\0';
    if (tc_event_encode(&cycles, &err) != 0) {
        (void)snprintf(reason, size, "%s", err.message);
        return TC_STATUS_UNSUPPORTED;
    }
    tc_core_pmus_direct(tc_core_pmus_here(), cpu, &cycles.attr);
    int fd = tc_perf_open(&cycles.attr, scope == TC_SCOPE_CPU ? -1 : 0,
                          scope == TC_SCOPE_CPU ? cpu : -1, -1);
    if (fd >= 0) {
        (void)close(fd);
        return tc_perf_counts(cpu, reason, size) ? TC_STATUS_OK : TC_STATUS_UNSUPPORTED;
    }
    return tc_perf_explain(-fd, &cycles, scope, reason, size);
}

/* How many events of that name count at once. */
static size_t counters_for(const char *name, int cpu)
{
    struct tc_event events[TC_EVENTS_MAX];
    size_t count = 0;
    struct tc_event event = {.mode = TC_MODE_USER};
    (void)snprintf(event.name, sizeof(event.name), "%s", name);
    if (tc_event_encode(&event, NULL) != 0) {
        return 0;
    }
    while (count < TC_EVENTS_MAX) {
        events[count] = event;
        if (!tc_perf_fits(events, count + 1, &cpu)) {
            break;
        }
        count++;
    }
    return count;
}

size_t tc_perf_counters(int cpu)
{
    /* Branches, unlike cycles and instructions, have no counter of their own on any PMU; a small
     * one may not count them. */
    size_t count = counters_for("branches", cpu);
    return count > 0 ? count : counters_for("cycles", cpu);
}

void tc_perf_probe(int cpu, struct tc_source_report *report)
{
    *report = (struct tc_source_report){.scope = tc_perf_scope(cpu)};
    struct tc_event faults = {.name = "page-faults", .mode = TC_MODE_USER};
    struct tc_error err = {""};
    if (tc_event_encode(&faults, &err) != 0) {
        (void)snprintf(report->reason, sizeof(report->reason), "%.*s", TC_REASON_MAX - 1,
                       err.message);
        return;
    }
    bool per_cpu = report->scope == TC_SCOPE_CPU;
    int fd = tc_perf_open(&faults.attr, per_cpu ? -1 : 0, per_cpu ? cpu : -1, -1);
    if (fd < 0) {
        (void)tc_perf_explain(-fd, &faults, report->scope, report->reason, sizeof(report->reason));
        return;
    }
    (void)close(fd);
    report->available = true;
    if (tc_perf_pmu(cpu, report->reason, sizeof(report->reason)) != TC_STATUS_OK) {
        return; /* software events only: the reason says why */
    }
    if (!per_cpu) {
        (void)snprintf(report->reason, sizeof(report->reason),
                       "counts the server's processes in user mode only: whole CPUs need root, "
                       "CAP_PERFMON or kernel.perf_event_paranoid at 0");
    }
}
