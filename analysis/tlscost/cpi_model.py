"""What misses and mispredictions explain of the CPI: a linear regression, and how well it does.

Published tables give miss *ratios*, not misses per instruction: there, and for comparison of ours,
the predictors are those ratios. Of our own counts the predictors are events per instruction, and
coefficients are clocks per event.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm

from tlscost import kant

__all__ = ["COUNTS", "RATIOS", "CpiModel", "fit", "rows_of_runs", "rows_of_study", "table"]

RATIOS = {
    "L1 instruction miss ratio": "l1i_miss_ratio",
    "L1 data miss ratio": "l1d_miss_ratio",
    "L2 miss ratio x L1 miss ratios": "l2_miss_ratio * (l1i_miss_ratio + l1d_miss_ratio)",
    "mispredictions per instruction": "branch_frequency * mispredict_ratio",
}
"""Predictors that the published tables allow [1]."""

COUNTS = {
    "L1 instruction misses per instruction": "l1i_misses / path_length",
    "L1 data misses per instruction": "l1d_misses / path_length",
    "L2 misses per instruction": "l2_misses / path_length",
    "mispredictions per instruction": "branch_frequency * mispredict_ratio",
}
"""Predictors that counts allow [1/instruction]: their coefficients are clocks."""

_PUBLISHED_L2_KIB = 2048  # the tables with L1 and branch columns
_METRICS = [
    *["cpi", "path_length", "l1i_miss_ratio", "l1d_miss_ratio", "l2_miss_ratio"],
    *["l1i_misses", "l1d_misses", "l2_misses", "branch_frequency", "mispredict_ratio"],
]


@dataclass(frozen=True)
class CpiModel:
    """A fitted model.

    Attributes
    ----------
    coefficients : pandas.DataFrame, index "constant" and the predictors
        value, low, high (95 %, t), and mean: the predictor's mean contribution to the CPI.
    residuals : pandas.DataFrame
        The rows' own columns, cpi, fitted, residual [cycles/instruction].
    r_squared : float
    condition : float
        Condition number of the standardised predictors: how far they go together; from about 30
        on the coefficients say little one by one.
    lack_of_fit : dict
        f, p, df_lack, df_pure, reason (where there is no test).
    reason : str or None
        Why nothing was fitted: then everything is empty.
    """

    coefficients: pd.DataFrame
    residuals: pd.DataFrame
    r_squared: float
    condition: float
    lack_of_fit: dict[str, Any]
    reason: str | None = None


def rows_of_study(study: pd.DataFrame) -> pd.DataFrame:
    """Observations of a study frame: one per (file size, CPUs, SSL or not), with 2 MB of L2.

    Returns
    -------
    pandas.DataFrame
        size_bytes, cpus, tls, point (what is the same in re-runs), and the metrics.
    """
    own = study[study["metric"].isin(_METRICS) & (study["l2_kib"] == _PUBLISHED_L2_KIB)]
    keys = ["size_bytes", "cpus", "tls"]
    table = own.pivot_table(index=keys, columns="metric", values="value").reset_index()
    return _with_points(table, keys)


def rows_of_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Observations of single runs on the simulated machine, each of its L2 variants a row.

    Parameters
    ----------
    runs : pandas.DataFrame
        Of `tlscost.metrics.run_values`.

    Returns
    -------
    pandas.DataFrame
        size_bytes, cpus, tls, variant, point, and the metrics.
    """
    own = runs[runs["machine"].astype("str").str.startswith(kant.MACHINE)]
    own = own[own["metric"].isin(_METRICS)]
    keys = ["record", "size_bytes", "cpus", "tls"]
    own = own.assign(**{name: own[name].astype("str") for name in ("record", "tls")})
    same = own[own["variant"].isna()].pivot_table(index=keys, columns="metric", values="value")
    apart = own[own["variant"].notna()].pivot_table(
        index=[*keys, "variant"], columns="metric", values="value"
    )
    table = apart.reset_index("variant").join(same).reset_index()
    names = ["size_bytes", "cpus", "tls", "variant"]
    return _with_points(table, names)


