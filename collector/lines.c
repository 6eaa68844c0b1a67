#include "collector/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/idle.h"
#include "collector/record.h"
#include "collector/source_proc.h"

static const char overlap_reason[] =
    "server and load share CPUs, so counts on them are not the server's alone";

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static uint64_t elapsed_ns(const struct tc_window *window)
{
    return window->end.t_ns - window->begin.t_ns;
}

static uint64_t system_change(const struct tc_line *line, size_t slot)
{
    return line->window->end.system[slot].raw - line->window->begin.system[slot].raw;
}

/* null where the source could not tell: tc_line_build() lists the reasons. */
static json_t *system_delta(const struct tc_line *line, size_t slot)
{
    return line->meter->system->slots[slot].status == TC_STATUS_OK
               ? number(system_change(line, slot))
               : json_null();
}

static json_t *system_level(const struct tc_line *line, size_t slot)
{
    return line->meter->system->slots[slot].status == TC_STATUS_OK
               ? number(line->window->end.system[slot].raw)
               : json_null();
}

static json_t *build_cpus(const struct tc_line *line)
{
    json_t *list = json_array();
    for (size_t i = 0; i < line->cpus->count; i++) {
        json_t *cpu =
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "cpu", line->cpus->ids[i],
                      "idle_ns", number(tc_window_idle_ns(line->window, line->meter, i)),
                      "idle_resolution_ns", number(tc_window_idle_resolution_ns(line->meter, i)),
                      "steal_ns", system_delta(line, tc_proc_cpu_slot(i, TC_PROC_STEAL)), "user_ns",
                      system_delta(line, tc_proc_cpu_slot(i, TC_PROC_USER)), "system_ns",
                      system_delta(line, tc_proc_cpu_slot(i, TC_PROC_SYSTEM)), "irq_ns",
                      system_delta(line, tc_proc_cpu_slot(i, TC_PROC_IRQ)), "softirq_ns",
                      system_delta(line, tc_proc_cpu_slot(i, TC_PROC_SOFTIRQ)));
        if (json_array_append_new(list, cpu) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* A value of the window that was measured over the window's interval, per slot or CPU. */
struct value {
    uint64_t raw;
    uint64_t enabled_ns;
    uint64_t running_ns;
};

/* A slot's readings at a window's two ends. */
struct span {
    const struct tc_reading *begin;
    const struct tc_reading *end;
};

static struct span span_of(const struct tc_line *line, const struct tc_window *window,
                           const struct tc_counters *counters, size_t slot)
{
    bool memory = counters == line->meter->memory;
    return (struct span){&(memory ? window->begin.memory : window->begin.counters)[slot],
                         &(memory ? window->end.memory : window->end.counters)[slot]};
}

static struct value counted_value(struct span span)
{
    return (struct value){span.end->raw - span.begin->raw,
                          span.end->enabled_ns - span.begin->enabled_ns,
                          span.end->running_ns - span.begin->running_ns};
}

static bool multiplexed(struct value value)
{
    return value.running_ns < value.enabled_ns;
}

static double whole_count(struct value value)
{
    return multiplexed(value) ? tc_idle_scale(value.raw, value.enabled_ns, value.running_ns)
                              : (double)value.raw;
}

/* How much of the window the correction is for. A process tree's counts are of no one CPU: it idles
 * as its CPUs do on average. */
static uint64_t corrected_ns(const struct tc_line *line, int cpu)
{
    uint64_t sum_ns = 0;
    for (size_t i = 0; i < line->cpus->count; i++) {
        uint64_t one_ns = tc_window_idle_ns(line->window, line->meter, i);
        if (line->cpus->ids[i] == cpu) {
            return one_ns;
        }
        sum_ns += one_ns;
    }
    return sum_ns / line->cpus->count;
}

static json_t *cpu_of(const struct tc_slot *slot)
{
    return slot->cpu == TC_SLOT_NO_CPU ? json_null() : json_integer(slot->cpu);
}

static const char *variant_of(const struct tc_slot *slot)
{
    return slot->variant[0] == '\0' ? NULL : slot->variant; /* NULL: no such key */
}

/* What names a count; with what a PMU outside the cores adds. NULL: no memory. */
static json_t *head_of(const struct tc_slot *slot, const char *source)
{
    bool outside = slot->unit != NULL;
    bool placed = outside && slot->socket != TC_SLOT_NO_CPU;
    return json_pack("{s:o, s:s, s:s, s:s*, s:s, s:s*, s:o*, s:s*, s:o*}", "cpu", cpu_of(slot),
                     "event", slot->event, "mode", tc_mode_name(slot->mode), "variant",
                     variant_of(slot), "source", source, "pmu", outside ? slot->pmu : NULL,
                     "socket", placed ? json_integer(slot->socket) : NULL, "unit", slot->unit,
                     "scale", outside ? json_real(slot->scale) : NULL);
}

/* Both objects become the result. */
static json_t *joined(json_t *head, json_t *rest)
{
    bool whole = head != NULL && rest != NULL && json_object_update(head, rest) == 0;
    json_decref(rest);
    if (!whole) {
        json_decref(head);
        return NULL;
    }
    return head;
}

static json_t *no_count(const struct tc_slot *slot, const char *source, enum tc_status status,
                        const char *reason)
{
    return joined(head_of(slot, source),
                  json_pack("{s:n, s:n, s:n, s:n, s:n, s:s, s:s}", "raw", "corrected", "enabled_ns",
                            "running_ns", "origin", "status", tc_status_name(status), "reason",
                            reason));
}

static json_t *a_count(const struct tc_slot *slot, const char *source, struct value value,
                       json_t *corrected, enum tc_origin origin)
{
    return joined(head_of(slot, source),
                  json_pack("{s:o, s:o, s:o, s:o, s:s, s:s, s:n}", "raw", number(value.raw),
                            "corrected", corrected, "enabled_ns", number(value.enabled_ns),
                            "running_ns", number(value.running_ns), "origin",
                            tc_origin_name(origin), "status", tc_status_name(TC_STATUS_OK),
                            "reason"));
}

/* A counter's 64 bits last for centuries and the kernel sees to narrower hardware's wrapping: what
 * went backwards was lost on its way, and a difference would be a huge number. */
static bool went_back(struct span span)
{
    return span.end->raw < span.begin->raw || span.end->enabled_ns < span.begin->enabled_ns ||
           span.end->running_ns < span.begin->running_ns;
}

static bool never_ran(struct value value)
{
    return value.running_ns == 0 && value.enabled_ns > 0;
}

/* Of whole CPUs that the load runs on, too; a process tree's counts are its own wherever it runs.
 */
static bool holds_the_loads(const struct tc_line *line, const struct tc_slot *slot)
{
    return line->overlap && slot->cpu != TC_SLOT_NO_CPU;
}

static json_t *event_count(const struct tc_line *line, const struct tc_counters *counters, size_t i)
{
    const struct tc_slot *slot = &counters->slots[i];
    const char *source = counters->source->name;
    double scale = slot->unit == NULL ? 1 : slot->scale;
    if (holds_the_loads(line, slot)) {
        return no_count(slot, source, TC_STATUS_OVERLAP, overlap_reason);
    }
    if (slot->status != TC_STATUS_OK) {
        return no_count(slot, source, slot->status, slot->reason);
    }
    struct span here = span_of(line, line->window, counters, i);
    struct span quiet = line->idle == NULL ? here : span_of(line, line->idle, counters, i);
    if (went_back(here) || went_back(quiet)) {
        return no_count(slot, source, TC_STATUS_FAILED,
                        "the counter went backwards between two readings; did its CPU go offline, "
                        "or the virtual machine migrate? measure again");
    }
    struct value value = counted_value(here);
    struct value idle = counted_value(quiet);
    if (never_ran(value) || never_ran(idle)) {
        return no_count(slot, source, TC_STATUS_FAILED,
                        "the kernel never put it on a counter; is another program counting?");
    }
    json_t *corrected =
        line->idle == NULL
            ? json_null()
            : json_real(scale * tc_idle_correct(whole_count(value), whole_count(idle),
                                                elapsed_ns(line->idle),
                                                corrected_ns(line, slot->cpu)));
    return a_count(slot, source, value, corrected,
                   multiplexed(value) ? TC_ORIGIN_SCALED : slot->origin);
}

static uint64_t ref_cycles(const struct tc_window *window, const struct tc_line *line, size_t i)
{
    size_t steal = tc_proc_cpu_slot(i, TC_PROC_STEAL);
    return tc_idle_ref_cycles(elapsed_ns(window), tc_window_idle_ns(window, line->meter, i),
                              window->end.system[steal].raw - window->begin.system[steal].raw,
                              line->tsc_hz);
}

static json_t *ref_cycles_count(const struct tc_line *line, size_t i)
{
    const struct tc_slot slot = {
        .event = "ref_cycles", .mode = TC_MODE_BOTH, .cpu = line->cpus->ids[i]};
    const struct tc_slot *steal = &line->meter->system->slots[tc_proc_cpu_slot(i, TC_PROC_STEAL)];
    const char *source = line->meter->system->source->name;
    if (line->overlap) {
        return no_count(&slot, source, TC_STATUS_OVERLAP, overlap_reason);
    }
    if (steal->status != TC_STATUS_OK) {
        return no_count(&slot, source, steal->status, steal->reason);
    }
    if (line->tsc_hz == 0) {
        return no_count(&slot, source, TC_STATUS_UNSUPPORTED,
                        "the time stamp counter's frequency is not known on this processor");
    }
    uint64_t raw = ref_cycles(line->window, line, i);
    struct value value = {raw, elapsed_ns(line->window), elapsed_ns(line->window)};
    json_t *corrected =
        line->idle == NULL
            ? json_null()
            : json_real(tc_idle_correct((double)raw, (double)ref_cycles(line->idle, line, i),
                                        elapsed_ns(line->idle), corrected_ns(line, slot.cpu)));
    return a_count(&slot, source, value, corrected, TC_ORIGIN_DERIVED);
}

static json_t *build_counts(const struct tc_line *line)
{
    json_t *list = json_array();
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < line->meter->counters->slots_count; i++) {
        rc = json_array_append_new(list, event_count(line, line->meter->counters, i));
    }
    const struct tc_counters *memory = line->meter->memory;
    for (size_t i = 0; rc == 0 && memory != NULL && i < memory->slots_count; i++) {
        rc = json_array_append_new(list, event_count(line, memory, i));
    }
    for (size_t i = 0; rc == 0 && i < line->cpus->count; i++) {
        rc = json_array_append_new(list, ref_cycles_count(line, i));
    }
    if (rc != 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}

static json_t *build_system(const struct tc_line *line)
{
    size_t first = tc_proc_system_slot(line->cpus->count, 0);
    size_t disk = first + TC_PROC_DISK_QUEUE_MS;
    double queue = (double)system_change(line, disk) * 1e6 / (double)elapsed_ns(line->window);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "mem_available_bytes",
                     system_level(line, first + TC_PROC_MEM_AVAILABLE_BYTES), "net_rx_bytes",
                     system_delta(line, first + TC_PROC_NET_RX_BYTES), "net_tx_bytes",
                     system_delta(line, first + TC_PROC_NET_TX_BYTES), "tcp_retransmits",
                     system_delta(line, first + TC_PROC_TCP_RETRANSMITS), "disk_queue",
                     line->meter->system->slots[disk].status == TC_STATUS_OK ? json_real(queue)
                                                                             : json_null(),
                     "context_switches", system_delta(line, first + TC_PROC_CONTEXT_SWITCHES),
                     "interrupts", system_delta(line, first + TC_PROC_INTERRUPTS), "procs_running",
                     system_level(line, first + TC_PROC_PROCS_RUNNING));
}

/* Why values of `cpus` and `system` are null: {value: reason}. */
static json_t *build_null_reasons(const struct tc_line *line)
{
    const struct tc_counters *system = line->meter->system;
    json_t *object = json_object();
    for (size_t i = 0; i < system->slots_count; i++) {
        const struct tc_slot *slot = &system->slots[i];
        if (slot->status != TC_STATUS_OK &&
            json_object_set_new(object, slot->event, json_string(slot->reason)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    if (line->meter->page != NULL && !line->server_rss_known &&
        json_object_set_new(object, "server_rss_bytes",
                            json_string("the simulator's memory is not its server's")) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* A column of a matrix of samples. */
static json_t *column(const uint64_t *values, size_t rows, size_t width, size_t index)
{
    json_t *list = json_array();
    for (size_t row = 0; row < rows; row++) {
        if (json_array_append_new(list, number(values[row * width + index])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* One CPU's samples: its own times, and a column per counted slot. */
static json_t *build_series(const struct tc_line *line, const struct tc_series *series)
{
    json_t *object = json_object();
    int rc = json_object_set_new(object, "t_ns", column(series->t_ns, series->rows, 1, 0));
    for (size_t i = 0; rc == 0 && i < series->slots; i++) {
        const struct tc_slot *slot = &line->meter->counters->slots[series->first_slot + i];
        char key[TC_EVENT_NAME_MAX + TC_VARIANT_MAX + 8];
        (void)snprintf(key, sizeof(key), "%s:%s%s%s", slot->event, tc_mode_name(slot->mode),
                       slot->variant[0] == '\0' ? "" : ":", slot->variant);
        if (slot->status == TC_STATUS_OK) {
            rc = json_object_set_new(object, key,
                                     column(series->counts, series->rows, series->slots, i));
        }
    }
    if (rc != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *build_sampled_counts(const struct tc_line *line)
{
    const struct tc_samples *samples = &line->window->counts;
    json_t *object = json_object();
    for (size_t i = 0; i < samples->count; i++) {
        const struct tc_series *series = &samples->series[i];
        const struct tc_slot *first = &line->meter->counters->slots[series->first_slot];
        int cpu = first->cpu;
        if (holds_the_loads(line, first)) {
            continue;
        }
        char key[16] = "all";
        if (cpu != TC_SLOT_NO_CPU) {
            (void)snprintf(key, sizeof(key), "%d", cpu);
        }
        if (json_object_set_new(object, key, build_series(line, series)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *build_samples(const struct tc_line *line)
{
    const struct tc_window *window = line->window;
    const struct tc_counters *counters = line->meter->counters;
    json_t *idle = json_object();
    for (size_t i = 0; i < window->cpus; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%d", line->cpus->ids[i]);
        if (json_object_set_new(idle, key,
                                column(window->idle_ns, window->rows, window->cpus, i)) != 0) {
            json_decref(idle);
            return NULL;
        }
    }
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o}", "how", tc_sampling_name(counters->sampling), "reason",
        counters->sampling == TC_SAMPLING_RING ? json_null()
                                               : json_string(counters->sampling_reason),
        "t_ns", column(window->t_ns, window->rows, 1, 0), "transactions",
        line->meter->page == NULL ? json_null() : column(window->transactions, window->rows, 1, 0),
        "idle_ns", idle, "counts", build_sampled_counts(line));
}

/* Deltas of the load's counts, errors in an object of their own. */
static int add_load_counts(json_t *object, const struct tc_window *window)
{
    json_t *errors = json_object();
    int rc = 0;
    for (int kind = 0; rc == 0 && kind < TC_COUNT_KINDS; kind++) {
        const char *name = tc_count_name((enum tc_count)kind);
        json_t *delta = number(window->end.counts[kind] - window->begin.counts[kind]);
        if (kind >= TC_COUNT_ERROR_FIRST) {
            rc = json_object_set_new(errors, name + strlen("error_"), delta);
        } else {
            rc = json_object_set_new(object, kind == TC_COUNT_COMPLETED ? "transactions" : name,
                                     delta);
        }
    }
    return rc != 0 ? (json_decref(errors), rc) : json_object_set_new(object, "errors", errors);
}

static bool any_values(const int64_t *begin, const int64_t *end, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (begin[i] != end[i]) {
            return true;
        }
    }
    return false;
}

static json_t *build_latency(const struct tc_window *window)
{
    json_t *object = json_object();
    int rc = 0;
    for (int kind = 0; rc == 0 && kind < TC_LATENCY_KINDS; kind++) {
        const int64_t *begin = window->begin.latency[kind];
        const int64_t *end = window->end.latency[kind];
        json_t *text = NULL;
        if (!any_values(begin, end, window->latency_len)) {
            text = json_null();
        } else {
            char *encoded = NULL;
            rc = tc_histogram_encode(begin, end, window->latency_len, &encoded, NULL);
            text = rc == 0 ? json_string(encoded) : NULL;
            free(encoded);
        }
        rc = rc != 0 ? rc
                     : json_object_set_new(object, tc_latency_name((enum tc_latency)kind), text);
    }
    if (rc != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static int add_load(json_t *object, const struct tc_line *line)
{
    int rc = add_load_counts(object, line->window);
    if (rc == 0) {
        rc = json_object_set_new(object, "latency", build_latency(line->window));
    }
    if (rc == 0) {
        rc = json_object_set_new(object, "load_connections",
                                 number(line->meter->page->header->connections));
    }
    if (rc == 0) {
        rc = json_object_set_new(object, "load_under_way", number(line->window->under_way));
    }
    return rc != 0 ? rc
                   : json_object_set_new(object, "server_rss_bytes",
                                         line->server_rss_known ? number(line->server_rss_bytes)
                                                                : json_null());
}

json_t *tc_line_build(const struct tc_line *line)
{
    const struct tc_window *window = line->window;
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:O}", "type", line->type, "pass",
        (json_int_t)line->pass, "index", (json_int_t)line->index, "start_ns",
        (json_int_t)window->begin.t_ns, "end_ns", (json_int_t)window->end.t_ns, "start_utc",
        tc_record_utc_of(&window->start_utc), "cpus", build_cpus(line), "counts",
        build_counts(line), "system", build_system(line), "null_reasons", build_null_reasons(line),
        "samples", build_samples(line), "notes", line->notes);
    if (object != NULL && line->meter->page != NULL && add_load(object, line) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}
