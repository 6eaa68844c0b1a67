"""The tables of a report: what was measured, on what, what could not be, what to be wary of."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tlscost import published
from tlscost.cell import human_size
from tlscost.claims import Judgement
from tlscost.decompose import Decomposition
from tlscost.machine import NATIVE, observed
from tlscost.record import Record, Window

__all__ = [
    "cells",
    "claims_count",
    "decomposition",
    "events",
    "fitted_lines",
    "fitted_points",
    "fitted_shares",
    "lines",
    "machine",
    "not_measured",
    "slowdown",
    "warnings",
]

_OVERVIEW = {
    "throughput": "transactions/s",
    "utilisation": "utilisation",
    "scaled_throughput": "scaled to 100 %",
    "cpu_time": "CPU time [ms]",
    "latency_first_byte_p50": "first byte p50 [ms]",
    "latency_first_byte_p99": "p99 [ms]",
}
_EVENTS = {
    "path_length": "path length",
    "cpi": "CPI",
    "l1i_miss_ratio": "L1I misses",
    "l1d_miss_ratio": "L1D misses",
    "l2_miss_ratio": "L2 misses",
    "branch_frequency": "branches",
    "mispredict_ratio": "mispredicted",
    "kernel_share": "in kernel",
    "scaled_throughput": "scaled [1/s]",
}
_RATIOS = [name for name in _EVENTS if name.endswith(("_ratio", "_frequency", "_share"))]
_DISJOINT_WINDOWS_COMPLETIONS = 100
_SHARES = ["series", "size_kib", "part", "share", "low", "high", "time_ms"]
_TIMES = ["tls", "size_kib", "time_ms"]
_LINES = {"t_s0": "T_s0", "t_s1": "T_s1", "t_n0": "T_n0", "t_n1": "T_n1", "t_h": "T_h"}
_PUBLISHED_SHARES = {"handshake": 0.430, "encryption": 0.366, "rest": 0.203}


def cells(metrics: pd.DataFrame) -> pd.DataFrame:
    """One row per cell of this machine: what a reader asks for first, with 95 % intervals."""
    here = metrics["machine"] == NATIVE
    shown = metrics[here & metrics["metric"].isin(list(_OVERVIEW))].copy()
    shown["text"] = [
        _with_interval(*row) for row in shown[["value", "low", "high"]].itertuples(index=False)
    ]
    keys = ["cell", "server", "tls", "size_bytes", "cpus"]
    table = shown.set_index([*keys, "metric"])["text"].unstack().reset_index()  # noqa: PD010
    table = table.sort_values(keys[1:])
    table["size"] = table["size_bytes"].map(human_size)
    columns = ["server", "tls", "size", "cpus", *_OVERVIEW]
    return table.reindex(columns=columns).rename(
        columns={**_OVERVIEW, "tls": "TLS", "cpus": "CPUs"}
    )


def claims_count(judgements: Sequence[Judgement]) -> str:
    """Say how many claims hold, of those that could be decided."""
    verdicts = [one.verdict for one in judgements]
    decided = len(verdicts) - verdicts.count("undecided")
    return (
        f"{verdicts.count('holds')} of {decided} decided claims hold; "
        f"{verdicts.count('undecided')} are undecided"
    )


def events(metrics: pd.DataFrame) -> pd.DataFrame:
    """Show what a transaction takes of the processor: a row per cell and variant of its machine.

    Cells whose instructions nobody counted are left out. `origin` says how path length, ratios and
    CPI came about.
    """
    rows = []
    for _, cell in metrics[metrics["metric"].isin(list(_EVENTS))].groupby("cell", sort=False):
        first = cell.iloc[0]
        if cell.loc[cell["metric"] == "path_length", "value"].isna().all():
            continue
        for variant in list(cell["variant"].dropna().unique()) or [None]:
            own = cell[cell["variant"].isna() | (cell["variant"] == variant)].set_index("metric")
            rows.append(
                {
                    "machine": observed(first["machine"], variant),
                    "server": first["server"],
                    "TLS": first["tls"],
                    "size": human_size(first["size_bytes"]),
                    "CPUs": first["cpus"],
                    **{text: _event_text(own, name) for name, text in _EVENTS.items()},
                    "origin": _origins(own),
                }
            )
    table = pd.DataFrame(rows)
    return table.loc[:, (table != "-").any()] if len(table) else table


def _event_text(own: pd.DataFrame, name: str) -> str:
    if name not in own.index:
        return "-"
    value, low, high = own.loc[[name], ["value", "low", "high"]].to_numpy(dtype="float64")[0]
    if name in _RATIOS:
        return "-" if pd.isna(value) else _with_percent(value, low, high, digits=2)
    return _with_interval(value, low, high)


def _origins(own: pd.DataFrame) -> str:
    """How values came about: "counted", or "counted; ratios simulated; CPI modelled"."""
    found = own["origin"].dropna()
    ratios = found[found.index.isin(_RATIOS)]
    path, cpi = found.get("path_length"), found.get("cpi")
    others = [ratios.mode().iloc[0]] if len(ratios) else []
    texts = [f"ratios {one}" for one in others if one != path]
    texts += [f"CPI {cpi}"] if cpi not in (None, path) else []
    return "; ".join([f"path length {path}" if texts else str(path), *texts])


def slowdown(metrics: pd.DataFrame) -> pd.DataFrame:
    """How many times the throughput is without TLS, by cell with TLS; beside it the published."""
    data = metrics[metrics["metric"] == "throughput"].dropna(subset="value")
    keys = ["machine", "server", "cpus", "size_bytes", "load"]
    plain = data[data["tls"] == "off"][[*keys, "value"]]
    both = data[data["tls"] != "off"].merge(plain, on=keys, suffixes=("", "_off"))
    both["times"] = both["value_off"] / both["value"]
    old = published.read("kant2000_table2_relative").rename(
        columns={"processors": "cpus", "relative_throughput": "times"}
    )
    old = old.merge(both[["size_bytes", "cpus"]].drop_duplicates())
    old = old.assign(server="IIS 4.0, Pentium III Xeon", tls="kant2000: SSL, RSA-512, RC4")
    index = ["server", "tls", "cpus"]
    columns = [*index, "size_bytes", "times"]
    # The published rows come last, whatever their names.
    tables = [
        rows[columns].pivot_table(index=index, columns="size_bytes", values="times")
        for rows in (both, old)
    ]
    result = pd.concat(tables).rename(columns=human_size).rename_axis(columns=None).reset_index()
    return result.rename(columns={"tls": "TLS", "cpus": "CPUs"}).round(2)


def decomposition(fits: Sequence[Decomposition], size_kib: float = 36.0) -> pd.DataFrame:
    """Shares at one file size with intervals, of what could be fitted; the published below."""
    rows = []
    for fit in fits:
        if fit.shares.empty:
            continue
        row = {"server": _where(fit), "TLS": fit.group["tls"], "CPUs": fit.group["cpus"]}
        for _, part in fit.shares[fit.shares["size_kib"] == size_kib].iterrows():
            row[part["part"]] = _with_percent(part["share"], part["low"], part["high"])
        p = fit.lack_of_fit["p"]
        row["lack of fit"] = fit.lack_of_fit["reason"] if p is None else f"p = {p:.2g}"
        rows.append(row)
    old = {part: f"{share:.1%}" for part, share in _PUBLISHED_SHARES.items()}
    source = {"server": "kant2000, equation 5", "TLS": "SSL, RSA-512, RC4", "CPUs": 2}
    return pd.DataFrame([*rows, {**source, **old}] if size_kib == 36 else rows).fillna("")


def lines(fits: Sequence[Decomposition]) -> pd.DataFrame:
    """Parameters of the fitted lines with intervals [ms, ms/KiB], of what could be fitted."""
    rows = []
    for fit in fits:
        if fit.shares.empty:
            continue
        row = {"server": _where(fit), "TLS": fit.group["tls"], "CPUs": fit.group["cpus"]}
        parameters = fit.parameters[["value", "low", "high"]]
        for name, text in _LINES.items():
            row[text] = _with_interval(*parameters.loc[name])
        rows.append(row)
    return pd.DataFrame(rows)


def fitted_shares(fits: Sequence[Decomposition]) -> pd.DataFrame:
    """Shares of every fit, long form, with a label for each size's bar."""
    fitted = [fit for fit in fits if not fit.shares.empty]
    table = _concat([fit.shares.assign(series=_series(fit)) for fit in fitted], _SHARES)
    return table.assign(label=(table["size_kib"] * 1024).round().astype(int).map(human_size))


