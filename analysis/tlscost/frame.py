"""Records to one tidy frame: a row per (record, window, cpu, event)."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa

from tlscost import dictionary, record
from tlscost.errors import TlscostError

__all__ = ["CELL_COLUMNS", "SCHEMA", "check", "from_records", "load", "record_paths"]

CELL_COLUMNS = ["machine", "server", "tls", "size_bytes", "cpus", "load"]
"""What tells cells apart in tables; column `cell` holds the whole cell as JSON."""

_ORIGINS = ["counted", "scaled", "derived", "simulated", "modelled"]
_STATUSES = ["ok", "overlap", "unsupported", "not_permitted", "failed"]

_TEXT = ["record", "cell", *CELL_COLUMNS[:3], "load", "event", "mode", "origin", "status", "source"]

_category = pa.Column("category", nullable=False, coerce=False)

SCHEMA = pa.DataFrameSchema(
    {
        "record": _category,
        "cell": _category,
        "machine": _category,
        "server": _category,
        "tls": _category,
        "size_bytes": pa.Column("int64", pa.Check.ge(0)),
        "cpus": pa.Column("int64", pa.Check.gt(0)),
        "load": _category,
        "repetition": pa.Column("int64"),
        "overlap": pa.Column(nullable=True),
        "not_corrected": pa.Column(nullable=True),
        "uarch": pa.Column(nullable=True),
        "clock_hz": pa.Column("float64", nullable=True),
        "bus_clock_hz": pa.Column("float64", nullable=True),
        "window": pa.Column("int64", pa.Check.ge(0)),
        "pass": pa.Column("int64"),
        "cpu": pa.Column("Int64", nullable=True),
        "event": _category,
        "mode": _category,
        "variant": pa.Column("category", nullable=True),
        "raw": pa.Column("float64", nullable=True),
        "corrected": pa.Column("float64", nullable=True),
        "value": pa.Column("float64", nullable=True),
        "histogram": pa.Column(nullable=True),
        "enabled_ns": pa.Column("float64", pa.Check.ge(0), nullable=True),
        "running_ns": pa.Column("float64", pa.Check.ge(0), nullable=True),
        "origin": pa.Column("category", pa.Check.isin(_ORIGINS), nullable=True),
        "status": pa.Column("category", pa.Check.isin(_STATUSES)),
        "reason": pa.Column(nullable=True),
        "source": _category,
        "elapsed_ns": pa.Column("int64", pa.Check.gt(0)),
        "idle_ns": pa.Column("float64", pa.Check.ge(0), nullable=True),
        "transactions": pa.Column("Int64", pa.Check.ge(0), nullable=True),
    },
    checks=pa.Check(
        lambda frame: frame["value"].notna() | frame["histogram"].notna() | frame["reason"].notna(),
        error="a null `value` has a `reason`",
    ),
    strict=True,
)

_VARYING = [
    *["run", "window", "pass", "cpu", "event", "mode", "variant"],
    *["raw", "corrected", "value", "histogram"],
    *["enabled_ns", "running_ns", "origin", "status", "reason", "source"],
    *["elapsed_ns", "idle_ns", "transactions"],
]
_CPU_TIMES = ["idle_ns", "steal_ns", "user_ns", "system_ns", "irq_ns", "softirq_ns"]
_LOAD_COUNTS = [
    *["transactions", "bytes", "connections", "handshakes_full", "handshakes_resumed"],
    *["tickets", "late", "clamped", "started"],
]
_NOT_RECORDED = "the record holds no value: the collector could not read it"


def record_paths(paths: Iterable[Path | str]) -> list[Path]:
    """Record files named by `paths`; directories are searched for `*.jsonl` and `*.jsonl.gz`.

    Raises
    ------
    TlscostError
        A path is not there, or nothing at all was found.
    """
    found: list[Path] = []
    given = [Path(path) for path in paths]
    for path in given:
        if path.is_dir():
            found += sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
        elif path.exists():
            found.append(path)
        else:
            raise TlscostError(f"{path}: no such file or directory; expected a record (.jsonl)")
    if not found:
        names = ", ".join(map(str, given)) or "nothing given"
        raise TlscostError(
            f"no record (*.jsonl) in: {names}. Remedy: measure with `tlscost sweep`."
        )
    return list(dict.fromkeys(found))


def load(paths: Iterable[Path | str]) -> pd.DataFrame:
    """Read records into the tidy frame.

    Parameters
    ----------
    paths : iterable of Path or str
        Record files, or directories to search for them.

    Returns
    -------
    pandas.DataFrame, shape (records x windows x cpus x events, columns of `SCHEMA`)
        `raw` and `corrected` as recorded; `value` is what formulas take: `corrected` for counters,
        `raw` for what needs no idle correction (CPU times, the load's counts, system counters).
        `overlap` says why server and load shared CPUs, null where they did not;
        `not_corrected` why an imported record's counts hold what the CPUs do while idle.
        `transactions` is null where nobody counted any.
        `cpu` is null for what belongs to the whole server or machine; `idle_ns` [ns] is then the
        sum over the server's CPUs. Latency rows hold a `histogram` instead of a value.
        `uarch` is the microarchitecture, null where no file of the dictionary is about it.
        `variant` is null but for what differs between a simulated machine's variants; `clock_hz`
        and `bus_clock_hz` are that machine's, null for this one.
    """
    return from_records(record.read(path) for path in record_paths(paths))


def from_records(records: Iterable[record.Record]) -> pd.DataFrame:
    """Build the tidy frame of `load` from records already read."""
    runs: list[dict[str, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for run, item in enumerate(records):
        runs.append(_run_columns(item))
        for window, line in enumerate(item.windows):
            head = (run, window, line.pass_)
            rows += (head + row for row in _window_rows(item, line))
    if not rows:
        raise TlscostError(
            "the records hold no window: nothing was measured. Remedy: measure again"
        )
    varying = pd.DataFrame(dict(zip(_VARYING, zip(*rows, strict=True), strict=True)))
    constant = pd.DataFrame(runs)
    for name in ["clock_hz", "bus_clock_hz"]:
        constant[name] = constant[name].astype("float64")
    for name in set(_TEXT) & set(constant.columns):
        constant[name] = constant[name].astype("category")
    spread = constant.take(varying["run"].to_numpy()).reset_index(drop=True)
    frame = pd.concat([spread, varying.drop(columns="run")], axis="columns")
    for name in ["cpu", "transactions"]:
        frame[name] = frame[name].astype("Int64")
    for name in ["event", "mode", "variant", "origin", "status", "source"]:
        frame[name] = frame[name].astype("category")
    for name in ["raw", "corrected", "value", "enabled_ns", "running_ns", "idle_ns"]:
        frame[name] = frame[name].astype("float64")
    return check(frame[list(SCHEMA.columns)])


def check(frame: pd.DataFrame, schema: pa.DataFrameSchema = SCHEMA) -> pd.DataFrame:
    """Return `frame` if it obeys `schema`; the error names every column that does not."""
    try:
        return schema.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as error:
        # A column that is not there is the case's value, not its column.
        cases = error.failure_cases[["column", "check", "failure_case"]]
        first = cases.groupby(["column", "check"], dropna=False, observed=True).head(1)
        named = "; ".join(
            f"column `{case.column}`: {case.check} (found {case.failure_case!r})"
            if pd.notna(case.column) and case.check != "column_in_dataframe"
            else f"column `{case.failure_case}`: {case.check}"
            for case in first.itertuples()
        )
        raise TlscostError(f"the table breaks its schema: {named}") from error


def _run_columns(item: record.Record) -> dict[str, Any]:
    cell = item.header.cell
    machine = item.header.machine
    identity = cell.model_dump(exclude={"repetition"})
    return {
        "record": str(item.path),
        "cell": _canonical(identity),
        "machine": cell.machine,
        "server": cell.server,
        "tls": cell.tls,
        "size_bytes": cell.size_bytes,
        "cpus": cell.cpus,
        "load": _canonical(cell.load),
        "repetition": cell.repetition,
        "overlap": _overlap(item.header.placement),
        "not_corrected": item.header.imported.not_corrected if item.header.imported else None,
        "uarch": None if machine else _uarch(item.header.provenance),
        "clock_hz": float(machine.clock_hz) if machine else None,
        "bus_clock_hz": float(machine.bus_clock_hz) or None if machine else None,
    }


def _uarch(provenance: dict[str, Any]) -> str | None:
    """Return the microarchitecture by the record's word or the CPU's identity; None: unknown."""
    said = provenance.get("microarchitecture")
    if said is not None:
        return str(said)
    return dictionary.recognise(provenance.get("cpu_identity") or {})


def _overlap(placement: record.Placement) -> str | None:
    if not placement.overlap:
        return None
    return placement.reason or "server and load share CPUs"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _window_rows(item: record.Record, line: record.Window) -> Iterator[tuple[Any, ...]]:
    """Yield rows from `cpu` on (see `_VARYING`)."""
    imported = item.header.imported
    system = "softpmu" if item.header.machine else "perf-stat" if imported else "proc"
    elapsed = line.end_ns - line.start_ns
    idle = {times.cpu: times.idle_ns for times in line.cpus}
    known = [value for value in idle.values() if value is not None]
    whole = sum(known) if len(known) == len(idle) and idle else None
    tails = {cpu: (elapsed, value, line.transactions) for cpu, value in idle.items()}
    tail = (elapsed, whole, line.transactions)
    for count in line.counts:
        yield (
            *(count.cpu, count.event, count.mode, count.variant),
            *(count.raw, count.corrected, count.corrected),
            *(None, count.enabled_ns, count.running_ns, count.origin, count.status),
            count.reason or (None if count.corrected is not None else _NOT_RECORDED),
            count.source,
            *tails.get(count.cpu, tail),  # type: ignore[arg-type]
        )
    for times in line.cpus:
        for name in _CPU_TIMES:
            value, why = getattr(times, name), line.null_reasons.get(name)
            yield (times.cpu, *_plain(f"cpu_{name}", value, system, why), *tails[times.cpu])
    for name, value in line.system.items():
        why = line.null_reasons.get(name)
        yield (None, *_plain(f"system_{name}", value, system, why), *tail)
    rss, why = line.server_rss_bytes, line.null_reasons.get("server_rss_bytes")
    yield (None, *_plain("server_rss_bytes", rss, system, why), *tail)
    if not line.cpus:  # an imported record may not tell which CPUs it is of
        for name in _CPU_TIMES:
            why = line.null_reasons.get(name)
            yield (None, *_plain(f"cpu_{name}", None, system, why), *tail)
    for name in _LOAD_COUNTS:
        why = line.null_reasons.get(name)
        yield (None, *_plain(f"load_{name}", getattr(line, name), "load", why), *tail)
    for name, value in line.errors.items():
        kind = name.removeprefix("error_")
        yield (None, *_plain(f"load_error_{kind}", value, "load"), *tail)
    for name, text in line.latency.items():
        event = f"latency_{name}"
        if text is None:
            row = _plain(event, None, "load", f"no {name} was timed")
        else:
            measured = (None, None, None, text, None, None, "counted", "ok", None, "load")
            row = (event, "all", None, *measured)
        yield (None, *row, *tail)


def _plain(
    event: str, value: float | None, source: str, why_null: str | None = None
) -> tuple[Any, ...]:
    """Columns `event` to `source` of what needs no idle correction."""
    name = (event, "all", None)
    if value is None:
        status = "failed" if why_null is None else "unsupported"
        return (*name, *[None] * 6, None, status, why_null or _NOT_RECORDED, source)
    return (*name, value, None, value, None, None, None, "counted", "ok", None, source)
