"""The published tables: read, within their ranges, and related as their documents say."""

import shutil

import numpy as np
import pandas as pd
import pytest

from tlscost import paths, published, relations
from tlscost.errors import TlscostError

DOCUMENTS = {"kant2000", "yao", "alnatheer", "hp2001", "coradiant2001"}
KANT_STUDY_POINTS = 18 + 12 + 12  # with 2 MB of L2, 1 MB, 512 KB


@pytest.fixture(scope="module")
def checks():
    return relations.check_all()


@pytest.fixture(scope="module")
def study():
    return published.kant_study()


@pytest.mark.parametrize("name", published.names())
def test_tables_have_a_source_and_units(name):
    table, document = published.read(name), published.document(name)
    assert list(document["columns"]) == list(table.columns)
    assert document["key"] in DOCUMENTS
    assert name.startswith(document["key"])
    assert all(document[key] for key in ("source", "table", "title", "machine"))
    assert (
        not table.drop(columns="high", errors="ignore")
        .drop(columns="condition", errors="ignore")
        .isna()
        .any(axis=None)
    )
    assert not table.duplicated().any()


def test_every_document_and_table_is_there():
    directory = paths.root() / "data" / "published"
    tables = {path.stem for path in directory.glob("*.csv")} - {"disagreements"}
    assert tables == set(published.names())
    assert {published.document(name)["key"] for name in tables} == DOCUMENTS
    assert {f"kant2000_table{number}" for number in range(1, 8)} <= tables
    assert {f"alnatheer_table{number}" for number in range(1, 13)} <= tables
    assert {f"coradiant2001_table{number}" for number in range(1, 5)} <= tables


def test_the_study_is_complete(study):
    points = study.groupby("metric").size().to_dict()
    assert points == {
        **dict.fromkeys(["scaled_throughput", "path_length", "cpi"], KANT_STUDY_POINTS),
        "l2_miss_ratio": KANT_STUDY_POINTS,
        "latency_first_byte_mean": 36,
        **dict.fromkeys(["l2_gain", "l2_miss_gain"], 24),
        **dict.fromkeys(["l1i_miss_ratio", "l1d_miss_ratio", "data_bus_utilisation"], 18),
        **dict.fromkeys(["branch_frequency", "mispredict_ratio", "btb_inefficiency"], 18),
    }
    assert not study.duplicated(["size_bytes", "cpus", "l2_kib", "tls", "metric"]).any()


def test_ratios_are_ratios_and_times_positive(study):
    ratio = study["metric"].str.endswith(("_ratio", "_utilisation", "_frequency", "_inefficiency"))
    assert study.loc[ratio, "value"].between(0, 1).all()
    assert study.loc[study["metric"].isin(["l2_gain", "l2_miss_gain"]), "value"].between(0, 2).all()
    assert (study["low"] > 0).all()
    assert (study["low"] < study["value"]).all()


def test_rounding_takes_half_of_the_last_printed_digit():
    table = published.intervals("kant2000_table1", "cpi", ["size_bytes", "processors", "tls"])
    assert table.loc[(36864, 1, "off")].to_list() == pytest.approx([3.30, 3.295, 3.305])
    table = published.intervals("alnatheer_table5", "variance", ["workload_mb", "tls"])
    assert table.loc[(250, "off")].to_list() == pytest.approx([5.09e9, 5.085e9, 5.095e9])


def test_a_text_that_has_no_such_figure():
    with pytest.raises(TlscostError, match=r"kant2000_text\.csv: no quantity 'phase of the moon'"):
        published.figures("kant2000_text", "phase of the moon")


def test_corners_bound_what_lies_between():
    box = pd.DataFrame({"value": [2.0], "low": [1.0], "high": [3.0]})
    found = relations.over_corners(np.divide, box, box + 3)
    assert found.iloc[0].to_list() == pytest.approx([2 / 5, 1 / 6, 3 / 4])


@pytest.mark.parametrize(
    ("relation", "rows"),
    [
        ("Table 2's relative throughput from Table 1", 9),
        ("Table 2's relative cycles/op from Table 1", 9),
        ("Table 5's relative_throughput", 24),
        ("equation 5's shares from its constants", 3),
        ("1000 / Table 1's throughputs [ms] on equation 5's line, SSL on", 3),
        ("1000 / Table 1's throughputs [ms] on equation 5's line, SSL off", 3),
        ("table 9 from tables 7 and 8", 16),
        ("Table 2's threads in all", 1),
        ("Table 3's differences [%]", 4),
    ],
)
def test_what_follows_within_rounding(checks, relation, rows):
    own = checks[checks["relation"] == relation]
    assert len(own) == rows
    assert own["agrees"].all()


def test_a_changed_figure_is_noticed(tmp_path, monkeypatch):
    copy = tmp_path / "data" / "published"
    shutil.copytree(paths.root() / "data" / "published", copy)
    altered = copy / "kant2000_table2_relative.csv"
    altered.write_text(altered.read_text().replace("7.07", "7.20"))
    monkeypatch.setenv("TLSCOST_ROOT", str(tmp_path))
    checks = relations.check_all()
    own = checks[checks["relation"] == "Table 2's relative throughput from Table 1"]
    assert own["agrees"].to_list().count(False) == 1


def test_where_documents_disagree_with_themselves_is_listed(checks):
    listed = pd.read_csv(paths.root() / "data" / "published" / "disagreements.csv")
    found = checks[~checks["agrees"]].drop(columns="agrees").reset_index(drop=True)
    assert listed[["document", "relation", "point"]].equals(
        found[["document", "relation", "point"]]
    )
    columns = ["printed", "low", "high"]
    assert np.allclose(listed[columns], found[columns], rtol=1e-4)


def test_equation_5_gives_the_published_shares():
    shares = relations.equation5_shares()
    assert shares["value"].to_list() == pytest.approx([43.05, 36.61, 20.34], abs=0.005)
    assert shares["value"].sum() == pytest.approx(100)
