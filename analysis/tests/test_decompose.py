import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import SECOND, window, write

from tlscost import decompose, paths
from tlscost.errors import TlscostError

PUBLISHED = paths.root() / "data" / "published"


def line(sizes, intercept, slope, tls):
    return pd.DataFrame(
        {"tls": tls, "size_kib": sizes, "time_ms": intercept + slope * np.array(sizes)}
    )


def equation_5(sizes=(0.03, 36.0, 1024.0)):
    return pd.concat([line(sizes, 1.51, 0.04, "on"), line(sizes, 0.24, 0.01, "off")])


def kant_dual_processor():
    table = pd.read_csv(PUBLISHED / "kant2000_table1.csv").query("processors == 2")
    return table.assign(
        size_kib=table["size_bytes"] / 1024, time_ms=1000 / table["throughput_per_s"]
    )[["tls", "size_kib", "time_ms"]]


def percent(fit, size=36.0):
    rows = fit.shares[fit.shares["size_kib"] == size].set_index("part")["share"] * 100
    return [rows["handshake"], rows["encryption"], rows["rest"]]


@pytest.mark.parametrize("weights", ["relative", "equal"])
def test_points_of_equation_5(weights):
    fit = decompose.fit(equation_5(), weights=weights)
    assert fit.parameters["value"].to_dict() == pytest.approx(
        {"t_s0": 1.51, "t_s1": 0.04, "t_n0": 0.24, "t_n1": 0.01, "t_h": 1.27, "t_e1": 0.03}
    )
    # Published as 43.0 (0.43 written out), 36.6 and 20.3.
    assert percent(fit) == pytest.approx([43.05, 36.61, 20.34], abs=0.01)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("equal", [40.7, 39.6, 19.7]),
        ("column", [41.5, 39.4, 19.2]),
        ("relative", [42.3, 38.5, 19.2]),
    ],
)
def test_kants_dual_processor_rows(weights, expected):
    points = kant_dual_processor().assign(weight=lambda rows: 1000 / rows["time_ms"])
    smallest = points[points["size_kib"] < 1].set_index("tls")["time_ms"]
    assert smallest.round(2).to_dict() == {"on": 1.51, "off": 0.24}
    assert np.round(percent(decompose.fit(points, weights=weights)), 1).tolist() == expected


def noisy(seed=1, runs=4, bend=0.0):
    points = pd.concat([equation_5()] * runs, ignore_index=True)
    noise = np.random.default_rng(seed).normal(1, 0.02, len(points))
    points["time_ms"] *= noise * (1 + bend * (points["size_kib"] == 36))
    return points


def test_intervals_are_those_of_the_joint_model():
    points = noisy()
    fit = decompose.fit(points, weights="equal")
    joint = smf.ols("time_ms ~ C(tls, Treatment('off')) * size_kib", points).fit()
    interval = joint.conf_int().to_numpy()
    for name, row in {"t_n0": 0, "t_h": 1, "t_n1": 2, "t_e1": 3}.items():
        assert fit.parameters.loc[name, ["low", "high"]].to_list() == pytest.approx(interval[row])


def test_share_intervals_agree_with_a_parametric_bootstrap():
    points = noisy()
    fit = decompose.fit(points)
    rng = np.random.default_rng(2)
    expected = equation_5().merge(points.groupby(["tls", "size_kib"], as_index=False).size())
    draws = []
    for _ in range(150):
        again = points.merge(expected, on=["tls", "size_kib"], suffixes=("_old", ""))
        again["time_ms"] *= rng.normal(1, 0.02, len(again))
        draws.append(percent(decompose.fit(again[["tls", "size_kib", "time_ms"]])))
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    rows = fit.shares[fit.shares["size_kib"] == 36]
    width = (rows["high"] - rows["low"]).to_numpy() * 100
    assert width == pytest.approx(high - low, rel=0.5)


def test_lack_of_fit_sees_a_bend_and_only_a_bend():
    straight = decompose.fit(noisy()).lack_of_fit
    bent = decompose.fit(noisy(bend=0.5)).lack_of_fit
    assert straight["p"] > 0.05
    assert bent["p"] < 1e-6
    assert (bent["df_lack"], bent["df_pure"]) == (2, 18)


def test_without_reruns_or_with_two_sizes_there_is_no_lack_of_fit_test():
    assert "no re-runs" in decompose.fit(equation_5()).lack_of_fit["reason"]
    two = decompose.fit(equation_5((1.0, 100.0)))
    assert "two sizes" in two.lack_of_fit["reason"]
    assert two.parameters[["low", "high"]].isna().all(axis=None)
    assert two.reason == "as many points as parameters: no interval"


def test_json_shape():
    document = json.loads(json.dumps(decompose.to_json([decompose.fit(noisy(), at=[36, 100])])))
    for name in ("t_s0", "t_s1", "t_n0", "t_n1"):
        assert document[name]["low"] < document[name]["value"] < document[name]["high"]
    assert [row["size_kib"] for row in document["shares"]] == [0.03, 36, 100, 1024]
    for row in document["shares"]:
        assert row["handshake"] + row["encryption"] + row["rest"] == pytest.approx(1)
        low, high = row["intervals"]["handshake"]
        assert low < row["handshake"] < high
    assert 0 <= document["lack_of_fit"]["p"] <= 1


