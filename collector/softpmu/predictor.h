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

struct tc_btb_set {
    _Alignas(64) uint64_t tag[TC_BTB_WAYS_MAX]; /* address; TC_BTB_EMPTY: none */
    uint32_t counters[TC_BTB_WAYS_MAX];         /* 2 bits per history, >= 2 predicts taken */
    uint8_t history[TC_BTB_WAYS_MAX];           /* outcomes, the latest in bit 0 */
    uint8_t order; /* ways by recency, the latest in the lowest 2 bits */
};

struct tc_predictor {
    struct tc_btb_set *sets;
    uint64_t *targets; /* [set * TC_BTB_WAYS_MAX + way]: where the branch went last */
    uint64_t *stack;   /* return addresses, a ring */
    uint64_t set_mask;
    uint32_t index_shift;
    uint32_t last_way; /* ways - 1 */
    uint32_t history_mask;
    uint32_t stack_entries;
    uint32_t stack_top; /* next free place */
    uint32_t stack_used;
};

TC_MUST_CHECK int tc_predictor_init(struct tc_predictor *predictor,
                                    const struct tc_machine_predictor *geometry);
void tc_predictor_free(struct tc_predictor *predictor);

/* tc_predictor_resolve, whatever the branch and wherever in the BTB it is. */
unsigned tc_predictor_look_up(struct tc_predictor *predictor, const struct tc_branch *branch,
                              bool taken, uint64_t target);

/* What a two-bit counter becomes: 2 bits for each of its values. */
#define TC_COUNTER_UP   0xf9u
#define TC_COUNTER_DOWN 0x90u

/* A conditional branch's entry learns. Returns whether it had predicted rightly. Without branches:
 * how those of the program go is what cannot be foreseen. */
static inline bool tc_predictor_learn(const struct tc_predictor *predictor, struct tc_btb_set *set,
                                      uint32_t way, bool taken)
{
    uint32_t history = set->history[way];
    uint32_t counters = set->counters[way];
    uint32_t counter = counters >> (2 * history) & 3;
    uint32_t next = (taken ? TC_COUNTER_UP : TC_COUNTER_DOWN) >> (2 * counter) & 3;
    set->counters[way] = counters ^ (counter ^ next) << (2 * history);
    set->history[way] = (uint8_t)((history << 1 | taken) & predictor->history_mask);
    return (counter >> 1) == taken;
}

/* Predicts the branch, compares with what it did, learns. target: where it went, if taken. */
static inline unsigned tc_predictor_resolve(struct tc_predictor *predictor,
                                            const struct tc_branch *branch, bool taken,
                                            uint64_t target)
{
    struct tc_btb_set *set =
        &predictor->sets[branch->address >> predictor->index_shift & predictor->set_mask];
    uint32_t latest = set->order & 3;
    if (branch->kind > TC_BRANCH_JUMP || set->tag[latest] != branch->address)
        return tc_predictor_look_up(predictor, branch, taken, target);
    if (branch->kind == TC_BRANCH_JUMP)
        return 0;
    return tc_predictor_learn(predictor, set, latest, taken) ? 0 : TC_BRANCH_MISPREDICTED;
}

#endif
