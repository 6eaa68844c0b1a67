"""A disk that is soon full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["small_disk"]


@contextmanager
def small_disk(at: Path, size_bytes: int, inodes: int = 0) -> Iterator[Path]:
    """Mount a tmpfs with so much room, and with so many inodes (0: no limit), at a new directory.

    Skips the test where that is not permitted.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small tmpfs")
    at.mkdir()
    options = f"size={size_bytes},nr_inodes={inodes}"
    mount, umount = shutil.which("mount"), shutil.which("umount")
    assert mount is not None
    assert umount is not None
    argv = [mount, "-t", "tmpfs", "-o", options, "tlscost-test", str(at)]
    if subprocess.run(argv, check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs here")
    try:
        yield at
    finally:
        subprocess.run([umount, str(at)], check=True)
