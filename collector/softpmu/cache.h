/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * One set-associative cache with LRU replacement: which lines it holds, and each one's state.
 *
 * A line stays at its place (set, way) as long as it is held, as one atomic word: its number and
 * its state. So other CPUs can change its state, or drop it, by compare-and-swap while the owner
 * works. The order of use is the owner's alone: no other thread touches it. */
#ifndef TC_SOFTPMU_CACHE_H
#define TC_SOFTPMU_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collector/softpmu/machine.h"
#include "collector/softpmu/recency.h"

#define TC_CACHE_WAYS_MAX 16 /* the order of a large set is 16 numbers of 4 bits */

/* A word: line number << 16 | valid | modified | owned by variant. 0: holds nothing. Owned means
 * MESI's E or M; a valid line that is not owned is S. A modified line is owned in all variants. */
#define TC_LINE_SHIFT    16
#define TC_LINE_VALID    UINT64_C(0x8000)
#define TC_LINE_MODIFIED UINT64_C(0x4000)
#define TC_LINE_OWNED    UINT64_C(0x00ff) /* a bit per variant; a cache of one variant uses bit 0 */
#define TC_LINE_STATE    UINT64_C(0x7fff)

struct tc_cache {
    _Atomic uint64_t *words; /* [set << stride_shift | way] */
    /* [set]: ways by recency. Of up to four (ordered by recency.h) a byte, which the host is quick
     * to fetch; of more the latest is in the lowest 4 bits. One of the two is NULL. */
    uint8_t *order;
    uint64_t *large_order;
    uint64_t set_mask;
    uint32_t stride_shift;
    uint32_t ways;
};

TC_MUST_CHECK int tc_cache_init(struct tc_cache *cache, uint64_t bytes, uint32_t ways,
                                uint32_t line_bytes);
void tc_cache_free(struct tc_cache *cache);

static inline uint64_t tc_line_key(uint64_t line)
{
    return line << TC_LINE_SHIFT | TC_LINE_VALID;
}

static inline bool tc_line_is(uint64_t word, uint64_t line)
{
    return (word ^ tc_line_key(line)) <= TC_LINE_STATE;
}

static inline _Atomic uint64_t *tc_cache_set(const struct tc_cache *cache, uint64_t line)
{
    return &cache->words[(line & cache->set_mask) << cache->stride_shift];
}

/* Has the host fetch what the lookup of a line will read. */
static inline void tc_cache_prefetch(const struct tc_cache *cache, uint64_t line)
{
    __builtin_prefetch((const void *)tc_cache_set(cache, line));
    if (cache->order != NULL)
        __builtin_prefetch(&cache->order[line & cache->set_mask]);
}

/* Where the line is; NULL: not here. Any thread may ask; the answer is as old as its return. */
_Atomic uint64_t *tc_cache_find(const struct tc_cache *cache, uint64_t line);

/* The place that the line's set used last. For the owner. */
_Atomic uint64_t *tc_cache_latest(const struct tc_cache *cache, uint64_t line);

/* Of caches of more than four ways. */
_Atomic uint64_t *tc_cache_use_large(struct tc_cache *cache, uint64_t line);
_Atomic uint64_t *tc_cache_replace_large(struct tc_cache *cache, uint64_t line);

/* A bit if the way holds the line. */
static inline uint32_t tc_cache_holds(const _Atomic uint64_t *set, uint32_t way, uint64_t line)
{
    uint64_t word = atomic_load_explicit(&set[way], memory_order_relaxed);
    return (uint32_t)tc_line_is(word, line) << way;
}

/* The same as tc_cache_find, and the line becomes the latest used. For the owner. Without branches
 * on what is found where: the host cannot foresee it. */
static inline _Atomic uint64_t *tc_cache_use(struct tc_cache *cache, uint64_t line)
{
    if (cache->order == NULL)
        return tc_cache_use_large(cache, line);
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint32_t holders = tc_cache_holds(words, 0, line) | tc_cache_holds(words, 1, line) |
                       tc_cache_holds(words, 2, line) | tc_cache_holds(words, 3, line);
    if (holders == 0)
        return NULL;
    uint32_t way = (uint32_t)__builtin_ctz(holders);
    uint8_t *order = &cache->order[line & cache->set_mask];
    *order = tc_recency_after[*order][way];
    return &words[way];
}

/* Where a new line of that set goes: an empty way, else the least recently used one. The way
 * becomes the latest used; what it holds is the caller's to evict and replace. For the owner. */
static inline _Atomic uint64_t *tc_cache_replace(struct tc_cache *cache, uint64_t line)
{
    if (cache->order == NULL)
        return tc_cache_replace_large(cache, line);
    _Atomic uint64_t *words = tc_cache_set(cache, line);
    uint8_t *order = &cache->order[line & cache->set_mask];
    uint32_t chosen = *order >> (2 * (cache->ways - 1)) & 3;
    for (uint32_t way = 0; way < cache->ways; way++) {
        if (__builtin_expect(atomic_load_explicit(&words[way], memory_order_relaxed) == 0, 0))
            chosen = way;
    }
    *order = tc_recency_after[*order][chosen];
    return &words[chosen];
}

#endif
