"""Where the project's data files and programs are."""

import os
from pathlib import Path

from tlscost.errors import CANNOT, TlscostError

__all__ = ["cache_dir", "machines_dir", "plan_file", "profiles_dir", "program", "root"]


def root() -> Path:
    """Return the project's top directory (the launcher sets TLSCOST_ROOT)."""
    return Path(os.environ.get("TLSCOST_ROOT") or Path(__file__).parents[2])


def cache_dir() -> Path:
    """Return the directory of what is built or fetched once, the launcher's too."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TLSCOST_CACHE") or base / "tlscost")


def profiles_dir() -> Path:
    """Return the directory of the TLS profiles."""
    return root() / "data" / "profiles"


def machines_dir() -> Path:
    """Return the directory of the simulated machines' files."""
    return root() / "data" / "machines"


def plan_file(name: str) -> Path:
    """Return the path of one of the project's own plans."""
    return root() / "data" / "plans" / f"{name}.toml"


def program(name: str) -> Path:
    """Return the path of one of the project's C programs (the launcher sets TLSCOST_BIN)."""
    directory = Path(os.environ.get("TLSCOST_BIN") or root() / "build" / "release" / "bin")
    path = directory / name
    if not os.access(path, os.X_OK):
        raise TlscostError(
            f"{path}: no such program; ./tlscost builds it, or set TLSCOST_BIN to the directory "
            "of another build",
            CANNOT,
        )
    return path
