"""Guests are armed and disarmed, and QEMU drops its translations, while they serve.

QEMU 7.2 leaves its CPUs lists of callbacks that dropping translations frees
(collector/softpmu/qemu_plugin_abi.h): a guest that is told to disarm, or whose translations no
longer fit, must go on all the same.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.armed_guest import ArmedGuest, armed
from tlscost import softpmu_page
from tlscost.guest import last_words
from tlscost.orphans import no_orphan
from tlscost.paths import program

SWITCHES = 50
FLUSHES = 10
ROOM_MIB = 6  # for translations
ENOUGH = 1_000_000  # instructions: what is armed anew is also translated anew
PATIENCE_S = 300  # machines are shared


@contextmanager
def load(guest: ArmedGuest, cpus: int) -> Iterator[None]:
    """Keep the guest's CPUs busy; on leaving, every transaction begun must have been completed."""
    argv = [program("tlscost-load"), "--url", guest.url, "--json", "--expect-size", "30"]
    argv += ["--connections", str(4 * cpus), "--duration", str(PATIENCE_S)]
    argv += ["--timeout", str(PATIENCE_S), "--drain-timeout", str(PATIENCE_S)]
    with subprocess.Popen(no_orphan(argv), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, said
            counts = json.loads(said)["counts"]
            assert counts["completed"] == counts["started"] > 0
        finally:
            process.kill()


def instructions(guest: ArmedGuest) -> int:
    events = {event["name"]: event for event in guest.report()["events"]}
    return int(events["INST_RETIRED"]["user"][0] + events["INST_RETIRED"]["kernel"][0])


def until_it_counts(guest: ArmedGuest) -> None:
    before, deadline = instructions(guest), time.monotonic() + PATIENCE_S
    while instructions(guest) < before + ENOUGH:
        assert guest.process.poll() is None, last_words(guest.site.directory)
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("cpus", [1, 2, 4])
def test_switching_under_load(tmp_path: Path, cpus: int) -> None:
    with armed(tmp_path, "p3-xeon-2m", cpus) as guest, load(guest, cpus):
        for _ in range(SWITCHES):
            until_it_counts(guest)
            softpmu_page.disarm(guest.page)
            stands = instructions(guest)
            time.sleep(0.02)
            assert instructions(guest) == stands
            softpmu_page.arm(guest.page)
        assert guest.process.poll() is None


def flushes(monitor: socket.socket) -> int:
    """Ask QEMU how often it has dropped its translations."""
    monitor.sendall(b"info jit\n")
    said = b""
    while (found := re.search(rb"TB flush count +(\d+)", said)) is None:
        said += monitor.recv(4096)
    return int(found.group(1))


def test_translations_that_do_not_fit(tmp_path: Path) -> None:
    path, cpus = tmp_path / "monitor", 4
    changes = {"tcg,thread=multi": f"tcg,thread=multi,tb-size={ROOM_MIB}"}
    monitored = ["-monitor", f"unix:{path},server,nowait"]
    with (
        armed(tmp_path, "p3-xeon-2m", cpus, changes=changes, options=monitored) as guest,
        load(guest, cpus),
        socket.socket(socket.AF_UNIX) as monitor,
    ):
        monitor.connect(str(path))
        deadline = time.monotonic() + PATIENCE_S
        first = flushes(monitor)  # those of booting
        while flushes(monitor) < first + FLUSHES:
            until_it_counts(guest)
            assert time.monotonic() < deadline
