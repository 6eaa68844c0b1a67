/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/recent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOST_LINE_BYTES 64

static uint64_t size(const struct tc_recent *recent, uint32_t line_bytes)
{
    uint64_t bytes = recent->mask + line_bytes;
    return (bytes + HOST_LINE_BYTES - 1) / HOST_LINE_BYTES * HOST_LINE_BYTES;
}

int tc_recent_init(struct tc_recent *recent, uint64_t way_bytes, uint32_t line_bytes)
{
    uint64_t reach = way_bytes < TC_RECENT_PAGE ? way_bytes : TC_RECENT_PAGE;
    recent->mask = (reach - 1) & ~((uint64_t)line_bytes - 1);
    recent->lines = aligned_alloc(HOST_LINE_BYTES, size(recent, line_bytes));
    if (recent->lines == NULL)
        return -ENOMEM;
    tc_recent_clear(recent, line_bytes);
    return 0;
}

void tc_recent_free(struct tc_recent *recent)
{
    free(recent->lines);
    recent->lines = NULL;
}

void tc_recent_clear(struct tc_recent *recent, uint32_t line_bytes)
{
    for (uint64_t at = 0; at <= recent->mask; at += line_bytes) {
        struct tc_recent_line *line = tc_recent_at(recent, at);
        atomic_store_explicit(&line->load, TC_RECENT_NONE, memory_order_relaxed);
        atomic_store_explicit(&line->store, TC_RECENT_NONE, memory_order_relaxed);
    }
}
