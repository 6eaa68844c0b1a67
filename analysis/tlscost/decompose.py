"""What of a transaction's time is handshake, encryption and the rest (docs/statistics.md).

T_s(x) = T_s0 + x T_s1 with TLS and T_n(x) = T_n0 + x T_n1 without, over file size x [KiB], are
fitted together; then T_h = T_s0 - T_n0, T_e = (T_s1 - T_n1) x, and the rest is T_n.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pandera.pandas as pa
import statsmodels.api as sm
from scipy import stats
from statsmodels.tools.numdiff import approx_fprime

from tlscost import frame, metrics
from tlscost.errors import TlscostError
from tlscost.machine import observed

__all__ = [
    "POINTS",
    "Decomposition",
    "Weights",
    "fit",
    "fit_paths",
    "fit_runs",
    "read_csv",
    "to_json",
]

Weights = Literal["relative", "equal", "column"]
Floats = npt.NDArray[np.float64]

POINTS = pa.DataFrameSchema(
    {
        "tls": pa.Column(str, pa.Check.isin(["on", "off"])),
        "size_kib": pa.Column("float64", [pa.Check.ge(0), pa.Check.lt(math.inf)]),
        "time_ms": pa.Column("float64", [pa.Check.gt(0), pa.Check.lt(math.inf)]),
        "weight": pa.Column("float64", [pa.Check.gt(0), pa.Check.lt(math.inf)], required=False),
    },
    coerce=True,
)
"""Points that a fit takes: one row per measured T [ms] at a size [KiB]."""

_PARAMETERS = ["t_s0", "t_s1", "t_n0", "t_n1"]
_DIFFERENCES = ["t_h", "t_e1"]
_PARTS = ["handshake", "encryption", "rest"]
_GROUP = ["machine", "server", "tls", "cpus", "load"]


@dataclass(frozen=True)
class Decomposition:
    """A fit and what follows from it.

    Attributes
    ----------
    group : dict
        What was fitted: machine, server, tls profile, cpus, load; empty for a table of points.
    points : pandas.DataFrame, shape (points, columns of `POINTS`)
    parameters : pandas.DataFrame, index t_s0, t_s1, t_n0, t_n1, t_h, t_e1
        Columns value, low, high [ms, and ms/KiB for t_s1, t_n1, t_e1]; 95 % t intervals.
    shares : pandas.DataFrame, shape (sizes x 3 parts, ...)
        Long form: size_kib, part (handshake, encryption, rest), share, low, high [fractions of
        T_s], time_ms [the part's time].
    lack_of_fit : dict
        f, p, df_lack, df_pure, reason (where there is no test).
    weights : str
    reason : str or None
        Why there are no intervals, or nothing at all (every value null, no shares).
    """

    group: dict[str, Any]
    points: pd.DataFrame
    parameters: pd.DataFrame
    shares: pd.DataFrame
    lack_of_fit: dict[str, Any]
    weights: Weights
    reason: str | None = field(default=None)

    def times(self, sizes_kib: Floats) -> pd.DataFrame:
        """Return the fitted lines, long form: columns tls (on, off), size_kib, time_ms."""
        t_s0, t_s1, t_n0, t_n1 = self.parameters.loc[_PARAMETERS, "value"]
        lines = {"on": t_s0 + t_s1 * sizes_kib, "off": t_n0 + t_n1 * sizes_kib}
        return pd.concat(
            pd.DataFrame({"tls": tls, "size_kib": sizes_kib, "time_ms": time})
            for tls, time in lines.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the command line's JSON document: fractions, ms and ms/KiB."""
        document: dict[str, Any] = {
            str(name): {key: _plain(row[key]) for key in ("value", "low", "high")}
            for name, row in self.parameters.iterrows()
        }
        shares = []
        for size, rows in self.shares.groupby("size_kib"):
            parts = {row["part"]: row for _, row in rows.iterrows()}
            shares.append(
                {
                    "size_kib": size,
                    **{part: _plain(parts[part]["share"]) for part in _PARTS},
                    "intervals": {
                        part: [_plain(parts[part][end]) for end in ("low", "high")]
                        for part in _PARTS
                    },
                }
            )
        return {
            **document,
            "lack_of_fit": self.lack_of_fit,
            "shares": shares,
            "group": self.group,
            "points": len(self.points),
            "weights": self.weights,
            "reason": self.reason,
        }


def fit(
    points: pd.DataFrame,
    weights: Weights = "relative",
    at: Sequence[float] = (36.0,),
    group: dict[str, Any] | None = None,
) -> Decomposition:
    """Fit both lines together by weighted least squares.

    Parameters
    ----------
    points : pandas.DataFrame
        Columns of `POINTS`; re-runs are rows of the same tls and size.
    weights : {"relative", "equal", "column"}
        relative: the error is proportional to T, weights 1 / (mean T of the re-runs)^2; equal: the
        same error in ms everywhere; column: the points' own `weight`.
    at : sequence of float
        File sizes [KiB] at which shares are wanted besides those measured.
    group : dict, optional
        What the points are of, for messages and output.

    Raises
    ------
    TlscostError
        Exit code 2: a column is missing or wrong, or fewer than two sizes with or without TLS.
    """
    points = frame.check(points.reset_index(drop=True), POINTS)
    _require_two_sizes(points, group or {})
    _require_sizes(at)
    design = _design(points["tls"], points["size_kib"])
    weight = _weights(points, weights)
    line = sm.WLS(points["time_ms"], design, weights=weight).fit()
    certain = line.df_resid > 0
    sizes = np.unique([*points["size_kib"], *at])
    return Decomposition(
        group=group or {},
        points=points,
        parameters=_parameters(line, certain),
        shares=_shares(line, sizes, certain),
        lack_of_fit=_lack_of_fit(points, weight, line),
        weights=weights,
        reason=None if certain else "as many points as parameters: no interval",
    )


def fit_paths(
    paths: Iterable[Path | str], weights: Weights = "relative", at: Sequence[float] = (36.0,)
) -> list[Decomposition]:
    """Fit a CSV file of points, or records: one fit per (machine, server, TLS profile, CPUs, load).

    Raises
    ------
    TlscostError
        Nothing to fit; the message says for each group what is missing.
    """
    given = [Path(path) for path in paths]
    if len(given) == 1 and given[0].suffix.lower() == ".csv":
        return [fit(read_csv(given[0]), weights, at)]
    fits = fit_runs(metrics.run_values(frame.load(given)), weights, at)
    if all(one.shares.empty for one in fits):
        detail = "\n".join(str(one.reason) for one in fits) or "no cell with TLS on"
        raise TlscostError(f"nothing to decompose: {detail}")
    return fits


def read_csv(path: Path | str) -> pd.DataFrame:
    """Read points: columns tls (on, off), size_kib, time_ms, optionally weight."""
    try:
        table = pd.read_csv(path, dtype={"tls": str}, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise TlscostError(
            f"{path}: cannot be read as a table: {error}. Expected CSV with columns tls (on, off), "
            "size_kib, time_ms, optionally weight."
        ) from error
    try:
        return frame.check(table, POINTS)
    except TlscostError as error:
        raise TlscostError(f"{path}: {error}") from error


def to_json(fits: Sequence[Decomposition]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return one document: the fit itself, or a list where there are several groups."""
    documents = [one.to_json() for one in fits]
    return documents[0] if len(documents) == 1 else documents


def fit_runs(
    runs: pd.DataFrame, weights: Weights = "relative", at: Sequence[float] = (36.0,)
) -> list[Decomposition]:
    """Pair every TLS profile's runs with those without TLS that are otherwise alike, and fit.

    Parameters
    ----------
    runs : pandas.DataFrame
        Values of runs, as `tlscost.metrics.run_values` gives them; T is their transaction_time.

    Returns
    -------
    list of Decomposition
        One per (machine, server, TLS profile, CPUs, load); what cannot be fitted is null.
    """
    runs = runs[runs["metric"] == "transaction_time"]
    seen = map(observed, runs["machine"].astype("str"), runs["variant"])
    runs = runs.assign(machine=list(seen))
    plain = runs[runs["tls"] == "off"]
    secure = runs[runs["tls"] != "off"]
    fits = []
    for key, own in secure.groupby(_GROUP, observed=True, sort=True):
        group: dict[str, Any] = dict(zip(_GROUP, key, strict=True))
        alike = [name for name in _GROUP if name != "tls"]
        other = plain[(plain[alike] == [group[name] for name in alike]).all(axis="columns")]
        both = pd.concat([own.assign(tls="on"), other.assign(tls="off")], ignore_index=True)
        both["size_kib"] = both["size_bytes"] / 1024
        both["time_ms"] = both["value"]
        points = both.dropna(subset="time_ms")[["tls", "size_kib", "time_ms"]]
        group["load"] = json.loads(group["load"])
        try:
            fits.append(fit(points, weights, at, group))
        except TlscostError as error:
            why = both.loc[both["time_ms"].isna(), "reason"].dropna().unique()
            fits.append(_nothing(points, weights, group, "; ".join([str(error), *why])))
    return fits


def _nothing(
    points: pd.DataFrame, weights: Weights, group: dict[str, Any], reason: str
) -> Decomposition:
    names = [*_PARAMETERS, *_DIFFERENCES]
    return Decomposition(
        group=group,
        points=points,
        parameters=pd.DataFrame(math.nan, index=names, columns=["value", "low", "high"]),
        shares=pd.DataFrame(columns=["size_kib", "part", "share", "low", "high", "time_ms"]),
        lack_of_fit={"f": None, "p": None, "df_lack": None, "df_pure": None, "reason": reason},
        weights=weights,
        reason=reason,
    )


def _require_two_sizes(points: pd.DataFrame, group: dict[str, Any]) -> None:
    sizes = points.groupby("tls")["size_kib"].nunique()
    named = ", ".join(f"{key} {value}" for key, value in group.items())
    for tls in ("on", "off"):
        if sizes.get(tls, 0) < 2:
            raise TlscostError(
                f"{named or 'points'}: {sizes.get(tls, 0)} file sizes with tls {tls}; a line takes "
                "two or more"
            )


def _require_sizes(at: Sequence[float]) -> None:
    for size in at:
        if not 0 <= size < math.inf:
            raise TlscostError(f"--at {size}: expected a file size in KiB, 0 or more")


def _design(tls: "pd.Series[str]", size_kib: "pd.Series[float]") -> pd.DataFrame:
    on = (tls == "on").astype(float)
    columns = [on, on * size_kib, 1 - on, (1 - on) * size_kib]
    return pd.DataFrame(dict(zip(_PARAMETERS, columns, strict=True)))


def _weights(points: pd.DataFrame, weights: Weights) -> "pd.Series[float]":
    if weights == "equal":
        return pd.Series(1.0, index=points.index)
    if weights == "relative":
        mean = points.groupby(["tls", "size_kib"])["time_ms"].transform("mean")
        return mean**-2
    if weights == "column" and "weight" in points:
        return points["weight"]
    raise TlscostError(
        f"--weights {weights}: "
        + (
            "the points have no column `weight`; add it, or use relative or equal"
            if weights == "column"
            else "expected relative, equal or column"
        )
    )


def _parameters(line: Any, certain: bool) -> pd.DataFrame:
    """Fitted parameters, and the two differences T_h [ms] and T_e per KiB [ms/KiB]."""
    contrasts = np.vstack([np.eye(4), [1, 0, -1, 0], [0, 1, 0, -1]])
    value = contrasts @ line.params.to_numpy()
    interval = np.full((len(contrasts), 2), math.nan)
    if certain:
        interval = line.t_test(contrasts).conf_int()
    return pd.DataFrame(
        {"value": value, "low": interval[:, 0], "high": interval[:, 1]},
        index=[*_PARAMETERS, *_DIFFERENCES],
    )


def _parts(parameters: Floats, size_kib: float) -> Floats:
    t_s0, t_s1, t_n0, t_n1 = parameters
    return np.array([t_s0 - t_n0, (t_s1 - t_n1) * size_kib, t_n0 + t_n1 * size_kib])


def _share(parameters: Floats, size_kib: float) -> Floats:
    parts = _parts(parameters, size_kib)
    return np.asarray(parts / parts.sum())


def _shares(line: Any, sizes: Floats, certain: bool) -> pd.DataFrame:
    """Shares of T_s; intervals by the delta method with the fit's t quantile."""
    estimate = line.params.to_numpy()
    tables = []
    for size in sizes:
        time = _parts(estimate, size)
        value = _share(estimate, size) if time.sum() > 0 else np.full(3, math.nan)
        half = np.full(3, math.nan)
        if certain:
            gradient = approx_fprime(estimate, _share, args=(size,), centered=True)
            variance = np.diag(gradient @ line.cov_params().to_numpy() @ gradient.T)
            half = stats.t.ppf(0.975, line.df_resid) * np.sqrt(variance.clip(min=0))
        columns = {"share": value, "low": value - half, "high": value + half, "time_ms": time}
        tables.append(pd.DataFrame({"size_kib": size, "part": _PARTS, **columns}))
    return pd.concat(tables, ignore_index=True)


def _lack_of_fit(points: pd.DataFrame, weight: "pd.Series[float]", line: Any) -> dict[str, Any]:
    """F test of the lines against the saturated model, a mean for each (tls, size)."""
    means = pd.get_dummies(points["tls"] + points["size_kib"].astype(str), dtype=float)
    lack, pure = means.shape[1] - len(_PARAMETERS), len(points) - means.shape[1]
    result: dict[str, Any] = {"f": None, "p": None, "df_lack": lack, "df_pure": pure}
    if lack == 0:
        return {**result, "reason": "two sizes each: two points always lie on a line"}
    if pure == 0:
        return {**result, "reason": "no re-runs: no pure error to compare with"}
    saturated = sm.WLS(points["time_ms"], means, weights=weight).fit()
    f, p, _ = saturated.compare_f_test(line)
    if not math.isfinite(f):
        return {**result, "reason": "the re-runs agree exactly: no pure error to compare with"}
    return {**result, "f": float(f), "p": float(p), "reason": None}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
