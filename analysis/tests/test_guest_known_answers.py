"""Work of known size in a guest, of 32 and of 64 bits: user mode's counts are those worked out.

The guest runs collector/tests/turns.c on one CPU. Each pattern comes in two sizes; the difference
of their counts is the difference of the work, and nothing else differs between the two.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_guest_coherence import less, run, taking_turns

ROUNDS = 2000
EVENTS = ("INST_RETIRED", "BR_INST_RETIRED", "dreads", "dwrites", "d1_read_misses")
# Per round: interrupts in between cost branches and lines, and requests are not all alike.
BOUNDS = (0.5, 0.2, 0.3, 0.3, 1)
LINES = (128 << 10) // 64
PATTERNS = {
    ("spin_1000", "spin_2000"): (2 * 1000, 1000, 0, 0, 0),
    ("walk_128k", "walk_256k"): (3 * LINES, LINES, LINES, 0, LINES),
    ("move_1000", "move_2000"): (0, 0, 1000, 1000, 0),
}


@pytest.mark.parametrize("machine", ["p3-xeon-2m", "skylake-server"])
def test_known_work(tmp_path: Path, machine: str) -> None:
    with taking_turns(tmp_path, machine, 1) as guest:
        for (small, large), expected in PATTERNS.items():
            run(guest, large, 1)  # its code and data come into memory and caches
            costs = less(run(guest, large, ROUNDS), run(guest, small, ROUNDS))
            found = [costs[event, "user", 0] / ROUNDS for event in EVENTS]
            print(f"{machine}, {large} less {small}: {found}")
            for event, value, answer, bound in zip(EVENTS, found, expected, BOUNDS, strict=True):
                assert value == pytest.approx(answer, abs=bound), (large, event)
