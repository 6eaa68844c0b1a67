/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/bus.h"

static pthread_mutex_t *stripe_of(struct tc_core *core, uint64_t line)
{
    return &core->hierarchy->stripe[line & core->hierarchy->stripe_mask].lock;
}

/* A CPU alone needs no lock. A default mutex taken by its own thread cannot fail. */
void tc_bus_lock(struct tc_core *core, uint64_t line)
{
    if (core->hierarchy->cpus > 1)
        pthread_mutex_lock(stripe_of(core, line));
}

void tc_bus_unlock(struct tc_core *core, uint64_t line)
{
    if (core->hierarchy->cpus > 1)
        pthread_mutex_unlock(stripe_of(core, line));
}

/* Counts on the CPU that was snooped, whose thread runs: these slots are only ever added to so. */
static void count_snooped(struct tc_core *snooped, uint32_t slot)
{
    atomic_fetch_add_explicit(&atomic_load_explicit(&snooped->counters, memory_order_relaxed)[slot],
                              1, memory_order_relaxed);
}

/* Takes ownership, or the whole line, away. Returns the word that was there; 0: not there. */
static uint64_t take(const struct tc_cache *cache, uint64_t line, uint64_t state, bool invalidate)
{
    _Atomic uint64_t *place = tc_cache_find(cache, line);
    if (place == NULL)
        return 0;
    uint64_t word = atomic_load(place);
    for (;;) {
        if (!tc_line_is(word, line))
            return 0;
        uint64_t left = invalidate ? 0 : word & ~state;
        if (left == word || atomic_compare_exchange_weak(place, &word, left))
            return word;
    }
}

static void count_answer(struct tc_core *snooped, uint32_t variant, uint64_t l2_word, bool shared,
                         bool modified)
{
    uint32_t first = TC_SLOT_SHARED + variant * TC_VSLOTS;
    if (modified)
        count_snooped(snooped, first + TC_VSLOT_SNOOPED_HITM);
    else if (shared)
        count_snooped(snooped, first + TC_VSLOT_SNOOPED_HIT);
    if (!shared && l2_word != 0) {
        count_snooped(snooped, first + TC_VSLOT_SNOOPED_L2_OUT);
        if (l2_word & TC_LINE_MODIFIED)
            count_snooped(snooped, first + TC_VSLOT_SNOOPED_L2_M_OUT);
    }
}

static struct tc_snoop snoop_one(struct tc_core *snooped, uint64_t line, uint64_t variants,
                                 bool invalidate)
{
    struct tc_snoop answer = {0};
    uint64_t l2_word[TC_SOFTPMU_VARIANTS_MAX] = {0};
    uint32_t count = snooped->hierarchy->variants;
    /* The L2s first: see core.h for what depends on it. */
    for (uint32_t v = 0; v < count; v++) {
        if (variants >> v & 1) {
            l2_word[v] = take(&snooped->l2[v], line, TC_LINE_MODIFIED | TC_LINE_OWNED, invalidate);
        }
    }
    uint64_t l1d_word = take(&snooped->l1d, line, TC_LINE_MODIFIED | variants, invalidate);
    uint64_t l1i_word = take(&snooped->l1i, line, 0, invalidate);
    if (l1d_word != 0)
        tc_recent_forget(&snooped->recent_data, line << snooped->line_shift);
    if (l1i_word != 0)
        tc_recent_forget(&snooped->recent_code, line << snooped->line_shift);
    if (l1d_word & TC_LINE_MODIFIED)
        count_snooped(snooped, TC_SLOT_SNOOPED_L1D_M_OUT);
    for (uint32_t v = 0; v < count; v++) {
        uint64_t bit = UINT64_C(1) << v;
        if ((variants & bit) == 0)
            continue;
        bool modified = (l2_word[v] | l1d_word) & TC_LINE_MODIFIED;
        bool shared = !invalidate && (l2_word[v] | l1d_word | l1i_word) != 0;
        count_answer(snooped, v, l2_word[v], shared, modified);
        answer.modified |= modified ? bit : 0;
        answer.shared |= shared ? bit : 0;
    }
    return answer;
}

struct tc_snoop tc_bus_snoop(struct tc_core *core, uint64_t line, uint64_t variants,
                             bool invalidate)
{
    struct tc_snoop answer = {0};
    struct tc_hierarchy *hierarchy = core->hierarchy;
    for (uint32_t cpu = 0; cpu < hierarchy->cpus; cpu++) {
        if (cpu == core->id)
            continue;
        struct tc_snoop one = snoop_one(&hierarchy->core[cpu], line, variants, invalidate);
        answer.shared |= one.shared;
        answer.modified |= one.modified;
    }
    return answer;
}

static void llc_fill(struct tc_core *core, uint32_t variant, uint64_t line, uint64_t state)
{
    _Atomic uint64_t *place = tc_cache_replace(&core->hierarchy->llc[variant], line);
    if (atomic_load_explicit(place, memory_order_relaxed) & TC_LINE_MODIFIED)
        tc_bus_count(core, variant, TC_VSLOT_LLC_M_OUT);
    atomic_store_explicit(place, tc_line_key(line) | state, memory_order_relaxed);
}

void tc_bus_read(struct tc_core *core, uint32_t variant, uint64_t line)
{
    struct tc_cache *llc = &core->hierarchy->llc[variant];
    if (llc->words == NULL || tc_cache_use(llc, line) != NULL)
        return;
    tc_bus_count(core, variant, TC_VSLOT_LLC_MISSES);
    llc_fill(core, variant, line, 0);
}

void tc_bus_write(struct tc_core *core, uint32_t variant, uint64_t line)
{
    struct tc_cache *llc = &core->hierarchy->llc[variant];
    if (llc->words == NULL)
        return;
    _Atomic uint64_t *place = tc_cache_find(llc, line);
    if (place == NULL)
        llc_fill(core, variant, line, TC_LINE_MODIFIED);
    else
        atomic_store_explicit(place, tc_line_key(line) | TC_LINE_MODIFIED, memory_order_relaxed);
}
