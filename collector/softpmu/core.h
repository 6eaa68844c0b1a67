/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The simulated CPUs: L1 caches, branch predictor and private L2 of each, and what connects them.
 *
 * Every function that takes a core is for that core's own thread; cores run concurrently. An access
 * that hits the L1 caches, or the own L2 in all variants, takes no lock. Hot paths are inline.
 *
 * Protocol between threads. Who goes out to the bus holds the lock of the line's stripe; all lines
 * of a set of any cache belong to one stripe, so that victims are under the same lock. Snooping
 * changes the other CPUs' L2 words first and their L1 words afterwards, by compare-and-swap. A fill
 * of an L1 from the own L2 stores the L1 word first and looks at the L2's again afterwards: either
 * the snoop sees the L1's word or the fill sees that the L2's has changed, and starts again under
 * the lock. A modified L1 line goes to the L2 by the reverse order: L2 word first, then the L1's.
 */
#ifndef TC_SOFTPMU_CORE_H
#define TC_SOFTPMU_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "collector/softpmu/cache.h"
#include "collector/softpmu/machine.h"
#include "collector/softpmu/predictor.h"
#include "collector/softpmu/recent.h"
#include "collector/softpmu/slots.h"

#define TC_STRIPES_MAX 64

struct tc_hierarchy;

struct tc_core {
    _Alignas(64) _Atomic uint64_t *_Atomic counters; /* of the present mode */
    struct tc_recent recent_data;
    struct tc_recent recent_code;
    uint64_t line_bytes;
    uint32_t line_shift;
    bool alone; /* the machine's only CPU */
    uint32_t id;
    struct tc_cache l1d;
    struct tc_cache l1i;
    struct tc_predictor predictor;
    struct tc_hierarchy *hierarchy;
    _Atomic uint64_t *modes; /* counters of mode m begin at m * slots */
    struct tc_cache l2[TC_SOFTPMU_VARIANTS_MAX];
};

struct tc_stripe {
    _Alignas(64) pthread_mutex_t lock;
};

struct tc_hierarchy {
    uint32_t cpus;
    uint32_t variants;
    uint32_t slots; /* per mode */
    uint64_t owned; /* TC_LINE_OWNED's bits of the variants there are */
    uint64_t stripe_mask;
    struct tc_core *core;
    struct tc_cache llc[TC_SOFTPMU_VARIANTS_MAX]; /* words NULL: no LLC */
    struct tc_stripe stripe[TC_STRIPES_MAX];
};

/* How many counters a CPU needs per mode: TC_SLOT_SHARED + variants x TC_VSLOTS. */
uint32_t tc_machine_slots(const struct tc_machine *machine);

/* cpus: 1 or more. The machine is not kept. -ENOMEM. Free it with tc_hierarchy_free. */
TC_MUST_CHECK int tc_hierarchy_new(const struct tc_machine *machine, uint32_t cpus,
                                   struct tc_hierarchy **out, struct tc_error *err);
void tc_hierarchy_free(struct tc_hierarchy *hierarchy); /* accepts NULL */

/* Gives every core its counters: TC_SOFTPMU_MODES x tc_machine_slots of them, as in the page.
 * Before any access. Starts in user mode. */
void tc_core_bind(struct tc_hierarchy *hierarchy, uint32_t cpu, _Atomic uint64_t *counters);

static inline struct tc_core *tc_hierarchy_core(struct tc_hierarchy *hierarchy, uint32_t cpu)
{
    return &hierarchy->core[cpu];
}

static inline void tc_core_set_mode(struct tc_core *core, enum tc_softpmu_mode mode)
{
    atomic_store_explicit(&core->counters, core->modes + (uint64_t)mode * core->hierarchy->slots,
                          memory_order_relaxed);
}

/* Of the present mode, by enum tc_slot. */
static inline _Atomic uint64_t *tc_core_counters(const struct tc_core *core)
{
    return atomic_load_explicit(&core->counters, memory_order_relaxed);
}

/* Adds to a counter that only its owner stores to. On x86 one instruction, as whole as a load and a
 * store, which compilers do not make of them. */
static inline void tc_core_add(_Atomic uint64_t *counter, uint64_t n)
{
#if defined(__x86_64__) && defined(NDEBUG)
    __asm__("addq %1, %0" : "+m"(*counter) : "er"(n) : "cc");
#else
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
#endif
}

static inline void tc_core_count(struct tc_core *core, uint32_t slot, uint64_t n)
{
    tc_core_add(&tc_core_counters(core)[slot], n);
}

