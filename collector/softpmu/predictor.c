/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/predictor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY UINT64_MAX

/* Two-bit counters, of all histories at once. */
#define WEAKLY_TAKEN 0xaaaaaaaau

int tc_predictor_init(struct tc_predictor *predictor, uint32_t cpu,
                      const struct tc_machine_predictor *geometry)
{
    size_t sets = geometry->btb_entries / geometry->btb_ways;
    *predictor = (struct tc_predictor){
        .sets = aligned_alloc(sizeof(*predictor->sets), sets * sizeof(*predictor->sets)),
        .targets = calloc(sets * TC_BTB_WAYS_MAX, sizeof(*predictor->targets)),
        .stack = calloc(geometry->return_stack, sizeof(*predictor->stack)),
        .set_mask = sets - 1,
        .index_shift = geometry->index_shift,
        .ways_shift = 2 * (cpu % 16),
        .last_way = geometry->btb_ways - 1,
        .history_mask = ((1u << geometry->history_bits) - 1) << 1,
        .stack_entries = geometry->return_stack,
    };
    if (predictor->sets == NULL || predictor->targets == NULL || predictor->stack == NULL) {
        tc_predictor_free(predictor);
        return -ENOMEM;
    }
    tc_recency_init();
    for (size_t set = 0; set < sets; set++) {
        predictor->sets[set] = (struct tc_btb_set){

            .tag = {EMPTY, EMPTY, EMPTY, EMPTY}, .order = 0xe4, /* 3, 2, 1, 0 */
        };
    }
    return 0;
}

void tc_predictor_free(struct tc_predictor *predictor)
{
    free(predictor->sets);
    free(predictor->targets);
    free(predictor->stack);
    *predictor = (struct tc_predictor){0};
}

/* In place of the least recently used branch. */
static uint32_t insert(const struct tc_predictor *predictor, struct tc_btb_set *set,
                       struct tc_branch *branch)
{
    uint32_t way = set->order >> (2 * (predictor->last_way)) & 3;
    tc_btb_use(set, way);
    set->tag[way] = branch->address;
    set->counters[way] = WEAKLY_TAKEN;
    set->history[way] = (uint8_t)(2 & predictor->history_mask);
    tc_btb_remember(predictor, branch, way);
    return way;
}

static void push(struct tc_predictor *predictor, uint64_t address)
{
    predictor->stack[predictor->stack_top] = address;
    predictor->stack_top =
        predictor->stack_top + 1 == predictor->stack_entries ? 0 : predictor->stack_top + 1;
    if (predictor->stack_used < predictor->stack_entries)
        predictor->stack_used++;
}

/* Whether the stack's top is where the return went. Calls deeper than the stack lose its bottom. */
static bool pop_is(struct tc_predictor *predictor, uint64_t target)
{
    if (predictor->stack_used == 0)
        return false;
    predictor->stack_used--;
    predictor->stack_top =
        (predictor->stack_top == 0 ? predictor->stack_entries : predictor->stack_top) - 1;
    return predictor->stack[predictor->stack_top] == target;
}

unsigned tc_predictor_resolve(struct tc_predictor *predictor, struct tc_branch *branch, bool taken,
                              uint64_t target)
{
    if (branch->kind == TC_BRANCH_FAR)
        return TC_BRANCH_BTB_MISS | taken;
    struct tc_btb_set *set = tc_predictor_set(predictor, branch->address);
    uint64_t *targets = &predictor->targets[(set - predictor->sets) * TC_BTB_WAYS_MAX];
    uint32_t way = tc_btb_look_up(predictor, set, branch);
    bool found = way != TC_BTB_NOWHERE;
    bool right = true;
    switch (branch->kind) {
    case TC_BRANCH_CONDITIONAL:
        right = found ? !(tc_predictor_learn(predictor, set, way, taken) & TC_BRANCH_MISPREDICTED)
                      : branch->backward == taken;
        break;
    case TC_BRANCH_RETURN:
        right = pop_is(predictor, target);
        break;
    case TC_BRANCH_INDIRECT_JUMP:
    case TC_BRANCH_INDIRECT_CALL:
        right = found && targets[way] == target;
        break;
    default: /* decoding finds the target of direct ones even without the BTB */
        break;
    }
    if (branch->kind == TC_BRANCH_CALL || branch->kind == TC_BRANCH_INDIRECT_CALL)
        push(predictor, branch->address + 1);
    unsigned outcome = (taken ? TC_BRANCH_TAKEN : 0) | (right ? 0 : TC_BRANCH_MISPREDICTED) |
                       (found ? 0 : TC_BRANCH_BTB_MISS);
    if (!found && taken)
        way = insert(predictor, set, branch);
    if (taken &&
        (branch->kind == TC_BRANCH_INDIRECT_JUMP || branch->kind == TC_BRANCH_INDIRECT_CALL))
        targets[way] = target;
    return outcome;
}
