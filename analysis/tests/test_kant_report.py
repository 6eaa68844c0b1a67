"""The study's tables and figures: the plotted data, the regression, the whole report."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from synthetic import (
    SECOND,
    encode,
    histogram,
    idle,
    simulated_header,
    simulated_window,
    window,
    write,
)

from tlscost import cpi_model, frame, kant, kant_report, metrics, plots, report

mpl.use("Agg")

TABLE_1_FIRST_ROW = ["353", "2,496", "734", "49", "1.94", "4.13", "6.7", "3.2"]


@pytest.fixture(scope="module")
def theirs():
    return kant.theirs()


@pytest.fixture
def ax():
    return mpl.figure.Figure().subplots()


def record_of(directory, factor, **cell):
    """A simulated cell: everything per transaction is `factor` times what the window counts."""
    head = simulated_header(**cell)
    path = directory / f"{'-'.join(map(str, cell.values()))}.jsonl"
    line = simulated_window(transactions=round(1e6 / factor))
    path.write_bytes(encode(head, [idle(), line]))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two runs of three sizes on 1 and 2 CPUs, simulated and native; SSL costs more."""
    directory = tmp_path_factory.mktemp("kant")
    for tls, cost in {"off": 1, "kant2000": 6}.items():
        for size in kant.SIZES:
            for repetition in (1, 2):
                factor = cost * (1 + size / 36864) * (1 + 0.01 * repetition)
                cell = {"tls": tls, "size_bytes": size, "repetition": repetition}
                for cpus in (1, 2):
                    record_of(directory, factor, cpus=cpus, **cell)
                latency = {
                    "first_byte": histogram([round(1e6 * factor)] * 9),
                    "last_byte": histogram([round(2e6 * factor)] * 9),
                }
                name = f"native-{tls}-{size}-{repetition}.jsonl"
                lines = [{**native_window(factor), "latency": latency}]
                write(directory / name, lines, **cell)
    return directory


def native_window(factor):
    return window(transactions=round(1e6 / factor), end_ns=1010 * SECOND)


@pytest.fixture(scope="module")
def ours(records):
    return kant.ours(metrics.metrics_of(frame.load([records])))


def test_table_1_is_the_documents(theirs):
    table = kant_report.table(1, theirs, theirs)
    assert table.loc[("30B", 1, "published")].to_list() == TABLE_1_FIRST_ROW
    assert set(table.xs("ratio", level="").to_numpy().ravel()) == {"1.00"}
    assert list(table.index.get_level_values("file").unique()) == ["30B", "1MiB", "36KiB"]


@pytest.mark.parametrize("number", sorted({*kant_report.TABLES} - {"kernel"}, key=str))
def test_every_table_is_full_of_published_figures(theirs, number):
    table = kant_report.table(number, theirs, theirs)
    rows = 27 if number in (1, 2, 6, "misfit") else 18
    assert len(table) == rows
    assert (table.loc[pd.IndexSlice[:, :, ["published", "ours", "ratio"]], :] != "").all(axis=None)


def test_ours_beside_the_published(theirs, ours):
    table = kant_report.table(2, theirs, ours)
    relative = ("w/o / w/ SSL", "throughput")
    assert table.loc[("30B", 1, "published"), relative] == "7.07"
    assert table.loc[("30B", 1, "ours"), relative] == "6.00"
    assert table.loc[("30B", 1, "ratio"), relative] == "0.85"
    assert table.loc[("30B", 4, "ours"), relative] == ""


def test_what_the_kernel_does(theirs, ours):
    table = kant_report.table("kernel", theirs, ours)
    assert table.loc[("30B", 1, "published")].to_list() == ["734", "49", "", "", "", ""]
    row = table.loc[("1MiB", 1, "ours")].str.replace(",", "").astype(int)
    assert row.iloc[0] == pytest.approx(row.iloc[2] + row.iloc[4], abs=1)
    assert row.iloc[2] == pytest.approx(row.iloc[0] / 3, abs=1)


def test_modes_apart(records):
    table = kant_report.by_mode(frame.load([records])).set_index(["file", "TLS", "mode"])
    row = table.loc[("30B", "kant2000", "kernel")]
    assert row["of instructions"] == "33.3%"
    assert row["L1 instr. misses"] == "2.0%"
    assert row["L1 data misses"] == "5.0%"
    assert row["branches"] == ""
    assert len(table) == 3 * 2 * 2


def test_a_little_less_than_nothing_is_shown_as_nothing():
    study = pd.DataFrame(
        [[30, 1, 2048, tls, "l2_miss_ratio", -1e-6] for tls in ("on", "off")],
        columns=[*kant.POINT, "tls", "metric", "value"],
    )
    table = kant_report.table(2, study, study)
    assert table.loc[("30B", 1, "ours"), ("L2 misses [%]", "w/ SSL")] == "0.0"


@pytest.mark.parametrize("number", kant_report.FIGURES)
def test_figures_draw_the_published_figures(theirs, number, ax):
    data = kant_report.figure(number, theirs)
    assert len(data) == 18
    plots.bars(data, ax)
    for bars, side in zip(ax.containers, ["w/ SSL", "w/o SSL"], strict=True):
        own = data[data["side"] == side]
        assert np.allclose([bar.get_height() for bar in bars], own["value"])
    ticks = [text.get_text() for text in ax.get_xticklabels()]
    assert [tick.split("\n")[0] for tick in ticks] == ["1p", "2p", "4p"] * 3
    assert ax.get_ylim()[1] > data["value"].max()


