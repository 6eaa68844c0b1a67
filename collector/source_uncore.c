#include "collector/source_uncore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collector/source_perf.h"
#include "collector/uncore.h"

struct uncore_counters {
    struct tc_counters base;
    int *fds; /* one per slot; -1: not counted */
};

static void uncore_close(struct tc_counters *counters)
{
    struct uncore_counters *uncore = (struct uncore_counters *)counters;
    if (uncore == NULL) {
        return;
    }
    for (size_t i = 0; i < uncore->base.slots_count; i++) {
        if (uncore->fds[i] >= 0) {
            (void)close(uncore->fds[i]);
        }
    }
    free(uncore->base.slots);
    free(uncore->fds);
    free(uncore);
}

/* A slot of the whole machine; a PMU outside the cores knows no modes. */
static struct tc_slot *name_slot(struct uncore_counters *uncore, size_t index,
                                 enum tc_uncore_what what)
{
    struct tc_slot *slot = &uncore->base.slots[index];
    *slot = (struct tc_slot){.mode = TC_MODE_BOTH, .cpu = TC_SLOT_NO_CPU, .socket = TC_SLOT_NO_CPU};
    (void)snprintf(slot->event, sizeof(slot->event), "%s", tc_uncore_name(what));
    return slot;
}

static void open_slot(struct uncore_counters *uncore, size_t index,
                      const struct tc_uncore_counter *counter)
{
    struct tc_slot *slot = name_slot(uncore, index, counter->what);
    struct tc_event event = {.mode = TC_MODE_BOTH};
    struct perf_event_attr attr = {
        .type = counter->type,
        .size = sizeof(attr),
        .config = counter->config[0],
        .config1 = counter->config[1],
        .config2 = counter->config[2],
        .read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
    };
    slot->socket = counter->socket;
    slot->scale = counter->bytes;
    slot->unit = "bytes";
    (void)snprintf(slot->pmu, sizeof(slot->pmu), "%s", counter->pmu);
    if (counter->problem.message[0] != '\0') {
        slot->status = TC_STATUS_UNSUPPORTED;
        (void)snprintf(slot->reason, sizeof(slot->reason), "%.*s", TC_REASON_MAX - 1,
                       counter->problem.message);
        return;
    }
    (void)snprintf(event.name, sizeof(event.name), "%s of %s", slot->event, counter->pmu);
    int fd = tc_perf_open(&attr, -1, counter->cpu, -1);
    if (fd < 0) {
        slot->status =
            tc_perf_explain(-fd, &event, TC_SCOPE_CPU, slot->reason, sizeof(slot->reason));
        return;
    }
    uncore->fds[index] = fd;
}

/* What no PMU counts: everything, or one direction. */
static void explain_absent(struct uncore_counters *uncore, size_t index, enum tc_uncore_what what,
                           const char *both)
{
    struct tc_slot *slot = name_slot(uncore, index, what);
    slot->status = TC_STATUS_UNSUPPORTED;
    if (both != NULL) {
        (void)snprintf(slot->reason, sizeof(slot->reason),
                       "%s counts reads and writes together: see memory_bytes", both);
    } else {
        (void)snprintf(slot->reason, sizeof(slot->reason),
                       "no memory controller's PMU in " TC_UNCORE_PMUS
                       " (%s): virtual machines have none; on a machine of its own load "
                       "intel_uncore, amd_uncore or arm-cmn",
                       tc_uncore_known);
    }
}

static void open_slots(struct uncore_counters *uncore, const struct tc_uncore_counter *counters,
                       size_t count)
{
    const char *both = NULL;
    bool counted[TC_UNCORE_KINDS] = {false};
    size_t next = count;
    for (size_t i = 0; i < count; i++) {
        open_slot(uncore, i, &counters[i]);
        counted[counters[i].what] = true;
        both = counters[i].what == TC_UNCORE_BOTH ? counters[i].pmu : both;
    }
    for (enum tc_uncore_what what = TC_UNCORE_READ; what <= TC_UNCORE_WRITE; what++) {
        if (!counted[what]) {
            explain_absent(uncore, next++, what, both);
        }
    }
    uncore->base.slots_count = next;
}

