"""Tables 1 to 7 and Figures 1 to 7 of kant2000 in the document's layout, from study frames."""

from dataclasses import dataclass

import pandas as pd

from tlscost import decompose, dictionary, kant
from tlscost.cell import human_size
from tlscost.claims import Judgement
from tlscost.dictionary import Formula

__all__ = [
    "FIGURES",
    "TABLES",
    "by_mode",
    "claims_table",
    "figure",
    "figure_title",
    "shares",
    "table",
]

SIDES = {"on": "w/ SSL", "off": "w/o SSL"}
_ORDER = (30, 1048576, 36864)  # as the document's tables have it
_LARGEST = 2048
_MARKS = {"holds": "✓ holds", "does not hold": "✗ does not hold", "undecided": "? undecided"}

_MODES = {"u": "user", "k": "kernel"}
_BY_MODE = {
    "l1i_miss_ratio": "L1 instr. misses",
    "l1d_miss_ratio": "L1 data misses",
    "branch_frequency": "branches",
    "mispredict_ratio": "mispredicted",
    "btb_inefficiency": "BTB inefficiency",
}


@dataclass(frozen=True)
class _Column:
    """A column of a table: an expression over METRIC_on and METRIC_off at one L2 size."""

    group: str
    name: str
    expression: str
    digits: int
    l2_kib: int = _LARGEST


def _both(group: str, expression: str, digits: int, l2_kib: int = _LARGEST) -> list[_Column]:
    """Two columns, with and without SSL; {} in the expression stands for the side."""
    return [
        _Column(group, name, expression.format(side), digits, l2_kib)
        for side, name in SIDES.items()
    ]


def _performance(l2_kib: int) -> list[_Column]:
    return [
        *_both("throughput [1/s]", "scaled_throughput_{} * 1", 0, l2_kib),
        *_both("path length [1000]", "path_length_{} / 1000", 0, l2_kib),
        *_both("cycles/inst", "cpi_{} * 1", 2, l2_kib),
    ]


def _percent(group: str, metric: str, digits: int, l2_kib: int = _LARGEST) -> list[_Column]:
    return _both(f"{group} [%]", f"100 * {metric}_{{}}", digits, l2_kib)


def _by_l2(group: str, expression: str, digits: int, sizes: tuple[int, ...]) -> list[_Column]:
    """Columns for each L2 size, first all with SSL."""
    return [
        _Column(f"{group}, {name}", _l2(size), expression.format(side), digits, size)
        for side, name in SIDES.items()
        for size in sizes
    ]


def _l2(size_kib: int) -> str:
    return f"{human_size(size_kib * 1024)} L2"


TABLES: dict[int | str, list[_Column]] = {
    1: [*_performance(2048), *_percent("data bus busy", "data_bus_utilisation", 1)],
    2: [
        _Column("w/o / w/ SSL", "throughput", "scaled_throughput_off / scaled_throughput_on", 2),
        _Column("w/ / w/o SSL", "cycles/op", "cycles_on / cycles_off", 2),
        *_percent("L1 instr. misses", "l1i_miss_ratio", 2),
        *_percent("L1 data misses", "l1d_miss_ratio", 2),
        *_percent("L2 misses", "l2_miss_ratio", 1),
    ],
    3: [*_performance(1024), *_percent("L2 misses", "l2_miss_ratio", 1, 1024)],
    4: [*_performance(512), *_percent("L2 misses", "l2_miss_ratio", 1, 512)],
    5: [
        *_by_l2("throughput", "l2_gain_{} * 1", 3, (1024, 2048)),
        *_by_l2("L2 misses/op", "l2_miss_gain_{} * 1", 3, (1024, 2048)),
    ],
    6: [
        *_both("branches/inst", "branch_frequency_{} * 1", 3),
        *_both("mispredicted", "mispredict_ratio_{} * 1", 3),
        *_both("BTB inefficiency", "btb_inefficiency_{} * 1", 3),
    ],
    7: _by_l2("first byte [ms]", "latency_first_byte_mean_{} * 1", 1, (2048, 1024, 512)),
    "kernel": [
        *_both("path length [1000]", "path_length_{} / 1000", 0),
        *_both("in the kernel [1000]", "kernel_share_{0} * path_length_{0} / 1000", 0),
        *_both("user mode [1000]", "(1 - kernel_share_{0}) * path_length_{0} / 1000", 0),
    ],
    "misfit": _both("off the line [% of T]", "100 * line_misfit_{}", 1),
}
"""The columns of each table; `kernel` and `misfit` are not the document's."""

