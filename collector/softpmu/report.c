/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/report.h"

#include <string.h>

static json_int_t sum(const struct tc_softpmu_page *page, uint32_t event, enum tc_softpmu_mode mode,
                      uint32_t variant)
{
    uint64_t all = 0;
    for (uint32_t cpu = 0; cpu < page->cpus; cpu++)
        all += tc_softpmu_page_value(page, event, cpu, mode, variant);
    return (json_int_t)all;
}

static json_t *values(const struct tc_softpmu_page *page, uint32_t event, enum tc_softpmu_mode mode)
{
    json_t *list = json_array();
    uint32_t variants = page->event[event].varies ? page->variants : 1;
    for (uint32_t v = 0; v < variants; v++)
        (void)json_array_append_new(list, json_integer(sum(page, event, mode, v)));
    return list;
}

static json_t *build_event(const struct tc_softpmu_page *page, uint32_t index)
{
    static const char *const origins[] = {"counted", "simulated", "modelled"};
    const struct tc_softpmu_event *event = &page->event[index];
    return json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "name", event->name, "unit", event->unit,
                     "origin", origins[event->origin], "varies", (int)event->varies, "user",
                     values(page, index, TC_SOFTPMU_USER), "kernel",
                     page->whole_system ? values(page, index, TC_SOFTPMU_KERNEL) : json_null());
}

/* What the page says of all CPUs, apart from events. */
static void add_totals(json_t *document, const struct tc_softpmu_page *page)
{
    json_int_t repeats = 0;
    json_int_t executed = 0;
    json_int_t checked = 0;
    json_int_t wrong = 0;
    json_int_t device = 0;
    json_int_t unknown = 0;
    for (uint32_t i = 0; i < page->cpus; i++) {
        const struct tc_softpmu_cpu *cpu = tc_softpmu_page_cpu(page, i);
        repeats += (json_int_t)atomic_load(&cpu->repeats);
        executed += (json_int_t)atomic_load(&cpu->executed);
        checked += (json_int_t)atomic_load(&cpu->addresses_checked);
        wrong += (json_int_t)atomic_load(&cpu->addresses_wrong);
        device += (json_int_t)atomic_load(&cpu->addresses_device);
        unknown += (json_int_t)atomic_load(&cpu->addresses_unknown);
    }
    (void)json_object_set_new(document, "repeats", json_integer(repeats));
    (void)json_object_set_new(document, "executed", json_integer(executed));
    (void)json_object_set_new(document, "addresses",
                              json_pack("{s:I, s:I, s:I, s:I}", "checked", checked, "wrong", wrong,
                                        "device", device, "unknown", unknown));
}

json_t *tc_report_build(const struct tc_softpmu_page *page)
{
    uint32_t state = atomic_load_explicit(&page->state, memory_order_acquire);
    if (state == TC_SOFTPMU_FAILED)
        return json_pack("{s:s, s:s?}", "error", page->message, "errno",
                         strerrorname_np(page->error));
    json_t *variants = json_array();
    json_t *events = json_array();
    for (uint32_t v = 0; v < page->variants; v++)
        (void)json_array_append_new(variants, json_string(page->variant_names[v]));
    for (uint32_t e = 0; e < page->events; e++)
        (void)json_array_append_new(events, build_event(page, e));
    json_t *document =
        json_pack("{s:s, s:b, s:o, s:i, s:b, s:o}", "machine", page->machine, "ended",
                  state == TC_SOFTPMU_ENDED, "variants", variants, "cpus", (int)page->cpus,
                  "whole_system", (int)page->whole_system, "events", events);
    if (document != NULL)
        add_totals(document, page);
    return document;
}
