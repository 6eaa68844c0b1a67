"""No growth of the server's memory over 100,000 connections, plain and TLS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from serve import Serve, binary, profile_path, serving

CONNECTIONS = 100_000
GROWTH_MOST_BYTES = 1 << 20  # 10 bytes a connection: a leak of any object is more


def connect_times(server: Serve, count: int) -> None:
    """Make so many connections of one request each, or a few more."""
    load = Path(os.environ["TLSCOST_BIN"]) / "tlscost-load"
    argv = [str(load), f"--url={server.url}/30", f"--transactions={count}", "--json"]
    if server.profile is not None:
        argv.append(f"--profile={profile_path(server.profile)}")
    out = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300).stdout
    counts = json.loads(out)["counts"]
    assert counts["completed"] >= count
    errors = {kind: n for kind, n in counts.items() if kind.startswith("error_") and n > 0}
    assert errors == {}


# RSA-512 key transport: the profile whose handshakes cost least.
@pytest.mark.parametrize("profile", [None, "tls12-krsa512-aes128gcm"])
def test_memory_does_not_grow(profile: str | None, tmp_path: Path) -> None:
    version = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True)
    # A sanitizer's own tables and quarantine grow; it looks for leaks itself, at the exit that
    # serving() checks, and is slow.
    sanitized = "san" in version.stdout.partition("\n")[0]
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with serving(tmp_path, profile, "--cpu-list", cpus) as server:
        connect_times(server, CONNECTIONS // 10)  # pools and arenas reach their size
        if sanitized:
            return
        before = server.rss_bytes()
        connect_times(server, CONNECTIONS)
        assert server.rss_bytes() - before < GROWTH_MOST_BYTES
