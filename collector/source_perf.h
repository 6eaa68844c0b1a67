/* perf_event_open's source: what its users need besides the table of functions. */
#ifndef TC_COLLECTOR_SOURCE_PERF_H
#define TC_COLLECTOR_SOURCE_PERF_H

#include "collector/source.h"

/* The event by which passes are compared; and what a known loop is known by. */
#define TC_PERF_ANCHOR "instructions"

/* What an errno of perf_event_open means for this event, and the remedy. */
enum tc_status tc_perf_explain(int code, const struct tc_event *event, enum tc_scope scope,
                               char *reason, size_t size);

/* The clock that leads a CPU's group and has the kernel sample it every sample_ns. */
void tc_perf_sampler_attr(struct perf_event_attr *attr, uint64_t sample_ns);

/* An encoded event as it is opened. leads: it is the first of its group. */
void tc_perf_member_attr(struct perf_event_attr *attr, const struct tc_event *event,
                         enum tc_scope scope, bool leads, enum tc_sampling sampling);

/* perf_event_open(2): a file descriptor or -errno. */
TC_MUST_CHECK int tc_perf_open(const struct perf_event_attr *attr, pid_t pid, int cpu, int group);

/* A tc_passes_fits for this machine: opens the group on the CPU that context (int *) names and
 * sees whether the kernel schedules it whole. */
bool tc_perf_fits(const struct tc_event *events, size_t count, void *context);

/* TC_SCOPE_CPU where this user may count everything on a CPU, else TC_SCOPE_PROCESS. */
enum tc_scope tc_perf_scope(int cpu);

/* Whether the CPU's PMU counts: a short loop of known length, run there, must show. False: it opens
 * events and counts next to nothing, as some virtual machines' do; reason says so. True where it
 * cannot be tried, as by a user who may count nothing: then opening says why. */
bool tc_perf_counts(int cpu, char *reason, size_t size);

/* TC_STATUS_OK where a PMU with core counters is there, counts, and this user may use it; else why
 * not, in reason. */
enum tc_status tc_perf_pmu(int cpu, char *reason, size_t size);

/* Counters of the PMU that can count at once, found by trying (0: no PMU). */
size_t tc_perf_counters(int cpu);

/* tc_source_perf's probe(). */
void tc_perf_probe(int cpu, struct tc_source_report *report);

#endif
