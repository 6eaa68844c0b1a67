"""Settings of all tests: `pytest --hypothesis-profile=long -k fuzz` fuzzes for minutes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings
from serve import need, program

# No deadlines: machines are shared, and a pause of theirs is no finding.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")
settings.register_profile("long", settings(), max_examples=100_000)

STOPPING_S = 60  # a measurement stops in order


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """End what a test that failed midway has left: it would hold the machine's lock."""
    before = children()
    yield
    left = [psutil.Process(pid) for pid in children() - before if psutil.pid_exists(pid)]
    for process in left:
        process.terminate()
    for process in psutil.wait_procs(left, STOPPING_S)[1]:
        process.kill()


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").glob("*/children")
        for pid in task.read_text().split()
    }


@pytest.fixture
def as_nobody() -> Iterator[tuple[list[str], Path]]:
    """Words that run a command as an ordinary user, and a directory of that user's.

    The programs are copied, since their directory may be closed to others.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root")
    setpriv = need("setpriv")
    with tempfile.TemporaryDirectory(prefix="tlscost-nobody-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        for program_name in ("tlscost-collect", "tlscost-serve", "tlscost-load"):
            shutil.copy(program(program_name), directory)
        words = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        yield [*words, "--bounding-set=-all", "--inh-caps=-all"], directory
