/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "collector/softpmu/decode.h"

#include <Zydis/Zydis.h>
#include <stdlib.h>

struct tc_decoder {
    ZydisDecoder zydis;
};

struct tc_decoder *tc_decoder_create(bool is_64_bit)
{
    struct tc_decoder *decoder = malloc(sizeof *decoder);
    if (decoder == NULL)
        return NULL;
    ZydisMachineMode mode =
        is_64_bit ? ZYDIS_MACHINE_MODE_LONG_64 : ZYDIS_MACHINE_MODE_LONG_COMPAT_32;
    ZydisStackWidth width = is_64_bit ? ZYDIS_STACK_WIDTH_64 : ZYDIS_STACK_WIDTH_32;
    if (ZYAN_SUCCESS(ZydisDecoderInit(&decoder->zydis, mode, width)))
        return decoder;
    free(decoder);
    return NULL;
}

void tc_decoder_free(struct tc_decoder *decoder)
{
    free(decoder);
}

static bool is_relative(const ZydisDecodedOperand *operand)
{
    return operand->type == ZYDIS_OPERAND_TYPE_IMMEDIATE && operand->imm.is_relative;
}

static enum tc_flow flow_of(const ZydisDecodedInstruction *decoded,
                            const ZydisDecodedOperand *operands)
{
    switch (decoded->mnemonic) {
    case ZYDIS_MNEMONIC_IRET:
    case ZYDIS_MNEMONIC_IRETD:
    case ZYDIS_MNEMONIC_IRETQ:
        return TC_FLOW_INTERRUPT_RETURN;
    default:
        break;
    }
    if (decoded->meta.branch_type == ZYDIS_BRANCH_TYPE_FAR)
        return TC_FLOW_FAR;
    switch (decoded->meta.category) {
    case ZYDIS_CATEGORY_COND_BR:
        return TC_FLOW_CONDITIONAL;
    case ZYDIS_CATEGORY_UNCOND_BR:
        return is_relative(&operands[0]) ? TC_FLOW_JUMP : TC_FLOW_JUMP_INDIRECT;
    case ZYDIS_CATEGORY_CALL:
        return is_relative(&operands[0]) ? TC_FLOW_CALL : TC_FLOW_CALL_INDIRECT;
    case ZYDIS_CATEGORY_RET:
        return TC_FLOW_RETURN;
    case ZYDIS_CATEGORY_INTERRUPT:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
        return TC_FLOW_FAR;
    default:
        return TC_FLOW_NEXT;
    }
}

/* Loads of segment registers read descriptor tables, which no operand shows. */
static bool reads_tables(const ZydisDecodedInstruction *decoded,
                         const ZydisDecodedOperand *operands)
{
    switch (decoded->meta.category) {
    case ZYDIS_CATEGORY_INTERRUPT:
    case ZYDIS_CATEGORY_SYSTEM:
    case ZYDIS_CATEGORY_SEGOP:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
        return true;
    default:
        break;
    }
    for (unsigned i = 0; i < decoded->operand_count_visible; i++)
        if (operands[i].type == ZYDIS_OPERAND_TYPE_REGISTER &&
            (operands[i].actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) &&
            ZydisRegisterGetClass(operands[i].reg.value) == ZYDIS_REGCLASS_SEGMENT)
            return true;
    return decoded->meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;
}

/* Instructions whose one operand is a list of values: each piece is an access of its own. */
static bool is_list(ZydisMnemonic mnemonic)
{
    switch (mnemonic) {
    case ZYDIS_MNEMONIC_PUSHA:
    case ZYDIS_MNEMONIC_PUSHAD:
    case ZYDIS_MNEMONIC_POPA:
    case ZYDIS_MNEMONIC_POPAD:
    case ZYDIS_MNEMONIC_FNSTENV:
    case ZYDIS_MNEMONIC_FLDENV:
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVPS:
    case ZYDIS_MNEMONIC_VMASKMOVPD:
    case ZYDIS_MNEMONIC_VPMASKMOVD:
    case ZYDIS_MNEMONIC_VPMASKMOVQ:
        return true;
    default:
        return false;
    }
}

