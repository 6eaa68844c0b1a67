"""The project's command line as its users start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tlscost.orphans import no_orphan

__all__ = ["PATIENCE_S", "start", "tlscost"]

PATIENCE_S = 120


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a command; it is stopped, with what it measures, when the tests are killed."""
    return subprocess.Popen(
        no_orphan([sys.executable, "-m", "tlscost", *map(str, arguments)]),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def tlscost(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which is never a traceback."""
    process = start(*arguments, **environment)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in stderr
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
