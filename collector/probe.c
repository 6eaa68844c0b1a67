#include "collector/probe.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/core_pmus.h"
#include "collector/host.h"
#include "collector/provenance.h"
#include "collector/source_perf.h"
#include "collector/source_proc.h"
#include "collector/sysfile.h"

static json_t *text_or_null(const char *text)
{
    return *text == '\0' ? json_null() : json_string(text);
}

/* The entry for an event, of which several modes may have been tried. */
static json_t *entry_for(json_t *events, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach(events, i, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "event")), name) == 0) {
            return entry;
        }
    }
    entry = json_pack("{s:s, s:b, s:{}}", "event", name, "available", 0, "modes");
    return json_array_append_new(events, entry) == 0 ? entry : NULL;
}

static int add_slot(json_t *events, const struct tc_slot *slot)
{
    json_t *entry = entry_for(events, slot->event);
    json_t *mode = json_pack("{s:s, s:o}", "status", tc_status_name(slot->status), "reason",
                             text_or_null(slot->reason));
    if (slot->status == TC_STATUS_OK && json_object_set_new(entry, "available", json_true()) != 0) {
        json_decref(mode);
        return -1;
    }
    return json_object_set_new(json_object_get(entry, "modes"), tc_mode_name(slot->mode), mode);
}

static int add_events(json_t *events, const struct tc_source *source,
                      const struct tc_source_request *request)
{
    struct tc_counters *counters;
    if (source->open(&counters, request, NULL) != 0) {
        return 0; /* the source's own reason says why */
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < counters->slots_count; i++) {
        rc = add_slot(events, &counters->slots[i]);
    }
    source->close(counters);
    return rc;
}

static json_t *whole_or_null(json_t *events, int rc)
{
    if (rc != 0) {
        json_decref(events);
        return NULL;
    }
    return events;
}

static json_t *build_source(const struct tc_source *source, const struct tc_source_report *report,
                            json_t *events)
{
    return json_pack("{s:s, s:b, s:s, s:o, s:o}", "name", source->name, "available",
                     (int)report->available, "scope", tc_scope_name(report->scope), "reason",
                     text_or_null(report->reason), "events", events);
}

/* Each event alone: beside others it may lack a counter. */
static json_t *build_counting(const struct tc_cpus *cpu, const struct tc_session_options *options)
{
    struct tc_source_report report;
    json_t *events = json_array();
    int rc = 0;
    options->source->probe(cpu->ids[0], &report);
    for (size_t set = 0; set < options->sets_count; set++) {
        for (size_t i = 0; rc == 0 && i < options->sets_counts[set]; i++) {
            const struct tc_source_request request = {
                .cpus = cpu,
                .events = &options->sets[set][i],
                .events_count = 1,
                .scope = report.scope, /* process: tried on this one (pid 0) */
            };
            rc = add_events(events, options->source, &request);
        }
    }
    return build_source(options->source, &report, whole_or_null(events, rc));
}

static json_t *build_proc(const struct tc_cpus *cpu)
{
    struct tc_source_report report;
    const struct tc_source_request request = {.cpus = cpu};
    json_t *events = json_array();
    tc_source_proc.probe(cpu->ids[0], &report);
    int rc = add_events(events, &tc_source_proc, &request);
    return build_source(&tc_source_proc, &report, whole_or_null(events, rc));
}

static json_t *build_uncore(const struct tc_cpus *cpu)
{
    struct tc_source_report report;
    const struct tc_source_request request = {.cpus = cpu};
    json_t *events = json_array();
    tc_source_uncore.probe(cpu->ids[0], &report);
    int rc = add_events(events, &tc_source_uncore, &request);
    return build_source(&tc_source_uncore, &report, whole_or_null(events, rc));
}

/* The kinds of CPU, where the machine has several: [{name, cpus}]. */
static json_t *build_kinds(void)
{
    const struct tc_core_pmus *pmus = tc_core_pmus_here();
    json_t *list = json_array();
    for (size_t i = 0; i < pmus->count; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), TC_CORE_PMUS_FOLDER "/%s/cpus", pmus->list[i].name);
        json_t *kind =
            json_pack("{s:s, s:o}", "name", pmus->list[i].name, "cpus", tc_sysfile_line(path));
        if (json_array_append_new(list, kind) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* All PMUs that the kernel knows, as perf list names them. */
static json_t *build_devices(void)
{
    struct dirent **entries;
    json_t *list = json_array();
    int found = scandir(TC_CORE_PMUS_FOLDER, &entries, NULL, alphasort);
    int rc = 0;
    for (int i = 0; i < found; i++) {
        if (entries[i]->d_name[0] != '.') {
            rc |= json_array_append_new(list, json_string(entries[i]->d_name));
        }
        free(entries[i]);
    }
    if (found >= 0) {
        free(entries);
    }
    return whole_or_null(list, rc);
}

static json_t *build_pmu(int cpu)
{
    char reason[TC_REASON_MAX];
    bool present = tc_perf_pmu(cpu, reason, sizeof(reason)) == TC_STATUS_OK;
    json_t *counters = present ? json_integer((json_int_t)tc_perf_counters(cpu)) : json_null();
    return json_pack("{s:b, s:o, s:o, s:o, s:o}", "present", (int)present, "counters", counters,
                     "reason", text_or_null(reason), "kinds", build_kinds(), "devices",
                     build_devices());
}

json_t *tc_probe_build(int cpu, const struct tc_session_options *options)
{
    const struct tc_cpus one = {.count = 1, .ids = {cpu}};
    const char *tsc_how = NULL;
    uint64_t tsc_hz = tc_provenance_tsc_hz(&tsc_how);
    return json_pack("{s:s, s:{s:s, s:s}, s:[o, o, o], s:o, s:o, s:o}", "schema", "tlscost-probe/1",
                     "program", "version", TC_VERSION, "build", TC_BUILD_NAME, "sources",
                     build_counting(&one, options), build_proc(&one), build_uncore(&one), "pmu",
                     build_pmu(cpu), "host", tc_host_build(cpu), "provenance",
                     tc_provenance_build(tsc_hz, tsc_how));
}
