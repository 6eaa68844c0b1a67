/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collector/softpmu/bus.h"

enum request { LOAD, STORE, FETCH };

/* Changes of words that other CPUs may change, too; a CPU alone is spared the host's barriers. */
static void put(const struct tc_core *core, _Atomic uint64_t *place, uint64_t word)
{
    if (core->alone)
        atomic_store_explicit(place, word, memory_order_relaxed);
    else
        atomic_store(place, word);
}

static bool swap(const struct tc_core *core, _Atomic uint64_t *place, uint64_t *old, uint64_t word)
{
    if (!core->alone)
        return atomic_compare_exchange_strong(place, old, word);
    atomic_store_explicit(place, word, memory_order_relaxed);
    return true;
}

static uint64_t exchange(const struct tc_core *core, _Atomic uint64_t *place, uint64_t word)
{
    if (!core->alone)
        return atomic_exchange(place, word);
    uint64_t old = atomic_load_explicit(place, memory_order_relaxed);
    atomic_store_explicit(place, word, memory_order_relaxed);
    return old;
}

/* The L1D may write to the line from now on, so the L1I must not hold it. */
static void drop_from_l1i(struct tc_core *core, uint64_t line)
{
    _Atomic uint64_t *place = tc_cache_find(&core->l1i, line);
    if (place != NULL) {
        put(core, place, 0);
        tc_recent_forget(&core->recent_code, line << core->line_shift);
    }
}

/* Makes room in the L2 and puts the line there. Under the lock. */
static void put_in_l2(struct tc_core *core, uint32_t v, uint64_t line, uint64_t state)
{
    _Atomic uint64_t *place = tc_cache_replace(&core->l2[v], line);
    uint64_t old = atomic_load_explicit(place, memory_order_relaxed);
    if (old != 0)
        tc_bus_count(core, v, TC_VSLOT_L2_OUT);
    if (old & TC_LINE_MODIFIED) {
        tc_bus_count(core, v, TC_VSLOT_BUS_WB);
        tc_bus_write(core, v, old >> TC_LINE_SHIFT);
    }
    put(core, place, tc_line_key(line) | state);
}

/* A modified line of the L1D goes to the L2s, which become modified. Under the lock. */
static void write_back(struct tc_core *core, uint64_t line)
{
    for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
        _Atomic uint64_t *place = tc_cache_find(&core->l2[v], line);
        uint64_t state = TC_LINE_OWNED | TC_LINE_MODIFIED;
        if (place == NULL) {
            put_in_l2(core, v, line, state);
            tc_bus_count(core, v, TC_VSLOT_L2_WB_IN);
            tc_bus_count(core, v, TC_VSLOT_L2_M_IN);
        } else if (!(exchange(core, place, tc_line_key(line) | state) & TC_LINE_MODIFIED)) {
            tc_bus_count(core, v, TC_VSLOT_L2_M_IN);
        }
    }
    tc_core_count(core, TC_SLOT_L1D_M_OUT, 1);
}

/* The same without the lock, into L2s that all own the line; false: they do not (any more). */
static bool write_back_unlocked(struct tc_core *core, uint64_t line)
{
    for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
        _Atomic uint64_t *place = tc_cache_find(&core->l2[v], line);
        if (place == NULL)
            return false;
        uint64_t word = atomic_load(place);
        if (!tc_line_is(word, line) || !(word & TC_LINE_OWNED))
            return false;
        if (word & TC_LINE_MODIFIED)
            continue;
        if (!swap(core, place, &word, word | TC_LINE_MODIFIED))
            return false;
        tc_bus_count(core, v, TC_VSLOT_L2_M_IN);
    }
    return true;
}

/* Puts a word in the place of a clean or modified L1 line. False: not possible without the lock. */
static bool replace_unlocked(struct tc_core *core, _Atomic uint64_t *place, uint64_t word)
{
    uint64_t old = atomic_load_explicit(place, memory_order_relaxed);
    if (!(old & TC_LINE_MODIFIED)) {
        put(core, place, word);
        return true;
    }
    if (!write_back_unlocked(core, old >> TC_LINE_SHIFT) || !swap(core, place, &old, word))
        return false;
    tc_core_count(core, TC_SLOT_L1D_M_OUT, 1);
    return true;
}

