"""The sweep engine through the command line, with a small script as the measuring command."""

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import start

from tlscost import plan, sweep
from tlscost.errors import BAD_INPUT, CANNOT, DONE, FAILED, INTERRUPTED
from tlscost.paths import program
from tlscost.progress import Progress
from tlscost.record import is_whole
from tlscost.runner import Outcome

TESTS = Path(__file__).parent
PATIENCE_S = 60

PLAN = """
[plan]
name = "p"
retries = {retries}
[cells]
server = "serve"
tls = "off"
size = [1, 2, 3]
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that comes about sooner or later."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@dataclass
class Bench:
    """A directory with a plan, a small measuring command, and what starts sweeps there."""

    directory: Path

    @property
    def records(self) -> Path:
        return self.directory / "out" / "records"

    @property
    def control(self) -> Path:
        return self.directory / "control"

    @property
    def runs(self) -> list[str]:
        """Sizes of the cells in the order in which the command was run."""
        log = self.control / "log"
        names = log.read_text(encoding="utf-8").split() if log.exists() else []
        return [name.split("-")[2] for name in names]

    def record(self, size: str) -> Path:
        """Place of the record of a size, whether it is there or not."""
        listed = json.loads(self.sweep("--dry-run", "--json").stdout)
        return next(
            self.records / f"{cell['id']}.jsonl"
            for cell in listed["cells"]
            if f"-{size}-" in cell["id"]
        )

    def start(self, *options: str) -> subprocess.Popen[str]:
        environment = {
            "TLSCOST_BIN": str(self.directory / "bin"),
            "TLSCOST_LOCK": str(self.directory / "lock"),
            "TMPDIR": str(self.directory / "tmp"),
            "CONTROL": str(self.control),
        }
        plan, out = self.directory / "plan.toml", self.directory / "out"
        return start("sweep", plan, "--out", out, *options, **environment)

    def sweep(self, *options: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*options)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def held(self) -> bool:
        """Whether anybody holds the machine's lock."""
        descriptor = os.open(self.directory / "lock", os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "control").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "plan.toml").write_text(PLAN.format(retries=0))
    collect = shlex.join([sys.executable, str(TESTS / "measured.py")])
    probe = shlex.quote(str(program("tlscost-collect")))
    for name, line in {
        # What the machine can count is asked first, of the real one.
        "tlscost-collect": f'case $* in *--probe*) exec {probe} "$@" ;; esac\nexec {collect} "$@"',
        "tlscost-serve": "echo tlscost-serve of a test; echo no OpenSSL",
        "tlscost-load": "echo tlscost-load of a test; echo no OpenSSL",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    yield Bench(tmp_path)
    (tmp_path / "control" / "hold").unlink(missing_ok=True)


def test_every_cell_is_measured_once(bench: Bench) -> None:
    first = bench.sweep("--json")
    assert first.returncode == DONE, first.stderr
    assert json.loads(first.stdout) == {
        "plan": "p",
        "out": str(bench.directory / "out"),
        "cells": 3,
        "already": 0,
        "measured": 3,
        "failures": [],
    }
    assert bench.runs == ["1B", "2B", "3B"]
    assert sum(is_whole(path) for path in bench.records.glob("*.jsonl")) == 3
    again = bench.sweep("--json")
    assert again.returncode == DONE
    assert json.loads(again.stdout)["already"] == 3
    assert bench.runs == ["1B", "2B", "3B"]


def test_dry_run_lists_the_cells_and_measures_nothing(bench: Bench) -> None:
    listed = bench.sweep("--dry-run")
    assert listed.returncode == DONE
    assert [line.split("-")[2] for line in listed.stdout.splitlines()] == ["1B", "2B", "3B"]
    assert not (bench.directory / "out").exists()


def test_bad_plan_is_refused_before_anything_starts(bench: Bench) -> None:
    (bench.directory / "plan.toml").write_text(PLAN.format(retries=-1))
    refused = bench.sweep()
    assert refused.returncode == BAD_INPUT
    assert "plan.toml:4: plan.retries: given -1" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert bench.runs == []


def test_failed_cell_is_kept_with_its_reason_and_the_sweep_goes_on(bench: Bench) -> None:
    (bench.control / "fail").write_text(json.dumps({"-2B-": [1, FAILED]}))
    swept = bench.sweep("--json")
    assert swept.returncode == FAILED
    assert bench.runs == ["1B", "2B", "3B"]
    record = bench.record("2B")
    failed = json.loads(record.with_suffix(".failed").read_text())
    assert failed["reason"] == "run 1 was told to fail"
    assert failed["stderr"] == "first words\nrun 1 was told to fail\n"
    assert (failed["exit_code"], failed["attempt"]) == (FAILED, 1)
    assert failed["cell"]["size_bytes"] == 2
    assert record.with_name(f"{record.name}.partial").exists()
    (failure,) = json.loads(swept.stdout)["failures"]
    assert failure == {"cell": record.stem, "exit_code": 1, "reason": failed["reason"]}

    assert bench.sweep().returncode == DONE
    assert bench.runs == ["1B", "2B", "3B", "2B"]
    assert [path.name for path in bench.records.glob(f"{record.stem}*")] == [record.name]


def test_retries_come_after_all_other_cells(bench: Bench) -> None:
    (bench.directory / "plan.toml").write_text(PLAN.format(retries=2))
    (bench.control / "fail").write_text(json.dumps({"-1B-": [2, FAILED], "-2B-": [9, FAILED]}))
    swept = bench.sweep("--json")
    assert swept.returncode == FAILED
    assert bench.runs == ["1B", "2B", "3B", "1B", "2B", "1B", "2B"]
    record = bench.record("2B")
    assert json.loads(record.with_suffix(".failed").read_text())["attempt"] == 3
    assert len(list(bench.records.glob(f"{record.name}.attempt-*"))) == 2
    result = json.loads(swept.stdout)
    assert (result["measured"], len(result["failures"])) == (2, 1)


def test_what_this_machine_cannot_do_is_not_tried_again(bench: Bench) -> None:
    (bench.directory / "plan.toml").write_text(PLAN.format(retries=5))
    (bench.control / "fail").write_text(json.dumps({"-2B-": [9, CANNOT]}))
    assert bench.sweep().returncode == FAILED
    assert bench.runs == ["1B", "2B", "3B"]


def test_altered_record_is_measured_again_and_kept(bench: Bench) -> None:
    bench.sweep()
    record = bench.record("3B")
    record.write_text(record.read_text().replace('"transactions": 1000', '"transactions": 9000'))
    (bench.control / "hold").touch()
    process = bench.start()
    until(lambda: len(bench.runs) == 4)
    (aside,) = bench.records.glob(f"{record.name}.attempt-*")
    assert '"transactions": 9000' in aside.read_text()
    (bench.control / "hold").unlink()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == DONE
    assert is_whole(record)
    assert not aside.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_sweep_keeps_what_is_done_and_says_how_to_go_on(
    bench: Bench, number: signal.Signals
) -> None:
    (bench.control / "hold").write_text("-2B-")
    process = bench.start()
    until(lambda: any(bench.records.glob("*-2B-*.partial")))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == INTERRUPTED
    assert "to go on, give the same command again" in stderr
    assert not bench.held()
    (bench.control / "hold").unlink()
    result = json.loads(bench.sweep("--json").stdout)
    assert (result["already"], result["measured"]) == (1, 2)


def test_killed_sweep_stops_its_measurement_and_goes_on(bench: Bench) -> None:
    (bench.control / "hold").touch()
    process = bench.start()
    until(lambda: any(bench.records.glob("*.partial")))
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    until(lambda: not bench.held())
    assert list((bench.directory / "tmp").iterdir())
    (bench.control / "hold").unlink()
    result = json.loads(bench.sweep("--json").stdout)
    assert (result["already"], result["measured"]) == (0, 3)
    assert bench.runs == ["1B", "1B", "2B", "3B"]
    assert not list(bench.records.glob("*.attempt-*"))
    assert not list((bench.directory / "tmp").iterdir())


def test_measurement_that_outlives_a_killed_sweep_holds_the_machine(bench: Bench) -> None:
    for name in ("hold", "stubborn"):
        (bench.control / name).touch()
    killed = bench.start()
    until(lambda: any(bench.records.glob("*.partial")))
    killed.kill()
    killed.communicate(timeout=PATIENCE_S)
    assert bench.held()
    (bench.control / "stubborn").unlink()
    second = bench.start("--json")
    assert second.stderr is not None
    assert any("another measurement is on this machine" in line for line in second.stderr)
    assert bench.runs == ["1B"]
    (bench.control / "hold").unlink()
    stdout, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == DONE
    # The first cell's record came from the killed sweep's own command.
    assert bench.runs == ["1B", "2B", "3B"]
    assert json.loads(stdout)["measured"] == 3


def test_two_sweeps_share_the_work(bench: Bench) -> None:
    both = [bench.start(), bench.start()]
    for process in both:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == DONE
    assert sorted(bench.runs) == ["1B", "2B", "3B"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_so_many_simulated_cells_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    together = threading.Barrier(jobs)  # opens once `jobs` cells are being measured
    under_way = threading.Semaphore(jobs)  # and holds off no more than these

    def measure(*_: object) -> Outcome:
        assert under_way.acquire(blocking=False)
        together.wait(PATIENCE_S)
        under_way.release()
        return Outcome(DONE, "")

    text = PLAN.format(retries=0) + 'machine = "p3-xeon-2m"\n'
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sweep, "measure_cell", measure)
    cells = plan.read(tmp_path / "p.toml").cells()
    result = sweep.run(cells, tmp_path / "out", retries=0, progress=Progress(), jobs=jobs)
    assert (result.cells, result.measured) == (3, 3)
