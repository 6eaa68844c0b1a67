"""The study of kant2000: our figures in the form of the published ones, and what follows from both.

A *study frame* has one row per (size_bytes, cpus, l2_kib, tls, metric); tls is on or off. Published
and measured figures come in the same form, so that whatever is derived, claimed, tabled or drawn
is worked out by the same code for both.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from tlscost import decompose, published
from tlscost.errors import TlscostError
from tlscost.frame import record_paths
from tlscost.machine import NATIVE
from tlscost.profiles import OFF
from tlscost.record import read_header

__all__ = [
    "CPUS",
    "L2_KIB",
    "POINT",
    "PROFILE",
    "SIZES",
    "derived",
    "is_study",
    "ours",
    "profile_of",
    "theirs",
    "wide",
]

PROFILE = "kant2000"
MACHINE = "p3-xeon"
L2_KIB = {"512k": 512, "1m": 1024, "2m": 2048}
"""L2 sizes [KiB] by the names of the machine's variants."""

SIZES = (30, 36864, 1048576)
CPUS = (1, 2, 4)
POINT = ["size_bytes", "cpus", "l2_kib"]

_COLUMNS = [*POINT, "tls", "metric", "value", "low", "high", "n", "origin", "machine", "reason"]
_RESPONSE = "latency_"
_SHARES_AT = 36864
_BASE_L2_KIB = 512


def is_study(paths: Iterable[Path | str]) -> bool:
    """Whether records are of this study: a simulated Pentium III under the study's TLS profile."""
    cells = (read_header(path).cell for path in record_paths(paths))
    return any(cell.machine.startswith(MACHINE) and cell.tls == PROFILE for cell in cells)


def theirs() -> pd.DataFrame:
    """Return the published study frame, with what follows from it (`derived`)."""
    return derived(published.kant_study().reindex(columns=_COLUMNS))


def ours(metrics: pd.DataFrame) -> pd.DataFrame:
    """Measured figures as a study frame, with what follows from them (`derived`).

    Response times are this machine's, everything else the simulated Pentium III's where it was
    measured, else this machine's. What does not depend on the L2 stands at each of its sizes.

    Parameters
    ----------
    metrics : pandas.DataFrame
        Of `tlscost.metrics.metrics_of`.

    Returns
    -------
    pandas.DataFrame
        Besides a study frame's columns: low, high (95 %), n, origin, machine, and the reason of a
        null value.

    Raises
    ------
    TlscostError
        Several TLS profiles or cells could be meant.
    """
    profile = profile_of(metrics)
    table = metrics[metrics["tls"].isin([OFF, profile])]
    table = table.assign(tls=np.where(table["tls"] == OFF, "off", "on"))
    table = table[table["server"] == _server(table)]
    simulated = table["machine"].astype("str").str.startswith(MACHINE)
    response = table["metric"].str.startswith(_RESPONSE)
    native = table["machine"] == NATIVE
    counted_on = simulated if simulated.any() else native
    table = pd.concat([table[counted_on & ~response], _own_cpus(table[native])])
    return derived(_spread(table))


def wide(study: pd.DataFrame) -> pd.DataFrame:
    """Return a study frame with a row per point and a column METRIC_on or METRIC_off each."""
    names = study["metric"].astype("str") + "_" + study["tls"].astype("str")
    return study.assign(column=names).pivot_table(index=POINT, columns="column", values="value")


def profile_of(metrics: pd.DataFrame) -> str:
    """Name the TLS profile that stands for the document's SSL: kant2000, or the only one there.

    Raises
    ------
    TlscostError
        There is none, or more than one and none is kant2000.
    """
    simulated = metrics["machine"].astype("str").str.startswith(MACHINE)
    table = metrics[simulated] if simulated.any() else metrics
    profiles = sorted(set(table["tls"].astype("str")) - {OFF})
    if PROFILE in profiles:
        return PROFILE
    if len(profiles) == 1:
        return profiles[0]
    found = ", ".join(profiles) or "none"
    raise TlscostError(
        f"the study takes records of TLS profile {PROFILE}, or of one other in its place; found: "
        f"{found}. Remedy: `tlscost sweep data/plans/kant2000-quick.toml`, or give fewer records"
    )


def _server(table: pd.DataFrame) -> str:
    servers = sorted(set(table["server"].astype("str")))
    return "serve" if "serve" in servers or not servers else servers[0]


def _own_cpus(native: pd.DataFrame) -> pd.DataFrame:
    """Response times; null where the load generator worked on the server's CPUs, too."""
    times = native[native["metric"].str.startswith(_RESPONSE)].copy()
    scaled = native[native["metric"] == "scaled_throughput"].set_index("cell")
    why = times["cell"].map(scaled["reason"].where(scaled["value"].isna()))
    times.loc[why.notna(), ["value", "low", "high"]] = np.nan
    times["reason"] = times["reason"].where(why.isna(), why)
    return times


