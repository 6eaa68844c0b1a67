/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/counting.h"

#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

struct tc_vcpu tc_vcpus[TC_ARGUMENTS_CPUS_MAX];

/* Precedes nothing: no address has all bits set. */
static struct tc_block nothing = {
    .successors = {UINT64_MAX, UINT64_MAX},
    .masks = {UINT64_MAX, UINT64_MAX},
    .last = UINT64_MAX,
    .end = TC_END_NEXT,
};

void tc_vcpu_restart(struct tc_vcpu *vcpu)
{
    vcpu->previous = &nothing;
    for (unsigned mode = 0; mode < TC_SOFTPMU_MODES; mode++)
        vcpu->interrupted[mode] = NULL;
    vcpu->operand = 0;
    vcpu->piece_left = 0;
    vcpu->update = 0;
}

void tc_vcpu_remap(struct tc_vcpu *vcpu)
{
    tc_pages_forget(&vcpu->cold->pages);
    tc_recent_clear(&vcpu->core->recent_data, (uint32_t)vcpu->core->line_bytes);
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* How a block came to run, given the one before. */
enum passage {
    PASSAGE_NEXT,   /* followed in the program, no branch taken */
    PASSAGE_BRANCH, /* a branch led to it */
    PASSAGE_AGAIN,  /* the further iterations of a string instruction: not one more instruction */
    PASSAGE_CUT,    /* a fault cut the one before short, and this is its rest */
    PASSAGE_OTHER   /* an interrupt or a fault led to it */
};

static ALWAYS_INLINE enum passage passage_by_branch(const struct tc_block *previous,
                                                    const struct tc_block *block)
{
    switch ((enum tc_block_end)previous->end) {
    case TC_END_NEXT:
        break;
    case TC_END_CONDITIONAL:
    case TC_END_DIRECT:
        if (tc_block_leads_to(previous, TC_BLOCK_TARGET, block->start))
            return PASSAGE_BRANCH;
        break;
    case TC_END_INDIRECT:
        if (previous->mode == block->mode)
            return PASSAGE_BRANCH;
        break;
    case TC_END_FAR:
    case TC_END_INTERRUPT_RETURN:
        return PASSAGE_BRANCH;
    }
    return PASSAGE_OTHER;
}

static ALWAYS_INLINE enum passage passage(const struct tc_block *previous,
                                          const struct tc_block *block)
{
    if (previous->end <= TC_END_CONDITIONAL &&
        tc_block_leads_to(previous, TC_BLOCK_NEXT, block->start))
        return PASSAGE_NEXT;
    enum passage how = passage_by_branch(previous, block);
    if (__builtin_expect(how != PASSAGE_OTHER, 1))
        return how;
    if (previous->repeats_last && previous->last == block->start)
        return PASSAGE_AGAIN;
    return tc_block_instructions_from(previous, block->start) > 0 ? PASSAGE_CUT : PASSAGE_OTHER;
}

/* Instructions are counted as a block begins: those that the fault kept from retiring go. */
static void take_back(struct tc_core *core, const struct tc_block *cut, uint64_t from)
{
    tc_core_count(core, TC_SLOT_INSTRUCTIONS, -(uint64_t)tc_block_instructions_from(cut, from));
}

/* After an IRET: the block goes on where the one interrupted in its mode has left off, unless the
 * guest has turned to something else. An indirect branch may lead anywhere, so that cannot be told
 * from something else: no branch is counted then. */
static enum passage resume(struct tc_vcpu *vcpu, const struct tc_block *block)
{
    struct tc_core *core = vcpu->core;
    struct tc_block *interrupted = vcpu->interrupted[block->mode];
    vcpu->interrupted[block->mode] = NULL;
    if (interrupted == NULL)
        return PASSAGE_OTHER;
    enum passage how = passage(interrupted, block);
    bool inside = tc_block_instructions_from(interrupted, block->start) > 0;
    if (interrupted->end >= TC_END_INDIRECT)
        how = inside ? PASSAGE_CUT : PASSAGE_OTHER;
    if (how == PASSAGE_CUT)
        take_back(core, interrupted, block->start);
    else if (how == PASSAGE_BRANCH)
        tc_core_branch(core, &interrupted->branch, true, block->start);
    else if (how == PASSAGE_NEXT && interrupted->end == TC_END_CONDITIONAL)
        tc_core_branch(core, &interrupted->branch, false, block->start);
    /* Whatever was fetched before the interrupt is fetched again. */
    return how == PASSAGE_AGAIN ? PASSAGE_AGAIN : PASSAGE_OTHER;
}

/* Counts the branch that led to the block, if one did. Returns how the block came to run. */
static enum passage pass(struct tc_vcpu *vcpu, struct tc_block *previous,
                         const struct tc_block *block)
{
    enum passage how = passage(previous, block);
    if (how == PASSAGE_BRANCH)
        tc_core_branch(vcpu->core, &previous->branch, true, block->start);
    else if (how == PASSAGE_NEXT && previous->end == TC_END_CONDITIONAL)
        tc_core_branch(vcpu->core, &previous->branch, false, block->start);
    else if (how == PASSAGE_CUT)
        take_back(vcpu->core, previous, block->start);
    else if (how == PASSAGE_OTHER)
        vcpu->interrupted[previous->mode] = previous;
    return how;
}

static __attribute__((noinline)) void fetch_line(struct tc_core *core, uint64_t address)
{
    uint64_t line = address >> core->line_shift;
    tc_core_remember(core, &core->recent_code, tc_core_fetch_one(core, line), line, address);
}

/* A block's lines, one of which the shortcut does not know. */
static __attribute__((noinline)) void fetch_rarely(struct tc_core *core,
                                                   const struct tc_block *block)
{
    uint64_t begin = block->first_line;
    for (unsigned left = block->lines; left > 0; left--) {
        if (tc_recent_differs(&core->recent_code, begin) != 0)
            fetch_line(core, begin);
        begin += core->line_bytes;
    }
}

/* Counts the block itself. Execution that goes on within a fetch block has it already. */
static ALWAYS_INLINE void enter(struct tc_core *core, const struct tc_block *block, bool goes_on)
{
    _Atomic uint64_t *counters = tc_core_counters(core);
    tc_core_add(&counters[TC_SLOT_INSTRUCTIONS], block->instructions);
    tc_core_add(&counters[TC_SLOT_FETCH_BLOCKS], block->fetches[goes_on]);
    uint64_t differs = tc_recent_differs(&core->recent_code, block->first_line) |
                       tc_recent_differs(&core->recent_code, block->last_line);
    if (__builtin_expect(differs != 0, 0))
        fetch_rarely(core, block);
}

static __attribute__((noinline)) void run_rarely(struct tc_vcpu *vcpu, struct tc_block *previous,
                                                 struct tc_block *block, bool whole_system)
{
    enum passage how = pass(vcpu, previous, block);
    if (__builtin_expect(block->mode != vcpu->mode, 0)) {
        vcpu->mode = block->mode;
        tc_core_set_mode(vcpu->core, (enum tc_softpmu_mode)block->mode);
    }
    if (__builtin_expect(whole_system && previous->end == TC_END_INTERRUPT_RETURN, 0))
        how = resume(vcpu, block);
    if (__builtin_expect(how == PASSAGE_AGAIN, 0))
        tc_vcpu_add(&vcpu->cold->shared->repeats, 1);
    else
        enter(vcpu->core, block, how == PASSAGE_NEXT);
}

/* After a branch within a mode. */
static __attribute__((noinline)) void run_after_branch(struct tc_core *core,
                                                       struct tc_block *previous,
                                                       const struct tc_block *block, bool follows)
{
    tc_core_branch(core, &previous->branch, !follows, block->start);
    enter(core, block, follows);
}

/* After a conditional branch that the BTB has elsewhere or, if it was never taken, not at all. */
static __attribute__((noinline)) void run_after_search(struct tc_core *core,
                                                       struct tc_block *previous,
                                                       const struct tc_block *block, bool follows)
{
    struct tc_btb_set *set = tc_predictor_set(&core->predictor, previous->branch.address);
    if (follows && tc_btb_look_up(&core->predictor, set, &previous->branch) == TC_BTB_NOWHERE) {
        tc_core_count(core,
                      TC_SLOT_BRANCHES + TC_BRANCH_BTB_MISS +
                          (previous->branch.backward ? TC_BRANCH_MISPREDICTED : 0),
                      1);
        enter(core, block, true);
        return;
    }
    run_after_branch(core, previous, block, follows);
}

/* Most blocks: the one before ran to its end, in the same mode. All else is left to run_rarely.
 * Calls stand last, so that no registers need be saved. */
static ALWAYS_INLINE void run_block(unsigned vcpu_index, void *userdata,
                                    enum tc_addresses addresses)
{
    struct tc_vcpu *vcpu = &tc_vcpus[vcpu_index];
    struct tc_core *core = vcpu->core;
    struct tc_block *block = userdata;
    struct tc_block *previous = vcpu->previous;
    vcpu->previous = block;
    bool whole_system = addresses != TC_ADDRESSES_VIRTUAL;
    bool same_mode = !whole_system || block->mode == vcpu->mode;
    /* By index, not by condition: the host cannot foresee which. In user mode all masks are full.
     */
    uint64_t next = previous->successors[TC_BLOCK_NEXT];
    bool follows =
        ((block->start ^ next) & (whole_system ? previous->masks[TC_BLOCK_NEXT] : UINT64_MAX)) == 0;
    uint64_t differs = block->start ^ previous->successors[follows];
    if (whole_system)
        differs &= previous->masks[follows];
    if (previous->end == TC_END_CONDITIONAL && same_mode && differs == 0) {
        if (tc_core_conditional(core, &previous->branch, !follows))
            enter(core, block, follows);
        else
            run_after_search(core, previous, block, follows);
    } else if (previous->end == TC_END_NEXT && same_mode && follows) {
        enter(core, block, true);
    } else if (same_mode && (previous->end == TC_END_INDIRECT ||
                             (previous->end == TC_END_DIRECT && differs == 0 && !follows))) {
        run_after_branch(core, previous, block, false);
    } else {
        run_rarely(vcpu, previous, block, whole_system);
    }
}

static void virtual_block(unsigned vcpu_index, void *userdata)
{
    run_block(vcpu_index, userdata, TC_ADDRESSES_VIRTUAL);
}

static void physical_block(unsigned vcpu_index, void *userdata)
{
    run_block(vcpu_index, userdata, TC_ADDRESSES_PHYSICAL);
}

qemu_plugin_vcpu_udata_cb_t tc_counting_block(enum tc_addresses addresses)
{
    return addresses == TC_ADDRESSES_VIRTUAL ? virtual_block : physical_block;
}

void tc_counting_instruction(unsigned vcpu_index, void *userdata)
{
    (void)userdata;
    tc_vcpu_add(&tc_vcpus[vcpu_index].cold->shared->executed, 1);
}

void tc_counting_remap(unsigned vcpu_index, void *userdata)
{
    (void)userdata;
    tc_vcpu_remap(&tc_vcpus[vcpu_index]);
}

/* ---- data --------------------------------------------------------------------------------- */

/* Compares with QEMU's own answer, and takes that one. */
static uint64_t check(struct tc_vcpu *vcpu, uint32_t info, uint64_t address, uint64_t found,
                      bool shortcut)
{
    struct tc_softpmu_cpu *shared = vcpu->cold->shared;
    uint64_t asked = tc_pages_ask(&vcpu->cold->pages, info, address);
    uint64_t line = asked >> vcpu->core->line_shift;
    bool right = asked == found;
    /* Beside other CPUs a snoop may just be taking the line away. */
    if (shortcut && vcpu->core->alone)
        right &= tc_line_is(*tc_cache_latest(&vcpu->core->l1d, line), line);
    tc_vcpu_add(&shared->addresses_checked, 1);
    if (!right)
        tc_vcpu_add(&shared->addresses_wrong, 1);
    return asked;
}

/* An access within one line. */
static ALWAYS_INLINE void touch_line(struct tc_vcpu *vcpu, uint32_t info, uint64_t address,
                                     bool stores, enum tc_addresses addresses)
{
    struct tc_core *core = vcpu->core;
    uint64_t physical = address;
    if (addresses != TC_ADDRESSES_VIRTUAL) {
        physical = tc_pages_find(&vcpu->cold->pages, info, address);
        if (addresses == TC_ADDRESSES_CHECKED)
            physical =
                check(vcpu, info, address, physical,
                      tc_recent_has(&core->recent_data, address, 1, stores, core->line_bytes));
        if (__builtin_expect(physical >= TC_PAGE_UNKNOWN, 0)) {
            struct tc_softpmu_cpu *shared = vcpu->cold->shared;
            tc_vcpu_add(physical == TC_PAGE_DEVICE ? &shared->addresses_device
                                                   : &shared->addresses_unknown,
                        1);
            return;
        }
    }
    uint64_t line = physical >> core->line_shift;
    const _Atomic uint64_t *place =
        stores ? tc_core_store_one(core, line) : tc_core_load_one(core, line);
    tc_core_remember(core, &core->recent_data, place, line, address);
}

/* An access that the shortcut does not know. */
static ALWAYS_INLINE void touch_rarely(struct tc_vcpu *vcpu, uint32_t info, uint64_t address,
                                       uint64_t bytes, bool stores, enum tc_addresses addresses)
{
    uint64_t line_bytes = vcpu->core->line_bytes;
    uint64_t last = (address + bytes - 1) & ~(line_bytes - 1);
    touch_line(vcpu, info, address, stores, addresses);
    while (__builtin_expect(address < last, 0)) {
        address = (address & ~(line_bytes - 1)) + line_bytes;
        tc_core_count(vcpu->core, TC_SLOT_SPLITS, 1);
        touch_line(vcpu, info, address, stores, addresses);
    }
}

static ALWAYS_INLINE bool is_recent(const struct tc_core *core, uint64_t address, uint64_t bytes,
                                    bool stores, enum tc_addresses addresses)
{
    return addresses != TC_ADDRESSES_CHECKED &&
           tc_recent_has(&core->recent_data, address, bytes, stores, core->line_bytes);
}

static ALWAYS_INLINE void touch(struct tc_vcpu *vcpu, uint32_t info, uint64_t address,
                                uint64_t bytes, bool stores, enum tc_addresses addresses)
{
    if (!is_recent(vcpu->core, address, bytes, stores, addresses))
        touch_rarely(vcpu, info, address, bytes, stores, addresses);
}

/* Each access for itself. */
static ALWAYS_INLINE void any(unsigned vcpu_index, uint32_t info, uint64_t address,
                              enum tc_addresses addresses)
{
    struct tc_vcpu *vcpu = &tc_vcpus[vcpu_index];
    uint64_t bytes = UINT64_C(1) << qemu_plugin_mem_size_shift(info);
    bool stores = qemu_plugin_mem_is_store(info);
    tc_core_count(vcpu->core, stores ? TC_SLOT_STORES : TC_SLOT_LOADS, 1);
    touch(vcpu, info, address, bytes, stores, addresses);
}

/* userdata of operands in pieces or read and written: the instruction's address, whether it is
 * an update, a locked one, and the operand's size. */
#define OPERAND_BYTES  UINT64_C(0xff)
#define OPERAND_UPDATE UINT64_C(0x100)
#define OPERAND_LOCKED UINT64_C(0x200)
#define OPERAND_SHIFT  16

/* Whether this is the next piece of an operand whose first one has stood for all of it. */
static ALWAYS_INLINE bool is_further_piece(struct tc_vcpu *vcpu, uint64_t operand, uint64_t address,
                                           uint32_t bytes, bool stores)
{
    if (vcpu->piece_left > 0 && vcpu->operand == operand && vcpu->piece_next == address &&
        vcpu->piece_stores == stores) {
        vcpu->piece_next += bytes;
        vcpu->piece_left -= bytes < vcpu->piece_left ? bytes : vcpu->piece_left;
        return true;
    }
    uint32_t whole = (uint32_t)(operand & OPERAND_BYTES);
    vcpu->operand = operand;
    vcpu->piece_next = address + bytes;
    vcpu->piece_left = whole > bytes ? whole - bytes : 0;
    vcpu->piece_stores = stores;
    return false;
}

static ALWAYS_INLINE void whole(unsigned vcpu_index, uint32_t info, uint64_t address,
                                void *userdata, enum tc_addresses addresses)
{
    struct tc_vcpu *vcpu = &tc_vcpus[vcpu_index];
    uint64_t operand = (uintptr_t)userdata;
    uint32_t bytes = UINT32_C(1) << qemu_plugin_mem_size_shift(info);
    bool stores = qemu_plugin_mem_is_store(info);
    /* QEMU may not know a further page before the piece in it has been accessed. */
    uint32_t all = (uint32_t)(operand & OPERAND_BYTES);
    bool by_pieces =
        addresses != TC_ADDRESSES_VIRTUAL && (address & TC_PAGE_MASK) + all > TC_PAGE_MASK + 1;
    if (is_further_piece(vcpu, operand, address, bytes, stores)) {
        if (addresses != TC_ADDRESSES_VIRTUAL && (address & TC_PAGE_MASK) < bytes) {
            tc_core_count(vcpu->core, TC_SLOT_SPLITS, 1);
            touch(vcpu, info, address, bytes, stores, addresses);
        }
        return;
    }
    if (by_pieces)
        all = bytes;
    if (!stores) {
        vcpu->update = operand & OPERAND_UPDATE ? operand : 0;
        vcpu->update_address = address;
        tc_core_count(vcpu->core, TC_SLOT_LOADS, 1);
        /* The load of a locked update asks for ownership already. */
        touch(vcpu, info, address, all, operand & OPERAND_LOCKED, addresses);
        return;
    }
    if (operand & OPERAND_UPDATE) {
        /* Beside other CPUs a locked one is reported once, as a store. */
        if (vcpu->update != operand || vcpu->update_address != address)
            tc_core_count(vcpu->core, TC_SLOT_LOADS, 1);
        vcpu->update = 0;
        tc_core_count(vcpu->core, TC_SLOT_UPDATES, 1);
    }
    tc_core_count(vcpu->core, TC_SLOT_STORES, 1);
    touch(vcpu, info, address, all, true, addresses);
}

/* The callbacks of one way of addressing. Of the simple ones, whose userdata is the operand's size,
 * the rare part stands apart: what is left saves no registers. */
#define CALLBACKS(name, addresses)                                                                 \
    static __attribute__((noinline)) void name##_load_rarely(struct tc_vcpu *vcpu, uint32_t info,  \
                                                             uint64_t address, uint64_t bytes)     \
    {                                                                                              \
        touch_rarely(vcpu, info, address, bytes, false, addresses);                                \
    }                                                                                              \
    static __attribute__((noinline)) void name##_store_rarely(struct tc_vcpu *vcpu, uint32_t info, \
                                                              uint64_t address, uint64_t bytes)    \
    {                                                                                              \
        touch_rarely(vcpu, info, address, bytes, true, addresses);                                 \
    }                                                                                              \
    static void name##_load(unsigned vcpu_index, uint32_t info, uint64_t address, void *userdata)  \
    {                                                                                              \
        struct tc_vcpu *vcpu = &tc_vcpus[vcpu_index];                                              \
        tc_core_count(vcpu->core, TC_SLOT_LOADS, 1);                                               \
        if (!is_recent(vcpu->core, address, (uintptr_t)userdata, false, addresses))                \
            name##_load_rarely(vcpu, info, address, (uintptr_t)userdata);                          \
    }                                                                                              \
    static void name##_store(unsigned vcpu_index, uint32_t info, uint64_t address, void *userdata) \
    {                                                                                              \
        struct tc_vcpu *vcpu = &tc_vcpus[vcpu_index];                                              \
        tc_core_count(vcpu->core, TC_SLOT_STORES, 1);                                              \
        if (!is_recent(vcpu->core, address, (uintptr_t)userdata, true, addresses))                 \
            name##_store_rarely(vcpu, info, address, (uintptr_t)userdata);                         \
    }                                                                                              \
    static void name##_whole(unsigned vcpu_index, uint32_t info, uint64_t address, void *userdata) \
    {                                                                                              \
        whole(vcpu_index, info, address, userdata, addresses);                                     \
    }                                                                                              \
    static void name##_any(unsigned vcpu_index, uint32_t info, uint64_t address, void *userdata)   \
    {                                                                                              \
        (void)userdata;                                                                            \
        any(vcpu_index, info, address, addresses);                                                 \
    }

