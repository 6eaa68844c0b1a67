"""Two sets of records: the ratio B / A of each cell's metrics, and whether it means anything.

Cells are the same where what is measured is the same (`tlscost.frame.CELL_COLUMNS`), however long
their windows were and whatever else was counted beside.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from tlscost import frame, metrics
from tlscost.errors import TlscostError

__all__ = ["compare", "compare_runs", "to_json"]

_ROUNDING = 1e-12  # of logarithms: what arithmetic alone makes of equal values
_KEYS = [*frame.CELL_COLUMNS, "variant", "metric"]
_HOW = {"rules", "events"}  # of a cell: how it is measured, not what
_COLUMNS = [
    *_KEYS,
    *["unit", "value_a", "value_b", "ratio", "low", "high"],
    *["p", "p_holm", "significant", "n_a", "n_b", "reason"],
]


def compare(a: Path | str, b: Path | str) -> pd.DataFrame:
    """Compare the records at `b` with those at `a`; see `compare_runs`."""
    return compare_runs(*(metrics.run_values(frame.load([path])) for path in (a, b)))


def compare_runs(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Compare the runs of two sets of records.

    Parameters
    ----------
    a, b : pandas.DataFrame
        Values of runs, as `tlscost.metrics.run_values` gives them.

    Returns
    -------
    pandas.DataFrame, one row per (cell, variant, metric) of either set
        machine, server, tls, size_bytes, cpus, load: the cell; variant: of a simulated machine,
        null where the metric does not depend on it; value_a, value_b: means over n_a and n_b runs,
        in `unit`; ratio: of the geometric means, B / A, with low and high its 95 % interval (Welch,
        of the logarithms); p, and p_holm after Holm's correction over the whole table;
        significant: p_holm < 0.05. What cannot be computed is null and has a `reason`.

    Raises
    ------
    TlscostError
        The sets have no cell in common, or one of them has different cells where the columns tell
        none apart.
    """
    for name, runs in {"A": a, "B": b}.items():
        _check_told_apart(name, runs)
    cells_a, cells_b = (set(_cells(runs).index) for runs in (a, b))
    if not cells_a & cells_b:
        raise TlscostError(
            "the two sets of records have no cell in common, so nothing can be compared; "
            "measure the same plan twice"
        )
    # As a key, null does not equal null.
    sides = {
        name: dict(iter(runs.fillna({"variant": ""}).groupby(_KEYS, observed=True, sort=False)))
        for name, runs in {"a": a, "b": b}.items()
    }
    rows = [
        _compared(key, sides["a"].get(key), sides["b"].get(key))
        for key in dict.fromkeys([*sides["a"], *sides["b"]])
    ]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table["variant"] = table["variant"].where(table["variant"] != "", None)
    table[["ratio", "low", "high", "p"]] = table[["ratio", "low", "high", "p"]].astype("float64")
    tested = table["p"].notna()
    table["p_holm"] = np.nan
    table["significant"] = pd.array([None] * len(table), dtype="boolean")
    if tested.any():
        reject, corrected, *_ = multipletests(table.loc[tested, "p"], alpha=0.05, method="holm")
        table.loc[tested, "p_holm"] = corrected
        table.loc[tested, "significant"] = reject
    return table


def to_json(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as the command line's JSON document has them: null for what is not there."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [
        {
            "cell": {
                **{name: row[name] for name in frame.CELL_COLUMNS},
                "load": json.loads(row["load"]),
            },
            **{str(key): row[key] for key in row if key not in frame.CELL_COLUMNS},
        }
        for row in rows
    ]


def _cells(runs: pd.DataFrame) -> "pd.Series[str]":
    """Distinct cells as JSON, indexed by the columns that tell them apart."""
    return runs.drop_duplicates([*frame.CELL_COLUMNS, "cell"]).set_index(frame.CELL_COLUMNS)["cell"]


def _check_told_apart(name: str, runs: pd.DataFrame) -> None:
    """Refuse a set in which one row would mix cells that differ in what was measured."""
    what = _cells(runs).map(
        lambda cell: json.dumps({k: v for k, v in json.loads(cell).items() if k not in _HOW})
    )
    distinct = what.groupby(level=frame.CELL_COLUMNS, observed=True).unique()
    for first, second, *_ in distinct[distinct.str.len() > 1]:
        one, other = json.loads(first), json.loads(second)
        keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
        differ = "; ".join(f"{key}: {one.get(key)!r} and {other.get(key)!r}" for key in keys)
        raise TlscostError(
            f"{name}: holds two cells that a comparison would mix ({differ}); give each its own "
            "directory and compare those"
        )


def _compared(key: Any, a: pd.DataFrame | None, b: pd.DataFrame | None) -> dict[str, Any]:
    found = [side for side in (a, b) if side is not None]
    row: dict[str, Any] = {**dict(zip(_KEYS, key, strict=True)), "unit": found[0]["unit"].iloc[0]}
    for name, side in {"a": a, "b": b}.items():
        values = pd.Series(dtype="float64") if side is None else side["value"].dropna()
        row |= {f"value_{name}": values.mean(), f"n_{name}": len(values)}
    if a is None or b is None:
        return {**row, "reason": f"not in {'A' if a is None else 'B'}"}
    for name, side in {"A": a, "B": b}.items():
        if side["value"].isna().all():
            return {**row, "reason": f"{name}: {side['reason'].dropna().iloc[0]}"}
        if (side["value"] <= 0).any():
            return {**row, "reason": f"{name}: 0 or less in a run has no ratio"}
    return {**row, **_ratio(np.log(a["value"].dropna()), np.log(b["value"].dropna()))}


def _ratio(log_a: "pd.Series[float]", log_b: "pd.Series[float]") -> dict[str, Any]:
    ratio = {"ratio": float(np.exp(log_b.mean() - log_a.mean()))}
    if min(len(log_a), len(log_b)) < 2:
        return {**ratio, "reason": "one run: no interval"}
    if max(np.ptp(log_a), np.ptp(log_b)) < _ROUNDING:
        return {**ratio, "reason": "no run differs from another: no interval"}
    test = stats.ttest_ind(log_b, log_a, equal_var=False)
    low, high = np.exp(test.confidence_interval(0.95))
    return {**ratio, "low": float(low), "high": float(high), "p": float(test.pvalue)}
