"""Locks: who measures this machine has it to itself, and no record is made twice at once."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["machine_lock", "record_lock"]

# One per machine, whatever TMPDIR says.
LOCK_FILE = Path(os.environ.get("TLSCOST_LOCK", "/tmp/tlscost-measuring.lock"))


@contextmanager
def machine_lock(waiting: Callable[[], None], *, shared: bool = False) -> Iterator[int]:
    """Hold the machine's lock and give its descriptor.

    Whoever inherits the descriptor holds the lock too: given to the collector, it outlasts a sweep
    that was killed, until the last process of the killed sweep's cell is gone.

    Parameters
    ----------
    waiting : callable
        Called once if another measurement holds the lock.
    shared : bool
        With others that hold it so: by cells that do not measure this machine.
    """
    descriptor = _open()
    try:
        _take(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, waiting)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def record_lock(record: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of one record, NAME.lock beside it, and give its descriptor."""
    path = record.with_suffix(".lock")
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(descriptor, fcntl.LOCK_EX, waiting)
            if not _is_still(path, descriptor):  # its holder removed it when done
                continue
            yield descriptor
            path.unlink()
            return
        finally:
            os.close(descriptor)


def _take(descriptor: int, how: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        # Not filelock, which polls: between two cells of a long sweep it would never get in.
        fcntl.flock(descriptor, how)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _open() -> int:
    # Opened without O_CREAT where it is there: in a sticky directory the kernel lets not even root
    # O_CREAT a file that another user made.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(LOCK_FILE, flags)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(LOCK_FILE, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(LOCK_FILE, flags)
    os.fchmod(descriptor, 0o644)
    return descriptor
