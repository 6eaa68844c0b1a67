/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What is known of a translated block before it runs: a descriptor of one or two host cache lines,
 * all that the callback of a running block reads. */
#ifndef TC_SOFTPMU_BLOCK_H
#define TC_SOFTPMU_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collector/softpmu/decode.h"
#include "collector/softpmu/predictor.h"
#include "workloads/common/error.h"

/* What follows a block's last instruction. */
enum tc_block_end {
    TC_END_NEXT,        /* the next instruction, unless something interrupts */
    TC_END_CONDITIONAL, /* branches: see `branch` */
    TC_END_DIRECT,
    TC_END_INDIRECT,
    TC_END_FAR,
    TC_END_INTERRUPT_RETURN
};

/* Addresses are physical in whole-system runs, virtual in user mode. Where a page's place is not
 * known (the block ends at its page's end; a target lies in another page) the mask keeps the offset
 * within the page only. */
struct tc_block {
    uint64_t start;
    uint64_t successors[2]; /* by tc_block_follower: a direct branch's target; what is behind */
    struct tc_branch branch;
    /* The first and the last L1I line reached into, as far as their place is known. More than two:
     * the last is TC_BLOCK_MANY. */
    uint64_t first_line;
    uint64_t last_line;
    uint32_t instructions;
    uint16_t fetches[2]; /* aligned fetch blocks reached into; [1]: less the one that the
                            instruction before has reached into, too */
    uint8_t end;         /* enum tc_block_end */
    uint8_t mode;        /* enum tc_softpmu_mode */
    bool repeats_first;  /* the first instruction is a string instruction with a repeat prefix */
    bool repeats_last;   /* the last one is; QEMU ends a block with it */
    uint16_t lines;      /* how many */
    /* Of user mode's, nothing below is read as a rule. */
    uint64_t masks[2]; /* of the successors */
    uint64_t last;     /* of the last instruction's first byte */
    uint8_t sizes[];   /* of the instructions [bytes] */
};

/* No line begins here. */
#define TC_BLOCK_MANY (UINT64_MAX - 1)

/* Memory for descriptors: handed out piecemeal, taken back all at once when QEMU drops its
 * translations. Thread-safe but for the release. */
struct tc_arena;

struct tc_arena *tc_arena_create(void); /* NULL: no memory */
void tc_arena_free(struct tc_arena *arena);
/* With room for the sizes of so many instructions; zeroed. NULL: no memory. */
struct tc_block *tc_arena_block(struct tc_arena *arena, size_t instructions);
/* Every descriptor handed out becomes invalid. */
void tc_arena_release(struct tc_arena *arena);

/* What descriptors depend on: sizes [bytes, powers of two], and whether addresses are physical. */
struct tc_block_geometry {
    uint32_t fetch_block_bytes;
    uint32_t line_bytes;
    bool physical;
};

/* Completes a descriptor whose start, instructions, sizes, mode and repeats_first
 * are set. last: the last
 * instruction, which counting takes to be at `address` and the program at virtual_address. */
void tc_block_finish(struct tc_block *block, const struct tc_instruction *last, uint64_t address,
                     uint64_t virtual_address, uint32_t bytes,
                     const struct tc_block_geometry *geometry);

/* How many of the block's instructions are at the address and behind it; 0: none begins there. */
uint32_t tc_block_instructions_from(const struct tc_block *block, uint64_t address);

/* Indices of successors. */
enum tc_block_follower { TC_BLOCK_TARGET, TC_BLOCK_NEXT };

/* Whether what runs at `address` now is that successor of the block. */
static inline bool tc_block_leads_to(const struct tc_block *block, enum tc_block_follower which,
                                     uint64_t address)
{
    return ((address ^ block->successors[which]) & block->masks[which]) == 0;
}

#endif
