/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOST_LINE_BYTES 64

/* So many ways are compared at once in a set of up to four: room for them all. */
#define LEAST_STRIDE_SHIFT 2

static uint64_t initial_order(uint32_t ways)
{
    uint64_t order = 0;
    for (uint32_t way = 0; way < ways; way++)
        order |= (uint64_t)way << (4 * way);
    return order;
}

static void *alloc_zeroed(size_t bytes)
{
    size_t whole = (bytes + HOST_LINE_BYTES - 1) / HOST_LINE_BYTES * HOST_LINE_BYTES;
    void *memory = aligned_alloc(HOST_LINE_BYTES, whole);
    if (memory != NULL)
        memset(memory, 0, whole);
    return memory;
}

int tc_cache_init(struct tc_cache *cache, uint64_t bytes, uint32_t ways, uint32_t line_bytes)
{
    uint64_t sets = bytes / ways / line_bytes;
    uint32_t stride_shift = LEAST_STRIDE_SHIFT;
    while ((1u << stride_shift) < ways)
        stride_shift++;
    *cache = (struct tc_cache){
        .words = alloc_zeroed((sets << stride_shift) * sizeof(*cache->words)),
        .set_mask = sets - 1,
        .stride_shift = stride_shift,
        .ways = ways,
    };
    if (ways <= TC_RECENCY_WAYS)
        cache->order = alloc_zeroed(sets * sizeof(*cache->order));
    else
        cache->large_order = alloc_zeroed(sets * sizeof(*cache->large_order));
    if (cache->words == NULL || (cache->order == NULL && cache->large_order == NULL)) {
        tc_cache_free(cache);
        return -ENOMEM;
    }
    tc_recency_init();
    if (cache->order != NULL)
        memset(cache->order, TC_RECENCY_INITIAL, sets);
    for (uint64_t set = 0; cache->large_order != NULL && set < sets; set++)
        cache->large_order[set] = initial_order(ways);
    return 0;
}

void tc_cache_free(struct tc_cache *cache)
{
    free(cache->words);
    free(cache->order);
    free(cache->large_order);
    *cache = (struct tc_cache){0};
}

_Atomic uint64_t *tc_cache_find(const struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *set = tc_cache_set(cache, line);
    for (uint32_t way = 0; way < cache->ways; way++) {
        if (tc_line_is(atomic_load(&set[way]), line))
            return &set[way];
    }
    return NULL;
}

_Atomic uint64_t *tc_cache_latest(const struct tc_cache *cache, uint64_t line)
{
    uint64_t set = line & cache->set_mask;
    uint64_t way = cache->order != NULL ? cache->order[set] & 3 : cache->large_order[set] & 15;
    return &tc_cache_set(cache, line)[way];
}

#define NIBBLES UINT64_C(0x1111111111111111)

/* Makes a way the latest used. Without branches: where in the order it is cannot be foreseen. */
static uint64_t moved_to_front(uint64_t order, uint64_t way)
{
    uint64_t other = order ^ (way * NIBBLES);
    uint64_t shift =
        (uint64_t)__builtin_ctzll((other - NIBBLES) & ~other & (NIBBLES << 3)) & ~UINT64_C(3);
    uint64_t before = order & ((UINT64_C(1) << shift) - 1);
    uint64_t after = order & ~((UINT64_C(16) << shift) - 1);
    return after | before << 4 | way;
}

_Atomic uint64_t *tc_cache_use_large(struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint32_t holders = 0;
    for (uint32_t way = 0; way < cache->ways; way++)
        holders |= tc_cache_holds(words, way, line);
    if (holders == 0)
        return NULL;
    uint32_t way = (uint32_t)__builtin_ctz(holders);
    uint64_t *order = &cache->large_order[line & cache->set_mask];
    *order = moved_to_front(*order, way);
    return &words[way];
}

_Atomic uint64_t *tc_cache_replace_large(struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint64_t *order = &cache->large_order[line & cache->set_mask];
    uint64_t chosen = *order >> (4 * (cache->ways - 1)) & 15;
    for (uint32_t way = 0; way < cache->ways; way++) {
        if (atomic_load_explicit(&words[way], memory_order_relaxed) == 0)
            chosen = way;
    }
    *order = moved_to_front(*order, chosen);
    return &words[chosen];
}
