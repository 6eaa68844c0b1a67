"""Programs under QEMU's user mode, made to see what they see under valgrind."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tlscost.bench.cachegrind import preload, under_valgrind
from tlscost.bench.place import peer
from tlscost.bench.process import Done, run
from tlscost.bench.programs import Program, debian_python, environment
from tlscost.count import Counts, plugin_option, read_counts
from tlscost.errors import FAILED, TlscostError
from tlscost.machine import Simulated

__all__ = ["Emulator"]

# What valgrind's CPU resembles, less what QEMU would warn of.
_CPU = "Haswell-noTSX,pcid=off,x2apic=off,tsc-deadline=off,invpcid=off,xsaveopt=off"
_ENVIRON = "import ctypes; print(ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ').value)"
_LOADER = Program("ld.so", "dynamic", ("/lib64/ld-linux-x86-64.so.2", "--list-diagnostics"))
_PROBE = Program("stack", "dynamic", (debian_python(), "-S", "-c", _ENVIRON))
_PAGE_BYTES = 4096
# What glibc knows of the CPU and does not choose code by.
_IDLE_KNOWLEDGE = re.compile(r"basic|cpuid|level\d|xsave_state_full_size")
_IDLE_BITS = {
    "features[0x0].active[0x3]": 1 << 28,  # HTT
    "features[0x1].active[0x1]": 1 << 18,  # RDSEED
}


@dataclass(frozen=True)
class Emulator:
    """QEMU's user mode.

    Attributes
    ----------
    preload : LD_PRELOAD of the programs: the library that valgrind brings, here too.
    extra_bytes : by which stacks are pushed down to where valgrind's lie within a page [bytes].
    """

    preload: str = ""
    extra_bytes: int = 0

    def run(self, program: Program, *options: str) -> Done:
        """Run `program`, with `options` of QEMU."""
        variables = environment(program, preload=self.preload)
        del variables["LD_PRELOAD"]  # not for QEMU itself
        # QEMU gives its variables to the program in the opposite order.
        env = dict(reversed(variables.items()))
        own = ["-cpu", _CPU, "-E", f"LD_PRELOAD={self.preload}", "-0", program.argv[0], *options]
        # The path lies on top of the stack, and no program looks at it: its length pushes.
        path = Path(program.argv[0])
        pushing = f"{path.parent}{'/' * (1 + self.extra_bytes)}{path.name}"
        qemu = peer("qemu-x86_64", "qemu-user")
        return run(["setarch", "-R", qemu, *own, pushing, *program.argv[1:]], env)

    def count(
        self, program: Program, machine: Simulated, *, way: str = "models"
    ) -> tuple[Done, Counts]:
        """Run `program` with the plugin counting in the given way."""
        with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
            page = Path(scratch) / "page"
            arguments = {"machine": machine.file, "variant": machine.variant or "all"}
            option = plugin_option({**arguments, "count": way, "page": page})
            done = self.run(program, "-plugin", option)
            return done, read_counts(page, machine, list(program.argv), 0)

    @classmethod
    def like_valgrind(cls) -> Emulator:
        """Return one that glibc cannot tell from valgrind; an error says what it could tell."""
        emulator = cls(preload())
        differs = _choices(under_valgrind(_LOADER, "--tool=none")) ^ _choices(emulator.run(_LOADER))
        if differs:
            said = ", ".join(sorted(f"{key}={value:#x}" for key, value in differs))
            raise TlscostError(
                f"bench: valgrind and QEMU show glibc different CPUs: {said}", FAILED
            )
        wanted = int(under_valgrind(_PROBE, "--tool=none").stdout) % _PAGE_BYTES
        ours = int(emulator.run(_PROBE).stdout)
        emulator = replace(emulator, extra_bytes=(ours - wanted) % _PAGE_BYTES)
        if int(emulator.run(_PROBE).stdout) % _PAGE_BYTES != wanted:
            raise TlscostError("bench: QEMU's stack does not follow the path's length", FAILED)
        return emulator


def _choices(diagnostics: Done) -> set[tuple[str, int]]:
    """Return what glibc chooses its code by, of what its loader tells."""
    choices = set()
    for line in diagnostics.stdout.decode().splitlines():
        key, _, value = line.removeprefix("x86.cpu_features.").partition("=")
        if line.startswith("x86.cpu_features.") and not _IDLE_KNOWLEDGE.search(key):
            choices.add((key, int(value, 16) & ~_IDLE_BITS.get(key, 0)))
    return choices