_SIZES: dict[int | str, tuple[int, ...]] = {
    3: _ORDER[:2],
    4: _ORDER[:2],
    5: _ORDER[:2],
    7: _ORDER[:2],
}


@dataclass(frozen=True)
class _Figure:
    """A figure: a metric by CPUs within groups, of a size or of an L2."""

    title: str
    metric: str
    unit: str
    factor: float = 100.0
    size_bytes: int | None = None
    relative: bool = False


FIGURES: dict[int, _Figure] = {
    1: _Figure("Throughput", "scaled_throughput", "1 CPU with SSL = 1", 1.0, relative=True),
    2: _Figure("Cycles per instruction", "cpi", "CPI", 1.0),
    3: _Figure("L1 instruction misses", "l1i_miss_ratio", "%"),
    4: _Figure("L1 data misses", "l1d_miss_ratio", "%"),
    5: _Figure("L2 misses by file size", "l2_miss_ratio", "%"),
    6: _Figure("L2 misses by L2 size, 1 MB", "l2_miss_ratio", "%", size_bytes=1048576),
    7: _Figure("L2 misses by L2 size, 30 B", "l2_miss_ratio", "%", size_bytes=30),
}
"""What each figure draws; Figure 1's scale fits its axis only if one processor with SSL is 1."""


