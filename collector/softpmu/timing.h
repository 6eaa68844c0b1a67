/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The events of a simulated machine: sums of its raw counters, among them the modelled cycles. */
#ifndef TC_SOFTPMU_TIMING_H
#define TC_SOFTPMU_TIMING_H

#include "collector/softpmu/machine.h"

/* Fills the page's event table, its slots, shared_slots, variant_slots, variants, their names, the
 * machine's name and the clocks: all that the page says of the machine. */
void tc_timing_describe(const struct tc_machine *machine, struct tc_softpmu_page *page);

#endif
