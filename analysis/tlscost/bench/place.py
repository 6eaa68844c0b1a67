"""What a benchmark needs to find: peers, profiles, CPUs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tlscost.errors import TlscostError
from tlscost.paths import profiles_dir

__all__ = ["peer", "profile_path", "two_cpus"]


def profile_path(name: str) -> Path | None:
    """File of a TLS profile; None for ``off``."""
    if name == "off":
        return None
    return profiles_dir() / f"{name}.cnf"


def peer(name: str, package: str) -> str:
    """Path of a peer; an error that names its Debian package where it is missing."""
    path = shutil.which(name)
    if path is None:
        raise TlscostError(
            f"bench: {name} is not installed; as root: apt-get install {package}", exit_code=3
        )
    return path


def two_cpus() -> tuple[int, int]:
    """Return two CPUs to pin the two ends to: the measured one is the last."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise TlscostError("bench: needs two CPUs, this process may use one", exit_code=3)
    return cpus[0], cpus[-1]
