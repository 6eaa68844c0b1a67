/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/block.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_MASK   UINT64_C(0xfff)
#define CHUNK_BYTES (UINT64_C(1) << 20)
#define ALIGNMENT   64 /* a host's cache line */

struct chunk {
    _Alignas(ALIGNMENT) struct chunk *next;
    size_t used;
    _Alignas(ALIGNMENT) uint8_t bytes[CHUNK_BYTES];
};

/* Chunks are kept on release: QEMU will translate as much again. */
struct tc_arena {
    pthread_mutex_t lock;
    struct chunk *first;
    struct chunk *current;
};

struct tc_arena *tc_arena_create(void)
{
    struct tc_arena *arena = calloc(1, sizeof *arena);
    if (arena != NULL && pthread_mutex_init(&arena->lock, NULL) != 0) {
        free(arena);
        return NULL;
    }
    return arena;
}

void tc_arena_free(struct tc_arena *arena)
{
    if (arena == NULL)
        return;
    while (arena->first != NULL) {
        struct chunk *chunk = arena->first;
        arena->first = chunk->next;
        free(chunk);
    }
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

static struct chunk *chunk_with_room(struct tc_arena *arena, size_t bytes)
{
    struct chunk *current = arena->current;
    if (current != NULL && bytes <= CHUNK_BYTES - current->used)
        return current;
    struct chunk **next = current != NULL ? &current->next : &arena->first;
    if (*next == NULL) {
        *next = aligned_alloc(ALIGNMENT, sizeof **next);
        if (*next != NULL)
            (*next)->next = NULL;
    }
    if (*next != NULL) {
        (*next)->used = 0;
        arena->current = *next;
    }
    return *next;
}

struct tc_block *tc_arena_block(struct tc_arena *arena, size_t instructions)
{
    struct tc_block *block = NULL;
    size_t bytes = sizeof *block + instructions;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    pthread_mutex_lock(&arena->lock);
    struct chunk *chunk = chunk_with_room(arena, bytes);
    if (chunk != NULL) {
        block = (struct tc_block *)(void *)&chunk->bytes[chunk->used];
        chunk->used += bytes;
    }
    pthread_mutex_unlock(&arena->lock);
    if (block != NULL)
        memset(block, 0, bytes);
    return block;
}

void tc_arena_release(struct tc_arena *arena)
{
    arena->current = NULL;
    if (arena->first != NULL) {
        arena->first->used = 0;
        arena->current = arena->first;
    }
}

static void find_end(struct tc_block *block, enum tc_flow flow)
{
    static const struct {
        uint8_t end;
        uint8_t kind;
    } ends[] = {
        [TC_FLOW_NEXT] = {TC_END_NEXT, 0},
        [TC_FLOW_CONDITIONAL] = {TC_END_CONDITIONAL, TC_BRANCH_CONDITIONAL},
        [TC_FLOW_JUMP] = {TC_END_DIRECT, TC_BRANCH_JUMP},
        [TC_FLOW_CALL] = {TC_END_DIRECT, TC_BRANCH_CALL},
        [TC_FLOW_JUMP_INDIRECT] = {TC_END_INDIRECT, TC_BRANCH_INDIRECT_JUMP},
        [TC_FLOW_CALL_INDIRECT] = {TC_END_INDIRECT, TC_BRANCH_INDIRECT_CALL},
        [TC_FLOW_RETURN] = {TC_END_INDIRECT, TC_BRANCH_RETURN},
        [TC_FLOW_FAR] = {TC_END_FAR, TC_BRANCH_FAR},
        [TC_FLOW_INTERRUPT_RETURN] = {TC_END_INTERRUPT_RETURN, TC_BRANCH_FAR},
    };
    block->end = ends[flow].end;
    block->branch.kind = ends[flow].kind;
}

void tc_block_finish(struct tc_block *block, const struct tc_instruction *last, uint64_t address,
                     uint64_t virtual_address, uint32_t bytes,
                     const struct tc_block_geometry *geometry)
{
    uint64_t behind = address + bytes;
    uint64_t known = behind - 1; /* the last byte whose place is known */
    find_end(block, last->flow);
    block->last = address;
    block->repeats_last = last->repeats;
    block->branch.address = behind - 1;
    block->branch.backward = last->target <= virtual_address;
    block->successors[TC_BLOCK_TARGET] = last->target;
    block->successors[TC_BLOCK_NEXT] = behind;
    block->masks[TC_BLOCK_TARGET] = block->masks[TC_BLOCK_NEXT] = UINT64_MAX;
    if (geometry->physical) {
        if (((behind ^ block->start) & ~PAGE_MASK) != 0) {
            block->masks[TC_BLOCK_NEXT] = PAGE_MASK;
            known = block->start | PAGE_MASK;
        }
        block->successors[TC_BLOCK_TARGET] = (address & ~PAGE_MASK) | (last->target & PAGE_MASK);
        if (((last->target ^ virtual_address) & ~PAGE_MASK) != 0)
            block->masks[TC_BLOCK_TARGET] = PAGE_MASK;
    }
    uint64_t fetch = geometry->fetch_block_bytes;
    uint64_t line = geometry->line_bytes;
    block->fetches[0] = (uint16_t)((behind - 1) / fetch - block->start / fetch + 1);
    block->lines = (uint16_t)(known / line - block->start / line + 1);
    block->first_line = block->start & ~(line - 1);
    block->last_line = block->lines > 2 ? TC_BLOCK_MANY : known & ~(line - 1);
    block->fetches[1] = (uint16_t)(block->fetches[0] - (block->start % fetch != 0));
}

uint32_t tc_block_instructions_from(const struct tc_block *block, uint64_t address)
{
    uint64_t at = block->start;
    for (uint32_t i = 0; i < block->instructions; i++) {
        if (at == address)
            return block->instructions - i;
        at += block->sizes[i];
    }
    return 0;
}