def test_figure_1_takes_one_processor_with_ssl_as_1(theirs):
    data = kant_report.figure(1, theirs).set_index(["group", "cpus", "side"])["value"]
    assert data[("30B", 1, "w/ SSL")] == 1
    assert data[("30B", 4, "w/o SSL")] == pytest.approx(6531 / 353)
    assert data.max() < 20  # the document's axis


def test_figures_6_and_7_go_by_l2(theirs):
    data = kant_report.figure(7, theirs).set_index(["group", "cpus", "side"])["value"]
    assert data[("512KiB L2", 4, "w/ SSL")] == pytest.approx(44.7)
    assert data[("2MiB L2", 1, "w/o SSL")] == pytest.approx(1.9)


def test_nothing_to_draw_is_said(theirs, ax):
    plots.bars(kant_report.figure(1, theirs.iloc[:0]), ax)
    assert [text.get_text() for text in ax.texts] == ["not in these records"]


def test_shares_of_two_processors(theirs):
    found = kant_report.shares(theirs, cpus=2).set_index(["label", "part"])["share"]
    assert found[("36KiB", "handshake")] == pytest.approx(0.423, abs=1e-3)
    assert kant_report.shares(theirs, cpus=3).empty


def test_the_published_cpi_has_18_rows(theirs):
    rows = cpi_model.rows_of_study(theirs)
    assert len(rows) == 18
    model = cpi_model.fit(rows, cpi_model.RATIOS)
    # As statsmodels' formula interface and numpy's least squares give it.
    design = [np.ones(18), *(rows.eval(text) for text in cpi_model.RATIOS.values())]
    expected, *_ = np.linalg.lstsq(np.column_stack(design), rows["cpi"], rcond=None)
    assert np.allclose(model.coefficients["value"], expected)
    assert model.residuals["residual"].sum() == pytest.approx(0, abs=1e-9)
    assert model.coefficients["mean"].sum() == pytest.approx(rows["cpi"].mean())
    assert 0.9 < model.r_squared < 1
    assert model.lack_of_fit["reason"] == "no re-runs: no pure error to compare with"


def counted(noise, seed=1):
    """Rows whose CPI is a known sum of events per instruction."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0.001, 0.05, (20, 4))
    rows = pd.DataFrame(
        np.repeat(points, 2, axis=0),
        columns=["l1i_misses", "l1d_misses", "l2_misses", "mispredict"],
    )
    rows["cpi"] = 0.8 + rows.to_numpy() @ [12, 12, 70, 10] + noise * rng.normal(size=len(rows))
    return rows.assign(
        path_length=1.0,
        branch_frequency=1.0,
        mispredict_ratio=rows["mispredict"],
        point=[f"p{number // 2}" for number in range(len(rows))],
        tls="on",
    )


def test_known_penalties_are_found_again():
    model = cpi_model.fit(counted(noise=0.01), cpi_model.COUNTS)
    assert model.coefficients["value"].to_list() == pytest.approx([0.8, 12, 12, 70, 10], rel=0.05)
    assert (model.coefficients["low"] < [0.8, 12, 12, 70, 10]).all()
    assert (model.coefficients["high"] > [0.8, 12, 12, 70, 10]).all()
    assert model.lack_of_fit["p"] > 0.05


def test_a_bent_relation_lacks_fit():
    rows = counted(noise=0.01)
    model = cpi_model.fit(rows.assign(cpi=rows["cpi"] ** 2), cpi_model.COUNTS)
    assert model.lack_of_fit["p"] < 0.001


def test_too_few_rows_are_said(theirs):
    rows = cpi_model.rows_of_study(theirs)
    model = cpi_model.fit(rows.head(4), cpi_model.RATIOS)
    assert model.reason == "4 rows: too little for 4 predictors and a constant"
    assert cpi_model.table({"a": model})["predictor"].to_list() == [model.reason]
    lacking = cpi_model.fit(rows.drop(columns="l1d_miss_ratio"), cpi_model.RATIOS)
    assert "L1 data miss ratio" in lacking.reason


def test_runs_of_each_l2_are_rows(records):
    rows = cpi_model.rows_of_runs(metrics.run_values(frame.load([records])))
    assert len(rows) == 2 * 3 * 2 * 2 * 2  # TLS, sizes, runs, CPUs, variants
    assert set(rows["variant"]) == {"512k", "2m"}


def test_report_of_the_study(records, tmp_path):
    html = report.render([records], tmp_path, report.notebook_for([records])).read_text()
    assert "the study of 2000" in html
    for number in kant_report.FIGURES:
        assert (tmp_path / "figures" / f"figure-{number}.png").exists()
    assert "path length [1000]" in html
    assert "2,496" in html
    assert "does not hold" in html
    assert "Traceback" not in html


def test_report_of_records_that_are_not_of_the_study(tmp_path):
    for tls in ("off", "tls13"):
        write(tmp_path / f"{tls}.jsonl", size_bytes=30, tls=tls)
    html = report.render([tmp_path], tmp_path / "out", "kant2000").read_text()
    assert "not in these records" in html
