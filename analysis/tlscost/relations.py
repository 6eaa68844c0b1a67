"""What in a published document follows from the rest of it, and whether it does, within rounding.

A figure agrees where the interval that its printed digits leave meets the one that follows from
the other figures' digits. Where a document disagrees with itself it is listed, not mended
(data/published/disagreements.csv, docs/published.md).
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from tlscost.published import figures, intervals

__all__ = ["CLOCK_MHZ", "check_all", "equation5_shares", "over_corners"]

CLOCK_MHZ = 500.0
"""Of kant2000's server; its document does not print it (data/machines/p3-xeon.json)."""

_CLOCK_BAND = 0.01
_POINT = ["size_bytes", "processors"]
_BY_L2 = [*_POINT, "l2_kib", "tls"]
_KANT_TABLE = {2048: "kant2000_table1", 1024: "kant2000_table3", 512: "kant2000_table4"}
_EQUATION5 = ["t_s0", "t_s1", "t_n0", "t_n1"]
_SHARES = {"handshake_share": 0, "encryption_share": 1, "rest_share": 2}
_SHARE_SIZE_KIB = 36.0
_MEANS = {
    1: ("processor_time_percent", "increase_percent", +1),
    4: ("memory_available_bytes", "decrease_percent", -1),
    7: ("bytes_per_s", "decrease_percent", -1),
    10: ("disk_queue", "decrease_percent", -1),
}
"""By alnatheer's table of a counter's means: its column, that of its change, and which sign."""


def check_all() -> pd.DataFrame:
    """Check every relation of every document.

    Returns
    -------
    pandas.DataFrame, one row per figure that follows from others
        document, relation, point: what; printed: the figure; low, high: what follows, with the
        rounding of all that it follows from; agrees: bool.
    """
    return pd.concat([*_kant(), *_others()], ignore_index=True)


def over_corners(
    function: Callable[..., "pd.Series[float]"], *inputs: pd.DataFrame
) -> pd.DataFrame:
    """Evaluate a function of intervals; exact where it is monotone in each input.

    Parameters
    ----------
    function : callable
        Takes as many series as there are inputs.
    *inputs : pandas.DataFrame
        Columns value, low, high; alike indexed.

    Returns
    -------
    pandas.DataFrame
        value at the inputs' values; low and high: least and greatest at their intervals' corners.
    """
    corners = [
        function(*(table[end] for table, end in zip(inputs, ends, strict=True)))
        for ends in product(("low", "high"), repeat=len(inputs))
    ]
    every = pd.concat(corners, axis="columns")
    value = function(*(table["value"] for table in inputs))
    bounds = {"low": every.min(axis="columns"), "high": every.max(axis="columns")}
    return pd.DataFrame({"value": value, **bounds})


def equation5_shares() -> pd.DataFrame:
    """Shares of handshake, encryption and the rest that follow from equation 5's constants.

    Returns
    -------
    pandas.DataFrame, index handshake_share, encryption_share, rest_share
        value, low, high [%] at 36 KiB.
    """
    constants = intervals("kant2000_equation5", "value", ["quantity"])
    rows = {}
    for name, part in _SHARES.items():

        def share(*parameters: "pd.Series[float]", part: int = part) -> "pd.Series[float]":
            t_s0, t_s1, t_n0, t_n1 = parameters
            rest = t_n0 + _SHARE_SIZE_KIB * t_n1
            parts = [t_s0 - t_n0, _SHARE_SIZE_KIB * (t_s1 - t_n1), rest]
            return 100 * parts[part] / (t_s0 + _SHARE_SIZE_KIB * t_s1)

        inputs = [constants.loc[[one]].reset_index(drop=True) for one in _EQUATION5]
        rows[name] = over_corners(share, *inputs).iloc[0]
    return pd.DataFrame(rows).T


def _checked(
    document: str, relation: str, printed: pd.DataFrame, follows: pd.DataFrame
) -> pd.DataFrame:
    """Compare printed figures with those that follow; rows in the printed table's order."""
    follows = follows.reindex(printed.index)
    return pd.DataFrame(
        {
            "document": document,
            "relation": relation,
            "point": [_point(printed.index.names, key) for key in printed.index],
            "printed": printed["value"].to_numpy(),
            "low": follows["low"].to_numpy(),
            "high": follows["high"].to_numpy(),
            "agrees": (
                (printed["low"] <= follows["high"]) & (printed["high"] >= follows["low"])
            ).to_numpy(),
        }
    )


def _point(names: Any, key: Any) -> str:
    keys = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{name} {value}" for name, value in zip(names, keys, strict=True))