/* What the inline functions below leave to: the L1 has the line not, or not to write to. Each
 * returns the line's place in the L1 then. */
_Atomic uint64_t *tc_core_load_miss(struct tc_core *core, uint64_t line);
_Atomic uint64_t *tc_core_fetch_miss(struct tc_core *core, uint64_t line);
_Atomic uint64_t *tc_core_store_rarely(struct tc_core *core, uint64_t line,
                                       _Atomic uint64_t *place);

/* An access to a line. Returns its place in the L1. */
static inline _Atomic uint64_t *tc_core_load_one(struct tc_core *core, uint64_t line)
{
    _Atomic uint64_t *place = tc_cache_use(&core->l1d, line);
    return place != NULL ? place : tc_core_load_miss(core, line);
}

static inline _Atomic uint64_t *tc_core_store_one(struct tc_core *core, uint64_t line)
{
    _Atomic uint64_t *place = tc_cache_use(&core->l1d, line);
    if (place != NULL && (atomic_load_explicit(place, memory_order_relaxed) & TC_LINE_MODIFIED))
        return place;
    return tc_core_store_rarely(core, line, place);
}

static inline _Atomic uint64_t *tc_core_fetch_one(struct tc_core *core, uint64_t line)
{
    _Atomic uint64_t *place = tc_cache_use(&core->l1i, line);
    return place != NULL ? place : tc_core_fetch_miss(core, line);
}

/* After an access to the line, which is at that place, and which the program reaches at that
 * address: the shortcut is open. */
static inline void tc_core_remember(const struct tc_core *core, const struct tc_recent *recent,
                                    const _Atomic uint64_t *place, uint64_t line, uint64_t address)
{
    struct tc_recent_line *entry = tc_recent_at(recent, address);
    uint64_t begin = address & ~(core->line_bytes - 1);
    uint64_t word = atomic_load_explicit(place, memory_order_relaxed);
    uint64_t load = tc_line_is(word, line) ? begin : TC_RECENT_NONE;
    uint64_t store = word & TC_LINE_MODIFIED ? load : TC_RECENT_NONE;
    if (core->alone) {
        atomic_store_explicit(&entry->load, load, memory_order_relaxed);
        atomic_store_explicit(&entry->store, store, memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&entry->store, store, memory_order_relaxed);
    atomic_store(&entry->load, load);
    /* A snoop changes the word first and empties the entry afterwards. */
    if (atomic_load_explicit(place, memory_order_relaxed) != word)
        tc_recent_forget(recent, address);
}

/* Data accesses by physical address, bytes >= 1, within one page: touch every line they reach into.
 * They count what happens in the caches; TC_SLOT_LOADS and the like are the caller's. */
static inline void tc_core_load(struct tc_core *core, uint64_t address, uint32_t bytes)
{
    uint64_t line = address >> core->line_shift;
    uint64_t last = (address + bytes - 1) >> core->line_shift;
    (void)tc_core_load_one(core, line);
    while (__builtin_expect(line != last, 0)) {
        tc_core_count(core, TC_SLOT_SPLITS, 1);
        (void)tc_core_load_one(core, ++line);
    }
}

static inline void tc_core_store(struct tc_core *core, uint64_t address, uint32_t bytes)
{
    uint64_t line = address >> core->line_shift;
    uint64_t last = (address + bytes - 1) >> core->line_shift;
    (void)tc_core_store_one(core, line);
    while (__builtin_expect(line != last, 0)) {
        tc_core_count(core, TC_SLOT_SPLITS, 1);
        (void)tc_core_store_one(core, ++line);
    }
}

/* Instruction fetch from the line that holds the physical address. */
static inline void tc_core_fetch(struct tc_core *core, uint64_t address)
{
    (void)tc_core_fetch_one(core, address >> core->line_shift);
}

/* A branch that has executed. target: where it went, if taken. */
void tc_core_branch(struct tc_core *core, struct tc_branch *branch, bool taken, uint64_t target);

/* The same for a conditional branch that the BTB has where it had it last: most. False, and nothing
 * done: this one it has not. */
static inline bool tc_core_conditional(struct tc_core *core, struct tc_branch *branch, bool taken)
{
    struct tc_btb_set *set = tc_predictor_set(&core->predictor, branch->address);
    uint32_t way = tc_btb_last_way(&core->predictor, branch);
    if (set->tag[way] != branch->address)
        return false;
    tc_btb_use(set, way);
    tc_core_count(core, TC_SLOT_BRANCHES + tc_predictor_learn(&core->predictor, set, way, taken),
                  1);
    return true;
}

#endif