/* Fills the L1's place from the own L2s, if all of them have the line, without the lock. */
static bool fill_unlocked(struct tc_core *core, uint64_t line, enum request request,
                          _Atomic uint64_t *place)
{
    _Atomic uint64_t *source[TC_SOFTPMU_VARIANTS_MAX];
    uint64_t seen[TC_SOFTPMU_VARIANTS_MAX];
    uint64_t word = tc_line_key(line);
    uint32_t variants = core->hierarchy->variants;
    for (uint32_t v = 0; v < variants; v++) {
        source[v] = tc_cache_use(&core->l2[v], line);
        if (source[v] == NULL)
            return false;
        seen[v] = atomic_load(source[v]);
        if (!tc_line_is(seen[v], line))
            return false;
        if (request != FETCH && (seen[v] & TC_LINE_OWNED))
            word |= UINT64_C(1) << v;
    }
    if (request == STORE && (word & core->hierarchy->owned) != core->hierarchy->owned)
        return false;
    if (request == FETCH) {
        _Atomic uint64_t *data = tc_cache_find(&core->l1d, line);
        if (data != NULL && (atomic_load(data) & TC_LINE_MODIFIED))
            return false;
    }
    if (!replace_unlocked(core, place, word))
        return false;
    for (uint32_t v = 0; v < variants; v++) {
        if (atomic_load(source[v]) != seen[v]) {
            put(core, place, 0);
            return false;
        }
    }
    if (request == STORE) {
        if (!swap(core, place, &word, word | TC_LINE_MODIFIED))
            return false;
        drop_from_l1i(core, line);
    }
    return true;
}

/* Which variants need the bus: a bit each. What the own L2s have becomes the latest used. */
static uint64_t look_in_l2(struct tc_core *core, uint64_t line, enum request request,
                           uint64_t *present, uint64_t *owned)
{
    *present = 0;
    *owned = 0;
    for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
        _Atomic uint64_t *place = tc_cache_use(&core->l2[v], line);
        if (place == NULL)
            continue;
        *present |= UINT64_C(1) << v;
        if (atomic_load(place) & TC_LINE_OWNED)
            *owned |= UINT64_C(1) << v;
    }
    return core->hierarchy->owned & ~(request == STORE ? *owned : *present);
}

static const enum tc_variant_slot read_kind[] = {
    [LOAD] = TC_VSLOT_BUS_BRD, [STORE] = TC_VSLOT_BUS_RFO, [FETCH] = TC_VSLOT_BUS_IFETCH};

/* One variant's transaction after the snoop. Returns whether the line is owned now. */
static bool transact(struct tc_core *core, uint32_t v, uint64_t line, enum request request,
                     bool present, const struct tc_snoop *answer)
{
    bool owned = request == STORE || !(answer->shared >> v & 1);
    bool hitm = answer->modified >> v & 1;
    tc_bus_count(core, v, present ? TC_VSLOT_BUS_INVAL : read_kind[request]);
    if (present) {
        atomic_fetch_or(tc_cache_find(&core->l2[v], line), TC_LINE_OWNED);
        return owned;
    }
    if (hitm) {
        tc_bus_count(core, v, TC_VSLOT_HITM);
        tc_bus_write(core, v, line);
    } else {
        tc_bus_read(core, v, line);
    }
    put_in_l2(core, v, line, owned ? TC_LINE_OWNED : 0);
    return owned;
}

/* A line about to be fetched, which the own L1D may have modified. Under the lock. */
static void give_up_to_fetch(struct tc_core *core, uint64_t line)
{
    _Atomic uint64_t *data = tc_cache_find(&core->l1d, line);
    if (data != NULL && (atomic_load(data) & TC_LINE_MODIFIED)) {
        write_back(core, line);
        atomic_fetch_and(data, ~TC_LINE_MODIFIED);
        tc_recent_forget(&core->recent_data, line << core->line_shift);
    }
}

static void fill_locked(struct tc_core *core, uint64_t line, enum request request,
                        _Atomic uint64_t *place)
{
    if (request == FETCH)
        give_up_to_fetch(core, line);
    uint64_t present;
    uint64_t owned;
    uint64_t out = look_in_l2(core, line, request, &present, &owned);
    if (out != 0) {
        struct tc_snoop answer = tc_bus_snoop(core, line, out, request == STORE);
        for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
            if ((out >> v & 1) && transact(core, v, line, request, present >> v & 1, &answer))
                owned |= UINT64_C(1) << v;
        }
    }
    uint64_t old = atomic_load(place);
    if ((old & TC_LINE_MODIFIED) && !tc_line_is(old, line))
        write_back(core, old >> TC_LINE_SHIFT);
    uint64_t state = request == FETCH ? 0 : owned;
    put(core, place, tc_line_key(line) | state | (request == STORE ? TC_LINE_MODIFIED : 0));
    if (request == STORE)
        drop_from_l1i(core, line);
}

