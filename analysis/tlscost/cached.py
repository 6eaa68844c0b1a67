"""What is made once and kept in the cache, named by the hash of all that it is made of."""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tlscost.paths import cache_dir

__all__ = ["file_digest", "made_once"]

_DIGEST_CHARACTERS = 16  # as the launcher names what it caches


def made_once(
    kind: str,
    made_of: Iterable[str],
    make: Callable[[Path], None],
    say: Callable[[str], None] = lambda _line: None,
) -> Path:
    """Return the cache's directory of that kind made of these, made where it is not there yet.

    Parameters
    ----------
    kind : str
        The directory's name up to the hash. One process at a time makes directories of a kind.
    made_of : iterable of str
        All that the contents hang on; files by `file_digest`.
    make : callable
        Fills the directory that it is given, which gets its name once that is done.
    say : callable
        Gets a line where another process has to be waited for.
    """
    texts = "\n".join(made_of).encode()
    digest = hashlib.sha256(texts).hexdigest()[:_DIGEST_CHARACTERS]
    directory = cache_dir() / f"{kind}-{digest}"
    if directory.exists():
        return directory
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f"{kind}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that makes {kind}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            _make_whole(directory, make)
    return directory


def file_digest(path: Path) -> str:
    """Return a file's name and the hash of its contents."""
    with path.open("rb") as contents:
        return f"{path.name} {hashlib.file_digest(contents, 'sha256').hexdigest()}"


def _make_whole(directory: Path, make: Callable[[Path], None]) -> None:
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; the lock is held
    partial.mkdir()
    try:
        make(partial)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
