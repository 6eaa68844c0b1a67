import re

import matplotlib as mpl
import nbformat
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

from tlscost import decompose, frame, metrics, paths, plots, record, report, summary
from tlscost.errors import TlscostError

mpl.use("Agg")

NOTEBOOKS = sorted((paths.root() / "notebooks").glob("*.ipynb"))
MS = {"off": (0.05, 0.001), "tls13": (0.5, 0.003)}


def overlapping(head):
    head["placement"] |= {"overlap": True, "reason": "2 CPUs on a machine of 2"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two TLS settings, three sizes, 1 and 2 CPUs (the latter shared with the load), two runs."""
    directory = tmp_path_factory.mktemp("records")
    for tls, (fixed, slope) in MS.items():
        for size in (30, 36864, 1 << 20):
            for cpus in (1, 2):
                for repetition in (1, 2):
                    time_ms = (fixed + slope * size / 1024) * (1 + 0.01 * repetition)
                    times = [dict(window()["cpus"][0], cpu=cpu) for cpu in range(cpus)]
                    line = window(
                        transactions=round(0.75e6 / time_ms) * cpus,
                        end_ns=1010 * SECOND,
                        cpus=[cpu | {"idle_ns": 250 * SECOND} for cpu in times],
                        latency={"first_byte": histogram([int(time_ms * 1e6)] * 10)},
                        errors={"timeout": 0},
                    )
                    cell = {"tls": tls, "size_bytes": size, "cpus": cpus, "repetition": repetition}
                    name = "-".join(map(str, cell.values()))
                    edit = overlapping if cpus == 2 else lambda head: None
                    write(directory / f"{name}.jsonl", [line], edit, **cell)
    return directory


@pytest.fixture(scope="module")
def tidy(measured):
    return frame.load([measured])


@pytest.fixture(scope="module")
def table(tidy):
    return metrics.metrics_of(tidy)


@pytest.fixture
def ax():
    figure = mpl.figure.Figure()
    return figure.subplots()


def drawn(ax, points):
    """y data of the lines that have as many points, without those that only make a legend."""
    return sorted(tuple(line.get_ydata()) for line in ax.lines if len(line.get_xdata()) == points)


def test_throughput_draws_the_values(table, ax):
    one = table[table["cpus"] == 1]
    assert plots.throughput(one, ax) is ax
    expected = one[one["metric"] == "throughput"].sort_values("size_bytes")
    lines = [tuple(rows["value"]) for _, rows in expected.groupby("tls")]
    assert drawn(ax, 3) == sorted(lines)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["30B", "36KiB", "1MiB"]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["off", "tls13", "serve"]


def test_scaling_is_relative_to_the_fewest_cpus(table, ax):
    plots.scaling(table[table["size_bytes"] == 36864], ax)
    assert np.allclose(drawn(ax, 2), [(1, 2)] * 3)


def test_first_byte_draws_the_quantiles(table, ax):
    chosen = table[(table["size_bytes"] == 36864) & (table["cpus"] == 1)]
    plots.first_byte(chosen, ax)
    expected = [(fixed + slope * 36) * 1.015 for fixed, slope in MS.values()]
    assert np.allclose(drawn(ax, 4), [[value] * 4 for value in sorted(expected)], rtol=6e-3)


def test_shares_draws_stacks_that_add_up(tidy, ax):
    fits = decompose.fit_runs(metrics.run_values(tidy))
    shares = summary.fitted_shares(fits)
    plots.shares(shares, ax)
    widths = [[bar.get_width() for bar in bars] for bars in ax.containers]
    assert np.allclose(np.sum(widths, axis=0), 1)
    by_part = {part: rows["share"].to_list() for part, rows in shares.groupby("part")}
    assert np.allclose(widths, [by_part[part] for part in plots.PARTS])
    assert np.allclose(
        shares[shares["label"] == "36KiB"]["share"],
        [0.45 / 0.608, 0.072 / 0.608, 0.086 / 0.608],
        rtol=0.01,
    )


def test_lines_draws_points_and_fits(tidy, ax):
    fits = decompose.fit_runs(metrics.run_values(tidy))
    points, fitted = summary.fitted_points(fits), summary.fitted_lines(fits, [1, 10, 100])
    plots.lines(points, fitted, ax)
    (dots,) = [one for one in ax.collections if len(one.get_offsets())]
    assert np.allclose(dots.get_offsets(), points[["size_kib", "time_ms"]])
    assert np.allclose(
        drawn(ax, 3)[0], [(0.05 + 0.001 * size) * 1.015 for size in (1, 10, 100)], rtol=0.01
    )


@pytest.mark.parametrize("plot", [plots.throughput, plots.scaling, plots.first_byte])
def test_nothing_to_draw_is_said(table, plot, ax):
    plot(table.iloc[:0], ax)
    assert [text.get_text() for text in ax.texts] == ["not in these records"]


def test_slowdown_beside_the_published(table):
    found = summary.slowdown(table)
    assert found[["TLS", "CPUs"]].to_numpy().tolist()[:2] == [["tls13", 1], ["tls13", 2]]
    assert found["36KiB"].to_list() == pytest.approx([0.608 / 0.086] * 2 + [5.58, 4.77], abs=0.01)


def test_what_could_not_be_measured_is_said_with_its_reason(table):
    found = summary.not_measured(table).set_index("reason")
    shared = found.loc["2 CPUs on a machine of 2"]
    assert "scaled_throughput" in shared["metrics"]
    assert shared["cells"] == "6 of 12"


def test_warnings(measured, table):
    records = [record.read(path) for path in frame.record_paths([measured])]
    found = " ".join(summary.warnings(records, table)["warning"])
    assert "server and load share CPUs (2 CPUs on a machine of 2)" in found
    assert "20 completions per connection" in found
    assert "two runs: wide intervals" in found
    assert "failed" not in found


def test_what_went_wrong_in_a_run_is_a_warning(tmp_path):
    cpu = window()["cpus"][0] | {"steal_ns": SECOND // 2}
    write(tmp_path / "a.jsonl", [window(cpus=[cpu], notes=["throughput was not steady"])])
    tidy = frame.load([tmp_path])
    records = [record.read(tmp_path / "a.jsonl")]
    found = " ".join(summary.warnings(records, metrics.metrics_of(tidy))["warning"])
    assert "transactions failed (timeout)" in found
    assert "throughput was not steady" in found
    assert "took more than 1 % of a CPU" in found
    assert "one run: no interval" in found


def test_machine_shows_every_value_and_ranges_of_numbers(tmp_path):
    for hz in (2599, 2601, 2600):
        path = tmp_path / f"{hz}.jsonl"
        write(path, edit=lambda head, hz=hz: head["provenance"].update(tsc_hz=hz))
    records = [record.read(path) for path in frame.record_paths([tmp_path])]
    found = summary.machine(records).set_index("property")["value"]
    assert found["tsc hz"] == "2599 to 2601"
    assert found["cpu model"] == "Test CPU"
    assert found["governor"] == "unknown"
    assert found["mitigations"] == "spectre_v2: Mitigation: Retpolines"


def test_report_stands_alone(measured, tmp_path):
    page = report.render([measured], tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    html = page.read_text()
    assert html.count("<img ") == 5
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", html)
    assert not re.findall(r"https?://|<script|@import|url\(", html)
    assert "2 CPUs on a machine of 2" in html
    assert "Test CPU" in html
    assert "Traceback" not in html
    assert "import " not in html


def test_report_of_a_single_cell(tmp_path):
    path = write(tmp_path / "a.jsonl", size_bytes=30)
    html = report.render([path], tmp_path).read_text()
    assert "one run: no interval" in html


def test_a_failing_cell_is_named(tmp_path):
    node = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("limit = 1", metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell("assert limit == 1, 'given'"),
        ]
    )
    path = tmp_path / "broken.ipynb"
    nbformat.write(node, path)
    with pytest.raises(TlscostError, match=r"broken\.ipynb: a cell failed: AssertionError: given"):
        report.execute(path, {"limit": 2})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_without_outputs(path):
    node = nbformat.read(path, as_version=4)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    assert "parameters" in code[0].metadata["tags"]
    for cell in code:
        assert cell.outputs == []
        assert cell.execution_count is None
        assert len(cell.source.splitlines()) <= 10
        assert not re.search(r"^\s*(def|class)\b", cell.source, re.MULTILINE)


def test_decomposition_table(tidy):
    found = summary.decomposition(decompose.fit_runs(metrics.run_values(tidy)))
    assert found["handshake"].to_list()[0].startswith("74.0%")
    assert found["handshake"].to_list()[-1] == "43.0%"
    assert pd.Series(found["lack of fit"]).iloc[0].startswith("p = ")


def test_events_of_simulated_machines_say_how_they_came_about(tmp_path):
    head = simulated_header(machine="p3-xeon")
    lines = [idle(), simulated_window()]
    (tmp_path / "a.jsonl").write_bytes(encode(head, lines))
    write(tmp_path / "b.jsonl")
    found = summary.events(metrics.metrics_of(frame.load([tmp_path]))).set_index("machine")
    assert list(found.index) == ["native", "p3-xeon-512k", "p3-xeon-2m"]
    assert found.loc["native", "origin"] == "counted"
    origin = "path length counted; ratios simulated; CPI modelled"
    assert found.loc["p3-xeon-2m", "origin"] == origin
    assert found.loc["p3-xeon-2m", "path length"] == "300,000"
    assert found.loc["p3-xeon-512k", "L2 misses"] == "10.00%"
    assert found.loc["p3-xeon-2m", "CPI"] == "2"
