/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The branch predictor of the P6 family: a branch target buffer (BTB) whose entries hold a local
 * history and the two-bit counters that it selects; static prediction for branches that are not in
 * it; a return stack; indirect branches go where they went last. Belongs to one CPU's thread. */
#ifndef TC_SOFTPMU_PREDICTOR_H
#define TC_SOFTPMU_PREDICTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/machine.h"

#define TC_BTB_WAYS_MAX     4 /* a set is one cache line of the host */
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
    uint64_t address;     /* of the instruction's last byte */
    uint64_t fallthrough; /* of the next instruction: what a call pushes */
    uint8_t kind;         /* enum tc_branch_kind */
    bool backward;        /* target <= address; matters for conditional ones */
};

/* What tc_predictor_resolve returns, or'ed. */
#define TC_BRANCH_MISPREDICTED 1u
#define TC_BRANCH_BTB_MISS     2u

/* In place of a way: the branch is not in the set. */
#define TC_BTB_NOWHERE TC_BTB_WAYS_MAX

struct tc_btb_set {
    _Alignas(64) uint64_t tag[TC_BTB_WAYS_MAX]; /* address; all bits set: none */
    uint32_t counters[TC_BTB_WAYS_MAX];         /* 2 bits per history, >= 2 predicts taken */
    uint8_t history[TC_BTB_WAYS_MAX];           /* outcomes, the latest in bit 0; times 2 */
    uint8_t order; /* ways by recency, the latest in the lowest 2 bits */
};

#define TC_BTB_ORDERS 256

struct tc_predictor {
    struct tc_btb_set *sets;
    uint64_t *targets; /* [set * TC_BTB_WAYS_MAX + way]: where the branch went last */
    uint64_t *stack;   /* return addresses, a ring */
    uint64_t set_mask;
    uint32_t index_shift;
    uint32_t last_way;     /* ways - 1 */
    uint32_t history_mask; /* times 2 */
    uint32_t stack_entries;
    uint32_t stack_top; /* next free place */
    uint32_t stack_used;
    /* An order after the use of a way: a load is faster than working it out. */
    uint8_t used[TC_BTB_ORDERS][TC_BTB_WAYS_MAX];
};

TC_MUST_CHECK int tc_predictor_init(struct tc_predictor *predictor,
                                    const struct tc_machine_predictor *geometry);
void tc_predictor_free(struct tc_predictor *predictor);

static inline struct tc_btb_set *tc_predictor_set(const struct tc_predictor *predictor,
                                                  uint64_t address)
{
    return &predictor->sets[address >> predictor->index_shift & predictor->set_mask];
}

static inline void tc_btb_use(const struct tc_predictor *predictor, struct tc_btb_set *set,
                              uint32_t way)
{
    set->order = predictor->used[set->order][way];
}

/* A conditional branch's entry learns. Returns whether it had predicted wrongly. */
static inline unsigned tc_predictor_learn(const struct tc_predictor *predictor,
                                          struct tc_btb_set *set, uint32_t way, bool taken)
{
    uint32_t history = set->history[way];
    uint32_t counters = set->counters[way];
    uint32_t counter = counters >> history;
    uint32_t up = ~(counter & counter >> 1) & (uint32_t)taken;
    uint32_t down = (counter | counter >> 1) & (uint32_t)!taken;
    set->counters[way] = counters + ((up - down) << history);
    set->history[way] = (uint8_t)((history << 1 | (uint32_t)taken << 1) & predictor->history_mask);
    return (counter >> 1 & 1) ^ taken;
}

/* The branch's way, which becomes the latest used; or TC_BTB_NOWHERE. The latest is looked at
 * first: the host can go on with it before it has compared. */
static inline uint32_t tc_btb_look_up(const struct tc_predictor *predictor, struct tc_btb_set *set,
                                      uint64_t address)
{
    uint32_t latest = set->order & 3;
    if (set->tag[latest] == address)
        return latest;
    uint32_t way =
        TC_BTB_NOWHERE -
        (4 * (uint32_t)(set->tag[0] == address) + 3 * (uint32_t)(set->tag[1] == address) +
         2 * (uint32_t)(set->tag[2] == address) + (uint32_t)(set->tag[3] == address));
    if (way != TC_BTB_NOWHERE)
        tc_btb_use(predictor, set, way);
    return way;
}

/* Predicts the branch, compares with what it did, learns. target: where it went, if taken. */
unsigned tc_predictor_resolve(struct tc_predictor *predictor, const struct tc_branch *branch,
                              bool taken, uint64_t target);

#endif
