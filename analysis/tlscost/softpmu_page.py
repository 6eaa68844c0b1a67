"""Arms and disarms a running simulated machine through the page that its plugin shares."""

import mmap
import struct
import time
from pathlib import Path

from tlscost.errors import FAILED, TlscostError

__all__ = ["arm", "disarm"]

# collector/softpmu_page.h: magic and version, where `wanted` and `state` are, and their values.
_MAGIC, _VERSION = b"softpmu1", 1
_WANTED, _STATE = 88, 92
_DISARM, _ARM = 0, 1
_DISARMED, _ARMED = 1, 2
_PATIENCE_S = 60  # machines are shared; it takes milliseconds


def arm(page: Path) -> None:
    """Make the machine of that page count, and wait until it does."""
    _switch(page, _ARM, _ARMED)


def disarm(page: Path) -> None:
    """Make the machine of that page run without instrumentation, and wait until it does."""
    _switch(page, _DISARM, _DISARMED)


def _switch(page: Path, wanted: int, expected: int) -> None:
    with page.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        found = struct.unpack_from("=8sI", mapped)
        if found != (_MAGIC, _VERSION):
            raise TlscostError(f"{page}: no page of version {_VERSION}; it begins {found}", FAILED)
        struct.pack_into("=I", mapped, _WANTED, wanted)
        deadline = time.monotonic() + _PATIENCE_S
        while (state := struct.unpack_from("=I", mapped, _STATE)[0]) != expected:
            if time.monotonic() > deadline:
                raise TlscostError(
                    f"{page}: the simulated machine is in state {state}, not {expected}, "
                    f"{_PATIENCE_S} s after it was asked",
                    FAILED,
                )
            time.sleep(0.01)
