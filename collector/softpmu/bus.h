/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What connects the CPUs' private caches: the lock of a transaction, snooping, and the shared
 * last-level cache if the machine has one. All functions but the lock's are for who holds it. */
#ifndef TC_SOFTPMU_BUS_H
#define TC_SOFTPMU_BUS_H

#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/core.h"

void tc_bus_lock(struct tc_core *core, uint64_t line);
void tc_bus_unlock(struct tc_core *core, uint64_t line);

/* What the other CPUs answered: a bit per variant. */
struct tc_snoop {
    uint64_t shared;   /* another CPU keeps a copy */
    uint64_t modified; /* another CPU's copy was modified, and is in memory by now, too */
};

/* Asks the other CPUs, for the variants whose bits are set. They give up ownership, and if
 * invalidate, the line. */
struct tc_snoop tc_bus_snoop(struct tc_core *core, uint64_t line, uint64_t variants,
                             bool invalidate);

/* A line from or to what lies below the L2s: the LLC if there is one. Memory counts on the core. */
void tc_bus_read(struct tc_core *core, uint32_t variant, uint64_t line);
void tc_bus_write(struct tc_core *core, uint32_t variant, uint64_t line);

static inline void tc_bus_count(struct tc_core *core, uint32_t variant, enum tc_variant_slot slot)
{
    tc_core_count(core, TC_SLOT_SHARED + variant * TC_VSLOTS + (uint32_t)slot, 1);
}

#endif
