/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The branch predictor of the P6 family: a branch target buffer (BTB) whose entries hold a local
 * history and the two-bit counters that it selects; static prediction for branches that are not in
 * it; a return stack; indirect branches go where they went last. Belongs to one CPU's thread. */
#ifndef TC_SOFTPMU_PREDICTOR_H
#define TC_SOFTPMU_PREDICTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/machine.h"
#include "collector/softpmu/recency.h"
#include "collector/softpmu/slots.h"

#define TC_BTB_WAYS_MAX     TC_RECENCY_WAYS /* a set is one cache line of the host */
#define TC_HISTORY_BITS_MAX 4

enum tc_branch_kind {
    TC_BRANCH_CONDITIONAL,
    TC_BRANCH_JUMP,
    TC_BRANCH_CALL,
    TC_BRANCH_INDIRECT_JUMP,
    TC_BRANCH_INDIRECT_CALL,
    TC_BRANCH_RETURN,
    TC_BRANCH_FAR, /* far transfers, system calls, returns from interrupts: never predicted */
    TC_BRANCH_KINDS
};

/* What is known of a branch before it executes. Addresses are compared, never followed: any
 * address space will do if all are of the same one. */
struct tc_branch {
    uint64_t address;      /* of the instruction's last byte; the next instruction is behind it */
    _Atomic uint32_t ways; /* by CPU, 2 bits: where its BTB had the branch last; only a hint */
    uint8_t kind;          /* enum tc_branch_kind */
    bool backward;         /* target <= address; matters for conditional ones */
};

/* In place of a way: the branch is not in the set. */
#define TC_BTB_NOWHERE TC_BTB_WAYS_MAX

struct tc_btb_set {
    _Alignas(64) uint64_t tag[TC_BTB_WAYS_MAX]; /* address; all bits set: none */
    uint32_t counters[TC_BTB_WAYS_MAX];         /* 2 bits per history, >= 2 predicts taken */
    uint8_t history[TC_BTB_WAYS_MAX];           /* outcomes, the latest in bit 0; times 2 */
    uint8_t order;                              /* see recency.h */
};

struct tc_predictor {
    struct tc_btb_set *sets;
    uint64_t *targets; /* [set * TC_BTB_WAYS_MAX + way]: where the branch went last */
    uint64_t *stack;   /* return addresses, a ring */
    uint64_t set_mask;
    uint32_t index_shift;
    uint32_t ways_shift;   /* of tc_branch.ways */
    uint32_t last_way;     /* ways - 1 */
    uint32_t history_mask; /* times 2 */
    uint32_t stack_entries;
    uint32_t stack_top; /* next free place */
    uint32_t stack_used;
};

/* cpu: whose it is. -ENOMEM. */
TC_MUST_CHECK int tc_predictor_init(struct tc_predictor *predictor, uint32_t cpu,
                                    const struct tc_machine_predictor *geometry);
void tc_predictor_free(struct tc_predictor *predictor);

static inline struct tc_btb_set *tc_predictor_set(const struct tc_predictor *predictor,
                                                  uint64_t address)
{
    return &predictor->sets[address >> predictor->index_shift & predictor->set_mask];
}

static inline void tc_btb_use(struct tc_btb_set *set, uint32_t way)
{
    set->order = tc_recency_after[set->order][way];
}

/* What a two-bit counter makes of an outcome, by counter | taken << 2: which of its bits flip, and
 * above them the TC_BRANCH_ bits. A table, as the host would mispredict such branches. */
static const uint8_t tc_predictor_steps[8] = {0,
                                              1,
                                              3 | TC_BRANCH_MISPREDICTED << 2,
                                              1 | TC_BRANCH_MISPREDICTED << 2,
                                              1 | (TC_BRANCH_TAKEN | TC_BRANCH_MISPREDICTED) << 2,
                                              3 | (TC_BRANCH_TAKEN | TC_BRANCH_MISPREDICTED) << 2,
                                              1 | TC_BRANCH_TAKEN << 2,
                                              TC_BRANCH_TAKEN << 2};

/* A conditional branch's entry learns. Returns how the branch went. */
static inline unsigned tc_predictor_learn(const struct tc_predictor *predictor,
                                          struct tc_btb_set *set, uint32_t way, bool taken)
{
    uint32_t history = set->history[way];
    uint32_t counters = set->counters[way];
    unsigned step = tc_predictor_steps[(counters >> history & 3) | (uint32_t)taken << 2];
    set->counters[way] = counters ^ (step & 3) << history;
    set->history[way] = (uint8_t)((history + taken) << 1 & predictor->history_mask);
    return step >> 2;
}

static inline void tc_btb_remember(const struct tc_predictor *predictor, struct tc_branch *branch,
                                   uint32_t way)
{
    uint32_t ways = atomic_load_explicit(&branch->ways, memory_order_relaxed);
    uint32_t others = ways & ~(UINT32_C(3) << predictor->ways_shift);
    atomic_store_explicit(&branch->ways, others | way << predictor->ways_shift,
                          memory_order_relaxed);
}

static inline uint32_t tc_btb_last_way(const struct tc_predictor *predictor,
                                       struct tc_branch *branch)
{
    return atomic_load_explicit(&branch->ways, memory_order_relaxed) >> predictor->ways_shift & 3;
}

/* The branch's way, which becomes the latest used; or TC_BTB_NOWHERE. */
static inline uint32_t tc_btb_look_up(const struct tc_predictor *predictor, struct tc_btb_set *set,
                                      struct tc_branch *branch)
{
    uint32_t way = tc_btb_last_way(predictor, branch);
    if (set->tag[way] != branch->address) {
        way = TC_BTB_NOWHERE - (4 * (uint32_t)(set->tag[0] == branch->address) +
                                3 * (uint32_t)(set->tag[1] == branch->address) +
                                2 * (uint32_t)(set->tag[2] == branch->address) +
                                (uint32_t)(set->tag[3] == branch->address));
        if (way == TC_BTB_NOWHERE)
            return way;
        tc_btb_remember(predictor, branch, way);
    }
    tc_btb_use(set, way);
    return way;
}

/* Predicts the branch, compares with what it did, learns; target: where it went, if taken. Returns
 * how it went. */
unsigned tc_predictor_resolve(struct tc_predictor *predictor, struct tc_branch *branch, bool taken,
                              uint64_t target);

#endif
