/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The QEMU plugin: builds the simulated machine, installs the callbacks that count, arms and
 * disarms a running guest, reports at the end. A program's last part: it prints and exits. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collector/softpmu/arguments.h"
#include "collector/softpmu/block.h"
#include "collector/softpmu/core.h"
#include "collector/softpmu/counting.h"
#include "collector/softpmu/decode.h"
#include "collector/softpmu/machine.h"
#include "collector/softpmu/pages.h"
#include "collector/softpmu/qemu_plugin_abi.h"
#include "collector/softpmu/shared.h"

int qemu_plugin_version = TC_QEMU_API_OLD;

static struct {
    qemu_plugin_id_t id;
    struct tc_arguments arguments;
    bool whole_system;
    enum tc_addresses addresses;
    uint64_t kernel_begin; /* virtual address */
    struct tc_block_geometry geometry;
    struct tc_decoder *decoder;
    struct tc_arena *arena;
    struct tc_hierarchy *hierarchy;
    struct tc_softpmu_page *page;
    atomic_bool resetting;
    pthread_mutex_t ram_lock;
    struct tc_ram ram;
} plugin = {.ram_lock = PTHREAD_MUTEX_INITIALIZER};

/* QEMU asks for the version after this has run. */
__attribute__((constructor)) static void choose_version(void)
{
    if (dlsym(RTLD_DEFAULT, "qemu_plugin_read_memory_vaddr") != NULL)
        qemu_plugin_version = TC_QEMU_API_NEW;
}

/* Says why there are no counts, wherever someone looks. */
static void announce(int code, const char *message)
{
    struct tc_error err = {{0}};
    (void)fprintf(stderr, "tlscost-softpmu: %s\n", message);
    if (plugin.page != NULL)
        tc_shared_fail(plugin.page, code, message);
    else if (plugin.arguments.page != NULL &&
             tc_shared_create_failed(plugin.arguments.page, code, message, &err) != 0)
        (void)fprintf(stderr, "tlscost-softpmu: %s\n", err.message);
}

/* Counting cannot go on. A guest does, whoever reads its page decides; a program does not. */
static void fail(int code, const char *message)
{
    announce(code, message);
    if (!plugin.whole_system)
        _exit(EXIT_FAILURE);
}

static enum tc_softpmu_state state(void)
{
    return (enum tc_softpmu_state)atomic_load_explicit(&plugin.page->state, memory_order_relaxed);
}

/* ---- translation -------------------------------------------------------------------------- */

/* Where counting takes an instruction to be. False: counting has failed. */
static bool place(const struct qemu_plugin_insn *insn, uint64_t *address)
{
    *address = qemu_plugin_insn_vaddr(insn);
    if (plugin.addresses == TC_ADDRESSES_VIRTUAL)
        return true;
    uint64_t host = (uintptr_t)qemu_plugin_insn_haddr(insn);
    struct tc_error err = {{0}};
    int rc = 0;
    pthread_mutex_lock(&plugin.ram_lock);
    if (plugin.ram.end == 0)
        rc = tc_ram_find(&plugin.ram, host, &err);
    pthread_mutex_unlock(&plugin.ram_lock);
    if (rc != 0) {
        fail(-rc, err.message);
        return false;
    }
    if (host >= plugin.ram.begin && host < plugin.ram.end)
        *address = host - plugin.ram.begin + plugin.ram.first_physical;
    else
        atomic_fetch_add_explicit(&plugin.page->blocks_unknown, 1, memory_order_relaxed);
    return true;
}

static void decode(const struct qemu_plugin_insn *insn, struct tc_instruction *instruction)
{
    uint8_t bytes[TC_INSTRUCTION_BYTES_MAX];
    size_t size = qemu_plugin_insn_size(insn);
    size = size < sizeof bytes ? size : sizeof bytes;
    const void *data = qemu_plugin_insn_data(insn, bytes, size);
    if (qemu_plugin_version != TC_QEMU_API_OLD)
        data = bytes;
    tc_decode(plugin.decoder, data, size, qemu_plugin_insn_vaddr(insn), instruction);
}

