"""`tlscost count` on programs whose counts can be worked out by hand, and its faults.

The programs are assembly without a library, so that every instruction is here. The machine is the
Pentium III Xeon: L1 caches of 16 KiB in 4 ways of 128 sets of 32 bytes, fetch blocks of 16 bytes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import tlscost
from serve import need
from small_disk import small_disk

from tlscost import count as counting
from tlscost.errors import BAD_INPUT, CANNOT, FAILED, TlscostError
from tlscost.machine import simulated_or_file

MACHINE = "p3-xeon-2m"
# By word size: 3 instructions each.
EXITS = {
    64: "mov $60, %eax; xor %edi, %edi; syscall",
    32: "mov $1, %eax; xor %ebx, %ebx; int $0x80",
}
EXIT_INSTRUCTIONS = 3
MAGIC = b"softpmu1"
LINE = 32
L1_BYTES = 16384


def assembled(directory: Path, text: str, data: str = "", bits: int = 64) -> str:
    source, path = directory / "a.s", directory / "a.out"
    source.write_text(
        f".text\n.globl _start\n.balign 64\n_start:\n{text}\n{EXITS[bits]}\n"
        f".bss\n.balign 4096\nbuffer: .skip {1 << 20}\n.data\n.balign 4096\n{data}\n"
    )
    subprocess.run(["gcc", f"-m{bits}", "-nostdlib", "-static", "-o", path, source], check=True)
    return str(path)


def counts_of(program: str, way: str = "callback") -> dict[str, int]:
    """Run it; the second, independent count of instructions must agree with the blocks'."""
    counts = counting.count(simulated_or_file(MACHINE), [program], way=way)
    assert counts.status == 0
    events = {event.name: next(iter(event.user.values())) for event in counts.events}
    if way != "models":
        assert events["INST_RETIRED"] == counts.executed - counts.repeats
    return {**events, "repeats": counts.repeats}


@pytest.mark.parametrize("way", ["models", "inline", "callback"])
def test_a_loop(tmp_path: Path, way: str) -> None:
    """The branch is not in the BTB at first: static prediction, backward is taken, and so it goes.

    It enters as weakly taken and is taken until the loop ends: the one misprediction.
    """
    program = assembled(tmp_path, "mov $1000, %ecx\n1: dec %ecx\njnz 1b")
    counts = counts_of(program, way)
    assert counts["INST_RETIRED"] == 1 + 2 * 1000 + EXIT_INSTRUCTIONS
    assert counts["drefs"] == counts["DATA_MEM_REFS"] == 0
    # The syscall is a far branch: never predicted, always taken, seen only if something follows it.
    assert counts["BR_INST_RETIRED"] == 1000
    assert counts["BR_TAKEN_RETIRED"] == 999
    assert counts["BR_MISS_PRED_RETIRED"] == 1


def strides(instruction: str, lines: int) -> str:
    """Ten times over, an instruction on the first word of each of so many lines."""
    return f"""mov $10, %edx
    2: lea buffer(%rip), %rsi
    mov ${lines}, %ecx
    1: {instruction}
    add ${LINE}, %rsi
    dec %ecx
    jnz 1b
    dec %edx
    jnz 2b"""


def test_a_stride_larger_than_the_cache(tmp_path: Path) -> None:
    """64 KiB, a load per line, ten times over: LRU keeps nothing until it comes again."""
    lines = (64 << 10) // LINE
    counts = counts_of(assembled(tmp_path, strides("mov (%rsi), %eax", lines)))
    assert counts["INST_RETIRED"] == 1 + 10 * (2 + 4 * lines + 2) + EXIT_INSTRUCTIONS
    assert counts["dreads"] == counts["d1_read_misses"] == 10 * lines
    assert counts["L2_LD"] == 10 * lines
    assert counts["BUS_TRAN_BRD"] == lines  # the L2 keeps them


