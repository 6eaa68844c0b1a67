"""What counting in a guest takes for granted: physical addresses, and instructions by blocks.

A guest serves TLS and, beside it, starts and ends processes, so that mappings change all the time
and page faults cut blocks short. QEMU is asked for the address of every access, and instructions
are counted one by one, too; the plugin's own answers are compared with both.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tests.armed_guest import armed
from tests.test_guest import BOOT_S, console
from tlscost import cpio
from tlscost.cell import Cell
from tlscost.paths import profiles_dir, program
from tlscost.servers import Site, serve_options

TLS = "tls13-ecdsa-x25519"
TRANSACTIONS = 10
PATIENCE_S = 300  # machines are shared; on a quiet one it takes seconds
# Of the instructions; docs/fidelity.md has what was measured.
BOUND = 1e-4
# Each process ends by reading how many page faults there have been.
PROCESSES = "while date | cat; do grep pgfault /proc/vmstat; done &\n"


def start(cpus: int) -> bytes:
    """Return the guest's script: processes without end, and the server."""
    home = Path("/cell")
    inside = Site(home, "10.0.2.15", 8443, tuple(range(cpus)))
    cell = Cell.model_validate({"server": "serve", "tls": TLS, "size": 30})
    options = serve_options(cell, inside, home / "profile.cnf", home / "certificate")
    return f"{PROCESSES}exec {shlex.join(['tlscost-serve', *options])}\n".encode()


def load(url: str) -> None:
    """Fetch from the guest; every byte and the session's properties are checked."""
    argv = [program("tlscost-load"), "--url", url, "--profile", profiles_dir() / f"{TLS}.cnf"]
    argv += ["--connections", "2", "--timeout", str(PATIENCE_S), "--json"]
    argv += ["--transactions", str(TRANSACTIONS)]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["counts"]["completed"] == TRANSACTIONS


def page_faults(where: Site) -> list[int]:
    return [int(number) for number in re.findall(r"^pgfault (\d+)\n", console(where), re.M)]


def latest_page_faults(where: Site) -> int:
    """Wait until the guest says the number again."""
    known, deadline = len(page_faults(where)), time.monotonic() + BOOT_S
    while len(page_faults(where)) == known:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return page_faults(where)[-1]


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("machine", ["p3-xeon", "skylake-server"])
def test_addresses_are_qemus_and_blocks_count_instructions(
    tmp_path: Path, machine: str, cpus: int
) -> None:
    files = {"cell/start": cpio.file(start(cpus))}
    plugin = {"check": "addresses", "count": "callback"}
    with armed(tmp_path, machine, cpus, tls=TLS, files=files, **plugin) as guest:
        before = max(page_faults(guest.site), default=0)
        load(guest.url)
        faults = latest_page_faults(guest.site) - before
        guest.process.terminate()
        assert guest.process.wait(PATIENCE_S) == 0
        report = guest.report()
    assert report["ended"]
    counts = {event["name"]: event["user"][0] + event["kernel"][0] for event in report["events"]}

    addresses = report["addresses"]
    # A locked read-modify-write is two references to one address.
    assert 0.99 * counts["DATA_MEM_REFS"] < addresses["checked"] <= counts["DATA_MEM_REFS"]
    assert addresses["checked"] > 3_000_000
    assert addresses["wrong"] == 0
    assert addresses["unknown"] == 0
    assert addresses["device"] < 1e-3 * addresses["checked"]  # the network card, interrupts

    # One by one, an instruction that faults counts twice, and the iterations of a string
    # instruction each: what blocks count lies in between the two.
    difference = counts["INST_RETIRED"] + report["repeats"] - report["executed"]
    print(f"{machine}, {cpus} CPUs: {report['executed']:,} executed, {difference} {faults} faults")
    assert faults > 300
    assert abs(difference) <= BOUND * report["executed"]
    assert difference + faults <= BOUND * report["executed"]