def fit(rows: pd.DataFrame, predictors: dict[str, str]) -> CpiModel:
    """Regress CPI on predictors by ordinary least squares.

    Parameters
    ----------
    rows : pandas.DataFrame
        Columns cpi, point and those that the predictors take.
    predictors : dict of str
        Arithmetic over the columns, by name: `RATIOS` or `COUNTS`.
    """
    found = rows.dropna(subset=[name for name in _METRICS if name in rows])
    lacking = [name for name in predictors if not _computable(found, predictors[name])]
    if lacking or len(found) <= len(predictors) + 1:
        why = f"no {', '.join(lacking)}" if lacking else f"{len(found)} rows"
        return _nothing(f"{why}: too little for {len(predictors)} predictors and a constant")
    design = pd.DataFrame({name: found.eval(text) for name, text in predictors.items()})
    line = sm.OLS(found["cpi"], sm.add_constant(design).rename(columns={"const": "constant"})).fit()
    interval = line.conf_int()
    coefficients = pd.DataFrame(
        {
            "value": line.params,
            "low": interval[0],
            "high": interval[1],
            "mean": line.params * line.model.exog.mean(axis=0),
        }
    )
    spread = design.std().replace(0, np.nan)
    standard = ((design - design.mean()) / spread).dropna(axis="columns")
    return CpiModel(
        coefficients=coefficients,
        residuals=found.assign(fitted=line.fittedvalues, residual=line.resid),
        r_squared=float(line.rsquared),
        condition=float(np.linalg.cond(standard)),
        lack_of_fit=_lack_of_fit(found, line),
    )


def table(models: dict[str, CpiModel]) -> pd.DataFrame:
    """Show models for a reader: a row per coefficient, and how well the whole fits.

    Returns
    -------
    pandas.DataFrame of texts
        of (the model's name), predictor, coefficient with its interval, mean, and, in the model's
        first row, R squared, largest residual, condition number and lack of fit.
    """
    rows = []
    for name, model in models.items():
        if model.reason is not None:
            rows.append({"of": name, "predictor": model.reason})
        for at, (predictor, row) in enumerate(model.coefficients.iterrows()):
            half = (row["high"] - row["low"]) / 2
            texts = {
                "of": name,
                "predictor": str(predictor),
                "coefficient": f"{row['value']:.3g} ± {half:.2g}",
                "mean": f"{row['mean']:.2f}",
            }
            rows.append({**texts, **(_whole(model) if at == 0 else {})})
    return pd.DataFrame(rows).fillna("")


def _whole(model: CpiModel) -> dict[str, str]:
    p = model.lack_of_fit["p"]
    return {
        "R²": f"{model.r_squared:.3f}",
        "largest residual": f"{model.residuals['residual'].abs().max():.2f}",
        "condition": f"{model.condition:.0f}",
        "lack of fit": model.lack_of_fit["reason"] if p is None else f"p = {p:.2g}",
    }


def _with_points(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Name what is the same in re-runs."""
    return rows.assign(point=[" ".join(map(str, row)) for row in rows[names].to_numpy().tolist()])


def _computable(rows: pd.DataFrame, text: str) -> bool:
    try:
        return bool(pd.Series(rows.eval(text)).notna().any())
    except pd.errors.UndefinedVariableError:
        return False


def _nothing(reason: str) -> CpiModel:
    empty = pd.DataFrame(columns=["value", "low", "high", "mean"])
    rows = pd.DataFrame(columns=["size_bytes", "cpus", "tls", "cpi", "fitted", "residual"])
    lack = {"f": None, "p": None, "df_lack": None, "df_pure": None, "reason": reason}
    return CpiModel(empty, rows, np.nan, np.nan, lack, reason)


def _lack_of_fit(rows: pd.DataFrame, line: Any) -> dict[str, Any]:
    """F test against a mean for each point, where points were measured again."""
    means = pd.get_dummies(rows["point"], dtype=float)
    lack, pure = means.shape[1] - len(line.params), len(rows) - means.shape[1]
    result: dict[str, Any] = {"f": None, "p": None, "df_lack": lack, "df_pure": pure}
    if pure == 0:
        return {**result, "reason": "no re-runs: no pure error to compare with"}
    if lack <= 0:
        return {**result, "reason": "no more points than parameters"}
    f, p, _ = sm.OLS(rows["cpi"], means).fit().compare_f_test(line)
    return {**result, "f": float(f), "p": float(p), "reason": None}
