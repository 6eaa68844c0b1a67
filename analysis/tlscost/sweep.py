"""The local sweep engine: measures the cells of a plan that have no whole record yet.

The state of a sweep is the plan minus the whole records on disk, nothing else: a sweep that was
killed, however it was killed, goes on at the next call.
"""

import glob
import json
import os
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tlscost import runner
from tlscost.cell import Cell
from tlscost.errors import DONE, FAILED
from tlscost.lock import machine_lock, record_lock
from tlscost.machine import NATIVE
from tlscost.progress import Progress
from tlscost.record import is_whole
from tlscost.runner import Outcome, Running

__all__ = ["Failure", "Result", "failed_path", "measure_cell", "record_path", "run"]


GUEST_BYTES = 1 << 30  # of memory, simulator and models included


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


def run(
    cells: Iterable[Cell], out: Path, *, retries: int, progress: Progress, jobs: int | None = None
) -> Result:
    """Measure what has no whole record in `out`; go on after failures.

    Cells that failed are tried again, up to `retries` times, after all others: what disturbed them
    may have passed by then. At most `jobs` simulated cells run at once; None: as many as there are
    CPUs and memory for.
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
            todo = list(pending.values())
            with closing(_measure_all(todo, out, attempt, progress, jobs)) as measured:
                for cell, outcome in measured:
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


def _measure_all(
    cells: list[Cell], out: Path, attempt: int, progress: Progress, jobs: int | None
) -> Generator[tuple[Cell, Outcome]]:
    """Measure cells of this machine one by one, then those of simulated ones beside each other."""
    for cell in cells:
        if cell.machine == NATIVE:
            yield cell, _measure_with_progress(cell, out, attempt, progress, None)
    pool = [cell for cell in cells if cell.machine != NATIVE]
    if not pool:
        return
    running = Running()
    with ThreadPoolExecutor(jobs or _pool_size(pool)) as executor:
        try:
            futures = {
                executor.submit(_measure_with_progress, cell, out, attempt, progress, running): cell
                for cell in pool
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            running.stop()
            raise


def _pool_size(cells: list[Cell]) -> int:
    """As many guests at once as there are CPUs and memory for."""
    cpus = len(os.sched_getaffinity(0)) // max(cell.cpus for cell in cells)
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // GUEST_BYTES
    return max(1, min(cpus, memory, len(cells)))


def _measure_with_progress(
    cell: Cell, out: Path, attempt: int, progress: Progress, running: Running | None
) -> Outcome:
    progress.start(cell.id, attempt)
    started = time.monotonic()
    outcome = measure_cell(cell, record_path(out, cell), attempt, progress, running)
    progress.finish(
        cell.id,
        seconds=time.monotonic() - started,
        problem=None if outcome.exit_code == DONE else outcome.reason,
    )
    return outcome


def measure_cell(
    cell: Cell, record: Path, attempt: int, progress: Progress, running: Running | None = None
) -> Outcome:
    """Make sure that the cell's whole record is at `record`, or that NAME.failed says why not.

    Parameters
    ----------
    running : Running, optional
        Gets the measurement while it runs, for who may have to stop it.

    Returns
    -------
    Outcome
        Exit code `DONE` exactly if the whole record is there.
    """
    with _locks(cell, record, progress) as locks:
        if is_whole(record):  # another sweep may have measured it while this one waited
            return Outcome(DONE, "")
        for leftover in (record, record.with_name(f"{record.name}.partial")):
            if leftover.exists():
                number = len(_evidence(record)) + 1
                leftover.rename(record.with_name(f"{record.name}.attempt-{number}"))
        outcome = runner.measure(cell, record, locks=locks, said=progress.say, running=running)
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


@contextmanager
def _locks(cell: Cell, record: Path, progress: Progress) -> Iterator[tuple[int, ...]]:
    """Hold what keeps others from disturbing the cell; descriptors for the collector to inherit."""

    def waiting() -> None:
        progress.say("waiting: another measurement is on this machine")

    with machine_lock(waiting, shared=cell.machine != NATIVE) as machine:
        if cell.machine == NATIVE:
            yield (machine,)
        else:
            with record_lock(record, waiting) as own:
                yield (own, machine)


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
        whole.unlink(missing_ok=True)
        progress.say(f"{path}: cannot be written: {error.strerror}")
