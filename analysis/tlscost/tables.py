"""Metrics as tables for the terminal."""

from collections.abc import Hashable
from typing import Any

import pandas as pd
from rich.table import Table

from tlscost.cell import human_size

__all__ = ["metrics_table", "overview_table"]

_OVERVIEW = {
    "throughput": "transactions/s",
    "utilisation": "utilisation",
    "scaled_throughput": "scaled throughput [1/s]",
    "cpu_time": "CPU time [ms/op]",
    "latency_first_byte_p50": "first byte, median [ms]",
}


def metrics_table(metrics: pd.DataFrame) -> Table:
    """One row per (cell, metric): value, 95 % interval, unit, quality, origin, source or reason."""
    table = Table()
    for name in ("cell", "metric", "value", "95 % interval", "unit", "quality", "origin", "source"):
        table.add_column(name, justify="right" if name in ("value", "95 % interval") else "left")
    rows: list[dict[Hashable, Any]] = (
        metrics.astype(object).where(metrics.notna(), None).to_dict("records")
    )
    for row in rows:
        there = row["value"] is not None
        table.add_row(
            f"{row['server']} {row['tls']} {human_size(row['size_bytes'])} {row['cpus']} CPU",
            row["metric"],
            f"{row['value']:.5g}" if there else "-",
            "" if row["low"] is None else f"{row['low']:.4g} .. {row['high']:.4g}",
            row["unit"],
            row["quality"],
            row["origin"],
            row["source"] if there else row["reason"],
        )
    return table


def overview_table(metrics: pd.DataFrame) -> Table:
    """One row per cell: what it reached, and at which cost."""
    table = Table()
    for name in ("server", "TLS", "size", "CPUs"):
        table.add_column(name)
    for name in _OVERVIEW.values():
        table.add_column(name, justify="right")
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


def _value(values: pd.DataFrame, name: str) -> str:
    if name not in values.index:
        return "-"
    value: Any = values.loc[name, "value"]
    return "-" if pd.isna(value) else f"{value:.4g}"
