/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOST_LINE_BYTES 64

/* Ways are compared so many at once; a set has room for a multiple of them. */
#define TC_CACHE_GROUP_SHIFT 2
#define GROUP                (1u << TC_CACHE_GROUP_SHIFT)

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
    uint32_t stride_shift = TC_CACHE_GROUP_SHIFT;
    while ((1u << stride_shift) < ways)
        stride_shift++;
    *cache = (struct tc_cache){
        .words = alloc_zeroed((sets << stride_shift) * sizeof(*cache->words)),
        .order = alloc_zeroed(sets * sizeof(uint64_t)),
        .set_mask = sets - 1,
        .stride_shift = stride_shift,
        .ways = ways,
    };
    if (cache->words == NULL || cache->order == NULL) {
        tc_cache_free(cache);
        return -ENOMEM;
    }
    for (uint64_t set = 0; set < sets; set++)
        tc_cache_set_order(cache, set, initial_order(ways));
    return 0;
}

void tc_cache_free(struct tc_cache *cache)
{
    free(cache->words);
    free(cache->order);
    *cache = (struct tc_cache){0};
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

/* A bit for each way that holds the line: one at most. Without branches, likewise. */
static uint32_t holders(const struct tc_cache *cache, const _Atomic uint64_t *set, uint64_t line)
{
    uint32_t hits = 0;
    for (uint32_t first = 0; first < cache->ways; first += GROUP) {
        for (uint32_t way = first; way < first + GROUP; way++) {
            uint64_t word = atomic_load_explicit(&set[way], memory_order_relaxed);
            hits |= (uint32_t)tc_line_is(word, line) << way;
        }
    }
    return hits;
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

_Atomic uint64_t *tc_cache_use(struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint64_t set = line & cache->set_mask;
    uint32_t hits = holders(cache, words, line);
    if (hits == 0)
        return NULL;
    uint32_t way = (uint32_t)__builtin_ctz(hits);
    tc_cache_set_order(cache, set, moved_to_front(tc_cache_order(cache, set), way));
    return &words[way];
}

_Atomic uint64_t *tc_cache_replace(struct tc_cache *cache, uint64_t line)
{
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint64_t set = line & cache->set_mask;
    uint64_t order = tc_cache_order(cache, set);
    uint32_t shift = 4 * (cache->ways - 1);
    uint64_t last = order >> shift & 15;
    bool full = true;
    for (uint32_t way = 0; way < cache->ways; way++)
        full &= atomic_load_explicit(&words[way], memory_order_relaxed) != 0;
    if (full) {
        tc_cache_set_order(cache, set, (order ^ last << shift) << 4 | last);
        return &words[last];
    }
    uint64_t chosen = last;
    for (uint32_t at = 0; at < cache->ways; at++) {
        uint64_t way = order >> (4 * at) & 15;
        if (atomic_load_explicit(&words[way], memory_order_relaxed) == 0)
            chosen = way;
    }
    tc_cache_set_order(cache, set, moved_to_front(order, chosen));
    return &words[chosen];
}
