"""Reads what `perf stat -x` and `perf stat -j` wrote: counts with what perf says of each.

The formats are those of perf-stat(1), "CSV FORMAT" and "JSON FORMAT", and what perf 6.1 really
prints, which is more: a `summary` after intervals, cgroups, spreads of repeated runs, metrics on
lines of their own.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from tlscost.errors import TlscostError

__all__ = ["SEPARATORS", "Line", "Output", "read"]

SEPARATORS = (";", "\t", "|", ",")
"""Separators that are found out; a comma last, as others' lines may hold decimal commas."""

_AGAIN = "take the file as perf wrote it (`perf stat -o FILE`), or measure again"
_LOCALE = "where the decimal mark is a comma, run perf with LC_ALL=C, or with -x';'"
_GROUPS = ("cpu", "thread", "core", "cluster", "cache", "die", "socket", "node")
_MISSING = {"<not counted>": "not counted", "<not supported>": "not supported"}
_TIME = re.compile(r"\d{1,9}\.\d{9}")
_NUMBER = re.compile(r"\d{1,20}(?:[.,]\d{1,12})?")
_WHOLE = re.compile(r"\d{1,20}")
_SHARE = re.compile(r"\d{1,3}[.,]\d\d")
_SPREAD = re.compile(r"(?:\d{1,20}[.,]\d+|-?nan|inf)%")
_AGGREGATE = re.compile(r"[SN]\d+(?:-[A-Z]+\d+)*")

Missing = Literal["not counted", "not supported"]


@dataclass(frozen=True)
class Line:
    """One count.

    Attributes
    ----------
    number : int
        Its line in the file.
    interval_s : float or None
        End of its interval since perf began [s]; None: no interval mode.
    group : str or None
        The CPU (`0`), thread, core, socket ... that it is of; None: perf added all up.
    event, unit : str
        As perf spells them.
    value : float or None
        The count, scaled by perf to the whole time where it was multiplexed [unit]; None: missing.
    missing : str or None
        What perf says instead of a count.
    running_ns : int
        Time on a counter, over all that was added up [ns].
    share : float
        running / enabled time, 0 to 1, to a hundredth of a percent.
    repeated : bool
        The value is a mean over perf's own repetitions (-r).
    """

    number: int
    interval_s: float | None
    group: str | None
    event: str
    unit: str
    value: float | None
    missing: Missing | None
    running_ns: int
    share: float
    repeated: bool


@dataclass(frozen=True)
class Output:
    """A whole file.

    Attributes
    ----------
    shape : str
        `csv` or `json`.
    started : str or None
        When perf began, as the file's comment tells it (local time, zone unknown).
    grouped_by : str or None
        `cpu`, `thread`, or `core`, `socket` ... (`aggregate` in CSV, which names none).
    """

    path: Path
    sha256: str
    shape: Literal["csv", "json"]
    separator: str | None
    started: str | None
    grouped_by: str | None
    lines: tuple[Line, ...]

    @property
    def per_cpu(self) -> bool:
        """Whether there are counts of each CPU apart."""
        return self.grouped_by == "cpu"

    @property
    def intervals(self) -> list[float]:
        """Ends of the intervals since perf began [s], in order; empty without interval mode."""
        return list(
            dict.fromkeys(line.interval_s for line in self.lines if line.interval_s is not None)
        )


class _LineError(Exception):
    """What is wrong with a line; `read` adds file and number."""