def test_what_fits_the_cache_misses_once(tmp_path: Path) -> None:
    lines = L1_BYTES // LINE
    counts = counts_of(assembled(tmp_path, strides("addl $1, (%rsi)", lines)))
    # A read-modify-write: two references for the P6, one for cachegrind; its load misses.
    assert counts["DATA_MEM_REFS"] == 2 * 10 * lines
    assert counts["drefs"] == counts["dreads"] == 10 * lines
    assert counts["d1_read_misses"] == lines
    assert counts["d1_write_misses"] == 0


@pytest.mark.parametrize(
    ("instruction", "reads", "reads_for_ownership"),
    [
        ("mov (%rsi), %eax", 1, 0),
        ("mov %eax, (%rsi)", 0, 1),
        ("addl $1, (%rsi)", 1, 0),  # its load reads the line, and then the CPU owns it alone
        ("lock addl $1, (%rsi)", 0, 1),
        ("xchg %eax, (%rsi)", 0, 1),  # locks without the prefix
        ("lock xadd %eax, (%rsi)", 0, 1),
    ],
)
def test_locked_updates_read_for_ownership(
    tmp_path: Path, instruction: str, reads: int, reads_for_ownership: int
) -> None:
    lines = (64 << 10) // LINE
    counts = counts_of(assembled(tmp_path, strides(instruction, lines)))
    assert counts["BUS_TRAN_BRD"] == reads * lines
    assert counts["BUS_TRAN_RFO"] == reads_for_ownership * lines
    assert counts["BUS_TRAN_INVAL"] == 0


def test_a_pointer_chase(tmp_path: Path) -> None:
    """5 lines of one set, round and round: one more than there are ways, so LRU always misses."""
    way = L1_BYTES // 4
    links = "\n".join(f".org {i * way}\n.quad chain + {(i + 1) % 5 * way}" for i in range(5))
    data = f'chain_section:\n.section .chain,"aw"\n.balign 4096\nchain:\n{links}'
    text = "lea chain(%rip), %rsi\nmov $1000, %ecx\n1: mov (%rsi), %rsi\ndec %ecx\njnz 1b"
    counts = counts_of(assembled(tmp_path, text, data))
    assert counts["dreads"] == counts["d1_read_misses"] == 1000
    assert counts["BUS_TRAN_BRD"] == 5


@pytest.mark.parametrize(
    ("setup", "instruction", "iterations", "references"),
    [
        ("mov $1000, %ecx", "rep movsb", 1000, (1000, 1000)),
        ("mov $1, %ecx", "rep stosl", 1, (0, 1)),
        ("xor %ecx, %ecx", "rep movsb", 0, (0, 0)),
        ("mov $1000, %ecx", "rep stosl", 1000, (0, 1000)),
        # Compares equal for 7 bytes, and ends at the eighth.
        ("movb $1, buffer+7(%rip); mov $1000, %ecx", "repe cmpsb", 8, (16, 1)),
    ],
)
def test_repeated_string_instructions_retire_once(
    tmp_path: Path, setup: str, instruction: str, iterations: int, references: tuple[int, int]
) -> None:
    text = f"lea buffer(%rip), %rsi\nlea buffer+8192(%rip), %rdi\n{setup}\n{instruction}\nnop"
    counts = counts_of(assembled(tmp_path, text))
    before = 2 + len(setup.split(";"))
    assert counts["INST_RETIRED"] == before + 1 + 1 + EXIT_INSTRUCTIONS
    assert (counts["dreads"], counts["dwrites"]) == references
    # QEMU may enter the block once more to find the count exhausted.
    assert max(iterations - 1, 0) <= counts["repeats"] <= iterations


