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

__all__ = ["MEASURES", "WAYS", "run"]

WAYS = ("models", "empty callbacks", "bare TCG", "cachegrind")
MEASURES = ("CPU time", "elapsed")


def run(programs: Iterable[Program], machine: Simulated, rounds: int) -> pd.DataFrame:
    """Run each program each way, interleaved.

    Returns
    -------
    One row per (program, measure, way, round): instructions_m (of the program [millions], each
    iteration of a string instruction being one) and ns_per_instruction (start-up and translation
    included [ns]).
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
                rows += [
                    {
                        "program": f"{program.name} ({program.linking})",
                        "instructions_m": round(totals["Ir"] / 1e6),
                        "measure": measure,
                        "way": way,
                        "round": number,
                        "ns_per_instruction": 1e9 * spent_s / totals["Ir"],
                    }
                    for measure, spent_s in zip(MEASURES, (done.cpu_s, done.elapsed_s), strict=True)
                ]
    return pd.DataFrame(rows)
