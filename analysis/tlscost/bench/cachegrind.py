"""Programs under cachegrind: what it counts, and how long it takes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tlscost.bench.place import peer
from tlscost.bench.process import Done, run
from tlscost.bench.programs import Program, environment
from tlscost.errors import FAILED, TlscostError

__all__ = ["EXACT", "cachegrind", "preload", "under_valgrind"]

# By default valgrind translates some code ahead of a condition and makes it harmless where it does
# not hold; cachegrind counts the instructions all the same: up to 1.6 % more than were executed.
EXACT = "--vex-guest-chase=no"

# Of p3-xeon-512k. Cachegrind has two levels; its LL stands for the L2.
_GEOMETRY = ("--I1=16384,4,32", "--D1=16384,4,32", "--LL=524288,4,32")


def cachegrind(program: Program, *options: str) -> tuple[Done, dict[str, int]]:
    """Run `program` with caches and branches simulated, and further `options` of valgrind.

    Returns
    -------
    What it left, and cachegrind's totals by its own names: Ir, I1mr, ILmr, Dr, D1mr, ...
    """
    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
        out = Path(scratch) / "out"
        simulation = ["--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes", *_GEOMETRY]
        done = under_valgrind(program, *simulation, *options, f"--cachegrind-out-file={out}")
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
    found = {key: rest.split() for key, _, rest in (line.partition(": ") for line in lines)}
    if "summary" not in found:
        raise TlscostError(f"cachegrind: no totals for {program.name}", FAILED)
    return done, dict(zip(found["events"], map(int, found["summary"]), strict=True))


def under_valgrind(program: Program, *options: str) -> Done:
    """Run `program` under valgrind, at the same addresses each time."""
    command = ["setarch", "-R", _valgrind(), "-q", *options, *program.argv]
    return run(command, environment(program))


def preload() -> str:
    """Return what valgrind makes of an empty LD_PRELOAD: a library of its own."""
    env = Program("env", "dynamic", (peer("env", "coreutils"),))
    for line in under_valgrind(env, "--tool=none").stdout.decode().splitlines():
        if line.startswith("LD_PRELOAD="):
            return line.removeprefix("LD_PRELOAD=")
    raise TlscostError("valgrind: set no LD_PRELOAD, as valgrind 3.19 does", FAILED)


def _valgrind() -> str:
    """Path of valgrind itself: Debian's `valgrind` is a script that changes the environment."""
    found = Path(peer("valgrind", "valgrind"))
    itself = found.with_name("valgrind.bin")
    return str(itself if itself.exists() else found)