/* The interface's own cost: called, and nothing done. */
static void empty_block(unsigned vcpu_index, void *userdata)
{
    (void)vcpu_index;
    (void)userdata;
}

static void empty_access(unsigned vcpu_index, uint32_t info, uint64_t address, void *userdata)
{
    (void)vcpu_index;
    (void)info;
    (void)address;
    (void)userdata;
}

static void instrument(struct qemu_plugin_insn *insn, const struct tc_instruction *instruction)
{
    void *userdata = NULL;
    qemu_plugin_vcpu_mem_cb_t access =
        tc_counting_access(plugin.addresses, instruction, qemu_plugin_insn_vaddr(insn), &userdata);
    if (access != NULL) {
        if (plugin.arguments.count == TC_COUNT_NOTHING)
            access = empty_access;
        qemu_plugin_register_vcpu_mem_cb(insn, access, TC_QEMU_CB_NO_REGS, TC_QEMU_MEM_RW,
                                         userdata);
    }
    if (instruction->remaps && plugin.whole_system)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, tc_counting_remap, TC_QEMU_CB_NO_REGS, NULL);
    if (plugin.arguments.count == TC_COUNT_CALLBACK)
        qemu_plugin_register_vcpu_insn_exec_cb(insn, tc_counting_instruction, TC_QEMU_CB_NO_REGS,
                                               NULL);
}

static bool describe(struct qemu_plugin_tb *tb, struct tc_block *block)
{
    size_t count = qemu_plugin_tb_n_insns(tb);
    struct tc_instruction instruction = {.flow = TC_FLOW_NEXT};
    struct qemu_plugin_insn *insn = NULL;
    for (size_t i = 0; i < count; i++) {
        insn = qemu_plugin_tb_get_insn(tb, i);
        decode(insn, &instruction);
        instrument(insn, &instruction);
        block->sizes[i] = (uint8_t)qemu_plugin_insn_size(insn);
        if (i == 0) {
            block->repeats_first = instruction.repeats;
            if (!place(insn, &block->start))
                return false;
        }
    }
    uint64_t address = qemu_plugin_insn_vaddr(insn);
    uint64_t from_start = address - qemu_plugin_tb_vaddr(tb);
    block->instructions = (uint32_t)count;
    block->mode =
        plugin.whole_system && address >= plugin.kernel_begin ? TC_SOFTPMU_KERNEL : TC_SOFTPMU_USER;
    tc_block_finish(block, &instruction, block->start + from_start, address,
                    (uint32_t)qemu_plugin_insn_size(insn), &plugin.geometry);
    return true;
}

static void follow(void);

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    if (plugin.whole_system)
        follow();
    if (state() != TC_SOFTPMU_ARMED || qemu_plugin_tb_n_insns(tb) == 0)
        return;
    struct tc_block *block = tc_arena_block(plugin.arena, qemu_plugin_tb_n_insns(tb));
    if (block == NULL) {
        fail(ENOMEM, "no memory for what is known of translated code");
        return;
    }
    if (!describe(tb, block))
        return;
    qemu_plugin_register_vcpu_tb_exec_cb(tb,
                                         plugin.arguments.count == TC_COUNT_NOTHING
                                             ? empty_block
                                             : tc_counting_block(plugin.addresses),
                                         TC_QEMU_CB_NO_REGS, block);
    if (plugin.arguments.count == TC_COUNT_INLINE)
        qemu_plugin_register_vcpu_tb_exec_inline(
            tb, TC_QEMU_INLINE_ADD_U64, &tc_vcpus[0].cold->shared->executed, block->instructions);
}

/* ---- arming ------------------------------------------------------------------------------- */

/* Takes back from a CPU the list of callbacks that it may still have, and that is gone. */
static void drop_callbacks(uint32_t vcpu_index)
{
    void *cpu = qemu_get_cpu != NULL ? qemu_get_cpu((int)vcpu_index) : NULL;
    if (cpu != NULL && qemu_plugin_disable_mem_helpers != NULL)
        qemu_plugin_disable_mem_helpers(cpu);
}

