"""`bench softpmu`: how fast programs run under our plugin, cachegrind and what lies between."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from rich.console import Console
from rich.progress import track

from tlscost.bench.cachegrind import cachegrind
from tlscost.bench.emulator import Emulator
from tlscost.bench.programs import Program
from tlscost.machine import Simulated

__all__ = ["WAYS", "run"]

WAYS = ("models", "empty callbacks", "bare TCG", "cachegrind")


def run(programs: Iterable[Program], machine: Simulated, rounds: int) -> pd.DataFrame:
    """Run each program each way, interleaved.

    Returns
    -------
    One row per (program, way, round): instructions_m (of the program [millions], each iteration
    of a string instruction being one), cpu_s (start-up and translation included [s]) and
    ns_per_instruction.
    """
    emulator = Emulator.like_valgrind()
    rows = []
    for program in track(list(programs), "programs", console=Console(stderr=True)):
        for number in range(rounds):
            models, _ = emulator.count(program, machine)
            empty, _ = emulator.count(program, machine, way="nothing")
            bare = emulator.run(program)
            reference, totals = cachegrind(program)
            for way, done in zip(WAYS, (models, empty, bare, reference), strict=True):
                rows.append(
                    {
                        "program": f"{program.name} ({program.linking})",
                        "way": way,
                        "round": number,
                        "instructions_m": round(totals["Ir"] / 1e6),
                        "cpu_s": done.cpu_s,
                        "ns_per_instruction": 1e9 * done.cpu_s / totals["Ir"],
                    }
                )
    return pd.DataFrame(rows)
