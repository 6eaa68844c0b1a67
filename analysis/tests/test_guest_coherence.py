"""CPUs of a guest that take turns at one line: what crosses the bus is what MESI says.

The guest runs collector/tests/turns.c, first without any access, then with each pattern; the
difference is what the pattern costs. Counts are of user mode, in which the CPUs wait for their
turns, too: the kernel's timers and the connection are not among them.

By hand, of one turn (the turn before was another CPU's, so that one's cache has the line modified):

- *write*, one word or neighbouring ones: the store misses, reads the line for ownership and gets it
  from the other cache (HITM): 1 RFO, 1 HITM. To coherence a line is a line: false sharing costs the
  same. In lines of their own: nothing.
- *migrate*: the load reads the line and gets it from the other cache, both share it; the store then
  invalidates the other copy: 1 BRD, 1 HITM, 1 INVAL.
- *add_locked*: likewise, but a locked load asks for ownership at once: 1 RFO, 1 HITM.
- *read_shared*, of one round with n CPUs: the writer, whose copy is shared since the round before,
  invalidates the others': 1 INVAL. The first reader gets the modified line: 1 BRD, 1 HITM. Each
  further one gets a clean line: 1 BRD.
- *nothing*: the predecessor's store to the flag invalidates the copy of the CPU that spins on it,
  which then reads it: 1 INVAL, 1 BRD, 1 HITM.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.armed_guest import ArmedGuest, armed
from tlscost import cpio
from tlscost.guest_image import compile_for
from tlscost.machine import simulated_or_file
from tlscost.paths import root

Counts = dict[tuple[str, str, int], int]
"""By event, mode and variant."""

TURNS = 1000
BOUND = 0.02  # of an event per turn; docs/fidelity.md has what was measured
PATIENCE_S = 300  # machines are shared; on a quiet one it takes seconds
START = b'. /cell/settings\nexec /cell/turns "$port" %d\n'
EVENTS = ("BUS_TRAN_BRD", "BUS_TRAN_RFO", "BUS_TRAN_INVAL", "hitm_received", "BUS_TRANS_WB")


def by_hand(cpus: int) -> dict[str, tuple[float, ...]]:
    """Return each pattern's EVENTS per turn, as worked out above."""
    reads = (cpus - 1) / cpus
    return {
        "nothing": (1, 0, 1, 1, 0),
        "write_one_word": (0, 1, 0, 1, 0),
        "write_neighbours": (0, 1, 0, 1, 0),
        "write_apart": (0, 0, 0, 0, 0),
        "read_shared": (reads, 0, 1 / cpus, 1 / cpus, 0),
        "migrate": (1, 0, 1, 1, 0),
        "add_locked": (0, 1, 0, 1, 0),
    }


@contextmanager
def taking_turns(directory: Path, machine: str, cpus: int) -> Iterator[ArmedGuest]:
    """Run a guest in which so many CPUs take turns as they are told."""
    program = directory / "turns"
    source = root() / "collector" / "tests" / "turns.c"
    compile_for(simulated_or_file(machine).guest, [source], program)
    files = {
        "cell/start": cpio.file(START % cpus),
        "cell/turns": cpio.file(program.read_bytes(), 0o755),
    }
    with armed(directory, machine, cpus, files=files) as guest:
        yield guest


def counts(guest: ArmedGuest) -> Counts:
    return {
        (event["name"], mode, variant): count
        for event in guest.report()["events"]
        for mode in ("user", "kernel")
        for variant, count in enumerate(event[mode])
    }


def run(guest: ArmedGuest, pattern: str, rounds: int) -> Counts:
    """Return what so many rounds of a pattern, and what belongs to the request, have cost."""
    before = counts(guest)
    with socket.create_connection(("127.0.0.1", guest.site.port), PATIENCE_S) as connection:
        connection.sendall(f"{pattern} {rounds}\n".encode())
        assert connection.makefile().readline() == "done\n"
    after = counts(guest)
    return less(after, before)


def less(counts: Counts, others: Counts) -> Counts:
    return {key: count - others[key] for key, count in counts.items()}


@pytest.mark.parametrize(
    ("machine", "cpus"), [("p3-xeon", 2), ("p3-xeon", 4), ("skylake-server", 2)]
)
def test_turns_cost_what_mesi_says(tmp_path: Path, machine: str, cpus: int) -> None:
    with taking_turns(tmp_path, machine, cpus) as guest:
        variants = len(guest.report()["variants"])
        rounds = TURNS // cpus
        run(guest, "nothing", 1)  # the program's own lines come into the caches
        request = run(guest, "nothing", 1)
        nothing = run(guest, "nothing", rounds)
        for pattern, expected in by_hand(cpus).items():
            if pattern == "nothing":
                cost, turns = less(nothing, request), (rounds - 1) * cpus
            else:
                cost, turns = less(run(guest, pattern, rounds), nothing), rounds * cpus
            for variant in range(variants):
                found = [cost[event, "user", variant] / turns for event in EVENTS]
                print(f"{machine}, {cpus} CPUs, variant {variant}, {pattern}:", found)
                assert found == pytest.approx(expected, abs=BOUND), (pattern, EVENTS)
        total = counts(guest)
        for variant in range(variants):
            answered, got = (
                sum(total[event, mode, variant] for mode in ("user", "kernel"))
                for event in ("BUS_HITM_DRV", "hitm_received")
            )
            # Read one after the other, while timers tick.
            assert answered == pytest.approx(got, rel=0.002)
            assert got > TURNS
