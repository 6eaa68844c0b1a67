"""Figures. Each takes long-form data and an Axes, draws, and returns the Axes."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from tlscost.cell import human_size

__all__ = ["bars", "first_byte", "lines", "residuals", "scaling", "shares", "theme", "throughput"]

QUANTILES = ["p50", "p90", "p99", "p99.9"]
PARTS = ["handshake", "encryption", "rest"]


def theme() -> None:
    """Set a look that survives a phone's width: few, large letters; a colour-blind-safe palette."""
    sns.set_theme(
        style="whitegrid",
        palette="colorblind",
        rc={
            "figure.figsize": (6, 4),
            "figure.dpi": 160,
            "savefig.bbox": "tight",
            "font.size": 11,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "legend.fontsize": 9.5,
            "legend.frameon": False,
            "grid.color": "#e4e4e4",
            "axes.edgecolor": "#999999",
        },
    )


def throughput(metrics: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw throughput [transactions/s] against file size, one line per TLS profile and server.

    Parameters
    ----------
    metrics : pandas.DataFrame
        Rows of `tlscost.metrics.metrics_of`; of metric throughput, one number of CPUs.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    data = _of(metrics, "throughput").sort_values("size_bytes")
    if data.empty:
        return _empty(ax)
    data["size"] = data["size_bytes"].map(human_size)
    ax = _lines(data, "size", ax)
    ax.set(xlabel="file size", ylabel="transactions/s", yscale="log")
    return _plain_numbers(ax)


def scaling(metrics: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw throughput relative to the fewest CPUs against CPUs, for one file size.

    Parameters
    ----------
    metrics : pandas.DataFrame
        Rows of `tlscost.metrics.metrics_of`; of metric throughput, one file size.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        With the ideal as a dashed line.
    """
    data = _of(metrics, "throughput").sort_values("cpus")
    if data.empty:
        return _empty(ax)
    cpus = sorted(data["cpus"].unique())
    base = data["value"].where(data["cpus"] == cpus[0])  # null: measured with more CPUs only
    base = base.groupby([data["server"], data["tls"]], observed=True).transform("first")
    data[["value", "low", "high"]] = data[["value", "low", "high"]].div(base, axis="index")
    ax = _lines(data.dropna(subset="value"), "cpus", ax)
    ax.plot(cpus, [count / cpus[0] for count in cpus], "--", color="grey", zorder=1, label="ideal")
    ax.set(xlabel="CPUs of the server", ylabel=f"throughput, {cpus[0]} CPU = 1", xticks=cpus)
    ax.set_ylim(0, 1.1 * max(data["value"].max(), cpus[-1] / cpus[0]))
    return _legend_below(ax)


def first_byte(metrics: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw quantiles of the time to the first byte [ms], for one file size and number of CPUs.

    Parameters
    ----------
    metrics : pandas.DataFrame
        Rows of `tlscost.metrics.metrics_of`; of metrics latency_first_byte_*.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    names = {f"latency_first_byte_{name}": name for name in QUANTILES}
    data = metrics[metrics["metric"].isin(list(names))].dropna(subset="value").copy()
    if data.empty:
        return _empty(ax)
    order = pd.CategoricalDtype(QUANTILES, ordered=True)
    data["quantile"] = data["metric"].map(names).astype(order)
    ax = _lines(data.sort_values("quantile"), "quantile", ax)
    ax.set(xlabel="share of transactions", ylabel="first byte within [ms]", yscale="log")
    ax.set_xticks(range(len(QUANTILES)), [f"{name[1:]} %" for name in QUANTILES])
    return _plain_numbers(ax)


def shares(shares: pd.DataFrame, ax: Axes | None = None, *, legend: bool = True) -> Axes:
    """Draw handshake, encryption and the rest as shares of a transaction's time.

    Parameters
    ----------
    shares : pandas.DataFrame
        Columns label (one bar each, from the top), part (handshake, encryption, rest), share
        [fraction of T_s].
    ax : matplotlib.axes.Axes, optional
    legend : bool
        False where another Axes of the figure has it.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if shares.empty:
        return _empty(ax)
    ax = ax or plt.gca()
    sns.histplot(
        shares,
        y="label",
        weights="share",
        hue="part",
        hue_order=PARTS[::-1],
        palette=dict(zip(PARTS, sns.color_palette("colorblind"), strict=False)),
        multiple="stack",
        shrink=0.75,
        alpha=1,
        ax=ax,
    )
    for bars in ax.containers:
        widths = [bar.get_width() for bar in bars]
        texts = [f"{width:.0%}" if width >= 0.06 else "" for width in widths]
        ax.bar_label(bars, texts, label_type="center", color="white", fontsize=10)  # type: ignore[arg-type]
    ax.set(xlabel="share of the transaction's time", ylabel="", xlim=(0, 1))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(visible=False, axis="y")
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.35), "ncol": 3}
    sns.move_legend(ax, **place, title=None, reverse=True)
    if not legend:
        ax.get_legend().remove()  # type: ignore[union-attr]
    return ax


