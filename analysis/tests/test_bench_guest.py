"""`bench guest`, one short round: guests are armed and disarmed, and each run serves."""

from __future__ import annotations

from tests.serve import need
from tlscost.bench.guest import MEASURES, WAYS, run
from tlscost.machine import simulated_or_file
from tlscost.profiles import OFF


def test_round_measures_each_way() -> None:
    machine = simulated_or_file("p3-xeon-512k")
    need(f"qemu-system-{machine.guest}")
    runs = run(machine, [1], [OFF], rounds=1, seconds=1)
    table = runs.pivot_table(index="measure", columns="way", values="ms_per_transaction")
    assert set(table.index) == set(MEASURES)
    assert set(table.columns) == set(WAYS)
    # Instrumentation costs more than any noise: were a guest not armed, or not disarmed, they
    # would be the same.
    cpus = table.loc["CPU time of its CPUs"]
    assert cpus["armed"] > 1.5 * cpus["unarmed"] > 0
    assert (table.loc["CPU time of QEMU"] > cpus).all()