def test_branches_of_a_pattern_are_learnt(tmp_path: Path) -> None:
    """Taken every other time: 4 bits of history tell the two cases apart once each was seen.

    Within the first few of 1000 turns; the loop's own branch errs once, at its end.
    """
    text = """mov $1000, %ecx
    1: test $1, %ecx
    jnz 2f
    nop
    .balign 16
    2: dec %ecx
    jnz 1b"""
    counts = counts_of(assembled(tmp_path, text))
    assert counts["BR_INST_RETIRED"] == 2000
    assert counts["BR_TAKEN_RETIRED"] == 500 + 999
    assert 1 <= counts["BR_MISS_PRED_RETIRED"] <= 1 + 6


def test_calls_and_returns(tmp_path: Path) -> None:
    """Two deep, which the return stack holds: no return is mispredicted, only the loop's end."""
    text = """mov $100, %ecx
    1: call 2f
    dec %ecx
    jnz 1b
    jmp 4f
    .balign 64
    2: call 3f
    ret
    .balign 64
    3: ret
    .balign 64
    4:"""
    counts = counts_of(assembled(tmp_path, text))
    assert counts["INST_RETIRED"] == 1 + 100 * 6 + 1 + EXIT_INSTRUCTIONS
    assert counts["BR_INST_RETIRED"] == 100 * 5 + 1
    assert counts["BR_MISS_PRED_RETIRED"] == 1
    assert counts["dreads"] == counts["dwrites"] == 200


@pytest.mark.parametrize(
    ("instruction", "memory_references", "references"),
    [
        ("lock addl $1, buffer(%rip)", 2, 1),
        ("xchg %eax, buffer(%rip)", 2, 1),
        ("addl $1, buffer(%rip)", 2, 1),
        ("movaps buffer(%rip), %xmm0", 1, 1),
        ("movups %xmm0, buffer+8(%rip)", 1, 1),
        ("lock cmpxchg16b buffer(%rip)", 2, 1),
        ("cmpxchg16b buffer(%rip)", 2, 1),
        ("push buffer(%rip)", 2, 2),
        ("fldt buffer(%rip)", 1, 1),
        # Over the end of a line: each part of a split is a reference of the P6.
        ("mov buffer+30(%rip), %eax", 2, 1),
        ("movups buffer+24(%rip), %xmm0", 2, 1),
        ("movsb", 2, 2),
        ("nopl buffer(%rip)", 0, 0),
        ("lea buffer(%rip), %rax", 0, 0),
        ("prefetcht0 buffer(%rip)", 0, 0),
    ],
)
def test_references_of(
    tmp_path: Path, instruction: str, memory_references: int, references: int
) -> None:
    text = f"lea buffer(%rip), %rsi\nlea buffer+64(%rip), %rdi\n{instruction}"
    counts = counts_of(assembled(tmp_path, text))
    assert counts["INST_RETIRED"] == 3 + EXIT_INSTRUCTIONS
    assert counts["DATA_MEM_REFS"] == memory_references
    assert counts["drefs"] == references


def test_fetch_blocks(tmp_path: Path) -> None:
    """64 one-byte instructions from the begin of a line, 9 bytes behind them: 5 blocks, 3 lines."""
    counts = counts_of(assembled(tmp_path, "nop\n" * 64))
    assert counts["INST_RETIRED"] == 64 + EXIT_INSTRUCTIONS
    assert counts["IFU_IFETCH"] == 5
    assert counts["IFU_IFETCH_MISS"] == 3


def test_json_and_exit_status() -> None:
    done = tlscost("count", "--machine", MACHINE, "--json", "--", "sh", "-c", "echo out; exit 7")
    assert done.returncode == 7
    document = json.loads(done.stdout)
    assert (document["machine"], document["status"]) == (MACHINE, 7)
    assert document["events"]["INST_RETIRED"]["user"] > 10_000
    assert document["events"]["INST_RETIRED"]["kernel"] is None
    assert document["events"]["CPU_CLK_UNHALTED"]["origin"] == "modelled"
    assert "out\n" in done.stderr


def test_variants_stand_apart() -> None:
    document = json.loads(tlscost("count", "--machine", "p3-xeon", "--json", "--", "true").stdout)
    assert list(document["variants"]) == ["512k", "1m", "2m"]
    assert "L2_LINES_IN" in document["variants"]["2m"]
    assert "L2_LINES_IN" not in document["events"]