def read(path: Path | str, separator: str | None = None) -> Output:
    """Read one file of perf's.

    Parameters
    ----------
    path : Path or str
        Output of `perf stat -x SEPARATOR` or `perf stat -j`, one run.
    separator : str, optional
        That of -x; found out where it is one of `SEPARATORS`.

    Raises
    ------
    TlscostError
        Exit code 2: the file cannot be read, is cut short, holds something else than perf's
        counts, or those of several runs; the message names file and line.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlscostError(f"{path}: cannot be read: {error.strerror or error}") from error
    numbered, started = _data_lines(path, content)
    first_number, first = numbered[0]
    is_json = first.lstrip().startswith("{")
    if not is_json and separator is None:
        separator = _separator(path, first_number, first)
    lines: list[Line] = []
    kinds: dict[str | None, int] = {}
    for number, text in numbered:
        try:
            kind, line = _json(number, text) if is_json else _csv(number, text, separator or ",")
        except _LineError as error:
            raise _refusal(path, number, str(error)) from error
        if line is None:  # a metric, or the summary of intervals
            continue
        if lines and lines[0].interval_s is not None and line.interval_s is None and is_json:
            continue  # --summary, which JSON does not mark
        lines.append(line)
        kinds.setdefault(kind, number)
    if not lines:
        raise _refusal(path, first_number, "holds no count; metrics alone (--metric-only) are none")
    if len(kinds) > 1:
        _, other = kinds.values()
        raise _refusal(path, other, "its counts are grouped in another way than those before it")
    output = Output(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        shape="json" if is_json else "csv",
        separator=None if is_json else separator,
        started=started,
        grouped_by=next(iter(kinds)),
        lines=tuple(lines),
    )
    _check_whole(output)
    return output


def _data_lines(path: Path, content: bytes) -> tuple[list[tuple[int, str]], str | None]:
    """Return numbered lines that may hold counts, and when perf says it started."""
    lines = content.split(b"\n")
    if lines[-1]:
        raise _refusal(path, len(lines), "cut short: the last line has no end")
    numbered: list[tuple[int, str]] = []
    started = None
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode().removesuffix("\r")
        except UnicodeDecodeError:
            raise _refusal(path, number, "not text in UTF-8") from None
        if text.startswith("# started on "):
            if started is not None:
                raise _refusal(
                    path, number, "a second run (perf's --append); give each run its own file"
                )
            started = text.removeprefix("# started on ").strip()
        elif text.strip() and not text.startswith("#"):
            numbered.append((number, text))
    if not numbered:
        raise _refusal(
            path, len(lines), "no counts: the file is empty, or perf was stopped before its end"
        )
    return numbered, started


def _separator(path: Path, number: int, text: str) -> str:
    for candidate in SEPARATORS:
        try:
            _csv(number, text, candidate)
        except _LineError:
            continue
        return candidate
    problem = "not a line of `perf stat -x` or `perf stat -j`"
    if "," in text:
        try:
            _csv(number, text, ",")
        except _LineError as error:
            problem += f": {error}"
    raise _refusal(
        path, number, f"{problem}; a separator other than , ; | or a tab is for --separator"
    )


def _csv(number: int, text: str, separator: str) -> tuple[str | None, Line | None]:
    """Read a line of -x; the kind of its group, and the count (None: a metric or a summary)."""
    fields = text.split(separator)
    interval, fields = _csv_interval(fields)
    kind, group, fields = _csv_group(fields)
    if fields and not any(fields[:3]):  # an additional metric: the fields before it are empty
        return kind, None
    if len(fields) < 5:
        raise _LineError(
            f"expected value{separator}unit{separator}event{separator}run time{separator}"
            f"percentage, found {len(fields)} fields"
        )
    value, unit, *rest = fields
    event, rest = _csv_event(rest, separator)
    if rest and not _WHOLE.fullmatch(rest[0]) and not _SPREAD.fullmatch(rest[0]):
        rest = rest[1:]  # of one cgroup (-G)
    numbers = [field for field in rest[:3] if not _SPREAD.fullmatch(field)]
    if len(numbers) < 2 or not _WHOLE.fullmatch(numbers[0]) or not _SHARE.fullmatch(numbers[1]):
        raise _LineError(
            f"expected run time [ns] and percentage after event {event!r}, found "
            f"{separator.join(rest[:3])!r}; {_LOCALE}"
        )
    if separator == "," and "," in numbers[1]:
        raise _LineError(_LOCALE)
    line = _line(
        number,
        interval,
        group,
        event=event,
        unit=unit,
        value=value,
        running=numbers[0],
        share=numbers[1],
        repeated=len(numbers) < len(rest[:3]),
    )
    return kind, None if interval == "summary" else line


def _csv_interval(fields: list[str]) -> tuple[str | None, list[str]]:
    first = fields[0].strip()
    return (first, fields[1:]) if first == "summary" or _TIME.fullmatch(first) else (None, fields)


def _csv_group(fields: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Take CPU, socket or thread off the front; its kind, its name, the fields after it."""
    first = fields[0] if fields else ""
    if not first or first in _MISSING or _NUMBER.fullmatch(first):
        return None, None, fields
    cpu = re.fullmatch(r"CPU(\d{1,6})", first)
    if cpu is not None:
        return "cpu", cpu[1], fields[1:]
    if _AGGREGATE.fullmatch(first):
        if len(fields) < 2 or not _WHOLE.fullmatch(fields[1]):
            raise _LineError(f"expected a number of CPUs after {first!r}")
        return "aggregate", first, fields[2:]
    if re.fullmatch(r".{1,64}-\d{1,10}", first):
        return "thread", first, fields[1:]
    raise _LineError(f"expected a count, <not counted> or <not supported>, found {first[:80]!r}")


