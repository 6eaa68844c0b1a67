"""Tests that fail or are killed leave nothing behind that measures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from serve import need
from test_run import below, until
from test_run_simulated import QEMU, cell

from tlscost.orphans import no_orphan

ANALYSIS = Path(__file__).parents[1]
CONFTEST = "from tests.conftest import nothing_left_running\n"
TEST = """
import time
from pathlib import Path
from tests.command import start

def test_that_fails():
    start(*{arguments})
    while not Path("fail").exists():
        time.sleep(0.02)
    raise ValueError
"""


def inner(tmp_path: Path) -> subprocess.Popen[str]:
    """Start a test that starts a cell and fails once the file `fail` is there."""
    need(QEMU)
    arguments = list(map(str, cell(tmp_path / "r.jsonl", "--windows", "1000")))
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_inner.py").write_text(TEST.format(arguments=arguments))
    return subprocess.Popen(
        no_orphan([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_inner.py"]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ANALYSIS}:{ANALYSIS / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("end", ["fails", "is terminated", "is killed"])
def test_a_test_takes_its_cell_with_it(tmp_path: Path, end: str) -> None:
    process = inner(tmp_path)
    until(lambda: below(process, QEMU) or process.poll() is not None)
    everyone = psutil.Process(process.pid).children(recursive=True)
    assert len(everyone) >= 4  # the command, the collector, the simulator and its keeper
    if end == "fails":
        (tmp_path / "fail").touch()
    else:
        process.send_signal(signal.SIGKILL if end == "is killed" else signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert ("ValueError" in said) == (end == "fails"), said
    psutil.wait_procs(everyone, timeout=60)
    assert [one for one in everyone if one.is_running()] == []
