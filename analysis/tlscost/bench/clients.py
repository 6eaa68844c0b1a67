"""tlscost-load and its peers: how each is called and how many transactions it says it did."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tlscost.errors import TlscostError
from tlscost.paths import program

__all__ = ["CLIENTS", "Client", "Target"]

CONNECTIONS = 16


@dataclass(frozen=True)
class Target:
    """What a client is to fetch: one new connection and full handshake per transaction."""

    address: str
    port: int
    size_bytes: int
    profile: Path | None
    cpu: int

    @property
    def url(self) -> str:
        """The body's URL."""
        scheme = "http" if self.profile is None else "https"
        return f"{scheme}://{self.address}:{self.port}/{self.size_bytes}"


@dataclass(frozen=True)
class Client:
    """A load generator: its command for a target, and the reader of its output.

    ``command`` takes the target, the seconds to run and the number of transactions that fill them
    (h2load reconnects only when it is given a number); ``tls_only``: knows no plain connections.
    """

    name: str
    command: Callable[[Target, int, int], list[str]]
    transactions: Callable[[str], int]
    tls_only: bool = False


def _number(pattern: str, who: str) -> Callable[[str], int]:
    def read(output: str) -> int:
        match = re.search(pattern, output, re.MULTILINE)
        if match is None or int(match[1]) == 0:
            raise TlscostError(f"{who} completed nothing; it said: {output[-600:]}", exit_code=1)
        return int(match[1])

    return read


def _load_command(target: Target, seconds: int, _: int) -> list[str]:
    profile = [] if target.profile is None else ["--profile", str(target.profile)]
    return [
        *[str(program("tlscost-load")), "--url", target.url, *profile, "--json"],
        *["--cpu-list", str(target.cpu), "--connections", str(CONNECTIONS)],
        *["--duration", str(seconds), "--expect-size", str(target.size_bytes)],
    ]


def _load_size_command(target: Target, seconds: int, transactions: int) -> list[str]:
    return [*_load_command(target, seconds, transactions), "--check", "size"]


def _load_transactions(output: str) -> int:
    counts = json.loads(output)["counts"]
    errors = {name: count for name, count in counts.items() if name.startswith("error") and count}
    if errors or not counts["completed"]:
        raise TlscostError(f"tlscost-load had errors: {errors}", exit_code=1)
    return int(counts["completed"])


def _wrk_command(target: Target, seconds: int, _: int) -> list[str]:
    return [
        *["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"],
        *["-H", "Connection: close", target.url],
    ]


def _h2load_command(target: Target, _: int, transactions: int) -> list[str]:
    # Its own default suites are TLS 1.3's and ECDHE's; the server's profile decides all the same.
    return [
        *["h2load", "--h1", "-t1", f"-c{CONNECTIONS}", "-n", str(max(transactions, CONNECTIONS))],
        *["--ciphers", "ALL", "-H", "Connection: close", target.url],
    ]


def _s_time_command(target: Target, seconds: int, _: int) -> list[str]:
    return [
        *["openssl", "s_time", "-new", "-time", str(seconds)],
        *["-connect", f"{target.address}:{target.port}", "-www", f"/{target.size_bytes}"],
    ]


CLIENTS = [
    Client("tlscost-load", _load_command, _load_transactions),
    # As much checking as the peers do: they read a body and look at its size only.
    Client("tlscost-load --check size", _load_size_command, _load_transactions),
    Client("wrk", _wrk_command, _number(r"^\s*(\d+) requests in", "wrk")),
    Client("h2load", _h2load_command, _number(r", (\d+) succeeded", "h2load")),
    Client(
        "openssl s_time",
        _s_time_command,
        _number(r"^(\d+) connections in \d+ real seconds", "openssl s_time"),
        tls_only=True,
    ),
]