def _csv_event(fields: list[str], separator: str) -> tuple[str, list[str]]:
    """Take the event's name, which perf does not quote: commas stand in `cpu/event=1,umask=2/`."""
    for taken in range(1, len(fields) + 1):
        event = separator.join(fields[:taken])
        if event.count("/") % 2 == 0:
            return event, fields[taken:]
    raise _LineError(f"event {separator.join(fields)[:80]!r} has a slash too few: cut short?")


def _json(number: int, text: str) -> tuple[str | None, Line | None]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _LineError(f"not a JSON object: {error}; {_LOCALE}") from error
    if not isinstance(document, dict):
        raise _LineError("not a JSON object")
    kind = next((name for name in _GROUPS if name in document), None)
    group = None if kind is None else _text(document, str(kind))
    if "counter-value" not in document and ("metric-value" in document or not document):
        return kind, None
    line = _line(
        number,
        document.get("interval"),
        group,
        event=_text(document, "event"),
        unit=_text(document, "unit", ""),
        value=_text(document, "counter-value"),
        running=_text(document, "event-runtime"),
        share=_text(document, "pcnt-running"),
        repeated="variance" in document,
    )
    return kind, line


def _text(document: dict[str, Any], key: str, default: str | None = None) -> str:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _LineError(f"`{key}`: expected a text or a number, found {json.dumps(value)[:80]}")
    return f"{value:.12f}" if isinstance(value, float) else str(value)


def _line(
    number: int,
    interval: object,
    group: str | None,
    *,
    event: str,
    unit: str,
    value: str,
    running: str,
    share: str,
    repeated: bool,
) -> Line:
    missing = _MISSING.get(value)
    if missing is None and not _NUMBER.fullmatch(value):
        raise _LineError(
            f"event {event[:80]!r}: expected a count, <not counted> or <not supported>, found "
            f"{value[:80]!r}"
        )
    if not event or not event.isprintable() or len(event) > 400:
        raise _LineError(f"expected an event's name, found {event[:80]!r}")
    running_share = _finite("percentage", share) / 100
    if not 0 <= running_share <= 1.0001:
        raise _LineError(
            f"event {event!r}: expected 0 to 100 percent of running time, found {share}"
        )
    at = None if interval in (None, "summary") else _finite("interval [s]", str(interval), 1e9)
    return Line(
        number=number,
        interval_s=at,
        group=group,
        event=event,
        unit=unit,
        value=None if missing else _finite("count", value),
        missing=missing,  # type: ignore[arg-type]
        running_ns=int(_finite("run time", running)),
        share=min(running_share, 1.0),
        repeated=repeated,
    )


def _finite(what: str, text: str, most: float = 1e20) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not 0 <= value < most:
        raise _LineError(f"{what}: expected a number from 0 to {most:g}, found {text[:80]!r}")
    return value


def _check_whole(output: Output) -> None:
    """Refuse what is cut, or of several runs: each interval and each group has the same events."""
    seen: set[tuple[float | None, str | None, str]] = set()
    latest = -1.0
    for line in output.lines:
        key = (line.interval_s, line.group, line.event)
        if key in seen and output.grouped_by != "thread":  # threads may share a name
            raise _refusal(
                output.path,
                line.number,
                f"event {line.event!r} is there twice: give each run and each cgroup its own file",
            )
        seen.add(key)
        if (line.interval_s is None) != (output.lines[0].interval_s is None):
            raise _refusal(
                output.path, line.number, "some lines are of intervals (-I) and some are not"
            )
        if line.interval_s is not None and line.interval_s < latest:
            raise _refusal(
                output.path, line.number, "its interval ends before that of the line above"
            )
        latest = latest if line.interval_s is None else line.interval_s
    if output.grouped_by == "thread":  # threads come and go
        return
    sets = [
        ({(line.group, line.event) for line in lines}, lines[-1].number)
        for _, lines in _by_interval(output)
    ]
    for found, number in sets[1:]:
        if found != sets[0][0]:
            group, event = min(found ^ sets[0][0], key=str)
            whose = "" if group is None else f" of {group}"
            raise _refusal(
                output.path,
                number,
                f"this interval and the first differ in event {event!r}{whose}: cut short, or CPUs "
                "came and went",
            )


def _by_interval(output: Output) -> Iterator[tuple[float | None, list[Line]]]:
    for at, lines in groupby(output.lines, key=lambda line: line.interval_s):
        yield at, list(lines)


def _refusal(path: Path, number: int, problem: str) -> TlscostError:
    return TlscostError(f"{path}:{number}: {problem}. Remedy: {_AGAIN}.")
