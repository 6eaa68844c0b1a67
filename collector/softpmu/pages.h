/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Where virtual addresses lie in the guest's memory.
 *
 * Asking QEMU at each access costs several times what the models do, so each CPU remembers
 * what it was told, page by page, until an instruction changes the mappings: what a CPU's own
 * translation buffer does, and as rightly, since guests must not rely on more. */
#ifndef TC_SOFTPMU_PAGES_H
#define TC_SOFTPMU_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "workloads/common/error.h"

#define TC_PAGE_SHIFT 12
#define TC_PAGE_MASK  UINT64_C(0xfff)

#define TC_PAGES_ENTRIES     2048
#define TC_PAGES_EPOCH_SHIFT 40 /* above the page number of a 48-bit address, sign bits cut off */

/* In place of a page's address. */
#define TC_PAGE_DEVICE  UINT64_MAX       /* no memory: registers of a device */
#define TC_PAGE_UNKNOWN (UINT64_MAX - 1) /* QEMU does not know */

struct tc_page_entry {
    uint64_t tag;  /* epoch and virtual page; epochs begin at 1, so a zeroed entry is empty */
    uint64_t page; /* physical address of its first byte */
};

/* One CPU's; for its own thread only. */
struct tc_pages {
    uint64_t epoch; /* << TC_PAGES_EPOCH_SHIFT */
    struct tc_page_entry entries[TC_PAGES_ENTRIES];
};

static inline uint64_t tc_pages_tag(const struct tc_pages *pages, uint64_t address)
{
    uint64_t number = address << 16 >> (16 + TC_PAGE_SHIFT);
    return pages->epoch | number;
}

static inline struct tc_page_entry *tc_pages_entry(struct tc_pages *pages, uint64_t address)
{
    return &pages->entries[(address >> TC_PAGE_SHIFT) % TC_PAGES_ENTRIES];
}

/* All that is remembered becomes void. Once before first use, too. */
void tc_pages_forget(struct tc_pages *pages);

/* The physical address of `address`, or one of the above; info: of an access to it by this CPU, of
 * which QEMU is just telling. Remembers it. */
uint64_t tc_pages_ask(struct tc_pages *pages, uint32_t info, uint64_t address);

/* The same from what is remembered, if it is. */
static inline uint64_t tc_pages_find(struct tc_pages *pages, uint32_t info, uint64_t address)
{
    const struct tc_page_entry *entry = tc_pages_entry(pages, address);
    if (__builtin_expect(entry->tag == tc_pages_tag(pages, address), 1))
        return entry->page | (address & TC_PAGE_MASK);
    return tc_pages_ask(pages, info, address);
}

/* The mapping of guest memory in QEMU's own address space: translated code names its bytes there.
 */
struct tc_ram {
    uint64_t begin;
    uint64_t end;
    uint64_t first_physical;
};

/* Finds the shared mapping of a file (memory-backend-memfd or -file) that holds host address
 * `code`. -ENOENT: there is none; names the remedy. errno of reading /proc/self/maps. */
TC_MUST_CHECK int tc_ram_find(struct tc_ram *ram, uint64_t code, struct tc_error *err);

#endif
