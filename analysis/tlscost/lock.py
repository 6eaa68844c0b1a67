"""The machine's lock: one cell is measured at a time, with nothing of ours beside it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["machine_lock"]

# One per machine, whatever TMPDIR says.
LOCK_FILE = Path(os.environ.get("TLSCOST_LOCK", "/tmp/tlscost-measuring.lock"))


@contextmanager
def machine_lock(waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the machine's lock and give its descriptor.

    Whoever inherits the descriptor holds the lock too: given to the collector, it outlasts a sweep
    that was killed, until the last process of the killed sweep's cell is gone.

    Parameters
    ----------
    waiting : callable
        Called once if another measurement holds the lock.
    """
    descriptor = _open()
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            # Not filelock, which polls: between two cells of a long sweep it would never get in.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


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