CALLBACKS(virtual, TC_ADDRESSES_VIRTUAL)
CALLBACKS(physical, TC_ADDRESSES_PHYSICAL)
CALLBACKS(checked, TC_ADDRESSES_CHECKED)

qemu_plugin_vcpu_mem_cb_t tc_counting_access(enum tc_addresses addresses,
                                             const struct tc_instruction *instruction,
                                             uint64_t address, void **userdata)
{
    static const struct {
        qemu_plugin_vcpu_mem_cb_t load, store, whole, any;
    } callbacks[] = {
        [TC_ADDRESSES_VIRTUAL] = {virtual_load, virtual_store, virtual_whole, virtual_any},
        [TC_ADDRESSES_PHYSICAL] = {physical_load, physical_store, physical_whole, physical_any},
        [TC_ADDRESSES_CHECKED] = {checked_load, checked_store, checked_whole, checked_any},
    };
    uint64_t operand = instruction->operand_bytes;
    bool locked = instruction->access == TC_ACCESS_LOCKED;
    bool update = locked || instruction->access == TC_ACCESS_UPDATE;
    if (update || instruction->access == TC_ACCESS_WIDE)
        operand |= address << OPERAND_SHIFT;
    if (update)
        operand |= OPERAND_UPDATE;
    if (locked)
        operand |= OPERAND_LOCKED;
    memcpy(userdata, &operand, sizeof operand);
    switch (instruction->access) {
    case TC_ACCESS_READ:
        return callbacks[addresses].load;
    case TC_ACCESS_WRITE:
        return callbacks[addresses].store;
    case TC_ACCESS_UPDATE:
    case TC_ACCESS_LOCKED:
    case TC_ACCESS_WIDE:
        return callbacks[addresses].whole;
    case TC_ACCESS_ANY:
        return callbacks[addresses].any;
    case TC_ACCESS_NONE:
        break;
    }
    return NULL;
}