/* QEMU has dropped its translations, to arm or to disarm or for want of room; no CPU runs. */
static void flushed(qemu_plugin_id_t id)
{
    (void)id;
    for (uint32_t i = 0; i < plugin.arguments.cpus; i++) {
        tc_vcpu_restart(&tc_vcpus[i]);
        drop_callbacks(i);
    }
    tc_arena_release(plugin.arena);
}

static void install_callbacks(void);

/* No CPU runs, and nothing is instrumented any more. */
static void reinstall(qemu_plugin_id_t id)
{
    (void)id;
    for (uint32_t i = 0; i < plugin.arguments.cpus; i++)
        tc_vcpu_remap(&tc_vcpus[i]);
    bool arm = atomic_load(&plugin.page->wanted) == TC_SOFTPMU_ARM;
    install_callbacks();
    if (state() != TC_SOFTPMU_FAILED)
        atomic_store_explicit(&plugin.page->state, arm ? TC_SOFTPMU_ARMED : TC_SOFTPMU_DISARMED,
                              memory_order_release);
    atomic_store(&plugin.resetting, false);
}

/* Arms and disarms as the reader wants it; from a CPU's thread only. */
static void follow(void)
{
    bool arm = atomic_load_explicit(&plugin.page->wanted, memory_order_relaxed) == TC_SOFTPMU_ARM;
    enum tc_softpmu_state now = state();
    if (now != TC_SOFTPMU_FAILED && (now == TC_SOFTPMU_ARMED) != arm &&
        !atomic_exchange(&plugin.resetting, true))
        qemu_plugin_reset(plugin.id, reinstall);
}

/* ---- CPUs --------------------------------------------------------------------------------- */

static void cpu_starts(qemu_plugin_id_t id, unsigned vcpu_index)
{
    (void)id;
    if (vcpu_index >= plugin.arguments.cpus) {
        char message[160];
        (void)snprintf(message, sizeof message,
                       "the program runs more threads at once than the %u simulated CPUs; each "
                       "thread needs one: give more (--cpus N)",
                       plugin.arguments.cpus);
        fail(EINVAL, message);
        return;
    }
    uint32_t booting = TC_SOFTPMU_BOOTING;
    atomic_compare_exchange_strong(&plugin.page->state, &booting, TC_SOFTPMU_DISARMED);
}

static void cpu_idles(qemu_plugin_id_t id, unsigned vcpu_index)
{
    (void)id;
    tc_shared_idle(tc_vcpus[vcpu_index].cold->shared);
}

static void cpu_resumes(qemu_plugin_id_t id, unsigned vcpu_index)
{
    (void)id;
    tc_shared_resume(tc_vcpus[vcpu_index].cold->shared);
    /* Not when it falls idle: QEMU would have it sleep first, on what is for it to do. */
    follow();
}

/* A forked program is not the one that was asked for; nobody would tell its counts apart. */
static void forked(void)
{
    tc_shared_detach(plugin.page);
    atomic_store(&plugin.page->state, TC_SOFTPMU_ARMED);
}

static void finish(qemu_plugin_id_t id, void *userdata)
{
    (void)id;
    (void)userdata;
    if (state() != TC_SOFTPMU_FAILED)
        atomic_store_explicit(&plugin.page->state, TC_SOFTPMU_ENDED, memory_order_release);
}

