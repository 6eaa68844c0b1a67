"""Commands on records, end to end: what scripts rely on are JSON shapes and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import tlscost
from synthetic import SECOND, window, write

from tlscost.errors import BAD_INPUT, DONE

TESTS = Path(__file__).parent
SIZES = (30, 36864, 1 << 20)
METRIC_KEYS = [
    *["cell", "variant", "metric", "value", "low", "high", "n"],
    *["unit", "quality", "origin", "source", "reason"],
]
INTERVAL_KEYS = {"value", "low", "high"}


def document(*arguments: object) -> Any:
    """What a command that ends well prints: one JSON document and nothing else."""
    done = tlscost(*arguments)
    assert done.returncode == DONE, done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)


def refused(*arguments: object) -> str:
    done = tlscost(*arguments)
    assert done.returncode == BAD_INPUT
    assert done.stdout == ""
    return done.stderr


def measure(directory: Path, factor: float = 1.0) -> Path:
    """Write records of T = 0.1 + 0.001 x [ms] without TLS and 0.5 + 0.003 x with, times factor."""
    directory.mkdir()
    for tls, (fixed, slope) in {"off": (0.1, 0.001), "tls13": (0.5, 0.003)}.items():
        for size in SIZES:
            for repetition in (1, 2, 3):
                time_ms = factor * (fixed + slope * size / 1024) * (1 + 0.01 * repetition)
                line = window(
                    transactions=round(0.75e6 / time_ms),
                    end_ns=1010 * SECOND,
                    cpus=[window()["cpus"][0] | {"idle_ns": 250 * SECOND}],
                )
                cell = {"tls": tls, "size_bytes": size, "repetition": repetition}
                write(directory / f"{tls}-{size}-{repetition}.jsonl", [line], **cell)
    return directory


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(tmp_path_factory.mktemp("cli") / "a")


def test_metrics_as_json(records: Path) -> None:
    rows = document("metrics", records, "--format", "json")
    assert all(list(row) == METRIC_KEYS for row in rows)
    cells = {json.dumps(row["cell"], sort_keys=True) for row in rows}
    assert len(cells) == 2 * len(SIZES)
    scaled = [
        row
        for row in rows
        if row["metric"] == "scaled_throughput"
        and (row["cell"]["tls"], row["cell"]["size_bytes"]) == ("off", 1 << 20)
    ]
    (row,) = scaled
    assert row["value"] == pytest.approx(1000 / (0.1 + 1.024) / 1.02, rel=1e-3)
    assert row["low"] < row["value"] < row["high"]
    assert (row["n"], row["quality"], row["origin"], row["reason"]) == (3, "exact", "counted", None)
    assert all(row["reason"] for row in rows if row["value"] is None)


def test_metrics_as_csv_and_table_say_the_same(records: Path) -> None:
    csv = tlscost("metrics", records, "--format", "csv")
    table = tlscost("metrics", records)
    assert csv.returncode == table.returncode == DONE
    head, *rows = csv.stdout.splitlines()
    assert head.split(",")[0] == "cell"
    assert "value,low,high,n,unit,quality,origin,source,reason" in head
    for word in ("scaled_throughput", "tls13", "counted"):
        assert any(word in row for row in rows)
        assert word in table.stdout


def test_compare_as_json(records: Path, tmp_path: Path) -> None:
    rows = document("compare", records, measure(tmp_path / "b", factor=2.0), "--json")
    keys = {
        "cell",
        "variant",
        "metric",
        "unit",
        "value_a",
        "value_b",
        "ratio",
        "low",
        "high",
        "p",
        "p_holm",
    }
    assert all(set(row) == keys | {"significant", "n_a", "n_b", "reason"} for row in rows)
    throughput = [row for row in rows if row["metric"] == "throughput"]
    assert len(throughput) == 2 * len(SIZES)
    for row in throughput:
        assert row["ratio"] == pytest.approx(0.5, rel=1e-2)
        assert row["low"] < row["ratio"] < row["high"] < 1
        assert row["significant"] is True
        assert row["cell"]["load"] == {"connections": 8, "loop": "closed"}


def test_compare_table_and_refusal(records: Path, tmp_path: Path) -> None:
    one = write(tmp_path / "other.jsonl", server="nginx")
    assert "no cell in common" in refused("compare", records, one)
    assert "not in B" in tlscost("compare", records, records / "off-30-1.jsonl").stdout


@pytest.mark.parametrize("source", ["records", "csv"])
def test_decompose_as_json(records: Path, tmp_path: Path, source: str) -> None:
    path = records
    if source == "csv":
        path = tmp_path / "points.csv"
        lines = [f"on,{x},{0.5 + 0.003 * x}\noff,{x},{0.1 + 0.001 * x}\n" for x in (1, 36, 1024)]
        path.write_text("tls,size_kib,time_ms\n" + "".join(lines))
    fit = document("decompose", path, "--json", "--at", "36", "--at", "100")
    expected = {"t_s0": 0.5, "t_s1": 0.003, "t_n0": 0.1, "t_n1": 0.001}
    for name, value in expected.items():
        assert set(fit[name]) == INTERVAL_KEYS
        assert fit[name]["value"] == pytest.approx(value, rel=0.03)
    assert "lack_of_fit" in fit
    shares = {share["size_kib"]: share for share in fit["shares"]}
    assert set(shares) >= {36, 100}
    whole = 0.5 + 0.003 * 36
    assert shares[36]["handshake"] == pytest.approx(0.4 / whole, rel=0.01)
    assert shares[36]["encryption"] == pytest.approx(0.072 / whole, rel=0.01)
    assert shares[36]["rest"] == pytest.approx(0.136 / whole, rel=0.01)


def test_decompose_refuses_what_cannot_be_fitted(records: Path, tmp_path: Path) -> None:
    assert "nothing to decompose" in refused("decompose", records / "off-30-1.jsonl")
    table = tmp_path / "points.csv"
    table.write_text("tls,size_kib,time_ms\nmaybe,1,1\n")
    assert f"{table}: " in refused("decompose", table, "--json")


def test_report_leaves_a_page_and_its_figures(records: Path, tmp_path: Path) -> None:
    done = tlscost("report", records, "--out", tmp_path / "out")
    assert done.returncode == DONE, done.stderr
    page = tmp_path / "out" / "report.html"
    assert done.stdout.strip() == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    figures = sorted((tmp_path / "out" / "figures").iterdir())
    assert [path.name for path in figures] == [
        *["decomposition.png", "first-byte.png", "scaling.png", "throughput.png", "time.png"]
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n") for path in figures)


def test_profiles_and_machines() -> None:
    profiles = {profile["name"]: profile for profile in document("profiles", "--json")}
    assert profiles["tls13-ecdsa-x25519"]["protocol"] == "TLSv1.3"
    assert profiles["tls13-ecdsa-x25519"]["weak"] is False
    assert profiles["tls12-krsa512-aes128gcm"]["weak"] is True
    listed = tlscost("profiles").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(profiles)
    native, *simulated = document("machines", "--json")
    assert native["name"] == "native"
    assert native["description"]
    assert "p3-xeon-2m" in {machine["name"] for machine in simulated}
    assert tlscost("machines").stdout.startswith("native ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["metrics", "nowhere"], "nowhere: no such file or directory"),
        (["metrics", TESTS], "no record"),
        (["report", "nowhere", "--out", "nowhere"], "nowhere: no such file or directory"),
        (["compare", "nowhere", "nowhere"], "nowhere: no such file or directory"),
        (["decompose", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["test", "everything"], "no part 'everything'"),
        (["metrics"], "Missing argument"),
        (["measure"], "No such command"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_bad_input(arguments: list[object], words: str) -> None:
    assert words in refused(*arguments)


def test_a_record_cut_short_is_refused_by_every_command(records: Path, tmp_path: Path) -> None:
    whole = (records / "off-30-1.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: len(whole) // 2])
    for command in (["metrics"], ["decompose"], ["compare", records], ["report"]):
        out = ["--out", tmp_path / "out"] if command == ["report"] else []
        assert "cut.jsonl" in refused(*command, cut, *out)
    assert not (tmp_path / "out").exists()
