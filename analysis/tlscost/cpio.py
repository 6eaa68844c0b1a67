"""Archives that Linux unpacks as its first file system: cpio, format "newc".

Written here because the cpio program copies what the file system says of a file (times, owners,
numbers of links), and the same contents must give the same bytes anywhere.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Entry", "directory", "file", "pack", "symlink"]

_ALIGNMENT_BYTES = 4
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link: type and permissions as in st_mode, and contents."""

    mode: int
    contents: bytes = b""


def file(contents: bytes, permissions: int = 0o644) -> Entry:
    """Return an entry that is a file."""
    return Entry(stat.S_IFREG | permissions, contents)


def directory(permissions: int = 0o755) -> Entry:
    """Return an entry that is a directory."""
    return Entry(stat.S_IFDIR | permissions)


def symlink(target: str) -> Entry:
    """Return an entry that is a symbolic link."""
    return Entry(stat.S_IFLNK | 0o777, target.encode())


def pack(entries: Mapping[str, Entry]) -> bytes:
    """Pack entries, by their paths without a leading slash, and the directories above them.

    Everything belongs to root and is of the epoch. Padded, so that another archive can follow.
    """
    whole: dict[str, Entry] = {}
    for path, entry in entries.items():
        parts = path.split("/")
        for depth in range(1, len(parts)):
            whole.setdefault("/".join(parts[:depth]), directory())
        whole[path] = entry
    records = [
        _record(number, path, whole[path]) for number, path in enumerate(sorted(whole), start=1)
    ]
    archive = b"".join([*records, _record(0, "TRAILER!!!", Entry(0))])
    return _padded(archive, _BLOCK_BYTES)


def _record(number: int, path: str, entry: Entry) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    uid = gid = mtime = device = 0
    fields = [number, entry.mode, uid, gid, links, mtime, len(entry.contents)]
    fields += [device] * 4 + [len(name), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name, _ALIGNMENT_BYTES) + _padded(entry.contents, _ALIGNMENT_BYTES)


def _padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)