def _spread(table: pd.DataFrame) -> pd.DataFrame:
    """Give every row its L2, and those that depend on none a row for each size."""
    own = table["variant"].map(L2_KIB, na_action="ignore")
    found = sorted(own.dropna().unique()) or sorted(L2_KIB.values())
    apart = table[own.notna()].assign(l2_kib=own.dropna())
    same = [table[own.isna()].assign(l2_kib=size) for size in found]
    study = pd.concat([apart, *same], ignore_index=True)
    study["l2_kib"] = study["l2_kib"].astype("int64")
    twice = study.duplicated([*POINT, "tls", "metric"], keep=False) & study["value"].notna()
    if twice.any():
        first = study[twice].iloc[0]
        raise TlscostError(
            f"two cells give {first['metric']} at {first['size_bytes']} bytes, {first['cpus']} "
            f"CPUs, TLS {first['tls']} on {first['machine']}: they differ in load or rules; give "
            "the records of one sweep"
        )
    return study[_COLUMNS]


def derived(study: pd.DataFrame) -> pd.DataFrame:
    """Add what follows from a study frame's own figures.

    Adds, where their inputs are there: `cycles` (path length x CPI); `scaling` and `cpi_growth`
    (scaled throughput and CPI relative to half the CPUs); `l2_gain` and `l2_miss_gain` (scaled
    throughput and L2 misses per transaction relative to 512 KiB of L2); and of T = 1 / scaled
    throughput over file size, by `tlscost.decompose`: at 36 KiB `share_handshake`,
    `share_encryption` and `share_rest`, and at each size `line_misfit` [fraction of T].
    """
    values = study.pivot_table(index=[*POINT, "tls"], columns="metric", values="value")
    inputs = values.reindex(columns=["scaled_throughput", "cpi", "path_length", "l2_misses"])
    throughput, cpi, path_length, misses = (inputs[name] for name in inputs)
    follows = {
        "cycles": path_length * cpi,
        "scaling": _relative(throughput, "cpus", lambda cpus: cpus // 2),
        "cpi_growth": _relative(cpi, "cpus", lambda cpus: cpus // 2),
        "l2_gain": _relative(throughput, "l2_kib", lambda size: 0 * size + _BASE_L2_KIB),
        "l2_miss_gain": _relative(misses, "l2_kib", lambda size: 0 * size + _BASE_L2_KIB),
    }
    machines = study.drop_duplicates("metric").set_index("metric")
    parts = [
        _rows(values, name, machines, "cpi" if name == "cpi_growth" else "scaled_throughput")
        for name, values in follows.items()
        if name not in set(study["metric"])
    ]
    lines = _rows(_decomposed(throughput), None, machines, "scaled_throughput")
    return pd.concat([study, *parts, lines], ignore_index=True)


def _relative(
    values: "pd.Series[float]", level: str, base: Callable[[pd.Index], pd.Index]
) -> "pd.Series[float]":
    """Divide each value by that at another place of one level; null where there is none."""
    keys = values.index.to_frame(index=False)
    keys[level] = base(pd.Index(keys[level]))
    other = values.reindex(pd.MultiIndex.from_frame(keys)).to_numpy()
    same = (keys[level] == values.index.get_level_values(level)).to_numpy()
    return (values / other).mask(same)


def _decomposed(throughput: "pd.Series[float]") -> "pd.Series[float]":
    """Shares and misfits by (size_bytes, cpus, l2_kib, tls, metric), where lines can be fitted."""
    times = (1e3 / throughput.dropna()).rename("time_ms").reset_index()
    times["size_kib"] = times["size_bytes"] / 1024
    tables = [_fitted(points) for _, points in times.groupby(["cpus", "l2_kib"])]
    table = pd.concat([pd.DataFrame(columns=[*POINT, "tls", "metric", "value"]), *tables])
    return table.set_index([*POINT, "tls", "metric"])["value"].astype("float64")


def _fitted(points: pd.DataFrame) -> pd.DataFrame:
    """Shares at 36 KiB and each point's distance from its line; nothing of fewer than 3 sizes."""
    sizes = points.groupby("tls")["size_kib"].nunique()
    if sizes.get("on", 0) < 3 or sizes.get("off", 0) < 3:  # two points always lie on a line
        return pd.DataFrame()
    fit = decompose.fit(points[["tls", "size_kib", "time_ms"]])
    shares = fit.shares[fit.shares["size_kib"] == _SHARES_AT / 1024]
    shares = shares.assign(
        metric="share_" + shares["part"], value=shares["share"], tls="on", size_bytes=_SHARES_AT
    )
    lines = fit.times(points["size_kib"].unique()).merge(points, on=["tls", "size_kib"])
    misfit = (lines["time_ms_x"] / lines["time_ms_y"] - 1).abs()
    misfits = lines.assign(metric="line_misfit", value=misfit)
    columns = ["size_bytes", "tls", "metric", "value"]
    table = pd.concat([shares[columns], misfits[columns]])
    return table.assign(cpus=points["cpus"].iloc[0], l2_kib=points["l2_kib"].iloc[0])


def _rows(
    values: "pd.Series[float]", name: str | None, machines: pd.DataFrame, after: str
) -> pd.DataFrame:
    """Make study rows of derived values; they come from the machine of the metric they follow."""
    rows = values.dropna().rename("value").reset_index()
    if name is not None:
        rows["metric"] = name
    for column in ("machine", "origin"):
        rows[column] = machines[column].get(after)
    return rows
