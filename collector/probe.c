#include "collector/probe.h"

#include <string.h>

#include "collector/source_perf.h"
#include "collector/source_proc.h"

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

static json_t *build_events(const struct tc_source *source, const struct tc_source_request *request)
{
    struct tc_counters *counters;
    json_t *events = json_array();
    if (source->open(&counters, request, NULL) != 0) {
        return events; /* the source's own reason says why */
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < counters->slots_count; i++) {
        rc = add_slot(events, &counters->slots[i]);
    }
    source->close(counters);
    if (rc != 0) {
        json_decref(events);
        return NULL;
    }
    return events;
}

static json_t *build_source(const struct tc_source *source, int cpu)
{
    static struct tc_event events[TC_EVENTS_MAX];
    const struct tc_cpus cpus = {.count = 1, .ids = {cpu}};
    struct tc_source_report report;
    struct tc_source_request request = {.cpus = &cpus, .events = events};
    if (tc_events_parse(tc_events_default, events, &request.events_count, NULL) != 0) {
        return NULL;
    }
    source->probe(cpu, &report);
    request.scope = report.scope; /* process: tried on this one (pid 0) */
    return json_pack("{s:s, s:b, s:s, s:o, s:o}", "name", source->name, "available",
                     (int)report.available, "scope", tc_scope_name(report.scope), "reason",
                     text_or_null(report.reason), "events", build_events(source, &request));
}

json_t *tc_probe_build(int cpu)
{
    char reason[TC_REASON_MAX];
    bool pmu = tc_perf_has_pmu(cpu, reason, sizeof(reason));
    return json_pack("{s:[o, o], s:{s:b, s:o, s:o}}", "sources", build_source(&tc_source_perf, cpu),
                     build_source(&tc_source_proc, cpu), "pmu", "present", (int)pmu, "counters",
                     pmu ? json_integer((json_int_t)tc_perf_counters(cpu)) : json_null(), "reason",
                     text_or_null(reason));
}
