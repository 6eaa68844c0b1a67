/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A shortcut past the models: which line an L1 cache used last, set by set, by the address that the
 * program gave it. An access to such a line changes nothing in any cache, so nothing has to be
 * looked up, not even the physical address.
 *
 * An entry is chosen by address bits that are the same in virtual and physical addresses, and lines
 * of one set always share an entry: whoever makes another line of the set the latest used
 * overwrites it. Entries lie one line's size apart, so that an address masked is an offset. The
 * owner writes entries; other CPUs' snoops may empty them at any time. */
#ifndef TC_SOFTPMU_RECENT_H
#define TC_SOFTPMU_RECENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "workloads/common/error.h"

#define TC_RECENT_NONE UINT64_MAX
#define TC_RECENT_PAGE 4096 /* within it virtual and physical addresses have the same bits */

/* Addresses of lines that may be read, and written, without further ado. */
struct tc_recent_line {
    _Atomic uint64_t load;
    _Atomic uint64_t store;
};

struct tc_recent {
    unsigned char *lines;
    uint64_t mask;
};

/* way_bytes: the cache's size divided by its ways. -ENOMEM. */
TC_MUST_CHECK int tc_recent_init(struct tc_recent *recent, uint64_t way_bytes, uint32_t line_bytes);
void tc_recent_free(struct tc_recent *recent);

/* Empties all entries: virtual addresses may mean something else now. For the owner. */
void tc_recent_clear(struct tc_recent *recent, uint32_t line_bytes);

static inline struct tc_recent_line *tc_recent_at(const struct tc_recent *recent, uint64_t address)
{
    return (struct tc_recent_line *)(void *)(recent->lines + (address & recent->mask));
}

/* 0: the line that begins at that address may be read without further ado. */
static inline uint64_t tc_recent_differs(const struct tc_recent *recent, uint64_t begin)
{
    return atomic_load_explicit(&tc_recent_at(recent, begin)->load, memory_order_relaxed) ^ begin;
}

/* Empties the entry of the line's set; any thread. The line's own word has been changed before: the
 * owner looks at the word after it has written an entry. */
static inline void tc_recent_forget(const struct tc_recent *recent, uint64_t address)
{
    struct tc_recent_line *line = tc_recent_at(recent, address);
    atomic_store(&line->load, TC_RECENT_NONE);
    atomic_store(&line->store, TC_RECENT_NONE);
}

/* Whether all the bytes lie in a line that may be read (or written) without further ado. */
static inline bool tc_recent_has(const struct tc_recent *recent, uint64_t address, uint64_t bytes,
                                 bool stores, uint64_t line_bytes)
{
    const struct tc_recent_line *line = tc_recent_at(recent, address);
    uint64_t begin =
        atomic_load_explicit(stores ? &line->store : &line->load, memory_order_relaxed);
    return ((begin ^ address) | (begin ^ (address + bytes - 1))) < line_bytes;
}

#endif
