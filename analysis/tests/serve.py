"""A running tlscost-serve for tests, and the clients' side of small things."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "PROFILES",
    "SIZES",
    "Serve",
    "connection_to",
    "get",
    "need",
    "pattern",
    "profile_path",
    "program",
    "receive_all",
    "request",
    "resident_bytes",
    "serving",
    "tls_context",
]

ROOT = Path(__file__).resolve().parents[2]
# Those of the system's OpenSSL, with which TLSCOST_BIN was built; test_profile_peers has all.
PROFILES = sorted(
    path.stem
    for path in (ROOT / "data" / "profiles").glob("*.cnf")
    if not re.search("^openssl *=", path.read_text(), re.MULTILINE)
)
SIZES = (0, 30, 36864, 1048576)
PERIOD = 4093


def pattern(length: int) -> bytes:
    """Return the body's text by its definition in workloads/common/pattern.h, made anew here."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    state, text = 1, bytearray()
    for _ in range(PERIOD):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        text.append(alphabet[state >> 26])
    return bytes(text * (length // PERIOD + 1))[:length]


def profile_path(name: str) -> Path:
    """Return a profile's file."""
    return ROOT / "data" / "profiles" / f"{name}.cnf"


def need(program: str) -> str:
    """Return the program's path; skip the test by its name where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@dataclass
class Serve:
    """One running server."""

    process: subprocess.Popen[str]
    host: str
    port: int
    profile: str | None
    log: Path

    @property
    def url(self) -> str:
        """Base URL without a slash at its end."""
        scheme = "http" if self.profile is None else "https"
        return f"{scheme}://{self.host}:{self.port}"

    def stop(self) -> int:
        """Send SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


def program(name: str) -> str:
    """Return the path of the program under test; skip where it has not been built."""
    where = os.environ.get("TLSCOST_BIN")
    if where is None or not (Path(where) / name).exists():
        pytest.skip(f"TLSCOST_BIN does not name a directory with {name}")
    return str(Path(where) / name)


def binary() -> str:
    """Return the server's path."""
    return program("tlscost-serve")


def resident_bytes(pid: int) -> int:
    """Return the resident set of a process."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


@contextlib.contextmanager
def serving(
    tmp: Path, profile: str | None = None, *options: str, sizes: Sequence[int] = SIZES
) -> Iterator[Serve]:
    """Run a server on a free port; on leaving, it must drain and exit with 0."""
    argv = [binary(), "--listen", "127.0.0.1:0", "--json", "--drain-timeout", "2"]
    for size in sizes:
        argv += ["--size", str(size)]
    if profile is not None:
        argv += ["--profile", str(profile_path(profile))]
    log = tmp / f"serve-{profile or 'plain'}.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*argv, *options], stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"did not start: {log.read_text()}"
            ready = json.loads(line)
            yield Serve(process, ready["address"], ready["port"], profile, log)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


def tls_context(maximum: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Return a client's context that takes whatever a profile offers, weak ones too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    if maximum is not None:
        context.maximum_version = maximum
    return context


def request(path: str, *fields: str, method: str = "GET") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def receive_all(connection: socket.socket) -> bytes:
    """Receive until the peer closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def connection_to(
    server: Serve, context: ssl.SSLContext | None = None, *, timeout: float = 5, **options: Any
) -> Iterator[socket.socket]:
    """Connect as the server's profile wants it; `options` are those of `wrap_socket`."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(socket.create_connection((server.host, server.port), timeout))
        if server.profile is None:
            yield raw
        else:
            context = context or tls_context()
            yield stack.enter_context(context.wrap_socket(raw, **options))


def get(server: Serve, size: int, timeout: float = 5) -> bytes:
    """Return the body that a good client gets on a connection of its own."""
    with connection_to(server, timeout=timeout) as connection:
        connection.sendall(request(f"/{size}", "Connection: close"))
        head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), head
    return body
