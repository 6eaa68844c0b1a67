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

#include "collector/core_pmus.h"
#include "collector/ring.h"

#define GROUP_FORMAT                                                                               \
    (PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)
#define SINGLE_FORMAT (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)

/* A ring takes what comes while its reader is late by this much, and not less than RING_BYTES. */
#define RING_NS    UINT64_C(8000000000)
#define RING_BYTES ((size_t)64 * 1024)
#define NO_SLOT    SIZE_MAX

/* Events that are read by one read(): a CPU's, or, where whole process trees are counted (the
 * kernel has no inherited groups), a single event. */
struct group {
    int leader; /* -1: nothing could be opened */
    size_t count;
    int *members;  /* fds, the leader first */
    size_t *slots; /* the slot of each member; NO_SLOT of the clock that only samples */
    struct tc_ring ring;
};

struct perf_counters {
    struct tc_counters base;
    struct group *groups;
    size_t groups_count;
    uint64_t format;
    uint64_t *buffer; /* as many words as the largest group's read gives */
    size_t buffer_words;
    struct tc_reading *sampled; /* one per slot: the sample being handed over */
    char broken[TC_REASON_MAX]; /* why no hardware event is opened; empty: they are */
};

int tc_perf_open(const struct perf_event_attr *attr, pid_t pid, int cpu, int group)
{
    long fd = syscall(SYS_perf_event_open, attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

/* A name unknown on this machine is, for a user, the same as a PMU that does not count it. */
static int ready_event(const struct tc_event *event, int cpu, struct tc_event *encoded,
                       struct tc_error *err)
{
    *encoded = *event;
    int rc = event->known ? 0 : tc_event_encode(encoded, err);
    return rc != 0
               ? rc
               : tc_core_pmus_counts(tc_core_pmus_here(), cpu, &encoded->attr, event->name, err);
}

static void close_group(struct group *group)
{
    tc_ring_close(&group->ring);
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
    free(perf->sampled);
    free(perf);
}

static void join(struct group *group, int fd, size_t slot)
{
    if (group->leader < 0) {
        group->leader = fd;
    }
    group->members[group->count] = fd;
    group->slots[group->count++] = slot;
}

void tc_perf_sampler_attr(struct perf_event_attr *attr, uint64_t sample_ns)
{
    *attr = (struct perf_event_attr){
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof(*attr),
        .config = PERF_COUNT_SW_CPU_CLOCK,
        .sample_period = sample_ns,
        .sample_type = PERF_SAMPLE_TIME | PERF_SAMPLE_READ,
        .read_format = GROUP_FORMAT,
        .disabled = 1,
        .use_clockid = 1,
        .clockid = CLOCK_MONOTONIC,
        .watermark = 1,
        .wakeup_watermark = UINT32_MAX, /* never: nobody polls */
    };
}

void tc_perf_member_attr(struct perf_event_attr *attr, const struct tc_event *event,
                         enum tc_scope scope, bool leads, enum tc_sampling sampling)
{
    *attr = event->attr;
    attr->read_format = scope == TC_SCOPE_CPU ? GROUP_FORMAT : SINGLE_FORMAT;
    attr->disabled = leads;
    attr->inherit = scope == TC_SCOPE_PROCESS;
    if (sampling == TC_SAMPLING_RING) { /* all of a group go by one clock */
        attr->use_clockid = 1;
        attr->clockid = CLOCK_MONOTONIC;
    }
}

static int open_sampler(struct group *group, int cpu, const struct tc_source_request *request,
                        struct tc_error *err)
{
    struct perf_event_attr attr;
    uint64_t samples = RING_NS / request->sample_ns + 1;
    size_t bytes = (size_t)samples * tc_ring_sample_bytes(1 + request->events_count);
    tc_perf_sampler_attr(&attr, request->sample_ns);
    int fd = tc_perf_open(&attr, -1, cpu, -1);
    if (fd < 0) {
        return tc_error_set(err, -fd, "this kernel does not sample groups by a clock: %s",
                            strerror(-fd));
    }
    join(group, fd, NO_SLOT);
    return tc_ring_open(&group->ring, fd, bytes > RING_BYTES ? bytes : RING_BYTES, err);
}

/* All CPUs are sampled by the kernel, or none is. */
static void open_samplers(struct perf_counters *perf, const struct tc_source_request *request)
{
    struct tc_error err = {"the kernel does not sample counters that a process tree inherits"};
    int rc = request->scope == TC_SCOPE_CPU && request->sample_ns > 0 ? 0 : -ENOTSUP;
    for (size_t g = 0; rc == 0 && g < perf->groups_count; g++) {
        rc = open_sampler(&perf->groups[g], request->cpus->ids[g], request, &err);
    }
    if (rc == 0) {
        perf->base.sampling = TC_SAMPLING_RING;
        return;
    }
    for (size_t g = 0; g < perf->groups_count; g++) {
        close_group(&perf->groups[g]);
    }
    (void)snprintf(perf->base.sampling_reason, sizeof(perf->base.sampling_reason), "%.*s",
                   TC_REASON_MAX - 1, err.message);
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
    if (ready_event(event, request->cpus->ids[0], &encoded, &err) != 0) {
        slot->status = TC_STATUS_UNSUPPORTED;
        (void)snprintf(slot->reason, sizeof(slot->reason), "%.*s", TC_REASON_MAX - 1, err.message);
        return;
    }
    if (encoded.hardware && perf->broken[0] != '\0') {
        slot->status = TC_STATUS_UNSUPPORTED;
        (void)snprintf(slot->reason, sizeof(slot->reason), "%s", perf->broken);
        return;
    }
    bool per_cpu = request->scope == TC_SCOPE_CPU;
    struct perf_event_attr attr;
    tc_perf_member_attr(&attr, &encoded, request->scope, group->leader < 0, perf->base.sampling);
    tc_core_pmus_direct(tc_core_pmus_here(), request->cpus->ids[0], &attr);
    int fd =
        tc_perf_open(&attr, per_cpu ? -1 : request->pid, slot->cpu, per_cpu ? group->leader : -1);
    if (fd < 0) {
        slot->status =
            tc_perf_explain(-fd, event, request->scope, slot->reason, sizeof(slot->reason));
        return;
    }
    join(group, fd, slot_index);
}

static bool any_hardware(const struct tc_source_request *request)
{
    for (size_t i = 0; i < request->events_count; i++) {
        struct tc_event encoded;
        if (ready_event(&request->events[i], request->cpus->ids[0], &encoded, NULL) == 0 &&
            encoded.hardware) {
            return true;
        }
    }
    return false;
}

/* Before anything is opened: a counter of ours may be the one that the trial lacks. One CPU that
 * counts nothing makes every sum over the set null, so its reason is all CPUs'. */
static void try_counters(struct perf_counters *perf, const struct tc_source_request *request)
{
    bool asked = any_hardware(request);
    for (size_t i = 0; asked && i < request->cpus->count; i++) {
        if (!tc_perf_counts(request->cpus->ids[i], perf->broken, sizeof(perf->broken))) {
            return;
        }
    }
}

static void open_all(struct perf_counters *perf, const struct tc_source_request *request)
{
    bool per_cpu = request->scope == TC_SCOPE_CPU;
    try_counters(perf, request);
    open_samplers(perf, request);
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
    perf->buffer_words = 3 + 1 + per_group; /* 1: the clock that samples */
    perf->buffer = calloc(perf->buffer_words, sizeof(*perf->buffer));
    perf->groups_count = per_cpu ? request->cpus->count : request->events_count;
    perf->groups = calloc(perf->groups_count, sizeof(*perf->groups));
    perf->base.slots_count = perf->groups_count * per_group;
    perf->base.slots = calloc(perf->base.slots_count, sizeof(*perf->base.slots));
    perf->sampled = calloc(perf->base.slots_count, sizeof(*perf->sampled));
    bool whole = perf->buffer != NULL && perf->groups != NULL && perf->base.slots != NULL &&
                 perf->sampled != NULL;
    for (size_t i = 0; whole && i < perf->groups_count; i++) {
        perf->groups[i].leader = -1;
        perf->groups[i].members = calloc(per_group + 1, sizeof(int));
        perf->groups[i].slots = calloc(per_group + 1, sizeof(size_t));
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

/* values: one per member of a group, or of a single event its one. */
static void unpack(const struct group *group, const uint64_t *values, uint64_t enabled_ns,
                   uint64_t running_ns, struct tc_reading *readings)
{
    for (size_t i = 0; i < group->count; i++) {
        if (group->slots[i] != NO_SLOT) {
            readings[group->slots[i]] = (struct tc_reading){
                .raw = values[i], .enabled_ns = enabled_ns, .running_ns = running_ns};
        }
    }
}

/* The kernel takes a CPU's events off it, and out of their group, when it goes offline; they stay
 * so when it comes back. */
static int fell_apart(const struct perf_counters *perf, const struct group *group,
                      struct tc_error *err)
{
    size_t per_group = perf->base.slots_count / perf->groups_count;
    int cpu = perf->base.slots[(size_t)(group - perf->groups) * per_group].cpu;
    return cpu == TC_SLOT_NO_CPU
               ? tc_error_set(err, ENODATA, "reading perf's counters: the kernel gives them up")
               : tc_error_set(err, ENODATA,
                              "the counters of CPU %d are gone: it went offline; see that `cat "
                              "/sys/devices/system/cpu/online` names it, and measure again",
                              cpu);
}

static int read_group(struct perf_counters *perf, const struct group *group,
                      struct tc_reading *readings, struct tc_error *err)
{
    bool grouped = (perf->format & PERF_FORMAT_GROUP) != 0;
    size_t words = grouped ? 3 + group->count : 3;
    ssize_t got = read(group->leader, perf->buffer, perf->buffer_words * sizeof(*perf->buffer));
    if (got != (ssize_t)(words * sizeof(*perf->buffer))) {
        return got < 0 ? tc_error_set(err, errno, "reading perf's counters: %s", strerror(errno))
                       : fell_apart(perf, group, err);
    }
    /* In both formats the times are next; before them the number of values, or the value. */
    unpack(group, grouped ? &perf->buffer[3] : &perf->buffer[0], perf->buffer[1], perf->buffer[2],
           readings);
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

struct handover {
    struct perf_counters *perf;
    const struct group *group;
    tc_sample_take take;
    void *context;
    uint64_t latest_ns;
    bool fell_apart;
};

static void hand_over(const struct handover *over, uint64_t t_ns)
{
    size_t group = (size_t)(over->group - over->perf->groups);
    size_t per_group = over->perf->base.slots_count / over->perf->groups_count;
    const struct tc_sample sample = {
        .t_ns = t_ns, .first_slot = group * per_group, .readings = over->perf->sampled};
    over->take(over->context, &sample);
}

static void take_raw(void *context, const struct tc_ring_sample *raw)
{
    struct handover *over = context;
    if (raw->count != over->group->count) {
        over->fell_apart = true;
        return;
    }
    unpack(over->group, raw->values, raw->enabled_ns, raw->running_ns, over->perf->sampled);
    over->latest_ns = raw->t_ns;
    hand_over(over, raw->t_ns);
}

/* Some kernels do not sample a CPU while it idles (seen on Linux 6.18 as a guest). The time is that
 * after reading: what the ring may still get until then is older than what was read. */
static int read_silent(const struct handover *over, struct tc_error *err)
{
    struct timespec now;
    int rc = read_group(over->perf, over->group, over->perf->sampled, err);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (rc == 0) {
        hand_over(over, (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec);
    }
    return rc;
}

static int perf_drain(struct tc_counters *counters, uint64_t since_ns, tc_sample_take take,
                      void *context, struct tc_drained *drained, struct tc_error *err)
{
    struct perf_counters *perf = (struct perf_counters *)counters;
    for (size_t i = 0; i < perf->groups_count; i++) {
        struct handover over = {
            .perf = perf, .group = &perf->groups[i], .take = take, .context = context};
        int rc = tc_ring_drain(&perf->groups[i].ring, take_raw, &over, &drained->lost, err);
        if (rc == 0 && over.fell_apart) {
            rc = fell_apart(perf, &perf->groups[i], err);
        }
        if (rc == 0 && over.latest_ns < since_ns) {
            drained->silent++;
            rc = read_silent(&over, err);
        }
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

const struct tc_source tc_source_perf = {
    .name = "perf",
    .events = tc_events_default,
    .anchor = TC_PERF_ANCHOR,
    .encode = tc_event_encode,
    .scope = tc_perf_scope,
    .fits = tc_perf_fits,
    .probe = tc_perf_probe,
    .open = perf_open_set,
    .start = perf_start,
    .read = perf_read,
    .drain = perf_drain,
    .stop = perf_stop,
    .close = perf_close,
};