def fitted_points(fits: Sequence[Decomposition]) -> pd.DataFrame:
    """Points that the fits took, long form."""
    return _by_series(fits, [fit.points for fit in fits])


def fitted_lines(fits: Sequence[Decomposition], sizes_kib: Sequence[float]) -> pd.DataFrame:
    """Lines that were fitted, long form, at `sizes_kib` [KiB]."""
    return _by_series(fits, [fit.times(np.asarray(sizes_kib, dtype=np.float64)) for fit in fits])


def machine(records: Sequence[Record]) -> pd.DataFrame:
    """Where the records come from: one row per property, with every value it took."""
    found: dict[str, dict[str, None]] = {}
    for item in records:
        for name, value in _properties(item):
            found.setdefault(name, {})[value] = None
    rows = [(name, _all(list(values))) for name, values in found.items()]
    return pd.DataFrame(rows, columns=["property", "value"])


def not_measured(metrics: pd.DataFrame) -> pd.DataFrame:
    """Metrics without a value: why, and in how many cells."""
    lacking = metrics[metrics["value"].isna()]
    total = metrics["cell"].nunique()
    table = lacking.groupby("reason", sort=False).agg(
        metrics=("metric", lambda names: ", ".join(dict.fromkeys(names))),
        cells=("cell", lambda cells: f"{cells.nunique()} of {total}"),
    )
    return table.reset_index()[["metrics", "reason", "cells"]]


