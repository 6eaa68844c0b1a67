#include "collector/source_perf.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GROUP_FORMAT                                                                               \
    (PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)
#define SINGLE_FORMAT (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)

/* Events that are read by one read(): a CPU's, or, where whole process trees are counted (the
 * kernel has no inherited groups), a single event. */
struct group {
    int leader; /* -1: nothing could be opened */
    size_t count;
    int *members;  /* fds, the leader first */
    size_t *slots; /* the slot of each member */
};

struct perf_counters {
    struct tc_counters base;
    struct group *groups;
    size_t groups_count;
    uint64_t format;
    uint64_t *buffer; /* as many words as the largest group's read gives */
    size_t buffer_words;
};

static int perf_open(const struct perf_event_attr *attr, pid_t pid, int cpu, int group)
{
    long fd = syscall(SYS_perf_event_open, attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

static enum tc_status explain_refusal(const struct tc_event *event, enum tc_scope scope,
                                      char *reason, size_t size)
{
    if (scope == TC_SCOPE_CPU) {
        (void)snprintf(reason, size,
                       "%s:%s may not be counted on whole CPUs: run as root, give CAP_PERFMON, or "
                       "set kernel.perf_event_paranoid to 0",
                       event->name, tc_mode_name(event->mode));
    } else {
        (void)snprintf(reason, size,
                       "%s:%s may not be counted by this user: the kernel's part needs "
                       "kernel.perf_event_paranoid at 1 or less, or CAP_PERFMON, or root",
                       event->name, tc_mode_name(event->mode));
    }
    return TC_STATUS_NOT_PERMITTED;
}

enum tc_status tc_perf_explain(int code, const struct tc_event *event, enum tc_scope scope,
                               char *reason, size_t size)
{
    switch (code) {
    case EACCES:
    case EPERM:
        return explain_refusal(event, scope, reason, size);
    case ENOENT:
        (void)snprintf(reason, size,
                       "no PMU here counts %s: a virtual machine needs its host's PMU passed "
                       "through, else measure on a simulated machine",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    case EOPNOTSUPP:
        (void)snprintf(reason, size, "this PMU cannot count %s:%s; ask for another mode (u, k, uk)",
                       event->name, tc_mode_name(event->mode));
        return TC_STATUS_UNSUPPORTED;
    case EINVAL:
        (void)snprintf(reason, size,
                       "the kernel refuses %s:%s beside the others of its set: name fewer events, "
                       "or another mode",
                       event->name, tc_mode_name(event->mode));
        return TC_STATUS_UNSUPPORTED;
    case ENODEV:
        (void)snprintf(reason, size, "the CPU is offline or has no counter for %s; choose another",
                       event->name);
        return TC_STATUS_UNSUPPORTED;
    case ENOSYS:
        (void)snprintf(reason, size,
                       "this kernel is built without perf events, or a sandbox "
                       "forbids perf_event_open");
        return TC_STATUS_UNSUPPORTED;
    case EBUSY:
        (void)snprintf(reason, size, "another program holds the counter of %s alone; stop it",
                       event->name);
        return TC_STATUS_FAILED;
    case EMFILE:
    case ENFILE:
        (void)snprintf(reason, size,
                       "out of file descriptors (one per CPU and event): raise "
                       "`ulimit -n` or name fewer events");
        return TC_STATUS_FAILED;
    default:
        (void)snprintf(reason, size, "perf_event_open of %s: %s", event->name, strerror(code));
        return TC_STATUS_FAILED;
    }
}

/* A name unknown on this machine is, for a user, the same as a PMU that does not count it. */
static int ready_event(const struct tc_event *event, struct tc_event *encoded, struct tc_error *err)
{
    *encoded = *event;
    return event->known ? 0 : tc_event_encode(encoded, err);
}

static void close_group(struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        (void)close(group->members[i]);
    }
    group->count = 0;
    group->leader = -1;
}

static void perf_close(struct tc_counters *counters)
{
    struct perf_counters *perf = (struct perf_counters *)counters;
    if (perf == NULL) {
        return;
    }
    for (size_t i = 0; i < perf->groups_count; i++) {
        close_group(&perf->groups[i]);
        free(perf->groups[i].members);
        free(perf->groups[i].slots);
    }
    free(perf->groups);
    free(perf->base.slots);
    free(perf->buffer);
    free(perf);
}

/* Opens one event into its group; what fails is said in the slot. */
static void open_event(struct perf_counters *perf, struct group *group, size_t slot_index,
                       const struct tc_event *event, const struct tc_source_request *request)
{
    struct tc_slot *slot = &perf->base.slots[slot_index];
    struct tc_event encoded;
    struct tc_error err;
    (void)snprintf(slot->event, sizeof(slot->event), "%s", event->name);
    slot->mode = event->mode;
    if (ready_event(event, &encoded, &err) != 0) {
        slot->status = TC_STATUS_UNSUPPORTED;
        (void)snprintf(slot->reason, sizeof(slot->reason), "%.*s", TC_REASON_MAX - 1, err.message);
        return;
    }
    bool per_cpu = request->scope == TC_SCOPE_CPU;
    encoded.attr.read_format = perf->format;
    encoded.attr.disabled = group->leader < 0;
    encoded.attr.inherit = !per_cpu;
    int fd = perf_open(&encoded.attr, per_cpu ? -1 : request->pid, slot->cpu,
                       per_cpu ? group->leader : -1);
    if (fd < 0) {
        slot->status =
            tc_perf_explain(-fd, event, request->scope, slot->reason, sizeof(slot->reason));
        return;
    }
    if (group->leader < 0) {
        group->leader = fd;
    }
    group->members[group->count] = fd;
    group->slots[group->count++] = slot_index;
}

static void open_all(struct perf_counters *perf, const struct tc_source_request *request)
{
    bool per_cpu = request->scope == TC_SCOPE_CPU;
    for (size_t g = 0; g < perf->groups_count; g++) {
        for (size_t e = 0; e < (per_cpu ? request->events_count : 1); e++) {
            size_t slot = per_cpu ? g * request->events_count + e : g;
            perf->base.slots[slot].cpu = per_cpu ? request->cpus->ids[g] : TC_SLOT_NO_CPU;
            open_event(perf, &perf->groups[g], slot, &request->events[per_cpu ? e : g], request);
        }
    }
}

static int perf_open_set(struct tc_counters **counters, const struct tc_source_request *request,
                         struct tc_error *err)
{
    bool per_cpu = request->scope == TC_SCOPE_CPU;
    size_t per_group = per_cpu ? request->events_count : 1;
    struct perf_counters *perf = calloc(1, sizeof(*perf));
    if (perf == NULL) {
        return tc_error_set(err, ENOMEM, "out of memory for perf's counters");
    }
    perf->base.source = &tc_source_perf;
    perf->format = per_cpu ? GROUP_FORMAT : SINGLE_FORMAT;
    perf->buffer_words = 3 + per_group;
    perf->buffer = calloc(perf->buffer_words, sizeof(*perf->buffer));
    perf->groups_count = per_cpu ? request->cpus->count : request->events_count;
    perf->groups = calloc(perf->groups_count, sizeof(*perf->groups));
    perf->base.slots_count = perf->groups_count * per_group;
    perf->base.slots = calloc(perf->base.slots_count, sizeof(*perf->base.slots));
    bool whole = perf->buffer != NULL && perf->groups != NULL && perf->base.slots != NULL;
    for (size_t i = 0; whole && i < perf->groups_count; i++) {
        perf->groups[i].leader = -1;
        perf->groups[i].members = calloc(per_group, sizeof(int));
        perf->groups[i].slots = calloc(per_group, sizeof(size_t));
        whole = perf->groups[i].members != NULL && perf->groups[i].slots != NULL;
    }
    if (!whole) {
        perf->groups_count = perf->groups == NULL ? 0 : perf->groups_count;
        perf_close(&perf->base);
        return tc_error_set(err, ENOMEM, "out of memory for perf's counters");
    }
    open_all(perf, request);
    *counters = &perf->base;
    return 0;
}

/* The leader alone: its siblings run when it runs. With PERF_IOC_FLAG_GROUP software siblings that
 * were stopped and started again stay at their count (seen on Linux 6.18): a silent zero. */
static int control(struct perf_counters *perf, unsigned long what, struct tc_error *err)
{
    for (size_t i = 0; i < perf->groups_count; i++) {
        if (perf->groups[i].leader >= 0 && ioctl(perf->groups[i].leader, what, 0) != 0) {
            return tc_error_set(err, errno, "perf's counters do not start or stop: %s",
                                strerror(errno));
        }
    }
    return 0;
}

static int perf_start(struct tc_counters *counters, struct tc_error *err)
{
    return control((struct perf_counters *)counters, PERF_EVENT_IOC_ENABLE, err);
}

static int perf_stop(struct tc_counters *counters, struct tc_error *err)
{
    return control((struct perf_counters *)counters, PERF_EVENT_IOC_DISABLE, err);
}

static int read_group(struct perf_counters *perf, const struct group *group,
                      struct tc_reading *readings, struct tc_error *err)
{
    bool grouped = (perf->format & PERF_FORMAT_GROUP) != 0;
    size_t words = grouped ? 3 + group->count : 3;
    ssize_t got = read(group->leader, perf->buffer, perf->buffer_words * sizeof(*perf->buffer));
    if (got != (ssize_t)(words * sizeof(*perf->buffer))) {
        return tc_error_set(err, got < 0 ? errno : ENODATA, "reading perf's counters: %s",
                            got < 0 ? strerror(errno) : "the group fell apart");
    }
    const uint64_t *times = &perf->buffer[1]; /* in both formats: enabled, running */
    for (size_t i = 0; i < group->count; i++) {
        readings[group->slots[i]] =
            (struct tc_reading){.raw = grouped ? perf->buffer[3 + i] : perf->buffer[0],
                                .enabled_ns = times[0],
                                .running_ns = times[1]};
    }
    return 0;
}

static int perf_read(struct tc_counters *counters, enum tc_depth depth, struct tc_reading *readings,
                     struct tc_error *err)
{
    struct perf_counters *perf = (struct perf_counters *)counters;
    (void)depth; /* every counter is as cheap */
    for (size_t i = 0; i < perf->groups_count; i++) {
        int rc = perf->groups[i].leader < 0 ? 0 : read_group(perf, &perf->groups[i], readings, err);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

enum tc_scope tc_perf_scope(int cpu)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                   .size = sizeof(attr),
                                   .config = PERF_COUNT_SW_PAGE_FAULTS,
                                   .disabled = 1};
    int fd = perf_open(&attr, -1, cpu, -1);
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
    while (opened < count) {
        struct perf_event_attr attr = events[opened].attr;
        attr.read_format = SINGLE_FORMAT;
        attr.disabled = 0;
        fds[opened] =
            perf_open(&attr, per_cpu ? -1 : 0, per_cpu ? cpu : -1, opened == 0 ? -1 : fds[0]);
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

bool tc_perf_has_pmu(int cpu, char *reason, size_t size)
{
    struct tc_event cycles = {.name = "cycles", .mode = TC_MODE_USER};
    struct tc_error err = {""};
    enum tc_scope scope = tc_perf_scope(cpu);
    *reason = '\0';
    if (tc_event_encode(&cycles, &err) != 0) {
        (void)snprintf(reason, size, "%s", err.message);
        return false;
    }
    int fd = perf_open(&cycles.attr, scope == TC_SCOPE_CPU ? -1 : 0,
                       scope == TC_SCOPE_CPU ? cpu : -1, -1);
    if (fd >= 0) {
        (void)close(fd);
        return true;
    }
    (void)tc_perf_explain(-fd, &cycles, scope, reason, size);
    return false;
}

size_t tc_perf_counters(int cpu)
{
    struct tc_event events[TC_EVENTS_MAX];
    size_t count = 0;
    /* Branches, unlike cycles and instructions, have no counter of their own on any PMU. */
    struct tc_event branches = {.name = "branches", .mode = TC_MODE_USER};
    if (tc_event_encode(&branches, NULL) != 0) {
        return 0;
    }
    while (count < TC_EVENTS_MAX) {
        events[count] = branches;
        if (!tc_perf_fits(events, count + 1, &cpu)) {
            break;
        }
        count++;
    }
    return count;
}

static void perf_probe(int cpu, struct tc_source_report *report)
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
    int fd = perf_open(&faults.attr, per_cpu ? -1 : 0, per_cpu ? cpu : -1, -1);
    if (fd < 0) {
        (void)tc_perf_explain(-fd, &faults, report->scope, report->reason, sizeof(report->reason));
        return;
    }
    (void)close(fd);
    report->available = true;
    if (!tc_perf_has_pmu(cpu, report->reason, sizeof(report->reason))) {
        return; /* software events only: the reason says why */
    }
    if (!per_cpu) {
        (void)snprintf(report->reason, sizeof(report->reason),
                       "counts the server's processes in user mode only: whole CPUs need root, "
                       "CAP_PERFMON or kernel.perf_event_paranoid at 0");
    }
}

const struct tc_source tc_source_perf = {
    .name = "perf",
    .probe = perf_probe,
    .open = perf_open_set,
    .start = perf_start,
    .read = perf_read,
    .stop = perf_stop,
    .close = perf_close,
};
