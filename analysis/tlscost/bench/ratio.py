"""From rounds of a benchmark to ratios against the best peer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["against_best"]


def against_best(
    rounds: pd.DataFrame, *, by: list[str], who: str, ours: str, value: str
) -> pd.DataFrame:
    """Ratio of our value to the best peer's, round by round.

    Parameters
    ----------
    rounds : one row per (*by, who, round).
    by : columns that make a point; `who` names the column of tool names and `ours` our tool.
    value : the column compared; less is better.

    Returns
    -------
    One row per point: the mean of each tool, `peer` (the one with the least mean), `ratio`
    (geometric mean over rounds of ours / peer's in the same round), `low`, `high` (95 % t interval
    of the mean logarithm). A tool whose value is not positive has no ratio: null.
    """
    rows = []
    for point, group in rounds.groupby(by, sort=False, observed=True):
        table = group.pivot_table(index="round", columns=who, values=value, observed=True)
        means = table.mean()
        peer = means.drop(ours).idxmin()
        logs = np.log((table[ours] / table[peer]).where((table[[ours, peer]] > 0).all(axis=1)))
        low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
        rows.append(
            dict(zip(by, point, strict=True))
            | means.to_dict()
            | {"peer": peer, "ratio": np.exp(logs.mean()), "low": np.exp(low), "high": np.exp(high)}
        )
    return pd.DataFrame(rows)
