"""`bench fidelity`: the plugin's counts against cachegrind's, on real programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track

from tlscost.bench.cachegrind import EXACT, cachegrind
from tlscost.bench.emulator import Emulator
from tlscost.bench.programs import Program
from tlscost.count import Counts
from tlscost.errors import FAILED, TlscostError
from tlscost.machine import simulated_or_file

__all__ = ["compare", "markdown", "write_between_markers"]

MACHINE = "p3-xeon-512k"  # of cachegrind's geometry here
# Largest difference from cachegrind's count, as a fraction of it.
_LIMITS = {
    "instructions": 0.005,
    "drefs": 0.005,
    "D1 misses": 0.01,
    "I1 misses": 0.02,
    "LL misses": 0.02,
}
_BEGIN = "<!-- begin: ./tlscost bench fidelity --write -->"
_END = "<!-- end -->"


def compare(programs: Iterable[Program]) -> pd.DataFrame:
    """Count each program once under QEMU with our plugin and once under cachegrind.

    Returns
    -------
    One row per (program, quantity): linking, ours, cachegrind (counts), difference (ours over
    cachegrind's, less 1), limit (what it may be), holds.
    """
    emulator = Emulator.like_valgrind()
    return pd.DataFrame(
        [
            {"program": program.name, "linking": program.linking, **row}
            for program in track(list(programs), "programs", console=Console(stderr=True))
            for row in _rows(emulator, program)
        ]
    )


def _rows(emulator: Emulator, program: Program) -> Iterator[dict[str, object]]:
    done, counts = emulator.count(program, simulated_or_file(MACHINE))
    reference, totals = cachegrind(program, EXACT)
    if done.stdout != reference.stdout:
        raise TlscostError(f"{program.name}: put out something else under cachegrind", FAILED)
    ours, theirs = _ours(counts), _theirs(totals)
    for quantity, limit in _LIMITS.items():
        difference = ours[quantity] / theirs[quantity] - 1
        yield {
            "quantity": quantity,
            "ours": ours[quantity],
            "cachegrind": theirs[quantity],
            "difference": difference,
            "limit": limit,
            "holds": abs(difference) <= limit,
        }


def _ours(counts: Counts) -> dict[str, int]:
    """Return our counts in cachegrind's sense: each iteration of a string instruction counts."""
    events = {event.name: next(iter(event.user.values())) for event in counts.events}
    return {
        "instructions": events["INST_RETIRED"] + counts.repeats,
        "drefs": events["drefs"],
        "D1 misses": events["DCU_LINES_IN"],
        "I1 misses": events["IFU_IFETCH_MISS"],
        "LL misses": events["BUS_TRAN_BRD"] + events["BUS_TRAN_RFO"] + events["BUS_TRAN_IFETCH"],
    }


def _theirs(totals: dict[str, int]) -> dict[str, int]:
    return {
        "instructions": totals["Ir"],
        "drefs": totals["Dr"] + totals["Dw"],
        "D1 misses": totals["D1mr"] + totals["D1mw"],
        "I1 misses": totals["I1mr"],
        "LL misses": totals["ILmr"] + totals["DLmr"] + totals["DLmw"],
    }


def markdown(comparison: pd.DataFrame) -> str:
    """Return `comparison` as a table: a row a program, a column a quantity."""
    lines = [
        "| program | linking | " + " | ".join(_LIMITS) + " |",
        "|---|---|" + "---:|" * len(_LIMITS),
    ]
    for (program, linking), rows in comparison.groupby(["program", "linking"], sort=False):
        cells = [
            f"{theirs:,} {100 * difference:+.3f} %{'' if holds else ' !'}"
            for theirs, difference, holds in zip(
                rows["cachegrind"], rows["difference"], rows["holds"], strict=True
            )
        ]
        lines.append(f"| {program} | {linking} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_between_markers(path: Path, table: str) -> None:
    """Replace what stands between the markers in the file `path`."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise TlscostError(f"{path}: expected the lines {_BEGIN!r} and {_END!r}")
    path.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
