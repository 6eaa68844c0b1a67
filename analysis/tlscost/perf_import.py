"""Makes records of what `perf stat` counted elsewhere (docs/perf-stat.md).

What perf does not tell stays null with its reason: idle time (so nothing is corrected for it), the
system's counters, latencies, and, where nobody gives them, transactions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import tlscost
from tlscost import perf_events
from tlscost.errors import TlscostError
from tlscost.load_log import LoadLog
from tlscost.perf_events import Event
from tlscost.perf_stat import Line, Output
from tlscost.record import SCHEMA

__all__ = ["SOURCE", "Request", "build"]

SOURCE = "perf-stat"

_TIME_APART_MOST = 0.10  # of perf's and the load generator's elapsed time
_TIME_APART_NOTED = 0.01
_SECONDS_MOST = 1e9
_CPU_TIMES = ("idle_ns", "steal_ns", "user_ns", "system_ns", "irq_ns", "softirq_ns")
_SYSTEM = (
    *("mem_available_bytes", "net_rx_bytes", "net_tx_bytes", "tcp_retransmits", "disk_queue"),
    *("context_switches", "interrupts", "procs_running"),
)
_LOAD_COUNTS = (
    *("bytes", "connections", "handshakes_full", "handshakes_resumed"),
    *("tickets", "late", "clamped", "started"),
)
_NOT_TOLD = "perf stat does not tell it"
_NO_LOAD = "nobody told: give --transactions, or the load generator's output as --load-log"
_BACKGROUND = (
    "perf stat tells no idle window and no idle time: what the CPUs do while idle is in the counts"
)


@dataclass(frozen=True)
class Request:
    """What perf's files do not tell.

    Attributes
    ----------
    cell : mapping
        `machine`, `server`, `tls`, `size_bytes`, `load` of the record's cell.
    cpus : int or None
        Number of the server's CPUs; None: as many as `cpu_list`, or as the file tells apart.
    cpu_list : tuple of int or None
        The server's CPUs: of a file that tells CPUs apart (-A) only theirs are taken.
    scope : str
        `process`: perf counted the server's processes (-p); `cpu`: everything on its CPUs.
    shared : bool
        The load generator ran on the counted CPUs, too.
    seconds : float or None
        How long was counted [s].
    from_s, to_s : float or None
        Of a file of intervals, those that lie between are taken [s since perf began].
    pmu : str or None
        On a machine with two kinds of core, whose counts to take.
    names : mapping
        {perf's name: event's name}, before any other rule.
    uarch : str or None
        The microarchitecture, whose file of the metric dictionary applies.
    known : mapping
        The dictionary's names, as `perf_events.known_names` gives them.
    """

    cell: Mapping[str, Any]
    cpus: int | None = None
    cpu_list: tuple[int, ...] | None = None
    scope: Literal["cpu", "process"] = "cpu"
    shared: bool = False
    seconds: float | None = None
    from_s: float | None = None
    to_s: float | None = None
    pmu: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    uarch: str | None = None
    known: Mapping[str, str] = field(default_factory=dict)


def build(
    passes: Sequence[tuple[Output, LoadLog | int | None]], request: Request, repetition: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Make the header and the window lines of one record.

    Parameters
    ----------
    passes : sequence of (Output, LoadLog or int or None)
        Files of one run of the cell, each with the transactions of the same interval.
    repetition : int
        Which re-run of the cell it is.

    Raises
    ------
    TlscostError
        Exit code 2: the file does not tell what the record needs, and nobody else did; the message
        names the option that does.
    """
    if len(passes) > 1 and any(load is None for _, load in passes):
        raise _refusal(
            passes[0][0],
            None,
            "counts of different files can be joined only per transaction, and " + _NO_LOAD,
        )
    if request.scope == "process" and any(output.per_cpu for output, _ in passes):
        raise _refusal(
            passes[0][0], None, "holds counts of CPUs (-A), not of processes; leave out --scope"
        )
    first = passes[0][0]
    cpus = _cpus(first, request)
    number = request.cpus if cpus is None else len(cpus)
    if number is None:
        raise _refusal(first, None, "does not tell the number of the server's CPUs; give --cpus")
    windows = [
        _window(output, load, request, number) for number, (output, load) in enumerate(passes)
    ]
    cell = {**request.cell, "cpus": number, "repetition": repetition}
    for _, load in passes:
        if isinstance(load, LoadLog):
            cell["load"] = {"tool": load.tool, **load.load, **cell["load"]}
    shared = "the load generator ran on the counted CPUs" if request.shared else None
    header = {
        "type": "header",
        "schema": SCHEMA,
        "started_utc": None,
        "cell": cell,
        "program": {"version": tlscost.__version__, "build": "import"},
        "commands": {},
        "provenance": {"microarchitecture": request.uarch},
        "imported": _imported([output for output, _ in passes], request),
        "placement": {
            "server_cpus": cpus,
            "load_cpus": [],
            "overlap": request.shared,
            "reason": shared,
        },
        "network": {"kind": None, "reason": _NOT_TOLD},
        "sources": [{"name": SOURCE, "available": True, "reason": None, "scope": request.scope}],
        "passes": [_pass(window) for window in windows],
        "rules": {},
    }
    return header, windows


