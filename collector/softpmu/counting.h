/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The callbacks that count: what QEMU calls while the guest runs. They know the models and QEMU's
 * access words, and nothing of how callbacks come to be installed.
 *
 * Each CPU's callbacks run on its own thread. The hot ones take no lock and allocate nothing. */
#ifndef TC_SOFTPMU_COUNTING_H
#define TC_SOFTPMU_COUNTING_H

#include <stdbool.h>
#include <stdint.h>

#include "collector/softpmu/arguments.h"
#include "collector/softpmu/block.h"
#include "collector/softpmu/core.h"
#include "collector/softpmu/pages.h"
#include "collector/softpmu/qemu_plugin_abi.h"
#include "collector/softpmu_page.h"

/* How data addresses become the models'. */
enum tc_addresses {
    TC_ADDRESSES_VIRTUAL,  /* one program: as they are */
    TC_ADDRESSES_PHYSICAL, /* whole system */
    TC_ADDRESSES_CHECKED   /* likewise, and each one is compared with what QEMU says */
};

/* What callbacks need rarely. */
struct tc_vcpu_cold {
    struct tc_softpmu_cpu *shared; /* this CPU's block of the page */
    struct tc_pages pages;
};

/* One simulated CPU as the callbacks see it. */
struct tc_vcpu {
    _Alignas(128) struct tc_core *core;
    struct tc_block *previous; /* the block that ran before; never NULL */
    uint64_t mode;             /* enum tc_softpmu_mode */
    /* By mode: the block that an interrupt or fault came after or into; NULL: none. */
    struct tc_block *interrupted[TC_SOFTPMU_MODES];
    /* The operand in pieces that is under way: who accesses it, what comes next. */
    uint64_t operand;
    uint64_t piece_next;
    uint32_t piece_left;
    bool piece_stores;
    /* The read-modify-write whose load has been seen. */
    uint64_t update;
    uint64_t update_address;
    struct tc_vcpu_cold *cold;
};

/* All of them, by QEMU's index; set before anything runs. */
extern struct tc_vcpu tc_vcpus[TC_ARGUMENTS_CPUS_MAX];

/* Virtual addresses may mean something else from now on. By the CPU's own thread. */
void tc_vcpu_remap(struct tc_vcpu *vcpu);

/* What ran before is of no consequence any more (blocks vanish, or counting begins). */
void tc_vcpu_restart(struct tc_vcpu *vcpu);

static inline void tc_vcpu_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* userdata: struct tc_block. */
qemu_plugin_vcpu_udata_cb_t tc_counting_block(enum tc_addresses addresses);

/* userdata: none. Per instruction, for comparison with what blocks count. */
void tc_counting_instruction(unsigned vcpu_index, void *userdata);

/* userdata: none. Before an instruction that may change mappings. */
void tc_counting_remap(unsigned vcpu_index, void *userdata);

/* The callback for an instruction's data accesses and its userdata; NULL: it has none. address: the
 * instruction's. */
qemu_plugin_vcpu_mem_cb_t tc_counting_access(enum tc_addresses addresses,
                                             const struct tc_instruction *instruction,
                                             uint64_t address, void **userdata);

#endif
