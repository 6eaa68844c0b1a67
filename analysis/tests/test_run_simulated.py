"""Cells on simulated machines, with the real simulator and guest."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest
from command import start, tlscost
from serve import need
from test_run import below, until

from tlscost import record
from tlscost.errors import BAD_INPUT, DONE, FAILED, INTERRUPTED

QEMU = "qemu-system-i386"
MACHINE = "p3-xeon"
SHORT = ["--connections", "2", "--completions", "5", "--idle-s", "0.2", "--warmup-s", "0.1"]
SHORT += ["--window-s", "0.5"]


def cell(out: Path, *options: object) -> list[object]:
    words = ["run", "--machine", MACHINE, "--server", "serve", "--tls", "off", "--size", "30"]
    return [*words, *SHORT, "--out", out, *options]


def failure(out: Path) -> dict[str, object]:
    return dict(json.loads(out.with_suffix(".failed").read_text()))


def nothing_is_left(out: Path) -> None:
    assert not out.with_suffix(".lock").exists()
    ours = [p for p in psutil.process_iter(["cmdline"]) if str(out) in (p.info["cmdline"] or [])]
    assert ours == []


@pytest.mark.parametrize(("server", "cpus"), [("serve", 1), ("serve", 2), ("nginx", 1)])
def test_one_cell(tmp_path: Path, server: str, cpus: int) -> None:
    need(QEMU)
    out = tmp_path / "r.jsonl"
    done = tlscost(*cell(out, "--server", server, "--cpus", cpus, "--json"))
    assert done.returncode == DONE, done.stderr
    found = {(m["metric"], m["variant"]): m for m in json.loads(done.stdout)["metrics"]}
    path_length = found["path_length", None]
    assert path_length["origin"] == "counted"
    assert 20_000 < path_length["value"] < 1_000_000
    assert 0.5 < found["kernel_share", None]["value"] < 1
    # Never more misses with a larger cache of the same ways and lines, but for the sets' chances.
    misses = [found["l2_misses", variant]["value"] for variant in ("512k", "1m", "2m")]
    assert misses[0] > 0.9 * misses[1] > 0.8 * misses[2]
    assert found["cpi", "2m"]["origin"] == "modelled"
    assert found["throughput", None]["value"] is None
    whole = record.read(out)
    assert [times.cpu for times in whole.windows[0].cpus] == list(range(cpus))
    assert whole.header.machine is not None
    assert whole.header.machine.variants == ["512k", "1m", "2m"]
    counts = [c for c in whole.windows[0].counts if c.event == "INST_RETIRED"]
    assert {(c.cpu, c.mode) for c in counts} == {(i, m) for i in range(cpus) for m in "uk"}
    assert all(c.raw for c in counts if c.mode == "k")
    nothing_is_left(out)


def two_cells(tmp_path: Path, rest: str) -> Path:
    """Write a plan of two sizes."""
    plan = tmp_path / "p.toml"
    plan.write_text(
        f'[plan]\nname = "p"\n[cells]\nmachine = "{MACHINE}-2m"\nserver = "serve"\ntls = "off"\n'
        f'size = [30, "36KiB"]\n{rest}'
    )
    return plan


def test_cells_are_simulated_beside_each_other_and_once(tmp_path: Path) -> None:
    need(QEMU)
    rules = "idle_s = 0.2\nwindow_s = 0.5\ncompletions_per_connection = 5\n"
    plan = two_cells(tmp_path, f"load.connections = 2\n[cells.rules]\n{rules}")
    first, second = (start("sweep", plan, "--out", tmp_path / "out", "--json") for _ in range(2))
    results = [json.loads(process.communicate(timeout=300)[0]) for process in (first, second)]
    assert [result["cells"] for result in results] == [2, 2]
    assert [result["failures"] for result in results] == [[], []]
    records = list((tmp_path / "out" / "records").iterdir())
    assert len(records) == 2  # no lock, no partial, no earlier attempt
    for path in records:
        assert record.read(path).header.cell.machine == f"{MACHINE}-2m"


@pytest.mark.parametrize("victim", ["simulator", "sweep"])
def test_a_kill_leaves_nothing_but_what_was_measured(tmp_path: Path, victim: str) -> None:
    need(QEMU)
    out = tmp_path / "r.jsonl"
    partial = out.with_name(f"{out.name}.partial")
    process = start(*cell(out, "--windows", "1000"))
    until(lambda: partial.exists() and '"type":"window"' in partial.read_text())
    everyone = psutil.Process(process.pid).children(recursive=True)
    (simulator,) = below(process, QEMU)
    if victim == "simulator":
        simulator.kill()
    else:
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == (FAILED if victim == "simulator" else INTERRUPTED), stderr
    if victim == "simulator":
        assert "the simulated machine was killed by signal 9" in stderr
        assert "the guest's last words" in str(failure(out)["stderr"])
    psutil.wait_procs(everyone, timeout=60)
    assert [one for one in everyone if one.is_running()] == []
    assert '"type":"window"' in partial.read_text()


def test_an_interrupted_pool_stops_all_guests(tmp_path: Path) -> None:
    need(QEMU)
    plan = two_cells(tmp_path, "[cells.rules]\nwindow_s = 600\n")
    process = start("sweep", plan, "--out", tmp_path / "out")
    until(lambda: list((tmp_path / "out" / "records").glob("*.partial")))
    everyone = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, stderr
    psutil.wait_procs(everyone, timeout=60)
    assert [one for one in everyone if one.is_running()] == []
    assert list((tmp_path / "out" / "records").glob("*.failed")) == []


def test_what_a_simulated_machine_has_not_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for options, said in [
        (["--cpu-list", "0"], "--cpu-list: given [0]; the CPUs of p3-xeon are its own"),
        (["--cpus", "9"], "--cpus: given 9; p3-xeon is simulated with 1 to 8 CPUs"),
        (["--machine", "vax"], "--machine: given 'vax'; no such machine; allowed: native, p3-xeon"),
    ]:
        done = tlscost(*cell(out, *options))
        assert done.returncode == BAD_INPUT
        assert said in done.stderr
