"""Runs a command to its end and says what time it took."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tlscost.errors import FAILED, TlscostError

__all__ = ["Done", "run"]


@dataclass(frozen=True)
class Done:
    """What a command that exited with 0 left.

    Attributes
    ----------
    stdout : what it wrote.
    cpu_s : its CPU time and its children's, start-up included [s].
    elapsed_s : from its start to its end [s].
    """

    stdout: bytes
    cpu_s: float
    elapsed_s: float


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> Done:
    """Run `command` with the variables of `env`, in that order (None: ours)."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=env
    )
    elapsed_s, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-400:]
        raise TlscostError(f"{' '.join(command)}: exit code {done.returncode}: {said}", FAILED)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Done(done.stdout, cpu_s, elapsed_s)
