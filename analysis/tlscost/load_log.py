"""Reads what load generators say at their end: how many transactions, in what time."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlscost.errors import TlscostError

__all__ = ["LoadLog", "read"]

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_WRK = re.compile(r"^\s*(\d{1,18}) requests in (\d+(?:\.\d+)?)(us|ms|s|m|h), ", re.MULTILINE)
_WRK_CONNECTIONS = re.compile(r"^\s*\d+ threads and (\d{1,9}) connections", re.MULTILINE)
_WRK_ERRORS = re.compile(
    r"^\s*Socket errors: connect (\d{1,18}), read (\d{1,18}), write (\d{1,18}), "
    r"timeout (\d{1,18})",
    re.MULTILINE,
)
_WRK_STATUS = re.compile(r"^\s*Non-2xx or 3xx responses: (\d{1,18})", re.MULTILINE)
_H2LOAD = re.compile(r"^finished in (\d+(?:\.\d+)?)(us|ms|s|m|h), ", re.MULTILINE)
_H2LOAD_REQUESTS = re.compile(
    r"^requests: \d+ total, \d+ started, \d+ done, (\d{1,18}) succeeded, \d+ failed, "
    r"(\d{1,18}) errored, (\d{1,18}) timeout",
    re.MULTILINE,
)


@dataclass(frozen=True)
class LoadLog:
    """What a load generator counted.

    Attributes
    ----------
    tool : str
        `tlscost-load`, `wrk` or `h2load`.
    transactions : int
        Complete responses of the status that was asked for.
    elapsed_s : float
        Over which time [s].
    errors : dict
        {kind: count} of transactions that did not complete.
    counts : dict
        Further counts by their names in a record (`handshakes_full` ...).
    load : dict
        What it tells of the load (`connections`).
    """

    tool: str
    transactions: int
    elapsed_s: float
    errors: dict[str, int]
    counts: dict[str, int] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)


def read(path: Path | str) -> LoadLog:
    """Read the output of `tlscost-load --json`, wrk or h2load.

    Raises
    ------
    TlscostError
        Exit code 2: not such an output, or without transactions or time; names file and line.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise TlscostError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _refusal(path, 1, "not text in UTF-8") from error
    if text.lstrip().startswith("{"):
        log = _tlscost_load(path, text)
    elif _WRK.search(text):
        log = _wrk(path, text)
    elif _H2LOAD.search(text):
        log = _h2load(path, text)
    else:
        raise _refusal(
            path, 1, "neither `tlscost-load --json` nor the end of wrk's or h2load's output"
        )
    if log.elapsed_s <= 0:
        raise _refusal(path, 1, "says that no time passed")
    return log


def _tlscost_load(path: Path, text: str) -> LoadLog:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, getattr(error, "lineno", 1), f"not JSON: {error}") from error
    counts = document.get("counts")
    elapsed = document.get("elapsed_ns")
    if (
        not _is_count(elapsed)
        or not isinstance(counts, dict)
        or not _is_count(counts.get("completed"))
    ):
        raise _refusal(
            path, 1, "expected `elapsed_ns` and `counts.completed` of tlscost-load, whole numbers"
        )
    whole = {name: value for name, value in counts.items() if _is_count(value)}
    return LoadLog(
        tool="tlscost-load",
        transactions=whole.pop("completed"),
        elapsed_s=elapsed * 1e-9,
        errors={
            name.removeprefix("error_"): value
            for name, value in whole.items()
            if name.startswith("error_")
        },
        counts={name: value for name, value in whole.items() if not name.startswith("error_")},
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _wrk(path: Path, text: str) -> LoadLog:
    ends = _WRK.findall(text)
    if len(ends) != 1:
        raise _refusal(path, 1, f"holds the ends of {len(ends)} runs of wrk; expected one")
    [(requests, number, unit)] = ends
    sockets = _WRK_ERRORS.search(text)
    status = _WRK_STATUS.search(text)
    errors = {"status": int(status[1]) if status else 0}
    for index, kind in enumerate(("connect", "read", "write", "timeout"), 1):
        errors[kind] = int(sockets[index]) if sockets else 0
    if errors["status"] > int(requests):
        raise _refusal(path, 1, "more refused responses than requests")
    connections = _WRK_CONNECTIONS.search(text)
    return LoadLog(
        tool="wrk",
        transactions=int(requests) - errors["status"],
        elapsed_s=float(number) * _UNITS_S[unit],
        errors=errors,
        load={"connections": int(connections[1])} if connections else {},
    )


def _h2load(path: Path, text: str) -> LoadLog:
    ends, requests = _H2LOAD.findall(text), _H2LOAD_REQUESTS.findall(text)
    if len(ends) != 1 or len(requests) != 1:
        raise _refusal(path, 1, "expected the end of one run of h2load, with its line `requests:`")
    [(number, unit)], [(succeeded, errored, timeout)] = ends, requests
    return LoadLog(
        tool="h2load",
        transactions=int(succeeded),
        elapsed_s=float(number) * _UNITS_S[unit],
        errors={"errored": int(errored), "timeout": int(timeout)},
    )


def _refusal(path: Path, line: int, problem: str) -> TlscostError:
    return TlscostError(
        f"{path}:{line}: {problem}. Remedy: give the load generator's whole output, or the number "
        "of transactions as --transactions."
    )
