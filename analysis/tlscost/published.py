"""The published documents' tables (data/published), with what their printed digits leave open."""

import json
from decimal import Decimal
from typing import Any

import pandas as pd

from tlscost.errors import TlscostError
from tlscost.paths import root

__all__ = ["document", "figures", "intervals", "kant_study", "names", "read"]

_KANT_POINT = ["size_bytes", "processors", "l2_kib", "tls"]
_KANT_METRICS = {
    "throughput_per_s": ("scaled_throughput", 1.0),
    "path_length_kinst": ("path_length", 1e3),
    "cpi": ("cpi", 1.0),
    "data_bus_utilisation_percent": ("data_bus_utilisation", 1e-2),
    "l1i_miss_percent": ("l1i_miss_ratio", 1e-2),
    "l1d_miss_percent": ("l1d_miss_ratio", 1e-2),
    "l2_miss_percent": ("l2_miss_ratio", 1e-2),
    "branch_frequency": ("branch_frequency", 1.0),
    "mispredict_ratio": ("mispredict_ratio", 1.0),
    "btb_inefficiency": ("btb_inefficiency", 1.0),
    "first_byte_ms": ("latency_first_byte_mean", 1.0),
    "relative_throughput": ("l2_gain", 1.0),
    "relative_l2_misses_per_op": ("l2_miss_gain", 1.0),
}
"""A column's metric, and what its unit is worth in the metric's."""


def names() -> list[str]:
    """Names of the published tables, sorted."""
    return sorted(path.stem for path in (root() / "data" / "published").glob("*.json"))


def document(name: str) -> dict[str, Any]:
    """Where a table comes from: key, source, table, title, machine, columns with units, notes."""
    text = (root() / "data" / "published" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def read(name: str) -> pd.DataFrame:
    """Read a published table: one row per observation, units in its `document`."""
    return _csv(name)


def intervals(name: str, column: str, index: list[str]) -> pd.DataFrame:
    """Read a column with the interval that rounding to its printed digits leaves.

    Parameters
    ----------
    name : str
        The table.
    column : str
        Of numbers.
    index : list of str
        Columns that tell the rows apart.

    Returns
    -------
    pandas.DataFrame, indexed by `index`
        value, low, high: the printed value, and half a unit of its last digit less and more.
    """
    printed = _csv(name, {column: str}).dropna(subset=column)
    half = printed[column].map(_half_unit)
    value = printed[column].astype("float64")
    columns = {"value": value, "low": value - half, "high": value + half}
    return printed[index].assign(**columns).set_index(index)


def kant_study() -> pd.DataFrame:
    """Tables 1 to 7 of kant2000, long form, in this project's metrics and units.

    Returns
    -------
    pandas.DataFrame, one row per (size_bytes, cpus, l2_kib, tls, metric)
        tls: on, off; value, low, high: as `intervals` gives them.
    """
    tables = []
    for number in range(1, 8):
        name = f"kant2000_table{number}"
        for column in set(read(name).columns) & set(_KANT_METRICS):
            metric, factor = _KANT_METRICS[column]
            table = intervals(name, column, _KANT_POINT) * factor
            tables.append(table.reset_index().assign(metric=metric))
    return pd.concat(tables, ignore_index=True).rename(columns={"processors": "cpus"})


def figures(name: str, quantity: str) -> pd.DataFrame:
    """Figures of a document's text (NAME is KEY_text) that bear this quantity.

    Raises
    ------
    TlscostError
        There is none.
    """
    table = read(name)
    found = table[table["quantity"] == quantity]
    if found.empty:
        raise TlscostError(f"data/published/{name}.csv: no quantity {quantity!r}")
    return found


def _csv(name: str, dtype: dict[str, type] | None = None) -> pd.DataFrame:
    return pd.read_csv(root() / "data" / "published" / f"{name}.csv", dtype=dtype)


def _half_unit(printed: str) -> float:
    """Half a unit of a printed number's last digit: 0.05 of 12.1, 0.005E+09 of 5.09E+09."""
    exponent = Decimal(printed).as_tuple().exponent
    return float(Decimal(5).scaleb(int(exponent) - 1))
