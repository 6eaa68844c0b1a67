import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW
from synthetic import count, window, write

from tlscost import compare
from tlscost.errors import TlscostError


def runs(throughputs, metric="throughput", reason=None, *, tls="off", variant=None, **other):
    cell = {"machine": "native", "server": "serve", "tls": tls, "size_bytes": 30, "cpus": 1}
    return pd.DataFrame(
        {
            **cell,
            "load": "{}",
            "cell": json.dumps(cell | {"load": {}} | other),
            "variant": variant,
            "metric": metric,
            "unit": "transactions/s",
            "value": pd.Series(throughputs, dtype="float64"),
            "reason": reason,
        }
    )


def one(a, b):
    return compare.compare_runs(a, b).iloc[0]


def test_ratio_and_interval_are_welchs_on_the_logarithms():
    a, b = [100, 104, 97, 101], [120, 131, 125]
    row = one(runs(a), runs(b))
    means = CompareMeans(DescrStatsW(np.log(b)), DescrStatsW(np.log(a)))
    expected = np.exp(means.tconfint_diff(usevar="unequal"))
    assert (row["low"], row["high"]) == pytest.approx(expected)
    assert row["ratio"] == pytest.approx(np.exp(np.mean(np.log(b)) - np.mean(np.log(a))))
    assert (row["n_a"], row["n_b"]) == (4, 3)
    assert row["significant"]


def test_noise_is_not_significant_and_holm_counts_the_tests():
    rng = np.random.default_rng(3)
    a = pd.concat([runs(rng.normal(100, 5, 5), f"m{i}") for i in range(20)])
    b = pd.concat([runs(rng.normal(100, 5, 5), f"m{i}") for i in range(20)])
    table = compare.compare_runs(a, b)
    assert not table["significant"].any()
    smallest = table["p"].min()
    assert table["p_holm"].min() == pytest.approx(min(1, smallest * 20))


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ([100], [110, 111], "one run: no interval"),
        ([100, 100], [110, 110], "no run differs from another: no interval"),
        ([0, 100], [110, 111], "A: 0 or less in a run has no ratio"),
        ([np.nan, np.nan], [110, 111], "A: no PMU"),
    ],
)
def test_what_cannot_be_computed_is_null_with_a_reason(a, b, reason):
    row = one(runs(a, reason="no PMU"), runs(b))
    assert row["reason"] == reason
    for name in ("low", "high", "p", "p_holm", "significant"):
        assert pd.isna(row[name])


def test_cells_of_one_side_only_are_shown():
    a = pd.concat([runs([1, 2]), runs([1, 2], tls="on")])
    table = compare.compare_runs(a, runs([1, 2]))
    assert table["reason"].dropna().to_list() == ["not in B"]


def test_no_cell_in_common():
    with pytest.raises(TlscostError, match="no cell in common"):
        compare.compare_runs(runs([1]), runs([1], tls="on"))


def test_windows_and_event_sets_do_not_make_another_cell():
    a = pd.concat([runs([100, 101], rules={"window_s": 2}), runs([102], rules={"window_s": 5})])
    table = compare.compare_runs(a, runs([110, 111], events=["cycles"]))
    assert table[["n_a", "n_b"]].to_numpy().tolist() == [[3, 2]]
    assert table["ratio"].notna().all()


def test_cells_that_only_other_keys_tell_apart_are_not_mixed():
    a = pd.concat([runs([1, 2], server_command="x -1"), runs([1, 2], server_command="x -2")])
    with pytest.raises(TlscostError, match=r"B: .*server_command: 'x -1' and 'x -2'"):
        compare.compare_runs(runs([1, 2]), a)


def test_records(tmp_path):
    for side, factor in (("a", 1), ("b", 2)):
        (tmp_path / side).mkdir()
        for repetition in range(3):
            lines = [
                window(transactions=1000 * factor + repetition, counts=[count("x", "u", None)])
            ]
            write(tmp_path / side / f"{repetition}.jsonl", lines, repetition=repetition)
    rows = compare.to_json(compare.compare(tmp_path / "a", tmp_path / "b"))
    found = {row["metric"]: row for row in json.loads(json.dumps(rows, allow_nan=False))}
    assert found["throughput"]["ratio"] == pytest.approx(2, rel=1e-3)
    assert found["throughput"]["significant"] is True
    assert found["path_length"]["ratio"] is None
    assert "in no pass" in found["path_length"]["reason"]
    assert found["throughput"]["cell"]["tls"] == "off"


values = st.lists(st.floats(0.1, 1000), min_size=2, max_size=5, unique=True)


@settings(max_examples=30)
@given(a=values, b=values)
def test_exchanging_the_sides_inverts_the_ratio(a, b):
    there, back = one(runs(a), runs(b)), one(runs(b), runs(a))
    assert there["ratio"] * back["ratio"] == pytest.approx(1)
    assert there["low"] * back["high"] == pytest.approx(1)
    assert there["p"] == pytest.approx(back["p"])


def test_variants_of_a_machine_are_not_mixed():
    a = pd.concat([runs([100, 101], variant="512k"), runs([200, 202], variant="2m")])
    b = pd.concat([runs([110, 111], variant="512k"), runs([200, 202], variant="2m")])
    table = compare.compare_runs(a, b).set_index("variant")
    assert table.loc["512k", "ratio"] == pytest.approx(np.sqrt(110 * 111 / (100 * 101)))
    assert table.loc["2m", "ratio"] == pytest.approx(1)
