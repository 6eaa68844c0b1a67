"""The local sweep engine: measures the cells of a plan that have no whole record yet.

The state of a sweep is the plan minus the whole records on disk, nothing else: a sweep that was
killed, however it was killed, goes on at the next call.
"""

import glob
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tlscost import runner
from tlscost.cell import Cell
from tlscost.errors import DONE, FAILED
from tlscost.lock import machine_lock
from tlscost.progress import Progress
from tlscost.record import is_whole
from tlscost.runner import Outcome

__all__ = ["Failure", "Result", "failed_path", "measure_cell", "record_path", "run"]


@dataclass(frozen=True)
class Failure:
    """A cell without a whole record, and why."""

    cell: str
    exit_code: int
    reason: str


@dataclass
class Result:
    """What a sweep did: numbers of cells, and the failures that remain."""

    cells: int = 0
    already: int = 0
    measured: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """`FAILED` if any cell is without a record."""
        return FAILED if self.failures else DONE


def record_path(out: Path, cell: Cell) -> Path:
    """Return where a sweep into `out` puts a cell's record."""
    return out / "records" / f"{cell.id}.jsonl"


def failed_path(record: Path) -> Path:
    """Return the file beside a record's place that says why it is not there."""
    return record.with_suffix(".failed")


def run(cells: Iterable[Cell], out: Path, *, retries: int, progress: Progress) -> Result:
    """Measure what has no whole record in `out`, one cell at a time; go on after failures.

    Cells that failed are tried again, up to `retries` times, after all others: what disturbed them
    may have passed by then.
    """
    (out / "records").mkdir(parents=True, exist_ok=True)
    result = Result()
    pending: dict[str, Cell] = {}
    seen: set[str] = set()
    for cell in cells:
        if cell.id in seen:
            continue
        seen.add(cell.id)
        if is_whole(record_path(out, cell)):
            result.already += 1
        else:
            pending[cell.id] = cell
    result.cells = len(seen)
    with progress.of(total=result.cells, already=result.already):
        for attempt in range(1, retries + 2):
            last = attempt == retries + 1
            again: dict[str, Cell] = {}
            for cell in pending.values():
                outcome = _measure_with_progress(cell, out, attempt, progress)
                if outcome.exit_code == DONE:
                    result.measured += 1
                elif outcome.exit_code == FAILED and not last:
                    again[cell.id] = cell
                    continue
                else:
                    failure = Failure(cell.id, outcome.exit_code, outcome.reason)
                    result.failures.append(failure)
                progress.advance()
            pending = again
    return result


def _measure_with_progress(cell: Cell, out: Path, attempt: int, progress: Progress) -> Outcome:
    progress.start(cell.id, attempt)
    started = time.monotonic()
    outcome = measure_cell(cell, record_path(out, cell), attempt, progress)
    progress.finish(
        cell.id,
        seconds=time.monotonic() - started,
        problem=None if outcome.exit_code == DONE else outcome.reason,
    )
    return outcome


def measure_cell(cell: Cell, record: Path, attempt: int, progress: Progress) -> Outcome:
    """Make sure that the cell's whole record is at `record`, or that NAME.failed says why not.

    Returns
    -------
    Outcome
        Exit code `DONE` exactly if the whole record is there.
    """
    with machine_lock(
        lambda: progress.say("waiting: another measurement is on this machine")
    ) as lock:
        if is_whole(record):  # another sweep may have measured it while this one waited
            return Outcome(DONE, "")
        for leftover in (record, record.with_name(f"{record.name}.partial")):
            if leftover.exists():
                number = len(_evidence(record)) + 1
                leftover.rename(record.with_name(f"{record.name}.attempt-{number}"))
        outcome = runner.measure(cell, record, lock=lock, said=progress.say)
    if is_whole(record):
        for path in (failed_path(record), *_evidence(record)):
            path.unlink(missing_ok=True)
        return Outcome(DONE, outcome.stderr)
    if outcome.exit_code == DONE:
        outcome = Outcome(
            FAILED, f"{outcome.stderr}the collector ended well but left no whole record {record}"
        )
    _write_failed(cell, record, attempt, outcome, progress)
    return outcome


def _evidence(record: Path) -> list[Path]:
    """Files of earlier attempts, kept until a whole record replaces them."""
    return sorted(record.parent.glob(f"{glob.escape(record.name)}.attempt-*"))


def _write_failed(
    cell: Cell, record: Path, attempt: int, outcome: Outcome, progress: Progress
) -> None:
    content: dict[str, Any] = {
        "reason": outcome.reason,
        "exit_code": outcome.exit_code,
        "stderr": outcome.stderr,
        "attempt": attempt,
        "cell": cell.for_record(),
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path = failed_path(record)
    whole = path.with_name(f"{path.name}.new")
    try:
        whole.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        whole.replace(path)
    except OSError as error:  # a full disk, say: the sweep's summary still has the reason
        progress.say(f"{path}: cannot be written: {error.strerror}")