static bool is_locked(const ZydisDecodedInstruction *decoded)
{
    return (decoded->attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0 ||
           decoded->mnemonic == ZYDIS_MNEMONIC_XCHG;
}

static enum tc_access access_of_one(const ZydisDecodedInstruction *decoded,
                                    const ZydisDecodedOperand *memory, uint32_t bytes)
{
    bool reads = (memory->actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0;
    bool writes = (memory->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
    enum tc_access update = is_locked(decoded) ? TC_ACCESS_LOCKED : TC_ACCESS_UPDATE;
    if (memory->mem.type != ZYDIS_MEMOP_TYPE_MEM || is_list(decoded->mnemonic))
        return TC_ACCESS_ANY;
    switch (bytes) {
    case 1:
    case 2:
    case 4:
    case 8:
        if (reads && writes)
            return update;
        return writes ? TC_ACCESS_WRITE : TC_ACCESS_READ;
    case 10: /* x87's extended precision */
    case 16:
    case 32:
    case 64:
        return reads && writes ? update : TC_ACCESS_WIDE;
    default:
        return TC_ACCESS_ANY;
    }
}

static void find_access(const ZydisDecodedInstruction *decoded, const ZydisDecodedOperand *operands,
                        struct tc_instruction *instruction)
{
    const ZydisDecodedOperand *memory = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < decoded->operand_count; i++) {
        const ZydisDecodedOperand *operand = &operands[i];
        if (operand->type == ZYDIS_OPERAND_TYPE_MEMORY &&
            operand->mem.type != ZYDIS_MEMOP_TYPE_AGEN && operand->actions != 0) {
            memory = operand;
            count++;
        }
    }
    instruction->operand_bytes = memory != NULL ? memory->size / 8U : 0;
    if (count > 1 || reads_tables(decoded, operands))
        instruction->access = TC_ACCESS_ANY;
    else if (count == 1)
        instruction->access = access_of_one(decoded, memory, instruction->operand_bytes);
    else
        instruction->access = TC_ACCESS_NONE;
}

static bool changes_mapping(const ZydisDecodedInstruction *decoded,
                            const ZydisDecodedOperand *operands)
{
    if (decoded->mnemonic == ZYDIS_MNEMONIC_INVLPG || decoded->mnemonic == ZYDIS_MNEMONIC_INVPCID)
        return true;
    return decoded->mnemonic == ZYDIS_MNEMONIC_MOV &&
           operands[0].type == ZYDIS_OPERAND_TYPE_REGISTER &&
           ZydisRegisterGetClass(operands[0].reg.value) == ZYDIS_REGCLASS_CONTROL;
}

void tc_decode(const struct tc_decoder *decoder, const void *bytes, size_t size, uint64_t address,
               struct tc_instruction *instruction)
{
    ZydisDecodedInstruction decoded;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    *instruction = (struct tc_instruction){.flow = TC_FLOW_NEXT, .access = TC_ACCESS_ANY};
    if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder->zydis, bytes, size, &decoded, operands)))
        return;
    instruction->flow = flow_of(&decoded, operands);
    find_access(&decoded, operands, instruction);
    instruction->repeats = (decoded.attributes & (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE |
                                                  ZYDIS_ATTRIB_HAS_REPNE)) != 0 &&
                           (decoded.meta.category == ZYDIS_CATEGORY_STRINGOP ||
                            decoded.meta.category == ZYDIS_CATEGORY_IOSTRINGOP);
    instruction->remaps = changes_mapping(&decoded, operands);
    if (decoded.operand_count > 0 && is_relative(&operands[0])) {
        uint64_t target = 0;
        if (ZYAN_SUCCESS(ZydisCalcAbsoluteAddress(&decoded, &operands[0], address, &target)))
            instruction->target = target;
    }
}