def test_csv(tmp_path):
    path = tmp_path / "points.csv"
    equation_5().assign(weight=2.0).to_csv(path, index=False)
    for weights in ("relative", "equal", "column"):
        (fit,) = decompose.fit_paths([path], weights=weights)
        assert percent(fit) == pytest.approx([43.05, 36.61, 20.34], abs=0.01)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tls,size_kib\non,1\n", "time_ms"),
        ("tls,size_kib,time_ms\nmaybe,1,2\n", "`tls`"),
        ("tls,size_kib,time_ms\non,1,-2\n", "`time_ms`"),
        ("tls,size_kib,time_ms\non,one,2\n", "`size_kib`"),
        ("tls,size_kib,time_ms\non,1,2\n", "1 file sizes with tls on"),
        ("", "cannot be read as a table"),
    ],
)
def test_bad_csv_is_named(tmp_path, text, named):
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(TlscostError) as caught:
        decompose.fit_paths([path])
    assert named in str(caught.value)


def test_bad_options_are_named():
    with pytest.raises(TlscostError, match="no column `weight`"):
        decompose.fit(equation_5(), weights="column")
    with pytest.raises(TlscostError, match="--at -1"):
        decompose.fit(equation_5(), at=[-1])


def write_run(directory, tls, size_bytes, time_ms, **cell):
    """A second in which the CPU is busy for half and T is time_ms."""
    cpu = window()["cpus"][0] | {"idle_ns": SECOND // 2}
    line = window(transactions=round(500 / time_ms), cpus=[cpu])
    name = "-".join(map(str, [tls, size_bytes, *cell.values()]))
    write(directory / f"{name}.jsonl", [line], tls=tls, size_bytes=size_bytes, **cell)


def test_records_are_decomposed_per_server_profile_and_cpus(tmp_path):
    for size in (1024, 36864, 1 << 20):
        for server, factor in (("serve", 1), ("nginx", 2)):
            write_run(tmp_path, "off", size, 0.01 * factor * (1 + size / 36864), server=server)
            write_run(tmp_path, "tls12", size, 0.05 * factor * (1 + size / 36864), server=server)
            write_run(tmp_path, "tls13", size, 0.03 * factor * (1 + size / 36864), server=server)
    fits = decompose.fit_paths([tmp_path])
    assert [(fit.group["server"], fit.group["tls"]) for fit in fits] == [
        *[("nginx", "tls12"), ("nginx", "tls13"), ("serve", "tls12"), ("serve", "tls13")]
    ]
    assert percent(fits[2]) == pytest.approx([40, 40, 20], abs=0.5)
    assert len(decompose.to_json(fits)) == 4


def test_a_group_that_cannot_be_decomposed_is_null_with_a_reason(tmp_path):
    for size in (1024, 36864):
        write_run(tmp_path, "off", size, 1 + size / 36864)
        write_run(tmp_path, "tls12", size, 2 + size / 36864)
    write_run(tmp_path, "tls13", 1024, 2)
    first, second = decompose.to_json(decompose.fit_paths([tmp_path]))
    assert first["t_s0"]["value"] is not None
    assert second["group"]["tls"] == "tls13"
    assert second["t_s0"] == {"value": None, "low": None, "high": None}
    assert second["shares"] == []
    assert "1 file sizes with tls on" in second["reason"]


def test_records_without_plain_cells_say_what_is_missing(tmp_path):
    write_run(tmp_path, "tls13", 1024, 1.0)
    write_run(tmp_path, "tls13", 2048, 2.0)
    with pytest.raises(TlscostError, match="0 file sizes with tls off"):
        decompose.fit_paths([tmp_path])


def test_overlapping_cells_say_why_they_cannot_be_decomposed(tmp_path):
    def overlapping(head):
        head["placement"] |= {"overlap": True, "reason": "2 CPUs on a machine of 2"}

    for tls in ("off", "on"):
        write(tmp_path / f"{tls}.jsonl", tls=tls, edit=overlapping)
    with pytest.raises(TlscostError, match="2 CPUs on a machine of 2"):
        decompose.fit_paths([tmp_path])


times = st.floats(0.01, 1000)


@settings(max_examples=30)
@given(
    values=st.lists(times, min_size=6, max_size=6),
    factor=st.floats(1e-3, 1e3),
    order=st.permutations(range(6)),
)
def test_scale_and_order_do_not_matter(values, factor, order):
    points = equation_5().reset_index(drop=True).assign(time_ms=values)
    one = decompose.fit(points)
    other = decompose.fit(points.iloc[order].assign(time_ms=lambda rows: rows["time_ms"] * factor))
    scale = max(values)
    assert (other.parameters["value"] / factor).to_numpy() == pytest.approx(
        one.parameters["value"].to_numpy(), abs=1e-8 * scale
    )
    sums = one.shares.dropna().groupby("size_kib")["share"].sum()
    assert sums.to_numpy() == pytest.approx(1)