def test_a_signal_ends_the_program_and_its_counts_are_there() -> None:
    done = tlscost("count", "--machine", MACHINE, "--json", "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert json.loads(done.stdout)["events"]["INST_RETIRED"]["user"] > 10_000


@pytest.mark.parametrize(
    ("arguments", "options", "code", "words"),
    [
        (["--machine", "vax", "--", "true"], {}, BAD_INPUT, "p3-xeon-2m"),
        (["--machine", "none.json", "--", "true"], {}, BAD_INPUT, "none.json"),
        (["--machine", MACHINE, "--", "no-such-program"], {}, BAD_INPUT, "no such program"),
        (["--machine", MACHINE, "--", "/etc/passwd"], {}, BAD_INPUT, "/etc/passwd"),
        (["--machine", MACHINE, "--", "sh", "-c", "exec true"], {}, FAILED, "exec"),
        (["--machine", MACHINE, "--", "/bin/true"], {"PATH": "/nowhere"}, CANNOT, "qemu-user"),
    ],
)
def test_faults(arguments: list[str], options: dict[str, str], code: int, words: str) -> None:
    done = tlscost("count", *arguments, **options)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_no_room_for_the_counts() -> None:
    """Files may not grow beyond 4 KiB: as on a full disk."""
    inner = f"{sys.executable} -m tlscost count --machine {MACHINE} -- true"
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 8; exec {inner}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert "disk is full" in done.stderr


@pytest.mark.parametrize(
    ("size_bytes", "cpus", "words"),
    [
        (8 << 10, 1, "disk is full"),  # no page at all
        (64 << 10, 64, "no room for"),  # room for one that says why there are no counts
    ],
)
def test_a_full_disk_for_the_counts(tmp_path: Path, size_bytes: int, cpus: int, words: str) -> None:
    with small_disk(tmp_path / "disk", size_bytes) as disk:
        arguments = ["--machine", MACHINE, "--cpus", cpus, "--", "true"]
        done = tlscost("count", *arguments, TMPDIR=str(disk))
        assert list(disk.iterdir()) == []
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        b"stale",
        b"\0" * 8,  # the magic, which is stored last: the writer died before
        MAGIC + (99).to_bytes(4, "little"),  # another version
    ],
)
def test_a_page_that_is_no_page_is_not_read(tmp_path: Path, change: bytes) -> None:
    page, machine = tmp_path / "page", simulated_or_file(MACHINE)
    arguments = {"machine": machine.file, "variant": machine.variant, "cpus": 1, "page": page}
    plugin = counting.plugin_option(arguments)
    page.write_bytes(b"of an earlier run" * 100_000)
    subprocess.run([need("qemu-x86_64"), "-plugin", plugin, need("true")], check=True)
    assert page.read_bytes()[:8] == MAGIC
    assert counting.read_counts(page, machine, ["true"], 0).events  # it was made anew
    page.write_bytes(change + page.read_bytes()[len(change) :])
    with pytest.raises(TlscostError, match="not a whole page of counters"):
        counting.read_counts(page, machine, ["true"], 0)


def test_more_threads_than_cpus(tmp_path: Path) -> None:
    source, path = tmp_path / "t.c", tmp_path / "t"
    source.write_text(
        "#include <pthread.h>\n"
        "static void *run(void *none) { return none; }\n"
        "int main(void) {\n"
        "    pthread_t t;\n"
        "    return pthread_create(&t, 0, run, 0) || pthread_join(t, 0);\n"
        "}\n"
    )
    subprocess.run(["gcc", "-pthread", "-o", path, source], check=True)
    machine = simulated_or_file(MACHINE)
    with pytest.raises(TlscostError, match="--cpus"):
        counting.count(machine, [str(path)])
    assert counting.count(machine, [str(path)], cpus=2).status == 0