/* The same for a CPU alone, which owns all it has: nobody is asked, nothing looked at again. */
static inline __attribute__((always_inline)) void
fill_alone(struct tc_core *core, uint64_t line, enum request request, _Atomic uint64_t *place)
{
    uint64_t old = atomic_load_explicit(place, memory_order_relaxed);
    if (request == FETCH)
        give_up_to_fetch(core, line);
    for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
        if (tc_cache_use(&core->l2[v], line) != NULL)
            continue;
        tc_bus_count(core, v, read_kind[request]);
        tc_bus_read(core, v, line);
        put_in_l2(core, v, line, TC_LINE_OWNED);
    }
    if (old & TC_LINE_MODIFIED)
        write_back(core, old >> TC_LINE_SHIFT);
    uint64_t state = request == FETCH ? 0 : core->hierarchy->owned;
    put(core, place, tc_line_key(line) | state | (request == STORE ? TC_LINE_MODIFIED : 0));
    if (request == STORE)
        drop_from_l1i(core, line);
}

static inline __attribute__((always_inline)) _Atomic uint64_t *
miss(struct tc_core *core, uint64_t line, enum request request)
{
    static const uint32_t misses[] = {[LOAD] = TC_SLOT_L1D_LOAD_MISSES,
                                      [STORE] = TC_SLOT_L1D_STORE_MISSES,
                                      [FETCH] = TC_SLOT_L1I_MISSES};
    tc_core_count(core, misses[request], 1);
    for (uint32_t v = 0; v < core->hierarchy->variants; v++)
        tc_cache_prefetch(&core->l2[v], line);
    struct tc_cache *l1 = request == FETCH ? &core->l1i : &core->l1d;
    _Atomic uint64_t *place = tc_cache_replace(l1, line);
    if (core->alone) {
        fill_alone(core, line, request, place);
    } else if (!fill_unlocked(core, line, request, place)) {
        tc_bus_lock(core, line);
        fill_locked(core, line, request, place);
        tc_bus_unlock(core, line);
    }
    return place;
}

/* A store to a line that the L1D holds, and other CPUs may, too. False: it has just lost the line.
 */
static bool upgrade(struct tc_core *core, uint64_t line, _Atomic uint64_t *place)
{
    tc_bus_lock(core, line);
    uint64_t word = atomic_load(place);
    bool here = tc_line_is(word, line);
    if (here) {
        uint64_t out = core->hierarchy->owned & ~word;
        if (out != 0)
            (void)tc_bus_snoop(core, line, out, true);
        for (uint32_t v = 0; v < core->hierarchy->variants; v++) {
            if ((out >> v & 1) == 0)
                continue;
            tc_bus_count(core, v, TC_VSLOT_UPGRADES);
            tc_bus_count(core, v, TC_VSLOT_BUS_INVAL);
            _Atomic uint64_t *l2 = tc_cache_find(&core->l2[v], line);
            if (l2 != NULL)
                atomic_fetch_or(l2, TC_LINE_OWNED);
        }
        put(core, place, tc_line_key(line) | core->hierarchy->owned | TC_LINE_MODIFIED);
        drop_from_l1i(core, line);
    }
    tc_bus_unlock(core, line);
    return here;
}

_Atomic uint64_t *tc_core_load_miss(struct tc_core *core, uint64_t line)
{
    return miss(core, line, LOAD);
}

_Atomic uint64_t *tc_core_fetch_miss(struct tc_core *core, uint64_t line)
{
    return miss(core, line, FETCH);
}

/* place: NULL, or where a line is that is not modified (any more). */
_Atomic uint64_t *tc_core_store_rarely(struct tc_core *core, uint64_t line, _Atomic uint64_t *place)
{
    if (place != NULL) {
        uint64_t owned = tc_line_key(line) | core->hierarchy->owned;
        uint64_t word = owned;
        if (atomic_load_explicit(place, memory_order_relaxed) == owned &&
            swap(core, place, &word, owned | TC_LINE_MODIFIED)) {
            drop_from_l1i(core, line);
            return place;
        }
        if (upgrade(core, line, place))
            return place;
    }
    return miss(core, line, STORE);
}

void tc_core_branch(struct tc_core *core, struct tc_branch *branch, bool taken, uint64_t target)
{
    tc_core_count(
        core, TC_SLOT_BRANCHES + tc_predictor_resolve(&core->predictor, branch, taken, target), 1);
}