def warnings(records: Sequence[Record], metrics: pd.DataFrame) -> pd.DataFrame:
    """List what to be wary of, what to do about it, and how many records it is about."""
    found: dict[tuple[str, str], int] = {}
    for item in records:
        for warning in dict.fromkeys(_warnings(item)):
            found[warning] = found.get(warning, 0) + 1
    rows = [(text, remedy, f"{count} records") for (text, remedy), count in found.items()]
    runs = metrics.groupby("cell")["n"].max()
    for few, text in {1: "one run: no interval", 2: "two runs: wide intervals"}.items():
        if (runs == few).any():
            rows.append((text, "raise repetitions", f"{(runs == few).sum()} cells"))
    return pd.DataFrame(rows, columns=["warning", "remedy", "where"])


def _warnings(item: Record) -> Iterator[tuple[str, str]]:
    header = item.header
    if header.imported is not None:
        yield f"counted by {header.imported.tool}, imported", "see `imported` in the record"
    elif header.program.build != "release":
        yield f"measured by a {header.program.build} build", "measure with the release build"
    if header.placement.overlap:
        yield (
            f"server and load share CPUs ({header.placement.reason}): throughput includes the "
            "load generator's work",
            "use a machine with more CPUs, or fewer of them for the server",
        )
    if header.network.get("kind") == "loopback":
        yield (
            f"plain loopback ({header.network.get('reason')}): part of the client's TCP work is "
            "done on the server's CPUs",
            "measure as root",
        )
    if header.provenance.get("hypervisor"):
        yield (
            f"a virtual machine ({header.provenance['hypervisor']}): its host may take time away",
            "for figures to rely on, use a machine of your own",
        )
    completions = header.rules.get("completions_per_connection")
    if isinstance(completions, int) and completions < _DISJOINT_WINDOWS_COMPLETIONS:
        yield (
            f"windows may be as short as {completions} completions per connection: transactions "
            f"under way at their ends bias counts by up to {1 / completions:.0%}",
            f"raise completions_per_connection to {_DISJOINT_WINDOWS_COMPLETIONS}",
        )
    for window in item.windows:
        yield from _window_warnings(window)


