/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/timing.h"

#include <stdio.h>
#include <string.h>

#include "collector/softpmu/core.h"

/* What the sums are made of: slots of variant 0, in the numbers of the page. */
#define V(slot) (TC_SLOT_SHARED + (slot))
#define SUM_MAX 10
#define SUM(...)                                                                                   \
    {                                                                                              \
        __VA_ARGS__, END                                                                           \
    }
#define END        UINT32_MAX
#define MINUS      UINT32_C(0x80000000) /* added to a slot that is subtracted */
#define BUS_READS  V(TC_VSLOT_BUS_BRD), V(TC_VSLOT_BUS_RFO), V(TC_VSLOT_BUS_IFETCH)
#define BUS_DATA   BUS_READS, V(TC_VSLOT_BUS_WB)
#define MISSES_L1D TC_SLOT_L1D_LOAD_MISSES, TC_SLOT_L1D_STORE_MISSES

/* Branches by how they went. */
#define B(outcome)        (TC_SLOT_BRANCHES + (outcome))
#define TAKEN             TC_BRANCH_TAKEN
#define WRONG             TC_BRANCH_MISPREDICTED
#define MISS              TC_BRANCH_BTB_MISS
#define MISPREDICTS_TAKEN B(TAKEN | WRONG), B(TAKEN | WRONG | MISS)
#define MISPREDICTS       B(WRONG), B(WRONG | MISS), MISPREDICTS_TAKEN
#define BTB_MISSES        B(MISS), B(MISS | WRONG), B(MISS | TAKEN), B(MISS | TAKEN | WRONG)
#define BRANCHES_TAKEN    B(TAKEN), B(TAKEN | MISS), MISPREDICTS_TAKEN
#define BRANCHES          B(0), B(MISS), B(WRONG), B(WRONG | MISS), BRANCHES_TAKEN
#define REDIRECTS         B(TAKEN | MISS) /* decoding found the target: not mispredicted */

enum where { ANY_MACHINE, WITH_LLC, WITHOUT_LLC };

struct definition {
    const char *name;
    const char *unit;
    uint32_t origin;
    enum where where;
    uint32_t sum[SUM_MAX];
};

#define SIMULATED TC_SOFTPMU_SIMULATED, ANY_MACHINE

