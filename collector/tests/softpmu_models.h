/* The simulated machine's models with a page of counters in memory, for tests. */
#ifndef TC_COLLECTOR_TESTS_SOFTPMU_MODELS_H
#define TC_COLLECTOR_TESTS_SOFTPMU_MODELS_H

#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/core.h"
#include "collector/softpmu/machine.h"
#include "collector/softpmu_page.h"

struct models {
    struct tc_hierarchy *hierarchy;
    struct tc_softpmu_page *page;
};

/* A file of data/machines, in one of its variants (NULL: all). Fails the test if it does not load.
 */
struct tc_machine models_machine(const char *name, const char *variant);

/* Small caches, so that short traces fill them: L1s of 1 KiB in 2 ways, L2s of 4, 8 and 16 KiB. */
struct tc_machine models_small_machine(void);

/* Leaves one variant. */
struct tc_machine models_only(struct tc_machine machine, uint32_t variant);

struct models models_new(const struct tc_machine *machine, uint32_t cpus);
void models_free(struct models *models);

static inline struct tc_core *models_core(const struct models *models, uint32_t cpu)
{
    return tc_hierarchy_core(models->hierarchy, cpu);
}

/* Of one CPU, both modes, and of all CPUs. */
uint64_t models_event(const struct models *models, uint32_t cpu, uint32_t variant,
                      const char *name);
uint64_t models_total(const struct models *models, uint32_t variant, const char *name);

/* Nobody holds what another CPU owns, and an L1I nothing that its L1D has modified. While nothing
 * runs; of lines [0, lines). */
void models_check_coherence(const struct models *models, uint64_t lines);

/* Lines that a cache holds. */
uint64_t models_held(const struct tc_cache *cache);

/* A sequence of numbers that is the same in every run (xorshift). */
uint64_t models_random(uint64_t *state);

#endif
