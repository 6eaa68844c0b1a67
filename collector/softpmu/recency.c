/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/recency.h"

uint8_t tc_recency_after[256][TC_RECENCY_WAYS];

static uint8_t order_after(unsigned order, unsigned way)
{
    unsigned after = way;
    unsigned shift = 2;
    for (unsigned at = 0; at < 8 && shift < 8; at += 2) {
        unsigned other = order >> at & 3;
        if (other == way)
            continue;
        after |= other << shift;
        shift += 2;
    }
    return (uint8_t)after;
}

void tc_recency_init(void)
{
    for (unsigned order = 0; order < 256; order++) {
        for (unsigned way = 0; way < TC_RECENCY_WAYS; way++)
            tc_recency_after[order][way] = order_after(order, way);
    }
}
