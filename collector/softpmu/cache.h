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

#define TC_CACHE_WAYS_MAX 16 /* the order of a set is 16 numbers of 4 bits */

/* A word: line number << 16 | valid | modified | owned by variant. 0: holds nothing. Owned means
 * MESI's E or M; a valid line that is not owned is S. A modified line is owned in all variants. */
#define TC_LINE_SHIFT    16
#define TC_LINE_VALID    UINT64_C(0x8000)
#define TC_LINE_MODIFIED UINT64_C(0x4000)
#define TC_LINE_OWNED    UINT64_C(0x00ff) /* a bit per variant; a cache of one variant uses bit 0 */
#define TC_LINE_STATE    UINT64_C(0x7fff)

struct tc_cache {
    _Atomic uint64_t *words; /* [set << stride_shift | way] */
    void *order;             /* [set]: ways by recency, the latest in the lowest 4 bits */
    uint64_t set_mask;
    uint32_t stride_shift;
    uint32_t ways; /* an order is 16 bits of up to 4 ways, 64 bits of more: less to fetch */
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

static inline uint64_t tc_cache_order(const struct tc_cache *cache, uint64_t set)
{
    return cache->ways <= 4 ? ((const uint16_t *)cache->order)[set]
                            : ((const uint64_t *)cache->order)[set];
}

static inline void tc_cache_set_order(struct tc_cache *cache, uint64_t set, uint64_t order)
{
    if (cache->ways <= 4)
        ((uint16_t *)cache->order)[set] = (uint16_t)order;
    else
        ((uint64_t *)cache->order)[set] = order;
}

/* Has the host fetch what the lookup of a line will read. */
static inline void tc_cache_prefetch(const struct tc_cache *cache, uint64_t line)
{
    uint64_t set = line & cache->set_mask;
    __builtin_prefetch((const void *)tc_cache_set(cache, line));
    __builtin_prefetch((const char *)cache->order + set * (cache->ways <= 4 ? 2 : 8));
}

/* The word of the way that the set used last. For the owner. */
static inline uint64_t tc_cache_latest(const struct tc_cache *cache, uint64_t line)
{
    uint64_t set = line & cache->set_mask;
    uint64_t way = tc_cache_order(cache, set) & 15;
    return atomic_load_explicit(&cache->words[(set << cache->stride_shift) + way],
                                memory_order_relaxed);
}

/* Where the line is; NULL: not here. Any thread may ask; the answer is as old as its return. */
_Atomic uint64_t *tc_cache_find(const struct tc_cache *cache, uint64_t line);

/* The same, and the line becomes the latest used. For the owner. */
_Atomic uint64_t *tc_cache_use(struct tc_cache *cache, uint64_t line);

/* Where a new line of that set goes: an empty way, else the least recently used one. The way
 * becomes the latest used; what it holds is the caller's to evict and replace. For the owner. */
_Atomic uint64_t *tc_cache_replace(struct tc_cache *cache, uint64_t line);

#endif
