"""From rounds of a benchmark to ratios against peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

__all__ = ["against_best", "against_each"]


def against_best(
    rounds: pd.DataFrame, *, by: list[str], who: str, ours: Sequence[str], value: str
) -> pd.DataFrame:
    """Ratio of our value to the best peer's, round by round.

    Parameters
    ----------
    rounds : one row per (*by, who, round).
    by : columns that make a point; `who` names the column of tool names and `ours` our tools.
    value : the column compared; less is better.

    Returns
    -------
    One row per point and tool of ours: the mean of each tool, `tool`, `peer` (the one with the
    least mean), `ratio` (geometric mean over rounds of ours / peer's in the same round), `low`,
    `high` (95 % t interval of the mean logarithm). A value that is not positive in
    any round has no ratio: null.
    """
    rows = []
    for point, group in rounds.groupby(by, sort=False, observed=True):
        table = group.pivot_table(index="round", columns=who, values=value, observed=True)
        means = table.mean()
        peer = means.drop(list(ours)).idxmin()
        for tool in ours:
            pair = table[[tool, peer]]
            rows.append(
                dict(zip(by, point, strict=True))
                | means.to_dict()
                | {"tool": tool, "peer": peer}
                | _ratio(pair[tool], pair[peer])
            )
    return pd.DataFrame(rows)


def against_each(
    rounds: pd.DataFrame, *, by: list[str], who: str, ours: str, value: str
) -> pd.DataFrame:
    """Ratio of our value to each peer's, round by round.

    Parameters
    ----------
    rounds, by, who, value : as of `against_best`.
    ours : our tool.

    Returns
    -------
    One row per point and peer: `ours` and `theirs` (means), `peer`, `ratio`, `low`, `high`.
    """
    rows = []
    for point, group in rounds.groupby(by, sort=False, observed=True):
        table = group.pivot_table(
            index="round", columns=who, values=value, observed=True, sort=False
        )
        rows += [
            dict(zip(by, point, strict=True))
            | {"ours": table[ours].mean(), "peer": peer, "theirs": table[peer].mean()}
            | _ratio(table[ours], table[peer])
            for peer in table.columns.drop(ours)
        ]
    return pd.DataFrame(rows)


def _ratio(ours: pd.Series[float], theirs: pd.Series[float]) -> dict[str, float]:
    """Geometric mean of the rounds' ratios, with its 95 % interval."""
    positive = (ours > 0) & (theirs > 0)
    logs = np.log((ours / theirs).where(positive))
    mean = np.mean(np.asarray(logs))  # null if one is: the others would flatter
    low, high = stats.t.interval(0.95, len(logs) - 1, mean, stats.sem(logs))
    interval = {"ratio": mean, "low": low, "high": high}
    return {name: float(np.exp(log)) for name, log in interval.items()}