def _side(table: pd.DataFrame, **chosen: object) -> pd.DataFrame:
    """Rows of these index values, without those levels."""
    chosen_rows: pd.DataFrame = table.xs(tuple(chosen.values()), level=list(chosen))  # type: ignore[assignment]
    return chosen_rows


def _kant() -> Iterator[pd.DataFrame]:
    yield from _kant_table2()
    yield from _kant_table5()
    yield from _kant_clock()
    yield from _kant_equation5()


def _kant_table2() -> Iterator[pd.DataFrame]:
    """Ratios with and without SSL, from Table 1."""
    table1 = {
        name: intervals("kant2000_table1", name, [*_POINT, "tls"])
        for name in ("throughput_per_s", "path_length_kinst", "cpi")
    }
    on, off = ({n: _side(t, tls=tls) for n, t in table1.items()} for tls in ("on", "off"))
    throughput = over_corners(np.divide, off["throughput_per_s"], on["throughput_per_s"])
    cycles = over_corners(
        lambda a, b, c, d: a * b / (c * d),
        *(side[name] for side in (on, off) for name in ("path_length_kinst", "cpi")),
    )
    for column, follows, relation in [
        ("relative_throughput", throughput, "Table 2's relative throughput from Table 1"),
        ("relative_cycles_per_op", cycles, "Table 2's relative cycles/op from Table 1"),
    ]:
        printed = intervals("kant2000_table2_relative", column, _POINT)
        yield _checked("kant2000", relation, printed, follows)


def _kant_table5() -> Iterator[pd.DataFrame]:
    """Ratios to the 512 KB L2; misses by miss ratio x path length, were L1 misses the same."""

    def by_l2(column: str) -> pd.DataFrame:
        parts = [intervals(table, column, _BY_L2) for table in _KANT_TABLE.values()]
        return pd.concat(parts)

    def relative(column: str, function: Callable[..., Any], *inputs: pd.DataFrame) -> pd.DataFrame:
        printed = intervals("kant2000_table5", column, _BY_L2)
        base = [_side(table, l2_kib=512) for table in inputs]
        parts = []
        for l2_kib, rows in printed.groupby("l2_kib"):
            own = [_side(table, l2_kib=l2_kib) for table in inputs]
            here = _side(rows, l2_kib=l2_kib)
            follows = over_corners(function, *(t.reindex(here.index) for t in [*own, *base]))
            parts.append(follows.set_index(rows.index))
        return _checked("kant2000", f"Table 5's {column}", printed, pd.concat(parts))

    yield relative("relative_throughput", np.divide, by_l2("throughput_per_s"))
    ratios = pd.concat(
        [
            intervals("kant2000_table2", "l2_miss_percent", _BY_L2),
            *(intervals(_KANT_TABLE[size], "l2_miss_percent", _BY_L2) for size in (1024, 512)),
        ]
    )
    yield relative(
        "relative_l2_misses_per_op",
        lambda ratio, path, ratio_512, path_512: ratio * path / (ratio_512 * path_512),
        ratios,
        by_l2("path_length_kinst"),
    )


def _kant_clock() -> Iterator[pd.DataFrame]:
    """Check that throughput x path length x CPI / processors, the clock, is the same everywhere."""
    for table in _KANT_TABLE.values():
        inputs = [
            intervals(table, name, _BY_L2)
            for name in ("throughput_per_s", "path_length_kinst", "cpi")
        ]
        processors = inputs[0].index.get_level_values("processors").to_numpy()
        follows = over_corners(lambda x, y, z, n=processors: x * y * z * 1e-3 / n, *inputs)
        printed = pd.DataFrame({"value": CLOCK_MHZ}, index=follows.index)
        printed["low"] = CLOCK_MHZ * (1 - _CLOCK_BAND)
        printed["high"] = CLOCK_MHZ * (1 + _CLOCK_BAND)
        yield _checked("kant2000", "one clock [MHz], within 1 %", printed, follows)


def _kant_equation5() -> Iterator[pd.DataFrame]:
    printed = intervals("kant2000_equation5", "value", ["quantity"])
    shares = printed.loc[list(_SHARES)]
    yield _checked("kant2000", "equation 5's shares from its constants", shares, equation5_shares())
    times = intervals("kant2000_table1", "throughput_per_s", [*_POINT, "tls"])
    times = over_corners(lambda rate: 1e3 / rate, _side(times, processors=2))
    for tls, names in {"on": _EQUATION5[:2], "off": _EQUATION5[2:]}.items():
        points = _side(times, tls=tls)
        size_kib = points.index.to_numpy() / 1024
        constants = [
            pd.concat([printed.loc[[name]]] * len(points)).set_index(points.index) for name in names
        ]
        line = over_corners(lambda t0, t1, x=size_kib: t0 + t1 * x, *constants)
        relation = f"1000 / Table 1's throughputs [ms] on equation 5's line, SSL {tls}"
        yield _checked("kant2000", relation, points, line)