static void install_callbacks(void)
{
    qemu_plugin_register_vcpu_init_cb(plugin.id, cpu_starts);
    if (plugin.whole_system) {
        qemu_plugin_register_vcpu_idle_cb(plugin.id, cpu_idles);
        qemu_plugin_register_vcpu_resume_cb(plugin.id, cpu_resumes);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(plugin.id, translate);
    qemu_plugin_register_flush_cb(plugin.id, flushed);
    qemu_plugin_register_atexit_cb(plugin.id, finish, NULL);
}

/* ---- installation ------------------------------------------------------------------------- */

static int check_target(const qemu_info_t *info, bool *is_64_bit, struct tc_error *err)
{
    *is_64_bit = strcmp(info->target_name, "x86_64") == 0;
    if (!*is_64_bit && strcmp(info->target_name, "i386") != 0)
        return tc_error_set(err, ENOTSUP, "QEMU emulates %s; expected x86_64 or i386",
                            info->target_name);
    if (plugin.arguments.count == TC_COUNT_INLINE &&
        qemu_plugin_register_vcpu_tb_exec_inline == NULL)
        return tc_error_set(err, ENOTSUP, "count=inline: not with this QEMU; expected 7.2");
    if (info->system_emulation && plugin.arguments.cpus == 0)
        plugin.arguments.cpus = (uint32_t)info->system.max_vcpus;
    if (plugin.arguments.cpus == 0)
        plugin.arguments.cpus = 1;
    if (info->system_emulation && plugin.arguments.cpus < (uint32_t)info->system.max_vcpus)
        return tc_error_set(err, EINVAL, "cpus: given %u; the guest may have %d",
                            plugin.arguments.cpus, info->system.max_vcpus);
    return 0;
}

static int create_vcpus(struct tc_error *err)
{
    uint32_t cpus = plugin.arguments.cpus;
    struct tc_vcpu_cold *cold = calloc(cpus, sizeof *cold);
    if (cold == NULL)
        return tc_error_set(err, ENOMEM, "no memory for %u CPUs", cpus);
    for (uint32_t i = 0; i < cpus; i++) {
        struct tc_vcpu *vcpu = &tc_vcpus[i];
        vcpu->core = tc_hierarchy_core(plugin.hierarchy, i);
        vcpu->cold = &cold[i];
        vcpu->cold->shared = tc_softpmu_page_cpu(plugin.page, i);
        tc_core_bind(plugin.hierarchy, i, vcpu->cold->shared->counters);
        tc_vcpu_remap(vcpu);
        tc_vcpu_restart(vcpu);
    }
    return 0;
}

static int build(const qemu_info_t *info, struct tc_error *err)
{
    struct tc_machine machine;
    bool is_64_bit = false;
    int rc = check_target(info, &is_64_bit, err);
    if (rc == 0)
        rc = tc_machine_load(plugin.arguments.machine, plugin.arguments.variant, &machine, err);
    if (rc == 0)
        rc = tc_hierarchy_new(&machine, plugin.arguments.cpus, &plugin.hierarchy, err);
    if (rc == 0)
        rc = tc_shared_create(plugin.arguments.page, &machine, plugin.arguments.cpus,
                              info->system_emulation, &plugin.page, err);
    if (rc != 0)
        return rc;
    plugin.decoder = tc_decoder_create(is_64_bit);
    plugin.arena = tc_arena_create();
    if (plugin.decoder == NULL || plugin.arena == NULL)
        return tc_error_set(err, ENOMEM, "no memory for the plugin");
    plugin.whole_system = info->system_emulation;
    plugin.kernel_begin = is_64_bit ? UINT64_C(1) << 63 : UINT64_C(0xc0000000);
    plugin.addresses = TC_ADDRESSES_VIRTUAL;
    if (plugin.whole_system)
        plugin.addresses =
            plugin.arguments.check_addresses ? TC_ADDRESSES_CHECKED : TC_ADDRESSES_PHYSICAL;
    plugin.geometry = (struct tc_block_geometry){
        .fetch_block_bytes = machine.fetch_block_bytes,
        .line_bytes = machine.l1i.line_bytes,
        .physical = plugin.whole_system,
    };
    return create_vcpus(err);
}

int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    struct tc_error err = {{0}};
    plugin.id = id;
    int rc = tc_arguments_parse(&plugin.arguments, argc, argv, &err);
    if (rc == 0)
        rc = build(info, &err);
    if (rc == 0 && !plugin.whole_system && pthread_atfork(NULL, NULL, forked) != 0)
        rc = tc_error_set(&err, ENOMEM, "no memory to watch for forks");
    if (rc != 0) {
        announce(-rc, err.message);
        return rc;
    }
    bool arm = plugin.arguments.armed == TC_ARMED_ON ||
               (plugin.arguments.armed == TC_ARMED_DEFAULT && !plugin.whole_system);
    atomic_store(&plugin.page->wanted, arm ? TC_SOFTPMU_ARM : TC_SOFTPMU_DISARM);
    if (arm)
        atomic_store(&plugin.page->state, TC_SOFTPMU_ARMED);
    install_callbacks();
    return 0;
}