def table(number: int | str, theirs: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """Make one of the document's tables: published, ours, and ours / published.

    Parameters
    ----------
    number : int or str
        A key of `TABLES`.
    theirs, ours : pandas.DataFrame
        Study frames.

    Returns
    -------
    pandas.DataFrame of texts
        Rows (file size, processors, which), which is published, ours or ratio; columns (group,
        side). Empty where there is no figure.
    """
    columns = TABLES[number]
    both = {"published": _values(columns, theirs), "ours": _values(columns, ours)}
    both["ratio"] = both["ours"] / both["published"]
    texts = {
        which: pd.DataFrame(
            {
                (column.group, column.name): values[(column.group, column.name)].map(
                    lambda value, d=2 if which == "ratio" else column.digits: _text(value, d)
                )
                for column in columns
            }
        )
        for which, values in both.items()
    }
    every = pd.concat(texts, names=["", "file", "CPUs"])
    rows = [
        (which, size, cpus)
        for size in _SIZES.get(number, _ORDER)
        for cpus in kant.CPUS
        for which in texts
    ]
    every = every.reindex(rows).reorder_levels(["file", "CPUs", ""]).fillna("")
    return every.rename(index=human_size, level="file")


def figure(number: int, study: pd.DataFrame) -> pd.DataFrame:
    """Give what one of the document's figures draws.

    Returns
    -------
    pandas.DataFrame, long form
        group (file size or L2 size), cpus, side (w/ SSL, w/o SSL), value; in the order drawn.
    """
    spec = FIGURES[number]
    rows = study[study["metric"] == spec.metric].dropna(subset="value")
    by_size = spec.size_bytes is None
    key = "size_bytes" if by_size else "l2_kib"
    rows = (
        rows[rows["l2_kib"] == _LARGEST] if by_size else rows[rows["size_bytes"] == spec.size_bytes]
    )
    rows = rows.sort_values([key, "cpus", "tls"], ascending=[True, True, False])
    value = rows["value"] * spec.factor
    if spec.relative:
        one = rows[(rows["cpus"] == 1) & (rows["tls"] == "on")].set_index(key)["value"]
        value = value / rows[key].map(one)
    return pd.DataFrame(
        {
            "group": rows[key].map(human_size if by_size else _l2),
            "cpus": rows["cpus"],
            "side": rows["tls"].map(SIDES),
            "value": value,
        }
    ).reset_index(drop=True)


def figure_title(number: int) -> str:
    """Return what a figure shows, with its unit."""
    spec = FIGURES[number]
    return f"Figure {number}. {spec.title} [{spec.unit}]"


def by_mode(tidy: pd.DataFrame, cpus: int = 1) -> pd.DataFrame:
    """Tell what the server's own code, OpenSSL's with it, and the kernel do each for itself.

    Parameters
    ----------
    tidy : pandas.DataFrame
        Of `tlscost.frame.load`; of it, the simulated machine's records with 2 MB of L2.
    cpus : int
        Of the server.

    Returns
    -------
    pandas.DataFrame of texts
        One row per file size, TLS profile and mode: share of the instructions, and `_BY_MODE`'s
        metrics by the dictionary's formulas over that mode's counts alone [%].
    """
    rows = tidy[tidy["machine"].astype("str").str.startswith(kant.MACHINE)]
    rows = rows[rows["mode"].isin(list(_MODES)) & (rows["cpus"] == cpus)]
    rows = rows[rows["variant"].isna() | (rows["variant"] == "2m")]
    if rows.empty:
        return pd.DataFrame(columns=["file", "TLS", "mode"])
    keys = ["size_bytes", "tls", "mode"]
    plain = rows.astype(dict.fromkeys(("tls", "mode", "event"), "str"))
    counts = plain.groupby([*keys, "event"])["value"].sum(min_count=1).unstack("event")  # noqa: PD010
    formulas = {one.name: one for one in dictionary.load("p6") if one.name in _BY_MODE}
    table = pd.DataFrame({text: formulas[name].evaluate(counts) for name, text in _BY_MODE.items()})
    instructions = counts["INST_RETIRED"]
    whole = instructions.groupby(level=keys[:2]).transform("sum")
    table.insert(0, "of instructions", instructions / whole)
    texts = table.map(lambda value: "" if pd.isna(value) else f"{value:.1%}").reset_index()
    texts["mode"] = texts["mode"].map(_MODES)
    texts["size_bytes"] = texts["size_bytes"].map(human_size)
    return texts.rename(columns={"size_bytes": "file", "tls": "TLS"})


def shares(study: pd.DataFrame, cpus: int, l2_kib: int = _LARGEST) -> pd.DataFrame:
    """Decompose T by `tlscost.decompose`: its shares, and a label for each size's bar.

    Empty where the study has not three file sizes with and without SSL.
    """
    rows = study[(study["metric"] == "scaled_throughput") & (study["cpus"] == cpus)]
    rows = rows[rows["l2_kib"] == l2_kib].dropna(subset="value")
    if rows.groupby("tls")["size_bytes"].nunique().reindex(["on", "off"]).fillna(0).min() < 3:
        return pd.DataFrame(columns=["label", "part", "share"])
    points = rows.assign(size_kib=rows["size_bytes"] / 1024, time_ms=1e3 / rows["value"])
    found = decompose.fit(points[["tls", "size_kib", "time_ms"]]).shares
    return found.assign(label=(found["size_kib"] * 1024).round().astype(int).map(human_size))


def claims_table(judgements: list[Judgement]) -> pd.DataFrame:
    """One row per claim, for a reader: what is said, both figures, the verdict and why."""
    return pd.DataFrame(
        {
            "the paper says": [f"{one.statement} ({one.where})" for one in judgements],
            "verdict": [_MARKS[one.verdict] for one in judgements],
            "published": [one.published for one in judgements],
            "ours": [one.ours or "" for one in judgements],
            "in its own tables": [_MARKS[one.published_verdict] for one in judgements],
            "why": [one.reason for one in judgements],
        }
    )


def _values(columns: list[_Column], study: pd.DataFrame) -> pd.DataFrame:
    """Numbers by (file, CPUs), a column (group, name) each."""
    wide = kant.wide(study)
    values = {}
    for column in columns:
        own = wide[wide.index.get_level_values("l2_kib") == column.l2_kib].droplevel("l2_kib")
        formula = Formula(
            name="column", formula=column.expression, unit="1", quality="exact", why=column.group
        )
        values[(column.group, column.name)] = formula.evaluate(own)
    return pd.DataFrame(values).rename_axis(["file", "CPUs"])


def _text(value: float, digits: int) -> str:
    # Rounded first: a correction for idle time may leave a little less than 0.
    return "" if pd.isna(value) else f"{round(value, digits) + 0.0:,.{digits}f}"