/* docs/softpmu.md says what each of them means, and what a real Pentium III counts. */
static const struct definition definitions[] = {
    {"INST_RETIRED", "instructions", TC_SOFTPMU_COUNTED, ANY_MACHINE, SUM(TC_SLOT_INSTRUCTIONS)},
    {"IFU_IFETCH", "fetches", SIMULATED, SUM(TC_SLOT_FETCH_BLOCKS)},
    {"IFU_IFETCH_MISS", "lines", SIMULATED, SUM(TC_SLOT_L1I_MISSES)},
    {"DATA_MEM_REFS", "references", SIMULATED, SUM(TC_SLOT_LOADS, TC_SLOT_STORES, TC_SLOT_SPLITS)},
    {"DCU_LINES_IN", "lines", SIMULATED, SUM(MISSES_L1D)},
    {"DCU_M_LINES_IN", "lines", SIMULATED, SUM(TC_SLOT_L1D_STORE_MISSES)},
    {"DCU_M_LINES_OUT", "lines", SIMULATED, SUM(TC_SLOT_L1D_M_OUT, TC_SLOT_SNOOPED_L1D_M_OUT)},
    {"L2_IFETCH", "requests", SIMULATED, SUM(TC_SLOT_L1I_MISSES)},
    {"L2_LD", "requests", SIMULATED, SUM(TC_SLOT_L1D_LOAD_MISSES)},
    {"L2_ST", "requests", SIMULATED, SUM(TC_SLOT_L1D_STORE_MISSES, V(TC_VSLOT_UPGRADES))},
    {"L2_RQSTS", "requests", SIMULATED, SUM(TC_SLOT_L1I_MISSES, MISSES_L1D, V(TC_VSLOT_UPGRADES))},
    {"L2_LINES_IN", "lines", SIMULATED, SUM(BUS_READS, V(TC_VSLOT_L2_WB_IN))},
    {"L2_LINES_OUT", "lines", SIMULATED, SUM(V(TC_VSLOT_L2_OUT), V(TC_VSLOT_SNOOPED_L2_OUT))},
    {"L2_M_LINES_INM", "lines", SIMULATED, SUM(V(TC_VSLOT_L2_M_IN))},
    {"L2_M_LINES_OUTM", "lines", SIMULATED, SUM(V(TC_VSLOT_BUS_WB), V(TC_VSLOT_SNOOPED_L2_M_OUT))},
    {"BR_INST_RETIRED", "branches", SIMULATED, SUM(BRANCHES)},
    {"BR_TAKEN_RETIRED", "branches", SIMULATED, SUM(BRANCHES_TAKEN)},
    {"BR_MISS_PRED_RETIRED", "branches", SIMULATED, SUM(MISPREDICTS)},
    {"BR_MISS_PRED_TAKEN_RET", "branches", SIMULATED, SUM(MISPREDICTS_TAKEN)},
    {"BTB_MISSES", "branches", SIMULATED, SUM(BTB_MISSES)},
    {"BUS_TRAN_BRD", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_BRD))},
    {"BUS_TRAN_RFO", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_RFO))},
    /* libpfm4 spells two of them in another way than Intel: both will do. */
    {"BUS_TRANS_BRD", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_BRD))},
    {"BUS_TRANS_RFO", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_RFO))},
    {"BUS_TRAN_IFETCH", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_IFETCH))},
    {"BUS_TRAN_INVAL", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_INVAL))},
    {"BUS_TRANS_WB", "transactions", SIMULATED, SUM(V(TC_VSLOT_BUS_WB))},
    {"BUS_TRAN_BURST", "transactions", SIMULATED, SUM(BUS_DATA)},
    {"BUS_TRAN_MEM", "transactions", SIMULATED, SUM(BUS_DATA, V(TC_VSLOT_BUS_INVAL))},
    {"BUS_TRAN_ANY", "transactions", SIMULATED, SUM(BUS_DATA, V(TC_VSLOT_BUS_INVAL))},
    {"BUS_HIT_DRV", "transactions", SIMULATED, SUM(V(TC_VSLOT_SNOOPED_HIT))},
    {"BUS_HITM_DRV", "transactions", SIMULATED, SUM(V(TC_VSLOT_SNOOPED_HITM))},
    {"hitm_received", "transactions", SIMULATED, SUM(V(TC_VSLOT_HITM))},
    {"LLC_REFERENCES", "lines", TC_SOFTPMU_SIMULATED, WITH_LLC, SUM(BUS_READS)},
    {"LLC_MISSES", "lines", TC_SOFTPMU_SIMULATED, WITH_LLC, SUM(V(TC_VSLOT_LLC_MISSES))},
    {"LLC_M_LINES_OUT", "lines", TC_SOFTPMU_SIMULATED, WITH_LLC, SUM(V(TC_VSLOT_LLC_M_OUT))},
    {"drefs", "references", SIMULATED, SUM(TC_SLOT_LOADS, TC_SLOT_STORES, MINUS | TC_SLOT_UPDATES)},
    {"dreads", "references", SIMULATED, SUM(TC_SLOT_LOADS)},
    {"dwrites", "references", SIMULATED, SUM(TC_SLOT_STORES, MINUS | TC_SLOT_UPDATES)},
    {"d1_read_misses", "lines", SIMULATED, SUM(TC_SLOT_L1D_LOAD_MISSES)},
    {"d1_write_misses", "lines", SIMULATED, SUM(TC_SLOT_L1D_STORE_MISSES)},
    {"ll_ifetch_misses", "lines", TC_SOFTPMU_SIMULATED, WITHOUT_LLC, SUM(V(TC_VSLOT_BUS_IFETCH))},
    {"ll_read_misses", "lines", TC_SOFTPMU_SIMULATED, WITHOUT_LLC, SUM(V(TC_VSLOT_BUS_BRD))},
    {"ll_write_misses", "lines", TC_SOFTPMU_SIMULATED, WITHOUT_LLC, SUM(V(TC_VSLOT_BUS_RFO))},
};

static void put_text(char *to, size_t size, const char *text)
{
    (void)snprintf(to, size, "%s", text);
}

static struct tc_softpmu_event *add_event(struct tc_softpmu_page *page, const char *name,
                                          const char *unit, uint32_t origin)
{
    struct tc_softpmu_event *event = &page->event[page->events++];
    *event = (struct tc_softpmu_event){.origin = origin};
    put_text(event->name, sizeof(event->name), name);
    put_text(event->unit, sizeof(event->unit), unit);
    return event;
}

