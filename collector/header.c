#include "collector/header.h"

#include <string.h>

#include "collector/provenance.h"
#include "collector/record.h"
#include "collector/source_proc.h"

static json_t *words(char *const *argv)
{
    json_t *list = json_array();
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++) {
        if (json_array_append_new(list, json_string(argv[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *integers(const int *values, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(list, json_integer(values[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Why server and load share CPUs; null where they do not. */
static json_t *overlap_reason(const struct tc_session_options *options, bool overlap)
{
    struct tc_cpus online;
    if (!overlap) {
        return json_null();
    }
    bool known = tc_cpus_online(&online, NULL) == 0;
    return known && options->server_cpus.count + options->load_cpus.count <= online.count
               ? json_string("asked for, though this machine has enough CPUs")
               : json_sprintf("this machine has %zu CPUs, the server takes %zu of them",
                              known ? online.count : 0, options->server_cpus.count);
}

static json_t *build_placement(const struct tc_header *header)
{
    const struct tc_session_options *options = header->options;
    const struct tc_cpus *cpus = tc_session_cpus(options);
    char policy[160];
    int nodes[TC_CPUS_MAX];
    bool simulated = header->machine != NULL;
    bool overlap = !simulated && tc_cpus_overlap(&options->server_cpus, &options->load_cpus);
    json_t *host =
        simulated ? integers(options->server_cpus.ids, options->server_cpus.count) : json_null();
    tc_numa_format(&options->numa, policy, sizeof(policy));
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:b, s:o, s:{s:o, s:s}}", "server_cpus",
        integers(cpus->ids, cpus->count), "host_cpus", host, "load_cpus",
        integers(options->load_cpus.ids, options->load_cpus.count), "collector_cpus",
        integers(options->collector_cpus.ids, options->collector_cpus.count), "overlap",
        (int)overlap, "reason", overlap_reason(options, overlap), "numa", "server_nodes",
        integers(nodes, tc_numa_nodes_of(&options->server_cpus, nodes)), "policy", policy);
}

static const char *network_reason(enum tc_network_kind kind)
{
    switch (kind) {
    case TC_NETWORK_LOOPBACK:
        return "asked for: without root there is no veth pair; the server's counts hold part of "
               "the load's TCP work";
    case TC_NETWORK_USER:
        return "the simulated machine's own: its host takes connections to it on loopback and "
               "does the load's side of TCP";
    case TC_NETWORK_VETH:
        break;
    }
    return NULL;
}

static json_t *build_network(const struct tc_network *network)
{
    if (network == NULL) {
        return json_null();
    }
    bool veth = network->kind == TC_NETWORK_VETH;
    json_t *rps =
        veth ? json_pack("{s:s, s:s}", "server", network->server_rps, "load", network->load_rps)
             : json_null();
    return json_pack("{s:s, s:i, s:s, s:s, s:o, s:s?}", "kind", tc_network_name(network->kind),
                     "mtu", network->mtu, "server_address", network->server_address, "load_address",
                     network->load_address, "rps", rps, "reason", network_reason(network->kind));
}

static json_t *build_source(const char *name, const struct tc_source_report *report)
{
    json_t *reason = report->reason[0] == '\0' ? json_null() : json_string(report->reason);
    return json_pack("{s:s, s:b, s:o, s:s}", "name", name, "available", (int)report->available,
                     "reason", reason, "scope", tc_scope_name(report->scope));
}

static json_t *build_probed(const struct tc_header *header, const struct tc_source *source)
{
    struct tc_source_report report;
    source->probe(header->options->server_cpus.ids[0], &report);
    return build_source(source->name, &report);
}

static json_t *build_sources(const struct tc_header *header)
{
    struct tc_source_report proc;
    if (header->machine != NULL) {
        return json_pack("[o]", build_probed(header, &tc_source_softpmu));
    }
    tc_proc_report(header->system, &proc);
    return json_pack("[o, o, o]", build_probed(header, header->options->source),
                     build_source(tc_source_proc.name, &proc),
                     build_probed(header, &tc_source_uncore));
}

/* What a pass counts on its first CPU it counts on each. */
static json_t *build_pass(const struct tc_counters *counters)
{
    json_t *events = json_array();
    for (size_t i = 0;
         i < counters->slots_count && counters->slots[i].cpu == counters->slots[0].cpu; i++) {
        const struct tc_slot *slot = &counters->slots[i];
        json_t *event =
            json_pack("{s:s, s:s, s:s*}", "event", slot->event, "mode", tc_mode_name(slot->mode),
                      "variant", slot->variant[0] == '\0' ? NULL : slot->variant);
        if (json_array_append_new(events, event) != 0) {
            json_decref(events);
            return NULL;
        }
    }
    return events;
}

static json_t *build_passes(const struct tc_header *header)
{
    json_t *list = json_array();
    for (size_t i = 0; i < header->counters_count; i++) {
        if (json_array_append_new(list, build_pass(header->counters[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The simulated machine, as its page describes it; null where this one is measured. */
static json_t *build_machine(const struct tc_header *header)
{
    const struct tc_softpmu_page *page = header->machine;
    json_t *variants = json_array();
    for (uint32_t i = 0; page != NULL && i < page->variants; i++) {
        if (json_array_append_new(variants, json_string(page->variant_names[i])) != 0) {
            json_decref(variants);
            return NULL;
        }
    }
    if (page == NULL) {
        json_decref(variants);
        return json_null();
    }
    return json_pack("{s:s, s:o, s:i, s:I, s:I}", "name", page->machine, "variants", variants,
                     "cpus", (int)page->cpus, "clock_hz", (json_int_t)page->clock_hz,
                     "bus_clock_hz", (json_int_t)page->bus_clock_hz);
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static json_t *build_rules(const struct tc_header *header)
{
    const struct tc_rules *rules = &header->options->rules;
    return json_pack(
        "{s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:I}", "idle_s", seconds(rules->idle_ns),
        "window_s", seconds(header->window_ns), "window_max_s", seconds(rules->window_max_ns),
        "windows", (json_int_t)rules->windows, "completions_per_connection",
        (json_int_t)rules->completions, "sample_ms", (json_int_t)(rules->sample_ns / 1000000),
        "warmup_s", seconds(rules->warmup_ns), "warmup_max_s", seconds(rules->warmup_max_ns),
        "idle_resolution_ns", (json_int_t)header->idle_resolution_ns);
}

/* What --header holds besides the cell goes into the provenance; its own object `provenance` key by
 * key. */
static json_t *build_provenance(const struct tc_header *header)
{
    json_t *provenance = tc_provenance_build(header->tsc_hz, header->tsc_how);
    const char *key;
    json_t *value;
    /* jansson iterates over const objects only by a cast. */
    json_object_foreach((json_t *)header->options->header, key, value)
    {
        bool nested = strcmp(key, "provenance") == 0 && json_is_object(value);
        int rc = strcmp(key, "cell") == 0 ? 0
                 : nested                 ? json_object_update(provenance, value)
                                          : json_object_set(provenance, key, value);
        if (rc != 0) {
            json_decref(provenance);
            return NULL;
        }
    }
    return provenance;
}

json_t *tc_header_build(const struct tc_header *header)
{
    const struct tc_session_options *options = header->options;
    json_t *cell = json_object_get(options->header, "cell");
    return json_pack(
        "{s:s, s:s, s:o, s:O, s:{s:s, s:s}, s:{s:o, s:o, s:o}, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "type", "header", "schema", "tlscost-record/1", "started_utc", tc_record_utc(), "cell",
        cell != NULL ? cell : json_null(), "program", "version", TC_VERSION, "build", TC_BUILD_NAME,
        "commands", "server", words(options->server_argv), "load", words(options->load_argv),
        "collect", words(options->collect_argv), "provenance", build_provenance(header), "machine",
        build_machine(header), "placement", build_placement(header), "network",
        build_network(header->network), "sources", build_sources(header), "passes",
        build_passes(header), "rules", build_rules(header));
}
