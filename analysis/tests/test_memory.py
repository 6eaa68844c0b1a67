"""No growth of the server's and the load generator's memory over their connections."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from pathlib import Path

import pytest
from serve import profile_path, program, resident_bytes, serving

from tlscost.record import SANITIZER_BUILDS

GROWTH_MOST_BYTES = 1 << 20
EARLY = 0.1  # by then pools and arenas have reached their size


def completed(page: int) -> int:
    """Transactions so far, by the load generator's page; 0 before there is one."""
    head = os.pread(page, 128, 0)
    if len(head) < 128 or not head.startswith(b"tslpage1"):
        return 0
    offset = struct.unpack_from("<Q", head, 32)[0]
    count: int = struct.unpack("<8xQ", os.pread(page, 16, offset))[0]
    return count


# Of 100,000 connections a leak of 12 bytes each shows: any object of any allocator. RSA-512 key
# transport has the cheapest handshakes; of TLS 1.3's, what 6,000 of them show is 195 bytes each.
# Unreachable memory, however little, is what the address sanitizer finds at an exit.
@pytest.mark.parametrize(
    ("profile", "connections"),
    [(None, 100_000), ("tls12-krsa512-aes128gcm", 100_000), ("tls13-ecdsa-x25519", 6_000)],
    ids=["plain", "tls12", "tls13"],
)
def test_memory_does_not_grow(profile: str | None, connections: int, tmp_path: Path) -> None:
    load = program("tlscost-load")
    version = subprocess.check_output([load, "--version"], text=True).partition("\n")[0]
    if any(build in version for build in SANITIZER_BUILDS):
        pytest.skip("a sanitizer's own memory grows")
    page = os.memfd_create("page", 0)
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with serving(tmp_path, profile, "--cpu-list", cpus) as server:
        argv = [load, "--url", f"{server.url}/30", "--page", f"/proc/self/fd/{page}"]
        if profile is not None:
            argv += ["--profile", str(profile_path(profile))]
        with subprocess.Popen(argv, pass_fds=[page], stdout=subprocess.DEVNULL) as process:
            resident = []
            for count in (connections * EARLY, connections):
                while completed(page) < count:
                    assert process.poll() is None
                    time.sleep(0.02)
                resident.append([resident_bytes(it.pid) for it in (server.process, process)])
            process.terminate()
            assert process.wait(timeout=20) == 0  # no transaction failed
    os.close(page)
    growth = [late - early for early, late in zip(*resident, strict=True)]
    assert max(growth) < GROWTH_MOST_BYTES, f"of server and load generator: {growth} bytes"
