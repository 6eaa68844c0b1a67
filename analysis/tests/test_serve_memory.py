"""No growth of the server's memory over 100,000 connections, plain and TLS."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from serve import Serve, need, serving

CONNECTIONS = 100_000
GROWTH_MOST_BYTES = 1 << 20  # 10 bytes a connection: a leak of any object is more


def connect_times(server: Serve, least: int) -> int:
    """Make at least so many connections of one request each; how many it were."""
    done = 0
    while done < least:
        argv = [need("wrk"), "-t1", "-c16", "-d3s", "-H", "Connection: close", f"{server.url}/30"]
        out = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
        assert "Socket errors" not in out, out
        match = re.search(r"(\d+) requests in", out)
        assert match is not None
        assert int(match[1]) > 0
        done += int(match[1])
    return done


# RSA-2048 key transport: the profile whose handshakes cost the client least.
@pytest.mark.parametrize("profile", [None, "tls12-krsa2048-aes128gcm"])
def test_memory_does_not_grow(profile: str | None, tmp_path: Path) -> None:
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with serving(tmp_path, profile, "--cpus", cpus) as server:
        connect_times(server, CONNECTIONS // 10)  # pools and arenas reach their size
        before = server.rss_bytes()
        connect_times(server, CONNECTIONS)
        assert server.rss_bytes() - before < GROWTH_MOST_BYTES