uint32_t tc_machine_slots(const struct tc_machine *machine)
{
    return TC_SLOT_SHARED + machine->variants * TC_VSLOTS;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int init_core(struct tc_core *core, const struct tc_machine *machine)
{
    int rc =
        tc_cache_init(&core->l1i, machine->l1i.bytes, machine->l1i.ways, machine->l1i.line_bytes);
    if (rc == 0)
        rc = tc_cache_init(&core->l1d, machine->l1d.bytes, machine->l1d.ways,
                           machine->l1d.line_bytes);
    for (uint32_t v = 0; rc == 0 && v < machine->variants; v++)
        rc = tc_cache_init(&core->l2[v], machine->variant[v].l2_bytes, machine->l2_ways,
                           machine->l1d.line_bytes);
    if (rc == 0)
        rc = tc_predictor_init(&core->predictor, core->id, &machine->predictor);
    if (rc == 0)
        rc = tc_recent_init(&core->recent_data, machine->l1d.bytes / machine->l1d.ways,
                            machine->l1d.line_bytes);
    if (rc == 0)
        rc = tc_recent_init(&core->recent_code, machine->l1i.bytes / machine->l1i.ways,
                            machine->l1i.line_bytes);
    core->line_bytes = machine->l1d.line_bytes;
    core->line_shift = (uint32_t)__builtin_ctz(machine->l1d.line_bytes);
    return rc;
}

static int init_hierarchy(struct tc_hierarchy *hierarchy, const struct tc_machine *machine)
{
    int rc = 0;
    for (uint32_t cpu = 0; rc == 0 && cpu < hierarchy->cpus; cpu++) {
        struct tc_core *core = &hierarchy->core[cpu];
        core->hierarchy = hierarchy;
        core->id = cpu;
        core->alone = hierarchy->cpus == 1;
        rc = init_core(core, machine);
    }
    for (uint32_t v = 0; rc == 0 && machine->has_llc && v < machine->variants; v++)
        rc = tc_cache_init(&hierarchy->llc[v], machine->llc.bytes, machine->llc.ways,
                           machine->llc.line_bytes);
    if (rc != 0)
        return rc;
    /* No stripe may cut through a set of any cache. */
    const struct tc_core *core = &hierarchy->core[0];
    uint64_t mask = least(TC_STRIPES_MAX - 1, least(core->l1d.set_mask, core->l1i.set_mask));
    for (uint32_t v = 0; v < machine->variants; v++) {
        mask = least(mask, core->l2[v].set_mask);
        if (machine->has_llc)
            mask = least(mask, hierarchy->llc[v].set_mask);
    }
    hierarchy->stripe_mask = mask;
    return 0;
}

int tc_hierarchy_new(const struct tc_machine *machine, uint32_t cpus, struct tc_hierarchy **out,
                     struct tc_error *err)
{
    struct tc_hierarchy *hierarchy = aligned_alloc(64, sizeof(*hierarchy));
    if (hierarchy == NULL)
        return tc_error_set(err, ENOMEM, "no memory for the caches of %s", machine->name);
    *hierarchy = (struct tc_hierarchy){
        .cpus = cpus,
        .variants = machine->variants,
        .slots = tc_machine_slots(machine),
        .owned = (UINT64_C(1) << machine->variants) - 1,
        .core = aligned_alloc(64, cpus * sizeof(*hierarchy->core)),
    };
    int stripe_rc = 0;
    for (uint32_t i = 0; i < TC_STRIPES_MAX && stripe_rc == 0; i++)
        stripe_rc = pthread_mutex_init(&hierarchy->stripe[i].lock, NULL);
    int rc = -stripe_rc;
    if (rc == 0 && hierarchy->core == NULL)
        rc = -ENOMEM;
    if (hierarchy->core != NULL) {
        memset(hierarchy->core, 0, cpus * sizeof(*hierarchy->core));
        if (rc == 0)
            rc = init_hierarchy(hierarchy, machine);
    }
    if (rc != 0) {
        tc_hierarchy_free(hierarchy);
        return tc_error_set(err, -rc, "no memory for the caches of %s with %u CPUs", machine->name,
                            cpus);
    }
    *out = hierarchy;
    return 0;
}

void tc_hierarchy_free(struct tc_hierarchy *hierarchy)
{
    if (hierarchy == NULL)
        return;
    for (uint32_t cpu = 0; hierarchy->core != NULL && cpu < hierarchy->cpus; cpu++) {
        struct tc_core *core = &hierarchy->core[cpu];
        tc_cache_free(&core->l1i);
        tc_cache_free(&core->l1d);
        for (uint32_t v = 0; v < hierarchy->variants; v++)
            tc_cache_free(&core->l2[v]);
        tc_predictor_free(&core->predictor);
        tc_recent_free(&core->recent_data);
        tc_recent_free(&core->recent_code);
    }
    for (uint32_t v = 0; v < hierarchy->variants; v++)
        tc_cache_free(&hierarchy->llc[v]);
    for (uint32_t i = 0; i < TC_STRIPES_MAX; i++)
        pthread_mutex_destroy(&hierarchy->stripe[i].lock);
    free(hierarchy->core);
    free(hierarchy);
}

void tc_core_bind(struct tc_hierarchy *hierarchy, uint32_t cpu, _Atomic uint64_t *counters)
{
    hierarchy->core[cpu].modes = counters;
    tc_core_set_mode(&hierarchy->core[cpu], TC_SOFTPMU_USER);
}