def _others() -> Iterator[pd.DataFrame]:
    yield from _yao()
    yield from _alnatheer()
    yield from _hp()
    yield from _coradiant()


def _yao() -> Iterator[pd.DataFrame]:
    """Hold the slides' range of branch frequencies against kant2000's Table 6."""
    stated = figures("yao_text", "branch frequency, with / without SSL").iloc[0]
    table = intervals("kant2000_table6", "branch_frequency", [*_POINT, "tls"])
    ratio = over_corners(np.divide, *(_side(table, tls=tls) for tls in ("on", "off"))) * 100
    follows = pd.DataFrame({"low": stated["value"], "high": stated["high"]}, index=ratio.index)
    relation = "slide 23's range [%] of branch frequencies, kant2000's Table 6"
    yield _checked("yao", relation, ratio, follows)


def _alnatheer() -> Iterator[pd.DataFrame]:
    index = ["workload_mb", "tls"]
    for number, (column, change, sign) in _MEANS.items():
        mean = intervals(f"alnatheer_table{number}", column, index)
        sides = [_side(mean, tls=tls) for tls in ("on", "off")]
        follows = over_corners(lambda on, off, s=sign: s * 100 * (on / off - 1), *sides)
        printed = intervals(f"alnatheer_table{number}_change", change, ["workload_mb"])
        relation = f"changes [%] of table {number} from its means"
        yield _checked("alnatheer", relation, printed, follows)
        variance = intervals(f"alnatheer_table{number + 1}", "variance", index)
        follows = over_corners(lambda m, v: np.sqrt(v) / m, mean, variance)
        name = f"alnatheer_table{number + 2}"
        printed = intervals(name, "coefficient_of_variation", index)
        relation = f"table {number + 2} from tables {number} and {number + 1}"
        yield _checked("alnatheer", relation, printed, follows)


def _hp() -> Iterator[pd.DataFrame]:
    text = intervals("hp2001_text", "value", ["quantity", "condition"])

    def one(quantity: str, condition: str) -> pd.DataFrame:
        return text.loc[[(quantity, condition)]].reset_index(drop=True)

    rate = "operations per second"
    sizes = [one(rate, f"Itanium, {size} KB bodies") for size in (2, 14)]
    gain = ("increase of operations per second", "2 KB over 14 KB bodies")
    follows = over_corners(lambda small, large: 100 * (small / large - 1), *sizes)
    yield _checked("hp2001", "gain [%] of 2 KB bodies", one(*gain), follows)
    parts = ["of it by the crypto library, roughly", "of it by the processor"]
    follows = over_corners(np.multiply, *(one("improvement", part) for part in parts))
    whole = one("improvement", "October 2000 over November 1999")
    yield _checked("hp2001", "improvement from its parts", whole, follows)
    table = intervals("hp2001_platforms", "ops_per_s", ["architecture"])
    last = intervals("hp2001_tuning", "ops_per_s", ["step"]).iloc[[-1]].reset_index(drop=True)
    itanium = table.loc[["Itanium Appliance"]].reset_index(drop=True)
    yield _checked("hp2001", "the platforms' Itanium is the last step of tuning", itanium, last)


def _coradiant() -> Iterator[pd.DataFrame]:
    clients = [
        intervals("coradiant2001_table2", name, ["size_bytes"]).assign(
            low=lambda table: table["value"], high=lambda table: table["value"]
        )
        for name in ("clients", "threads_per_client", "threads_total")
    ]
    follows = over_corners(np.multiply, *clients[:2])  # whole numbers: nothing is rounded
    yield _checked("coradiant2001", "Table 2's threads in all", clients[2], follows)
    seen = [
        intervals("coradiant2001_table3", name, ["rate_per_s"]) for name in ("client_ms", "wire_ms")
    ]
    follows = over_corners(lambda client, wire: 100 * (wire - client) / wire, *seen)
    printed = intervals("coradiant2001_table3", "difference_percent", ["rate_per_s"])
    yield _checked("coradiant2001", "Table 3's differences [%]", printed, follows)
    clocks = intervals("coradiant2001_table1", "clock_mhz", ["processor", "processors"])
    one = [_side(clocks, processors=1).loc[[name]] for name in ("Itanium C0", "UltraSPARC-II")]
    follows = over_corners(np.divide, *(table.reset_index(drop=True) for table in one))
    text = intervals("coradiant2001_text", "value", ["quantity"])
    stated = text.loc[["clock, Itanium / UltraSPARC-II"]].reset_index(drop=True)
    yield _checked("coradiant2001", "the ratio of clocks from Table 1", stated, follows)