def bars(data: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw bars with and without SSL, by CPUs within groups: the form of kant2000's figures.

    Parameters
    ----------
    data : pandas.DataFrame
        Columns group, cpus, side (told apart by colour), value; in the order drawn.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Ticks 1p, 2p, 4p ..., and each group's name below its middle one.
    """
    if data.empty:
        return _empty(ax)
    ax = ax or plt.gca()
    places = list(dict.fromkeys(zip(data["group"], data["cpus"], strict=True)))
    place = pd.Series(list(zip(data["group"], data["cpus"], strict=True))).map(places.index)
    sides = list(dict.fromkeys(data["side"]))
    palette = dict(zip(sides, sns.color_palette("colorblind"), strict=False))
    drawn = data.assign(place=place.to_numpy())
    sns.barplot(drawn, x="place", y="value", hue="side", palette=palette, width=0.75, ax=ax)
    ticks = [f"{cpus}p" for _, cpus in places]
    for group in dict.fromkeys(data["group"]):
        own = [at for at, (name, _) in enumerate(places) if name == group]
        ticks[own[len(own) // 2]] += f"\n{group}"
        if own[0] > 0:
            ax.axvline(own[0] - 0.5, color="#cccccc", linewidth=1)
    ax.set_xticks(range(len(places)), ticks)
    ax.set(xlabel="", ylabel="")
    ax.grid(visible=False, axis="x")
    ax.legend(loc="upper right", ncol=2)
    ax.set_ylim(top=1.18 * data["value"].max())  # room for the legend
    return ax


def residuals(rows: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a CPI model's fitted values against the CPIs that it was fitted to.

    Parameters
    ----------
    rows : pandas.DataFrame
        Columns cpi, fitted [cycles/instruction], tls (on, off).
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        With the diagonal, on which a perfect model's points lie.
    """
    if rows.empty:
        return _empty(ax)
    ax = ax or plt.gca()
    named = rows.assign(side=rows["tls"].map({"on": "w/ SSL", "off": "w/o SSL"}))
    order = ["w/ SSL", "w/o SSL"]
    sns.scatterplot(named, x="cpi", y="fitted", hue="side", hue_order=order, s=45, ax=ax)
    ends = [rows[["cpi", "fitted"]].to_numpy().min(), rows[["cpi", "fitted"]].to_numpy().max()]
    ax.plot(ends, ends, "--", color="grey", zorder=1)
    ax.set(xlabel="CPI", ylabel="CPI by the model")
    ax.legend(loc="upper left")
    return ax


def lines(points: pd.DataFrame, fitted: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw T [ms] against file size [KiB]: measured points and fitted lines.

    Parameters
    ----------
    points, fitted : pandas.DataFrame
        Columns series (what is told apart by colour), tls (on, off), size_kib, time_ms.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
    """
    if points.empty:
        return _empty(ax)
    ax = ax or plt.gca()
    order = points.sort_values("tls")["series"].unique().tolist()  # without TLS first
    common: dict[str, Any] = {"x": "size_kib", "y": "time_ms", "hue": "series", "hue_order": order}
    sns.lineplot(fitted, **common, errorbar=None, ax=ax)
    sns.scatterplot(points, **common, s=45, edgecolor="white", legend=False, ax=ax)
    ax.set(xlabel="file size [KiB]", ylabel="T = 1 / scaled throughput [ms]")
    ax.set(xscale="log", yscale="log")
    ax.xaxis.set_major_formatter(_plain)
    return _plain_numbers(_legend_below(ax))


def _of(metrics: pd.DataFrame, name: str) -> pd.DataFrame:
    return metrics[metrics["metric"] == name].dropna(subset="value").copy()


def _empty(ax: Axes | None) -> Axes:
    """Say in the figure's place that there is nothing to draw."""
    ax = ax or plt.gca()
    ax.text(0.5, 0.5, "not in these records", ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()
    return ax


def _lines(data: pd.DataFrame, x: str, ax: Axes | None) -> Axes:
    """Lines with markers by TLS profile (colour) and server (dash), and their intervals."""
    ax = ax or plt.gca()
    profiles = sorted(data["tls"].unique(), key=lambda name: (name != "off", name))
    palette = dict(zip(profiles, sns.color_palette("colorblind", len(profiles)), strict=True))
    sns.lineplot(
        data,
        x=x,
        y="value",
        hue="tls",
        style="server",
        hue_order=profiles,
        style_order=sorted(data["server"].unique()),
        palette=palette,
        markers=True,
        errorbar=None,
        ax=ax,
    )
    several = data.dropna(subset=["low", "high"])
    for tls, rows in several.groupby("tls"):
        # An interval that reaches below 0 would vanish from a logarithmic axis.
        low = rows["low"].clip(lower=rows["value"] / 100)
        error = [rows["value"] - low, rows["high"] - rows["value"]]
        ax.errorbar(rows[x], rows["value"], error, fmt="none", ecolor=palette[tls], alpha=0.5)
    # Intervals of two runs can be huge: the values set the scale, and such bars leave the frame.
    ax.set_ylim(data["value"].min() / 1.5, data["value"].max() * 1.5)
    return _legend_below(ax)


def _legend_below(ax: Axes) -> Axes:
    """Put the legend where it covers no data and a narrow page still has room for it."""
    handles, labels = ax.get_legend_handles_labels()
    kept = [
        (handle, label)
        for handle, label in zip(handles, labels, strict=True)
        if label not in ("tls", "server", "series")
    ]
    ax.legend(*zip(*kept, strict=True), loc="upper center", bbox_to_anchor=(0.45, -0.16), ncol=2)
    return ax


def _plain(value: float, _position: float) -> str:
    return f"{value:,.10g}"


def _plain_numbers(ax: Axes) -> Axes:
    """Write 0.02 and 1,000 rather than powers of ten, also where the axis spans less than one."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(_plain)
    ax.yaxis.set_minor_formatter(NullFormatter())
    return ax
