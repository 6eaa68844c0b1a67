"""Writes a record as the collector does: whole or not at all, and never one that cannot be read."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tlscost import record
from tlscost.errors import FAILED, TlscostError

__all__ = ["check_absent", "write"]


def write(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write header, `idle` and `window` lines, and the footer that makes them a record.

    Written to NAME.partial, read back by the reader of records, synced and renamed.

    Parameters
    ----------
    path : Path
        A `.jsonl` file; one that is there is left alone, as records are never edited.
    header, lines : mappings
        As docs/record-format.md has them.

    Raises
    ------
    TlscostError
        A record is there already (exit code 2); it cannot be written (exit code 1).
    """
    check_absent(path)
    measured = list(lines)
    body = b"".join(_encode(line) for line in [header, *measured])
    footer = {
        "type": "footer",
        "lines": 1 + len(measured),
        "windows": sum(line["type"] == "window" for line in measured),
        "ended_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(body + _encode(footer))
            file.flush()
            os.fsync(file.fileno())
        record.read(partial)
        partial.rename(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise TlscostError(f"{partial}: {error.strerror or error}", FAILED) from error


def check_absent(path: Path) -> None:
    """Raise TlscostError (exit code 2) where a record is there already."""
    if path.exists():
        raise TlscostError(f"{path}: is there already, and records are never edited; delete it")


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