def _window_warnings(window: Window) -> Iterator[tuple[str, str]]:
    failed = sum(window.errors.values())
    if failed:
        kinds = ", ".join(sorted(kind for kind, count in window.errors.items() if count))
        yield f"transactions failed ({kinds})", "see metrics errors_*"
    if window.clamped:
        yield "latencies beyond the histogram's range", "see `clamped` in the record"
    for note in window.notes:
        yield note, "see `notes` in the record; longer warm-up or windows help"
    elapsed = window.end_ns - window.start_ns
    if any((cpu.steal_ns or 0) > 0.01 * elapsed for cpu in window.cpus):
        yield "the host took more than 1 % of a CPU's time away", "measure on a quieter host"
    if any((cpu.idle_resolution_ns or 0) > 0.01 * elapsed for cpu in window.cpus):
        yield "idle time is known to 1 % of a window or worse", "raise window_s"


def _properties(item: Record) -> Iterator[tuple[str, str]]:
    header = item.header
    yield "tlscost", f"{header.program.version} ({header.program.build})"
    for name, value in header.provenance.items():
        if name == "caches" and isinstance(value, list):
            yield "caches", ", ".join(_cache(one) for one in value if isinstance(one, dict))
        elif isinstance(value, dict):
            texts = [f"{key}: {text}" for key, text in value.items()]
            yield name.replace("_", " "), ", ".join(texts)
        elif name == "memory_bytes" and isinstance(value, int):
            yield "memory", f"{value / (1 << 30):.1f} GiB"
        else:
            yield name.replace("_", " "), "unknown" if value is None else str(value)
    if header.machine is not None:
        yield (
            "simulated machine",
            f"{header.machine.name} with {', '.join(header.machine.variants)}, "
            f"{header.machine.clock_hz / 1e6:.0f} MHz",
        )
    yield "network", " ".join(str(header.network.get(name)) for name in ("kind", "mtu"))


def _all(values: list[str]) -> str:
    """Every value; of many numbers, which differ as measurements do, the range."""
    if len(values) > 2 and all(value.isdecimal() for value in values):
        return f"{min(values, key=int)} to {max(values, key=int)}"
    return "; ".join(values)


def _cache(cache: dict[str, object]) -> str:
    size = cache.get("bytes")
    text = human_size(size) if isinstance(size, int) else "of unknown size"
    return f"L{cache.get('level')} {cache.get('type')} {text}"


def _series(fit: Decomposition) -> str:
    return f"{_where(fit)} {fit.group['tls']}, {fit.group['cpus']} CPU"


def _where(fit: Decomposition) -> str:
    """Return the server, and the machine where that is a simulated one."""
    machine = fit.group["machine"]
    return str(fit.group["server"]) + ("" if machine == NATIVE else f" on {machine}")


def _by_series(fits: Sequence[Decomposition], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of all; the points without TLS, which several fits share, appear once."""
    named: list[pd.DataFrame] = []
    for fit, table in zip(fits, tables, strict=True):
        off = f"{_where(fit)} off, {fit.group['cpus']} CPU"
        named.append(table.assign(series=table["tls"].map({"on": _series(fit), "off": off})))
    return _concat(named, [*_TIMES, "series"])


def _concat(tables: Sequence[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """One table of all, with its columns even where there is none."""
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def _with_interval(value: float, low: float, high: float) -> str:
    if pd.isna(value):
        return "-"
    if pd.isna(low):
        return _number(value)
    return f"{_number(value)} ± {_number((high - low) / 2)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _with_percent(share: float, low: float, high: float, digits: int = 1) -> str:
    text = f"{share:.{digits}%}"
    return text if pd.isna(low) else f"{text} ± {(high - low) / 2:.{digits}%}"
