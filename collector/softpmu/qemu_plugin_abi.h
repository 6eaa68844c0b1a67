/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * QEMU's plugin interface, as far as it is used here: the only place that knows it.
 *
 * No Debian package ships a header for it. These declarations describe what QEMU exports; API
 * version 1 is QEMU 7.2's, 4 is QEMU 10's. QEMU reads `qemu_plugin_version` once the library is
 * loaded, so a constructor can still choose it: one library then serves both. What differs between
 * them is hidden by the functions at the end. */
#ifndef TC_SOFTPMU_QEMU_PLUGIN_ABI_H
#define TC_SOFTPMU_QEMU_PLUGIN_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TC_QEMU_API_OLD 1
#define TC_QEMU_API_NEW 4

#define TC_QEMU_EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

typedef struct {
    const char *target_name;
    struct {
        int min;
        int cur;
    } version;
    bool system_emulation;
    struct {
        int smp_vcpus;
        int max_vcpus;
    } system;
} qemu_info_t;

/* Neither reads nor writes the guest's registers. */
enum { TC_QEMU_CB_NO_REGS = 0 };
enum { TC_QEMU_MEM_R = 1, TC_QEMU_MEM_W = 2, TC_QEMU_MEM_RW = 3 };
enum { TC_QEMU_INLINE_ADD_U64 = 0 };

typedef void (*qemu_plugin_simple_cb_t)(qemu_plugin_id_t id);
typedef void (*qemu_plugin_udata_cb_t)(qemu_plugin_id_t id, void *userdata);
typedef void (*qemu_plugin_vcpu_simple_cb_t)(qemu_plugin_id_t id, unsigned int vcpu_index);
typedef void (*qemu_plugin_vcpu_udata_cb_t)(unsigned int vcpu_index, void *userdata);
typedef void (*qemu_plugin_vcpu_tb_trans_cb_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*qemu_plugin_vcpu_mem_cb_t)(unsigned int vcpu_index, qemu_plugin_meminfo_t info,
                                          uint64_t vaddr, void *userdata);

/* Provided by the plugin. */
extern TC_QEMU_EXPORT int qemu_plugin_version;
TC_QEMU_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                       char **argv);

/* Provided by QEMU. */
void qemu_plugin_reset(qemu_plugin_id_t id, qemu_plugin_simple_cb_t cb);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_simple_cb_t cb);
void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_simple_cb_t cb);
void qemu_plugin_register_vcpu_resume_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_simple_cb_t cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, qemu_plugin_vcpu_tb_trans_cb_t cb);
void qemu_plugin_register_flush_cb(qemu_plugin_id_t id, qemu_plugin_simple_cb_t cb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, qemu_plugin_udata_cb_t cb, void *userdata);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, qemu_plugin_vcpu_udata_cb_t cb,
                                          int flags, void *userdata);
/* Gone in newer QEMUs. */
__attribute__((weak)) void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb,
                                                                    int op, void *ptr,
                                                                    uint64_t imm);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
                                            qemu_plugin_vcpu_udata_cb_t cb, int flags,
                                            void *userdata);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, qemu_plugin_vcpu_mem_cb_t cb,
                                      int flags, int rw, void *userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t idx);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);
unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *haddr);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *haddr);
void qemu_plugin_outs(const char *string);

/* Not of the interface, but QEMU 7.2 exports them. For the helpers of an instruction it gives the
 * CPU a list of callbacks, and leaves it there where the instruction ends a block; dropping
 * translations frees the lists. What runs next, an interrupt's delivery say, then follows a list
 * that is gone. QEMU itself forgets the lists so where a program ends. Mended in newer QEMUs. */
__attribute__((weak)) void *qemu_get_cpu(int vcpu_index);
__attribute__((weak)) void qemu_plugin_disable_mem_helpers(void *cpu);

/* Since API version 3 it copies; before, it returned a pointer and took the instruction only. An
 * old QEMU ignores the further arguments, so one call serves both. */
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest, size_t bytes);

#endif
