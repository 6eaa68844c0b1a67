"""`tlscost count` on 32-bit programs whose counts can be worked out by hand: the Pentium III's own.

As test_count.py, which has the helpers; the programs run on QEMU's Pentium III.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from serve import need
from test_count import EXIT_INSTRUCTIONS, assembled, counts_of

from tlscost import count as counting
from tlscost.machine import simulated_or_file

LINE = 32


def counts(directory: Path, text: str, way: str = "callback") -> dict[str, int]:
    need("qemu-i386")
    return counts_of(assembled(directory, text, bits=32), way)


@pytest.mark.parametrize("way", ["models", "inline", "callback"])
def test_a_loop_that_calls(tmp_path: Path, way: str) -> None:
    """A call pushes and a return pops 4 bytes; only the loop's end is mispredicted."""
    text = """mov $1000, %ecx
    1: call 2f
    dec %ecx
    jnz 1b
    jmp 3f
    .balign 64
    2: ret
    .balign 64
    3:"""
    found = counts(tmp_path, text, way)
    assert found["INST_RETIRED"] == 1 + 4 * 1000 + 1 + EXIT_INSTRUCTIONS
    assert (found["dreads"], found["dwrites"]) == (1000, 1000)
    assert found["BR_INST_RETIRED"] == 3 * 1000 + 1
    assert found["BR_MISS_PRED_RETIRED"] == 1


@pytest.mark.parametrize(
    ("instruction", "memory_references", "reads", "writes"),
    [
        ("push %eax", 1, 0, 1),
        ("pushl buffer", 2, 1, 1),
        ("pusha", 8, 0, 8),
        ("popa", 7, 7, 0),  # all but the stack pointer
        ("pushf", 1, 0, 1),
        ("leave", 1, 1, 0),
        ("incl buffer", 2, 1, 0),
        ("lock incl buffer", 2, 1, 0),
        ("xchg %eax, buffer", 2, 1, 0),
        ("lock cmpxchg8b buffer", 2, 1, 0),
        ("fldt buffer", 1, 1, 0),
        ("fildll buffer", 1, 1, 0),
        ("fnstenv buffer", 7, 0, 7),
        ("movq buffer, %mm0", 1, 1, 0),
        ("movaps buffer, %xmm0", 1, 1, 0),
        ("movups %xmm0, buffer+24", 2, 0, 1),  # over the end of a line
        ("movsl", 2, 1, 1),
        ("xlat", 1, 1, 0),
        ("bts %eax, buffer", 2, 1, 0),
        ("sfence", 0, 0, 0),
        ("lea buffer(,%eax,4), %edx", 0, 0, 0),
    ],
)
def test_references_of(
    tmp_path: Path, instruction: str, memory_references: int, reads: int, writes: int
) -> None:
    """Those of cachegrind's sense stand apart: one per instruction and operand."""
    setup = """mov $buffer, %esi
    mov $buffer+64, %edi
    mov $buffer+128, %ebx
    mov $buffer+4096, %ebp
    xor %eax, %eax"""
    before = "lea -64(%esp), %esp" if instruction != "leave" else "nop"
    found = counts(tmp_path, f"{setup}\n{before}\n{instruction}")
    assert found["INST_RETIRED"] == 5 + 1 + 1 + EXIT_INSTRUCTIONS
    assert found["DATA_MEM_REFS"] == memory_references
    assert (found["dreads"], found["dwrites"]) == (reads, writes)


@pytest.mark.parametrize("words", [0, 1, 1000])
def test_repeated_moves_retire_once(tmp_path: Path, words: int) -> None:
    text = f"mov $buffer, %esi\nmov $buffer+8192, %edi\nmov ${words}, %ecx\nrep movsl\nnop"
    found = counts(tmp_path, text)
    assert found["INST_RETIRED"] == 3 + 1 + 1 + EXIT_INSTRUCTIONS
    assert (found["dreads"], found["dwrites"]) == (words, words)
    assert found["d1_read_misses"] == -(-4 * words // LINE)
    assert found["d1_write_misses"] == -(-4 * words // LINE)


def test_its_cpu_is_the_machines(tmp_path: Path) -> None:
    """A Pentium III has no SSSE3: the program ends by SIGILL, with what it counted until then."""
    program = assembled(tmp_path, "nop\npshufb %xmm0, %xmm1", bits=32)
    need("qemu-i386")
    machine = simulated_or_file("p3-xeon-2m")
    assert counting.count(machine, [program]).status == 128 + signal.SIGILL
    assert counting.count(machine, [program], cpu_model="max").status == 0
