#include "collector/header.h"

#include <string.h>

#include "collector/provenance.h"
#include "collector/record.h"
#include "collector/source.h"

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

static json_t *build_placement(const struct tc_session_options *options)
{
    char policy[160];
    int nodes[TC_CPUS_MAX];
    bool overlap = tc_cpus_overlap(&options->server_cpus, &options->load_cpus);
    struct tc_cpus online;
    bool known = tc_cpus_online(&online, NULL) == 0;
    bool enough = known && options->server_cpus.count + options->load_cpus.count <= online.count;
    json_t *reason = !overlap ? json_null()
                     : enough
                         ? json_string("asked for, though this machine has enough CPUs")
                         : json_sprintf("this machine has %zu CPUs, the server takes %zu of them",
                                        known ? online.count : 0, options->server_cpus.count);
    tc_numa_format(&options->numa, policy, sizeof(policy));
    return json_pack("{s:o, s:o, s:o, s:b, s:o, s:{s:o, s:s}}", "server_cpus",
                     integers(options->server_cpus.ids, options->server_cpus.count), "load_cpus",
                     integers(options->load_cpus.ids, options->load_cpus.count), "collector_cpus",
                     integers(options->collector_cpus.ids, options->collector_cpus.count),
                     "overlap", (int)overlap, "reason", reason, "numa", "server_nodes",
                     integers(nodes, tc_numa_nodes_of(&options->server_cpus, nodes)), "policy",
                     policy);
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
    json_t *reason = veth ? json_null()
                          : json_string("asked for: without root there is no veth pair; the "
                                        "server's counts hold part of the load's TCP work");
    return json_pack("{s:s, s:i, s:s, s:s, s:o, s:o}", "kind", veth ? "veth" : "loopback", "mtu",
                     network->mtu, "server_address", network->server_address, "load_address",
                     network->load_address, "rps", rps, "reason", reason);
}

static json_t *build_sources(const struct tc_header *header)
{
    static const struct tc_source *const sources[] = {&tc_source_perf, &tc_source_proc};
    json_t *list = json_array();
    for (size_t i = 0; i < 2; i++) {
        struct tc_source_report report;
        sources[i]->probe(header->options->server_cpus.ids[0], &report);
        json_t *reason = report.reason[0] == '\0' ? json_null() : json_string(report.reason);
        json_t *source = json_pack("{s:s, s:b, s:o, s:s}", "name", sources[i]->name, "available",
                                   (int)report.available, "reason", reason, "scope",
                                   tc_scope_name(report.scope));
        if (json_array_append_new(list, source) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *build_passes(const struct tc_header *header)
{
    json_t *list = json_array();
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < header->passes_count; i++) {
        const struct tc_pass *pass = &header->passes[i];
        json_t *events = json_array();
        for (size_t e = 0; rc == 0 && e < pass->count; e++) {
            rc = json_array_append_new(events,
                                       json_pack("{s:s, s:s}", "event", pass->events[e].name,
                                                 "mode", tc_mode_name(pass->events[e].mode)));
        }
        rc = json_array_append_new(list, events) != 0 ? -1 : rc;
    }
    if (rc != 0) {
        json_decref(list);
        return NULL;
    }
    return list;
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
        "{s:s, s:s, s:o, s:O, s:{s:s, s:s}, s:{s:o, s:o, s:o}, s:o, s:o, s:o, s:o, s:o, s:o}",
        "type", "header", "schema", "tlscost-record/1", "started_utc", tc_record_utc(), "cell",
        cell != NULL ? cell : json_null(), "program", "version", TC_VERSION, "build", TC_BUILD_NAME,
        "commands", "server", words(options->server_argv), "load", words(options->load_argv),
        "collect", words(options->collect_argv), "provenance", build_provenance(header),
        "placement", build_placement(options), "network", build_network(header->network), "sources",
        build_sources(header), "passes", build_passes(header), "rules", build_rules(header));
}
