/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What one x86 instruction does, as far as counting needs to know; the only user of Zydis. */
#ifndef TC_SOFTPMU_DECODE_H
#define TC_SOFTPMU_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TC_INSTRUCTION_BYTES_MAX 15

/* How control leaves an instruction. */
enum tc_flow {
    TC_FLOW_NEXT,          /* always to the next instruction, faults aside */
    TC_FLOW_CONDITIONAL,   /* to the target or to the next instruction */
    TC_FLOW_JUMP,          /* to the target */
    TC_FLOW_CALL,          /* to the target, leaving a return address */
    TC_FLOW_JUMP_INDIRECT, /* where memory or a register says */
    TC_FLOW_CALL_INDIRECT,
    TC_FLOW_RETURN,
    TC_FLOW_FAR, /* system calls and their returns, software interrupts, far transfers */
    TC_FLOW_INTERRUPT_RETURN /* IRET: resumes what was interrupted */
};

/* Which data accesses QEMU reports for it. */
enum tc_access {
    TC_ACCESS_NONE,
    TC_ACCESS_READ,   /* one operand, read, of operand_bytes, in one piece */
    TC_ACCESS_WRITE,  /* one operand, written, of operand_bytes, in one piece */
    TC_ACCESS_UPDATE, /* one operand, read and then written (or both at once) */
    TC_ACCESS_LOCKED, /* likewise, and nobody else may come between */
    TC_ACCESS_WIDE,   /* one operand of operand_bytes, read or written in pieces */
    TC_ACCESS_ANY     /* each access stands for itself */
};

struct tc_instruction {
    enum tc_flow flow;
    enum tc_access access;
    uint32_t operand_bytes;
    bool repeats;    /* a string instruction with a repeat prefix */
    bool remaps;     /* may change what virtual addresses mean: CR0, CR3, CR4, INVLPG ... */
    uint64_t target; /* of direct branches: virtual address */
};

/* Opaque: 64-bit or 32-bit code. Read-only once made; usable by many threads. */
struct tc_decoder;

/* NULL where memory is short. The caller frees by tc_decoder_free(). */
struct tc_decoder *tc_decoder_create(bool is_64_bit);
void tc_decoder_free(struct tc_decoder *decoder);

/* bytes that are no instruction (QEMU raises an exception when they run): flow is TC_FLOW_NEXT
 * and access TC_ACCESS_ANY. */
void tc_decode(const struct tc_decoder *decoder, const void *bytes, size_t size, uint64_t address,
               struct tc_instruction *instruction);

#endif