static void add_term(struct tc_softpmu_event *event, double weight, uint32_t slot)
{
    if (weight == 0)
        return;
    event->terms[event->terms_count++] = (struct tc_softpmu_term){.weight = weight, .slot = slot};
    if (slot >= TC_SLOT_SHARED)
        event->varies = 1;
}

static void add_defined(const struct tc_machine *machine, struct tc_softpmu_page *page)
{
    for (size_t i = 0; i < sizeof(definitions) / sizeof(definitions[0]); i++) {
        const struct definition *d = &definitions[i];
        if (d->where != ANY_MACHINE && (d->where == WITH_LLC) != machine->has_llc)
            continue;
        struct tc_softpmu_event *event = add_event(page, d->name, d->unit, d->origin);
        for (const uint32_t *slot = d->sum; *slot != END; slot++)
            add_term(event, *slot & MINUS ? -1 : 1, *slot & ~MINUS);
    }
}

/* A line takes as many bus clocks as the bus is narrower than it; address-only transactions none.
 */
static void add_data_clocks(const struct tc_machine *machine, struct tc_softpmu_page *page)
{
    static const uint32_t data[] = {BUS_DATA};
    struct tc_softpmu_event *event =
        add_event(page, "BUS_DRDY_CLOCKS", "bus clocks", TC_SOFTPMU_SIMULATED);
    double clocks = (double)machine->l1d.line_bytes / machine->bus_width_bytes;
    for (size_t i = 0; i < sizeof(data) / sizeof(data[0]); i++)
        add_term(event, clocks, data[i]);
}

/* The timing model: what an instruction costs if nothing stalls, plus a penalty per event. */
static void add_cycles(const struct tc_machine_timing *timing, struct tc_softpmu_page *page)
{
    const struct {
        double clocks;
        uint32_t slot;
    } terms[] = {
        {timing->issue_cpi, TC_SLOT_INSTRUCTIONS},
        {timing->l1i_miss, TC_SLOT_L1I_MISSES},
        {timing->l1d_load_miss, TC_SLOT_L1D_LOAD_MISSES},
        {timing->l1d_store_miss, TC_SLOT_L1D_STORE_MISSES},
        {timing->l2_load_miss, V(TC_VSLOT_BUS_BRD)},
        {timing->l2_store_miss, V(TC_VSLOT_BUS_RFO)},
        {timing->l2_ifetch_miss, V(TC_VSLOT_BUS_IFETCH)},
        {timing->llc_miss, V(TC_VSLOT_LLC_MISSES)},
        {timing->hitm, V(TC_VSLOT_HITM)},
        {timing->upgrade, V(TC_VSLOT_BUS_INVAL)},
        {timing->redirect, REDIRECTS},
    };
    static const uint32_t mispredicts[] = {MISPREDICTS};
    struct tc_softpmu_event *event =
        add_event(page, "CPU_CLK_UNHALTED", "cycles", TC_SOFTPMU_MODELLED);
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++)
        add_term(event, terms[i].clocks, terms[i].slot);
    for (size_t i = 0; i < sizeof(mispredicts) / sizeof(mispredicts[0]); i++)
        add_term(event, timing->mispredict, mispredicts[i]);
}

void tc_timing_describe(const struct tc_machine *machine, struct tc_softpmu_page *page)
{
    put_text(page->machine, sizeof(page->machine), machine->name);
    page->variants = machine->variants;
    for (uint32_t v = 0; v < machine->variants; v++)
        put_text(page->variant_names[v], sizeof(page->variant_names[v]), machine->variant[v].name);
    page->shared_slots = TC_SLOT_SHARED;
    page->variant_slots = TC_VSLOTS;
    page->slots = tc_machine_slots(machine);
    page->clock_hz = machine->clock_hz;
    page->bus_clock_hz = machine->bus_clock_hz;
    page->events = 0;
    add_defined(machine, page);
    if (machine->bus_clock_hz != 0)
        add_data_clocks(machine, page);
    add_cycles(&machine->timing, page);
}

_Static_assert(sizeof(definitions) / sizeof(definitions[0]) + 2 <= TC_SOFTPMU_EVENTS_MAX,
               "the page holds every event");
