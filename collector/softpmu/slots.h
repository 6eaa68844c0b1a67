/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The raw counters of one CPU and mode. Events are sums of them: see timing.c. */
#ifndef TC_SOFTPMU_SLOTS_H
#define TC_SOFTPMU_SLOTS_H

/* How a branch went, or'ed. */
#define TC_BRANCH_TAKEN        1u
#define TC_BRANCH_MISPREDICTED 2u
#define TC_BRANCH_BTB_MISS     4u
#define TC_BRANCH_OUTCOMES     8

/* The same in every variant, as the L1 caches hold the same lines whatever the L2's size.
 * [caller]: counted by whoever drives the models, with tc_core_count. */
enum tc_slot {
    TC_SLOT_INSTRUCTIONS, /* [caller] retired */
    TC_SLOT_FETCH_BLOCKS, /* [caller] aligned blocks of fetch_block_bytes fetched */
    TC_SLOT_LOADS,        /* [caller] a read-modify-write is a load and a store */
    TC_SLOT_STORES,       /* [caller] */
    TC_SLOT_UPDATES, /* [caller] the stores of read-modify-writes: cachegrind's data references,
                        one per instruction and operand, are loads (dreads) and stores less
                        updates (dwrites) */
    TC_SLOT_SPLITS,  /* further lines that accesses reached into */
    TC_SLOT_L1I_MISSES,
    TC_SLOT_L1D_LOAD_MISSES,
    TC_SLOT_L1D_STORE_MISSES,
    TC_SLOT_L1D_M_OUT, /* modified lines replaced, or given up to the CPU's own fetch */
    TC_SLOT_BRANCHES,  /* by outcome, so that a branch is one addition */
    TC_SLOT_SNOOPED_L1D_M_OUT =
        TC_SLOT_BRANCHES +
        TC_BRANCH_OUTCOMES, /* [snoop] modified lines that another CPU's access took */
    TC_SLOT_SHARED          /* how many */
};

/* One set per variant. [snoop]: added to, atomically, by the CPUs that snoop this one; the owner
 * never stores to these. */
enum tc_variant_slot {
    TC_VSLOT_UPGRADES,       /* stores that hit the L1D in a line that other CPUs may share */
    TC_VSLOT_BUS_BRD,        /* lines read because of loads */
    TC_VSLOT_BUS_RFO,        /* ... of stores: read for ownership */
    TC_VSLOT_BUS_IFETCH,     /* ... of instruction fetches */
    TC_VSLOT_BUS_INVAL,      /* ownership of a line that is there already; no data */
    TC_VSLOT_BUS_WB,         /* modified lines that the L2 replaced */
    TC_VSLOT_L2_OUT,         /* lines that the L2 replaced */
    TC_VSLOT_L2_M_IN,        /* lines of the L2 that became modified by a write-back of the L1D's */
    TC_VSLOT_L2_WB_IN,       /* those of them that the L2 did not hold */
    TC_VSLOT_HITM,           /* own transactions that another CPU's modified line answered */
    TC_VSLOT_LLC_MISSES,     /* lines read from memory */
    TC_VSLOT_LLC_M_OUT,      /* lines written to memory */
    TC_VSLOT_SNOOPED_HIT,    /* [snoop] reads of others for which this CPU kept a clean copy */
    TC_VSLOT_SNOOPED_HITM,   /* [snoop] transactions of others that a modified line answered */
    TC_VSLOT_SNOOPED_L2_OUT, /* [snoop] lines of the L2 invalidated */
    TC_VSLOT_SNOOPED_L2_M_OUT, /* [snoop] those of them that were modified */
    TC_VSLOTS                  /* how many */
};

#endif