int tc_uncore_open(struct tc_counters **counters, const char *pmus, const char *cpus,
                   struct tc_error *err)
{
    struct tc_uncore_counter *found;
    size_t count;
    int rc = tc_uncore_find(pmus, cpus, &found, &count, err);
    if (rc != 0) {
        return rc;
    }
    size_t most = count + TC_UNCORE_KINDS;
    struct uncore_counters *uncore = calloc(1, sizeof(*uncore));
    struct tc_slot *slots = calloc(most, sizeof(*slots));
    int *fds = malloc(most * sizeof(*fds));
    if (uncore == NULL || slots == NULL || fds == NULL) {
        free(uncore);
        free(slots);
        free(fds);
        free(found);
        return tc_error_set(err, ENOMEM, "out of memory for the memory controllers' counters");
    }
    memset(fds, -1, most * sizeof(*fds));
    *uncore =
        (struct uncore_counters){.base = {.source = &tc_source_uncore, .slots = slots}, .fds = fds};
    open_slots(uncore, found, count);
    free(found);
    *counters = &uncore->base;
    return 0;
}

static int uncore_open_set(struct tc_counters **counters, const struct tc_source_request *request,
                           struct tc_error *err)
{
    (void)request; /* the machine's controllers serve all CPUs */
    return tc_uncore_open(counters, TC_UNCORE_PMUS, TC_UNCORE_CPUS, err);
}

/* Nothing to do: the counters run from open() to close(), and readings are taken apart. */
static int uncore_run(struct tc_counters *counters, struct tc_error *err)
{
    (void)counters;
    (void)err;
    return 0;
}

static int uncore_read(struct tc_counters *counters, enum tc_depth depth,
                       struct tc_reading *readings, struct tc_error *err)
{
    const struct uncore_counters *uncore = (const struct uncore_counters *)counters;
    for (size_t i = 0; depth == TC_DEPTH_END && i < counters->slots_count; i++) {
        uint64_t words[3];
        if (uncore->fds[i] < 0) {
            continue;
        }
        ssize_t got = read(uncore->fds[i], words, sizeof(words));
        if (got != (ssize_t)sizeof(words)) {
            return tc_error_set(err, got < 0 ? errno : ENODATA, "reading %s of %s: %s",
                                counters->slots[i].event, counters->slots[i].pmu,
                                got < 0 ? strerror(errno) : "it ended");
        }
        readings[i] = (struct tc_reading){words[0], words[1], words[2]};
    }
    return 0;
}

static void report_of(const struct tc_counters *counters, struct tc_source_report *report)
{
    *report = (struct tc_source_report){.scope = TC_SCOPE_CPU};
    for (size_t i = 0; i < counters->slots_count; i++) {
        const struct tc_slot *slot = &counters->slots[i];
        report->available = report->available || slot->status == TC_STATUS_OK;
        if (report->reason[0] == '\0') {
            (void)snprintf(report->reason, sizeof(report->reason), "%s", slot->reason);
        }
    }
}

static void uncore_probe(int cpu, struct tc_source_report *report)
{
    struct tc_counters *counters = NULL;
    struct tc_error err;
    (void)cpu; /* the kernel names the CPUs that it is counted on */
    int rc = tc_uncore_open(&counters, TC_UNCORE_PMUS, TC_UNCORE_CPUS, &err);
    if (rc != 0 || counters == NULL) {
        *report = (struct tc_source_report){.scope = TC_SCOPE_CPU};
        (void)snprintf(report->reason, sizeof(report->reason), "%.*s", TC_REASON_MAX - 1,
                       err.message);
        return;
    }
    report_of(counters, report);
    uncore_close(counters);
}

const struct tc_source tc_source_uncore = {
    .name = "uncore",
    .probe = uncore_probe,
    .open = uncore_open_set,
    .start = uncore_run,
    .read = uncore_read,
    .stop = uncore_run,
    .close = uncore_close,
};