def _imported(outputs: Iterable[Output], request: Request) -> dict[str, Any]:
    return {
        "tool": "perf stat",
        "version": None,
        "command": None,
        "reason": "perf stat -x and -j write neither perf's version nor its command line",
        "not_corrected": _BACKGROUND if request.scope == "cpu" else None,
        "files": [
            {
                "name": output.path.name,
                "sha256": output.sha256,
                "shape": output.shape,
                "separator": output.separator,
                "grouped_by": output.grouped_by,
                "intervals": len(output.intervals),
                "started": output.started,
            }
            for output in outputs
        ],
    }


def _pass(window: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys((count["event"], count["mode"]) for count in window["counts"])
    return [{"event": event, "mode": mode} for event, mode in names]


def _window(
    output: Output, load: LoadLog | int | None, request: Request, number: int
) -> dict[str, Any]:
    begin, lines = _chosen(output, request)
    notes = [] if request.scope == "process" else [_BACKGROUND]
    if any(line.repeated for line in lines):
        notes.append("each count is the mean over perf's own repetitions (-r)")
    events = _events(output, lines, request, notes)
    elapsed = _elapsed(output, lines, begin, load, request)
    if not 0 < elapsed < _SECONDS_MOST:
        raise _refusal(output, None, f"says that {elapsed:g} s were counted; give --seconds")
    if isinstance(load, LoadLog):
        notes += _apart(output, elapsed, load)
    cpus = _cpus(output, request)
    groups = {line.group for line in lines}
    counts = [
        count
        for event, own in events
        for count in _counts(event, own, cpus if output.per_cpu else None, groups)
    ]
    start_ns = round(begin * 1e9)
    mixed = request.shared and request.scope == "cpu"  # processes' counts are the server's own
    return {
        "type": "window",
        "pass": number,
        "index": 0,
        "start_ns": start_ns,
        "end_ns": start_ns + max(1, round(elapsed * 1e9)),
        "start_utc": None,
        "cpus": [{"cpu": cpu, **dict.fromkeys(_CPU_TIMES)} for cpu in cpus or []],
        "counts": [_overlapped(count) for count in counts] if mixed else counts,
        "system": dict.fromkeys(_SYSTEM),
        "server_rss_bytes": None,
        "latency": {},
        "notes": notes,
        "samples": _samples(output, lines, events, begin, cpus),
        **_load(load),
    }


def _load(load: LoadLog | int | None) -> dict[str, Any]:
    """Transactions and what else the load generator counted, and why the rest is null."""
    log = load if isinstance(load, LoadLog) else None
    reasons = dict.fromkeys([*_CPU_TIMES, *_SYSTEM, "server_rss_bytes"], _NOT_TOLD)
    untold = _NO_LOAD if log is None else f"{log.tool} does not tell it"
    reasons |= {name: untold for name in _LOAD_COUNTS if log is None or name not in log.counts}
    if load is None:
        reasons["transactions"] = _NO_LOAD
    return {
        "transactions": log.transactions if log else load,
        "errors": log.errors if log else {},
        "null_reasons": reasons,
        **{name: log.counts[name] for name in _LOAD_COUNTS if log and name in log.counts},
    }


def _chosen(output: Output, request: Request) -> tuple[float, list[Line]]:
    """Lines of the intervals asked for, and when the first of them began [s]."""
    if request.from_s is None and request.to_s is None:
        return 0.0, list(output.lines)
    if not output.intervals:
        raise _refusal(output, None, "holds no intervals (-I), so --from and --to mean nothing")
    ends = output.intervals
    begins = dict(zip(ends, [0.0, *ends[:-1]], strict=True))
    low, high = request.from_s or 0.0, request.to_s or ends[-1]
    chosen = [end for end in ends if begins[end] >= low and end <= high]
    if not chosen:
        raise _refusal(output, None, f"no interval lies whole between --from {low} and --to {high}")
    kept = set(chosen)
    return begins[chosen[0]], [line for line in output.lines if line.interval_s in kept]


def _events(
    output: Output, lines: Iterable[Line], request: Request, notes: list[str]
) -> list[tuple[Event, list[Line]]]:
    """Lines by event; of an event that was counted twice the first."""
    by_text: dict[str, list[Line]] = {}
    for line in lines:
        by_text.setdefault(line.event, []).append(line)
    parsed = [
        (perf_events.parse(text, _unit(output, own), request.known, request.names), own)
        for text, own in by_text.items()
    ]
    pmus = sorted({event.pmu for event, _ in parsed if event.pmu is not None})
    if len(pmus) > 1 and request.pmu is None:
        raise _refusal(
            output,
            parsed[0][1][0].number,
            f"counts of {' and '.join(pmus)}: two kinds of core, whose counts do not add up to "
            "anything; choose by --pmu, and by --cpu-list that kind's CPUs",
        )
    if request.pmu is not None and request.pmu not in pmus:
        raise _refusal(
            output, None, f"--pmu {request.pmu}: not there; there are: {', '.join(pmus) or '-'}"
        )
    events: dict[tuple[str, str], tuple[Event, list[Line]]] = {}
    for event, own in parsed:
        if event.pmu is not None and request.pmu not in (None, event.pmu):
            notes.append(f"{own[0].event}: left out, as --pmu {request.pmu} was asked for")
        elif event.of_machine and (event.name, event.mode) in events:  # channels, one by one
            events[event.name, event.mode][1].extend(own)
        elif (event.name, event.mode) in events:
            notes.append(f"{own[0].event}: left out, as {event.name} was counted already")
        else:
            events[event.name, event.mode] = (event, own)
    if request.scope == "process":
        return _without_rests(list(events.values()), notes)
    return list(events.values())


def _without_rests(
    events: list[tuple[Event, list[Line]]], notes: list[str]
) -> list[tuple[Event, list[Line]]]:
    """Leave out intervals in which the processes did not run, as at perf's end.

    perf prints `<not counted>` there. It does so, too, of an event that got no counter; but events
    that the kernel counts need none, so theirs tell the one from the other.
    """
    rests = {
        (line.interval_s, line.group)
        for event, lines in events
        for line in lines
        if event.name in perf_events.SOFTWARE and line.missing == "not counted"
    }
    if rests:
        notes.append(f"the processes did not run in {len(rests)} intervals, which add nothing")

    def ran(line: Line) -> bool:
        return line.missing != "not counted" or (line.interval_s, line.group) not in rests

    return [(event, [line for line in lines if ran(line)] or lines) for event, lines in events]


def _unit(output: Output, lines: Iterable[Line]) -> str:
    """Return the unit of an event's counts; beside what is missing perf may print none."""
    units = dict.fromkeys(line.unit for line in lines if line.value is not None)
    if len(units) > 1:
        raise _refusal(output, None, f"an event in several units: {', '.join(map(repr, units))}")
    return next(iter(units), "")


def _elapsed(
    output: Output,
    lines: Sequence[Line],
    begin: float,
    load: LoadLog | int | None,
    request: Request,
) -> float:
    """How long was counted [s], by the best that is known."""
    if output.intervals:
        return max(line.interval_s or 0.0 for line in lines) - begin
    if request.seconds is not None:
        return request.seconds
    for line in lines:
        if line.event == "duration_time" and line.value:
            return line.value * 1e-9
    if output.per_cpu:  # always system-wide: enabled all the time
        enabled = [line.running_ns / line.share for line in lines if line.running_ns and line.share]
        if enabled:
            return max(enabled) * 1e-9
    if isinstance(load, LoadLog):
        return load.elapsed_s
    raise _refusal(
        output,
        None,
        "does not tell how long was counted; give --seconds, or let perf count duration_time too",
    )


def _apart(output: Output, elapsed: float, load: LoadLog) -> list[str]:
    """Refuse or note a load that was not counted over the interval of the events."""
    apart = abs(elapsed - load.elapsed_s) / max(elapsed, load.elapsed_s)
    said = f"perf counted for {elapsed:.3f} s and {load.tool} for {load.elapsed_s:.3f} s"
    if apart > _TIME_APART_MOST:
        raise _refusal(
            output,
            None,
            f"{said}: counts and transactions of different intervals give no cost of a "
            "transaction; count over the same interval (--from and --to choose it)",
        )
    return (
        [f"{said}: costs of a transaction are off by as much"] if apart > _TIME_APART_NOTED else []
    )


def _cpus(output: Output, request: Request) -> list[int] | None:
    """Return the server's CPUs; None: nobody told which."""
    if not output.per_cpu:
        return list(request.cpu_list) if request.cpu_list else None
    there = sorted({int(line.group) for line in output.lines if line.group is not None})
    missing = sorted(set(request.cpu_list or ()) - set(there))
    if missing:
        named = ", ".join(map(str, missing))
        raise _refusal(output, None, f"holds nothing of CPU {named}, which --cpu-list names")
    return list(request.cpu_list) if request.cpu_list else there


def _counts(
    event: Event, lines: Sequence[Line], cpus: list[int] | None, groups: set[str | None]
) -> list[dict[str, Any]]:
    """Return an event's counts: one a CPU where the file (whose groups are given) has CPUs."""
    by_group: dict[str | None, list[Line]] = {}
    for line in lines:
        by_group.setdefault(line.group, []).append(line)
    if cpus is None or (event.of_machine and by_group.keys() != groups):
        return [_count(None, event, lines)]
    return [_count(cpu, event, by_group.get(str(cpu), [])) for cpu in cpus]


def _count(cpu: int | None, event: Event, lines: Sequence[Line]) -> dict[str, Any]:
    """Add up lines of intervals, sockets, threads ..; one that is missing leaves no sum."""
    head = {"cpu": cpu, "event": event.name, "mode": event.mode, "source": SOURCE}
    if event.unit is not None:
        head["unit"] = event.unit
    status, reason = _lacking(event, lines)
    if status is not None:
        return {**head, **_NULL, "status": status, "reason": reason}
    multiplexed = any(line.share < 1 for line in lines)
    raw, value = (
        sum((line.value or 0.0) * part for line, part in parts) * event.factor
        for parts in ([(line, line.share) for line in lines], [(line, 1.0) for line in lines])
    )
    return {
        **head,
        "raw": raw,
        "corrected": value,
        "enabled_ns": sum(round(line.running_ns / line.share) for line in lines),
        "running_ns": sum(line.running_ns for line in lines),
        "origin": "scaled" if multiplexed else "counted",
        "status": "ok",
        "reason": None,
    }


_NULL = dict.fromkeys(("raw", "corrected", "enabled_ns", "running_ns", "origin"))


def _lacking(event: Event, lines: Sequence[Line]) -> tuple[str | None, str | None]:
    """Status and reason of what is no count."""
    if event.void is not None:
        return "not_permitted", event.void
    if not lines:
        return "failed", f"{event.name}: no line of this CPU: was it offline?"
    lacking = [line for line in lines if line.missing or line.share == 0]
    if not lacking:
        return None, None
    first = lacking[0]
    if all(line.missing == "not supported" for line in lacking):
        return (
            "unsupported",
            f"perf says <not supported> of {first.event}: that machine, or this user there, has no "
            "PMU that counts it",
        )
    when = "" if first.interval_s is None else f" in the interval that ends at {first.interval_s} s"
    return (
        "failed",
        f"perf says <not counted> of {first.event} (line {first.number}){when}: it got no counter, "
        "or nothing ran; count fewer events at once, or leave the interval out (--from, --to)",
    )


def _overlapped(count: dict[str, Any]) -> dict[str, Any]:
    reason = "server and load share the counted CPUs (--shared)"
    return {**count, **_NULL, "status": "overlap", "reason": reason}


def _samples(
    output: Output,
    chosen: Iterable[Line],
    events: Iterable[tuple[Event, list[Line]]],
    begin: float,
    cpus: list[int] | None,
) -> dict[str, Any] | None:
    """Return the intervals as a record's samples: cumulative since the window began."""
    if not output.intervals:
        return None
    times = dict.fromkeys(line.interval_s or 0.0 for line in chosen)
    series: dict[str, dict[str, list[float]]] = {}
    wanted = {"all"} if cpus is None or not output.per_cpu else set(map(str, cpus))
    for event, lines in events:
        if event.void is not None or any(line.value is None for line in lines):
            continue
        sums: dict[str, dict[float, float]] = {}
        for line in lines:
            key = (line.group or "all") if output.per_cpu else "all"
            own = sums.setdefault(key, dict.fromkeys(times, 0.0))
            own[line.interval_s or 0.0] += (line.value or 0.0) * event.factor
        for key in sums.keys() & wanted:
            series.setdefault(key, {})[f"{event.name}:{event.mode}"] = [
                *accumulate(sums[key].values())
            ]
    t_ns = [round((at - begin) * 1e9) for at in times]
    return {
        "how": "read",
        "reason": "perf stat -I",
        "t_ns": t_ns,
        "transactions": None,
        "idle_ns": {},
        "counts": {key: {"t_ns": t_ns, **values} for key, values in series.items()},
    }


def _refusal(output: Output, number: int | None, problem: str) -> TlscostError:
    place = str(output.path) if number is None else f"{output.path}:{number}"
    return TlscostError(f"{place}: {problem}.")
