/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/predictor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY UINT64_MAX

/* Two-bit counters, of all histories at once. */
#define WEAKLY_TAKEN 0xaaaaaaaau
/* What a counter becomes: 2 bits for each of its values. */
#define UP   0xf9u
#define DOWN 0x90u

int tc_predictor_init(struct tc_predictor *predictor, const struct tc_machine_predictor *geometry)
{
    size_t sets = geometry->btb_entries / geometry->btb_ways;
    *predictor = (struct tc_predictor){
        .sets = aligned_alloc(sizeof(*predictor->sets), sets * sizeof(*predictor->sets)),
        .targets = calloc(sets * TC_BTB_WAYS_MAX, sizeof(*predictor->targets)),
        .stack = calloc(geometry->return_stack, sizeof(*predictor->stack)),
        .set_mask = sets - 1,
        .index_shift = geometry->index_shift,
        .last_way = geometry->btb_ways - 1,
        .history_mask = (1u << geometry->history_bits) - 1,
        .stack_entries = geometry->return_stack,
    };
    if (predictor->sets == NULL || predictor->targets == NULL || predictor->stack == NULL) {
        tc_predictor_free(predictor);
        return -ENOMEM;
    }
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

/* Makes a way the latest used. Without branches: which way it is cannot be foreseen. */
static void move_to_front(struct tc_btb_set *set, uint32_t way)
{
    uint32_t other = set->order ^ (way * 0x55u);
    uint32_t shift = (uint32_t)__builtin_ctz(~(other | other >> 1) & 0x55u);
    uint32_t before = set->order & ((1u << shift) - 1);
    uint32_t after = set->order & ~((4u << shift) - 1);
    set->order = (uint8_t)(after | before << 2 | way);
}

/* The branch's way, made the latest used; -1: not in the BTB. */
static int find(struct tc_btb_set *set, uint64_t address)
{
    uint32_t latest = set->order & 3;
    if (set->tag[latest] == address)
        return (int)latest;
    uint32_t hits = (uint32_t)(set->tag[0] == address) | (uint32_t)(set->tag[1] == address) << 1 |
                    (uint32_t)(set->tag[2] == address) << 2 |
                    (uint32_t)(set->tag[3] == address) << 3;
    if (hits == 0)
        return -1;
    uint32_t way = (uint32_t)__builtin_ctz(hits);
    move_to_front(set, way);
    return (int)way;
}

/* In place of the least recently used branch. */
static uint32_t insert(const struct tc_predictor *predictor, struct tc_btb_set *set,
                       uint64_t address)
{
    uint32_t way = set->order >> (2 * (predictor->last_way)) & 3;
    move_to_front(set, way);
    set->tag[way] = address;
    set->counters[way] = WEAKLY_TAKEN;
    set->history[way] = (uint8_t)(1 & predictor->history_mask);
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

unsigned tc_predictor_look_up(struct tc_predictor *predictor, const struct tc_branch *branch,
                              bool taken, uint64_t target)
{
    if (branch->kind == TC_BRANCH_FAR)
        return TC_BRANCH_BTB_MISS;
    uint64_t index = branch->address >> predictor->index_shift & predictor->set_mask;
    struct tc_btb_set *set = &predictor->sets[index];
    int way = find(set, branch->address);
    bool right = true;
    switch (branch->kind) {
    case TC_BRANCH_CONDITIONAL:
        right = way >= 0 ? tc_predictor_learn(predictor, set, (uint32_t)way, taken)
                         : branch->backward == taken;
        break;
    case TC_BRANCH_RETURN:
        right = pop_is(predictor, target);
        break;
    case TC_BRANCH_INDIRECT_JUMP:
    case TC_BRANCH_INDIRECT_CALL:
        right = way >= 0 && predictor->targets[index * TC_BTB_WAYS_MAX + (uint32_t)way] == target;
        break;
    default: /* decoding finds the target of direct ones even without the BTB */
        break;
    }
    if (branch->kind == TC_BRANCH_CALL || branch->kind == TC_BRANCH_INDIRECT_CALL)
        push(predictor, branch->fallthrough);
    unsigned result = (right ? 0 : TC_BRANCH_MISPREDICTED) | (way < 0 ? TC_BRANCH_BTB_MISS : 0);
    if (way < 0 && taken)
        way = (int)insert(predictor, set, branch->address);
    if (way >= 0 && taken &&
        (branch->kind == TC_BRANCH_INDIRECT_JUMP || branch->kind == TC_BRANCH_INDIRECT_CALL))
        predictor->targets[index * TC_BTB_WAYS_MAX + (uint32_t)way] = target;
    return result;
}
