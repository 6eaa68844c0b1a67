#include "collector/tests/softpmu_models.h"

#include <stdlib.h>
#include <string.h>

#include "collector/softpmu/timing.h"
#include "collector/tests/check.h"

struct tc_machine models_machine(const char *name, const char *variant)
{
    char path[512];
    struct tc_machine machine;
    struct tc_error err = {""};
    (void)snprintf(path, sizeof(path), "%s/%s.json", TC_MACHINES_DIR, name);
    if (tc_machine_load(path, variant, &machine, &err) != 0) {
        fail_msg("%s", err.message);
    }
    return machine;
}

struct tc_machine models_small_machine(void)
{
    struct tc_machine machine = models_machine("p3-xeon", NULL);
    machine.l1i.bytes = 1024;
    machine.l1i.ways = 2;
    machine.l1d.bytes = 1024;
    machine.l1d.ways = 2;
    for (uint32_t v = 0; v < machine.variants; v++) {
        machine.variant[v].l2_bytes = UINT64_C(4096) << v;
    }
    return machine;
}

struct tc_machine models_only(struct tc_machine machine, uint32_t variant)
{
    machine.variant[0] = machine.variant[variant];
    machine.variants = 1;
    return machine;
}

struct models models_new(const struct tc_machine *machine, uint32_t cpus)
{
    struct models models;
    struct tc_error err = {""};
    size_t header = (sizeof(struct tc_softpmu_page) + 63) / 64 * 64;
    size_t block = sizeof(struct tc_softpmu_cpu) +
                   (size_t)TC_SOFTPMU_MODES * tc_machine_slots(machine) * sizeof(uint64_t);
    size_t stride = (block + 63) / 64 * 64;
    models.page = aligned_alloc(64, header + cpus * stride);
    assert_non_null(models.page);
    memset(models.page, 0, header + cpus * stride);
    models.page->cpus = cpus;
    models.page->cpus_offset = header;
    models.page->cpu_stride = stride;
    tc_timing_describe(machine, models.page);
    if (tc_hierarchy_new(machine, cpus, &models.hierarchy, &err) != 0) {
        fail_msg("%s", err.message);
    }
    for (uint32_t cpu = 0; cpu < cpus; cpu++) {
        tc_core_bind(models.hierarchy, cpu, tc_softpmu_page_cpu(models.page, cpu)->counters);
    }
    return models;
}

void models_free(struct models *models)
{
    tc_hierarchy_free(models->hierarchy);
    free(models->page);
}

uint64_t models_event(const struct models *models, uint32_t cpu, uint32_t variant, const char *name)
{
    for (uint32_t event = 0; event < models->page->events; event++) {
        if (strcmp(models->page->event[event].name, name) == 0) {
            return tc_softpmu_page_value(models->page, event, cpu, TC_SOFTPMU_USER, variant) +
                   tc_softpmu_page_value(models->page, event, cpu, TC_SOFTPMU_KERNEL, variant);
        }
    }
    fail_msg("no event %s", name);
    return 0;
}

uint64_t models_total(const struct models *models, uint32_t variant, const char *name)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < models->page->cpus; cpu++) {
        sum += models_event(models, cpu, variant, name);
    }
    return sum;
}

static uint64_t word_of(const struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *place = tc_cache_find(cache, line);
    return place != NULL ? atomic_load(place) : 0;
}

void models_check_coherence(const struct models *models, uint64_t lines)
{
    uint32_t cpus = models->page->cpus;
    for (uint64_t line = 0; line < lines; line++) {
        for (uint32_t v = 0; v < models->page->variants; v++) {
            uint32_t holders = 0;
            uint32_t owners = 0;
            for (uint32_t cpu = 0; cpu < cpus; cpu++) {
                const struct tc_core *core = models_core(models, cpu);
                uint64_t data = word_of(&core->l1d, line);
                uint64_t code = word_of(&core->l1i, line);
                uint64_t l2 = word_of(&core->l2[v], line);
                holders += (data | code | l2) != 0;
                owners += (data >> v & 1) != 0 || (l2 & TC_LINE_OWNED) != 0;
                assert_false((data & TC_LINE_MODIFIED) && code != 0);
                assert_false((data & TC_LINE_MODIFIED) && !(data >> v & 1));
                assert_false((l2 & TC_LINE_MODIFIED) && !(l2 & TC_LINE_OWNED));
            }
            assert_true(owners == 0 || (owners == 1 && holders == 1));
        }
    }
}

uint64_t models_held(const struct tc_cache *cache)
{
    uint64_t held = 0;
    for (uint64_t i = 0; i < (cache->set_mask + 1) << cache->stride_shift; i++) {
        held += atomic_load(&cache->words[i]) != 0;
    }
    return held;
}

uint64_t models_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}
