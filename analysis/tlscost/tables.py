"""Metrics and studies as tables for the terminal."""

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from tlscost import summary
from tlscost.cell import human_size
from tlscost.machine import NATIVE, observed

if TYPE_CHECKING:
    from tlscost.claims import Judgement
    from tlscost.count import Counts
    from tlscost.decompose import Decomposition
    from tlscost.doctor import Diagnosis

__all__ = [
    "claims_table",
    "comparison_table",
    "counts_table",
    "decomposition_tables",
    "doctor_tables",
    "events_table",
    "metrics_table",
    "overview_table",
]

_OVERVIEW = {
    "throughput": "transactions/s",
    "utilisation": "utilisation",
    "scaled_throughput": "scaled throughput [1/s]",
    "cpu_time": "CPU time [ms/op]",
    "latency_first_byte_p50": "first byte, median [ms]",
}

_SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "blue"}


def metrics_table(metrics: pd.DataFrame) -> Table:
    """One row per (cell, metric): value, 95 % interval, unit, quality, origin, source or reason."""
    table = _table(
        *["cell", "metric", "value>", "95 % interval>", "unit", "quality", "origin"],
        "source, or why there is no value",
    )
    for row in _rows(metrics):
        there = row["value"] is not None
        table.add_row(
            _cell_name(row),
            row["metric"],
            _number(row["value"]),
            _interval(row),
            row["unit"],
            row["quality"],
            row["origin"],
            row["source"] if there else row["reason"],
        )
    return table


def counts_table(counts: "Counts") -> Table:
    """One row per event: its count in user mode, where variants differ one for each, and origin."""
    columns = [f"{counts.machine} {name}>" for name in counts.variants]
    table = _table("event", *columns, "unit", "origin")
    for event in counts.events:
        values = [event.user.get(name, event.user.get("")) for name in counts.variants]
        table.add_row(event.name, *(f"{value:,}" for value in values), event.unit, event.origin)
    return table


def claims_table(judgements: "Sequence[Judgement]") -> Table:
    """One row per claim: the document's figure, ours, the verdict and why; how many hold below."""
    table = _table("claim", "where", "published", "ours", "verdict", "in its own tables", "why")
    for one in judgements:
        why = f"{one.statement}: {one.reason}"
        ours, own = one.ours or "-", one.published_verdict
        table.add_row(one.id, one.where, one.published, ours, one.verdict, own, why)
    table.caption = summary.claims_count(judgements)
    return table


def comparison_table(comparison: pd.DataFrame) -> Table:
    """One row per (cell, metric): both values, their ratio and whether it means anything."""
    table = _table(
        *["cell", "metric", "A>", "B>", "unit", "B / A>", "95 % interval>", "p (Holm)>"],
        *["significant", "why not"],
    )
    for row in _rows(comparison):
        significant = {None: "", True: "yes", False: "no"}[row["significant"]]
        table.add_row(
            _cell_name(row),
            row["metric"],
            *[_number(row["value_a"]), _number(row["value_b"]), row["unit"]],
            *[_number(row["ratio"]), _interval(row), _number(row["p_holm"])],
            significant,
            row["reason"],
        )
    return table


def decomposition_tables(fits: "Sequence[Decomposition]") -> Iterator[Table]:
    """Two tables a fit: its parameters, and the shares of the parts at each size."""
    for fit in fits:
        name = ", ".join(f"{key} {value}" for key, value in fit.group.items())
        parameters = _table("parameter", "value>", "95 % interval>", "unit", title=name or None)
        for row in _rows(fit.parameters.rename_axis("name").reset_index()):
            unit = "ms/KiB" if row["name"].endswith("1") else "ms"
            parameters.add_row(row["name"], _number(row["value"]), _interval(row), unit)
        lack = fit.lack_of_fit
        parameters.caption = fit.reason or (
            f"lack of fit: p = {lack['p']:.3g}" if lack["p"] is not None else lack["reason"]
        )
        yield parameters
        shares = _table("size [KiB]>", "part", "share>", "95 % interval>", "time [ms]>")
        for row in _rows(fit.shares):
            percent: dict[Hashable, Any] = {
                key: row[key] and 100 * row[key] for key in ("share", "low", "high")
            }
            shares.add_row(
                *[f"{row['size_kib']:g}", row["part"], f"{percent['share']:.1f} %"],
                *[_interval(percent), _number(row["time_ms"])],
            )
        yield shares


def doctor_tables(diagnosis: "Diagnosis") -> Iterator[Table | Text]:
    """Tell findings, each with its remedy on a line of its own; what is well; metrics' quality."""
    where = f", on {diagnosis.hypervisor}" if diagnosis.hypervisor else ""
    yield Text(f"{diagnosis.cpu}{where}\n", style="bold")
    for finding in diagnosis.findings:
        yield Text.assemble(
            (f"{finding.severity:8}", _SEVERITIES[finding.severity]),
            (finding.id, "bold"),
            f": {finding.message}\n         ",
            (finding.remedy, "cyan"),
            "\n",
        )
    yield Text("well: " + "; ".join(f"{one.id} ({one.message})" for one in diagnosis.fine) + "\n")
    table = _table("metric", "quality here", "why")
    for metric in diagnosis.metrics:
        table.add_row(metric.metric, metric.quality, metric.reason)
    yield table


def overview_table(metrics: pd.DataFrame) -> Table:
    """One row per cell of this machine: what it reached, and at which cost."""
    metrics = metrics[metrics["machine"] == NATIVE]
    right = [f"{name}>" for name in _OVERVIEW.values()]
    table = _table("server", "TLS", "size>", "CPUs>", *right)
    for _, cell in metrics.groupby("cell", sort=False):
        first: dict[Hashable, Any] = cell.iloc[0].to_dict()
        values = cell.set_index("metric")
        table.add_row(
            first["server"],
            first["tls"],
            human_size(first["size_bytes"]),
            str(first["cpus"]),
            *[_value(values, name) for name in _OVERVIEW],
        )
    return table


def events_table(metrics: pd.DataFrame) -> Table | None:
    """One row per cell, and variant of its machine, whose instructions were counted; None: none."""
    rows = summary.events(metrics)
    if rows.empty:
        return None
    texts = {"machine", "server", "TLS", "origin"}
    names = [name if name in texts else f"{name}>" for name in rows.columns]
    table = _table(*names, title="What a transaction takes of the processor")
    for row in rows.astype("str").itertuples(index=False):
        table.add_row(*row)
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    """Make an empty table; a column whose name ends in ">" is set flush right."""
    table = Table(title=title)
    for name in columns:
        table.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left")
    return table


def _rows(frame: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """Rows with None for what is not there."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _cell_name(cell: dict[Hashable, Any]) -> str:
    machine = observed(cell["machine"], cell.get("variant"))
    where = "" if machine == NATIVE else f"{machine} "
    what = f"{cell['server']} {cell['tls']} {human_size(cell['size_bytes'])} {cell['cpus']} CPU"
    return f"{where}{what}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(row: dict[Hashable, Any]) -> str:
    return "" if row["low"] is None else f"{row['low']:.4g} .. {row['high']:.4g}"


def _value(values: pd.DataFrame, name: str) -> str:
    if name not in values.index:
        return "-"
    value: Any = values.loc[name, "value"]
    return _number(None if pd.isna(value) else value)
