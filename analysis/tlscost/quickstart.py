"""The main job on this machine's defaults: measure, then metrics.csv and report.html."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tlscost import plan, sweep
from tlscost.cell import Cell
from tlscost.errors import CANNOT, TlscostError
from tlscost.paths import plan_file, program
from tlscost.progress import Progress
from tlscost.runner import place

__all__ = ["finish", "measure"]

CPUS_NEEDED = 2
FINE_IDLE_TIME = Path("/proc/timer_list")  # where the collector finds idle time finer than ticks


def measure(out: Path, progress: Progress) -> sweep.Result:
    """Measure the quickstart's cells into `out`/records; go on where an earlier call stopped."""
    present = len(os.sched_getaffinity(0))
    if present < CPUS_NEEDED:
        raise TlscostError(
            f"quickstart needs {CPUS_NEEDED} CPUs, this machine has {present}; write a plan with "
            "cpus = 1 (docs/plans.md) and give it to `sweep`",
            CANNOT,
        )
    checked = plan.read(plan_file("quickstart"))
    if not os.access(FINE_IDLE_TIME, os.R_OK):
        progress.say(
            f"{FINE_IDLE_TIME} is root's: idle time comes in ticks, windows last 5 s or more, and "
            f"every cell is measured once instead of {checked.repetitions} times: no intervals"
        )
        checked = replace(checked, repetitions=1)
    cells = [cell for cell in checked.cells() if cell.repetition == 1 or not _shares(cell)]
    if without := _why_not_counted():
        progress.say(
            f"{without}; instructions, cycles and misses are had from a simulated machine beside"
        )
        cells += plan.read(plan_file("quickstart-simulated")).cells()
    return sweep.run(cells, out, retries=checked.retries, progress=progress)


def _why_not_counted() -> str | None:
    """Why this machine's processor counts nothing here, and what would help; None: it does."""
    probe = subprocess.run(
        [program("tlscost-collect"), "--probe"], check=True, capture_output=True, timeout=60
    )
    pmu = json.loads(probe.stdout)["pmu"]
    return None if pmu["present"] else str(pmu["reason"])


def _shares(cell: Cell) -> bool:
    """Whether server and load would share CPUs: then a throughput is all that is measured."""
    placement = place(cell)
    return not set(placement.server).isdisjoint(placement.load)


def finish(out: Path, progress: Progress) -> Path:
    """Turn the records into `out`/metrics.csv, a table on standard output and the report.

    Returns
    -------
    Path
        The report.
    """
    # Heavy, and not needed while measuring.
    from rich.console import Console  # noqa: PLC0415

    from tlscost import frame, report  # noqa: PLC0415
    from tlscost.metrics import metrics_of  # noqa: PLC0415
    from tlscost.tables import events_table, overview_table  # noqa: PLC0415

    records = out / "records"
    metrics = metrics_of(frame.load([records]))
    table = out / "metrics.csv"
    try:
        metrics.to_csv(table, index=False)
    except OSError as error:
        raise TlscostError(f"{table}: cannot be written: {error.strerror}") from error
    progress.say("making the report")
    page = report.render([records], out)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(*[table for table in (overview_table(metrics), events_table(metrics)) if table])
    return page
