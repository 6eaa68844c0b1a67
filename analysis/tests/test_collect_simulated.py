"""tlscost-collect on a simulated machine: its page, its phases, its faults.

The machine here is a process that writes the page of counters as QEMU's plugin does
(collector/tests/softpmu_writer.c), with tlscost-serve beside it as what the guest runs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from test_collect import (
    BODY_BYTES,
    CELL,
    CPUS,
    PATIENCE_S,
    QUICK,
    is_gone,
    lines,
    partial,
    pid_of,
    processes_below,
    program,
    run,
    wait_for,
)

from tlscost.record import SANITIZER_BUILDS, read

GUEST_CPUS = 3  # whatever this machine has
STEPS = {"INST_RETIRED": 1000, "IFU_IFETCH_MISS": 20, "L2_LINES_IN": 3}  # page_writer_step()
PENALTY, BASE = 40, 0.5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def machine(port: int, behaviour: str = "counts") -> list[str]:
    serve = f"{program('tlscost-serve')} --listen 127.0.0.1:{port} --size {BODY_BYTES} --cpus 1"
    writer = f"{program('softpmu_writer')} {{page}} {GUEST_CPUS} {behaviour}"
    if behaviour == "dies":  # as QEMU does, with all that is in it
        return ["sh", "-c", f"{serve} & {writer}"]
    return ["sh", "-c", f"{writer} & exec {serve}"]


def command(record: Path, port: int, server: list[str], *options: str) -> list[str]:
    cpus = ",".join(map(str, CPUS))
    argv = [program("tlscost-collect"), "--record", str(record), "--network", "user"]
    argv += ["--server-cpus", cpus, "--load-cpus", str(CPUS[-1])]
    argv += ["--simulated-cpus", str(GUEST_CPUS), *QUICK, *options, "--", *server]
    argv += ["--", program("tlscost-load"), "--url", f"http://127.0.0.1:{port}/{BODY_BYTES}"]
    return [*argv, "--connections", "2", "--page", "{page}"]


def test_counts_all_events_of_all_variants_in_one_pass(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    run(command(record, port, machine(port), "--windows", "2"), 0)
    head, idle, *windows, _ = lines(record)
    assert head["machine"] == {
        "name": "written",
        "variants": ["512k", "1m"],
        "cpus": GUEST_CPUS,
        "clock_hz": 500_000_000,
        "bus_clock_hz": 100_000_000,
    }
    assert head["network"]["kind"] == "user"
    assert head["placement"]["server_cpus"] == list(range(GUEST_CPUS))
    assert head["placement"]["host_cpus"] == CPUS
    assert not head["placement"]["overlap"]  # though they share this machine's CPUs
    assert [source["name"] for source in head["sources"]] == ["softpmu"]
    (events,) = head["passes"]
    assert len(events) == 2 * (2 + 2 * 2)
    assert {"event": "L2_LINES_IN", "mode": "k", "variant": "1m"} in events
    assert {"event": "INST_RETIRED", "mode": "u"} in events
    assert [line["type"] for line in (idle, *windows)] == ["idle", "window", "window"]
    for window in windows:
        counts = [count for count in window["counts"] if count["event"] != "ref_cycles"]
        assert len(counts) == GUEST_CPUS * len(events)
        by = {(c["cpu"], c["event"], c["mode"], c.get("variant")): c for c in counts}
        for cpu in range(GUEST_CPUS):
            steps = by[cpu, "INST_RETIRED", "u", None]["raw"] / (1000 * (cpu + 1))
            assert steps > 0
            for (_, event, mode, variant), count in by.items():
                if count["cpu"] != cpu or event == "CPU_CLK_UNHALTED":
                    continue
                weight = (cpu + 1) * (2 if mode == "k" else 1)
                weight *= 2 if (event, variant) == ("L2_LINES_IN", "1m") else 1
                # Read one after the other while the CPU runs: a step apart at either end.
                assert abs(count["raw"] / (STEPS[event] * weight) - steps) <= 2
            assert all(
                count["origin"] == "counted" for c, count in by.items() if c[1][:4] == "INST"
            )
            cycles = by[cpu, "CPU_CLK_UNHALTED", "u", "1m"]
            assert cycles["origin"] == "modelled"
            a_step = (cpu + 1) * (1000 * BASE + 2 * 3 * PENALTY)
            assert abs(cycles["raw"] / a_step - steps) <= 2


def test_idle_time_is_the_guests_and_the_rest_null(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    header = tmp_path / "header.json"
    header.write_text(json.dumps({"cell": {**CELL, "machine": "written", "cpus": GUEST_CPUS}}))
    run(command(record, port, machine(port), "--header", str(header)), 0)
    head, idle, window, _ = lines(record)
    rate = {c["event"]: c["raw"] for c in idle["counts"] if (c["cpu"], c["mode"]) == (0, "u")}
    elapsed = idle["end_ns"] - idle["start_ns"]
    for cpu in window["cpus"]:
        length = window["end_ns"] - window["start_ns"]
        assert 0.05 * length < cpu["idle_ns"] < 0.95 * length  # it runs half of the time
        assert cpu["idle_resolution_ns"] == 1
        for name in ("steal_ns", "user_ns", "system_ns", "irq_ns", "softirq_ns"):
            assert cpu[name] is None
            assert "simulated machine" in window["null_reasons"][name]
    for name, value in window["system"].items():
        assert value is None
        assert "simulated machine" in window["null_reasons"][name]
    assert window["server_rss_bytes"] is None
    for count in window["counts"]:
        if (count["cpu"], count["event"], count["mode"]) == (0, "INST_RETIRED", "u"):
            idle_ns = window["cpus"][0]["idle_ns"]
            expected = count["raw"] - rate["INST_RETIRED"] / elapsed * idle_ns
            assert count["corrected"] == pytest.approx(expected)
        if count["event"] == "ref_cycles":
            assert count["raw"] is None
            assert "simulated machine" in count["reason"]
    if head["program"]["build"] not in SANITIZER_BUILDS:
        assert read(record).header.placement.server_cpus == list(range(GUEST_CPUS))


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("no-page", "machine start: the machine runs, but made no page of counters within 1.0 s"),
        ("other-version", "machine start: the simulated machine's page has version 2, expected 1"),
        ("never-counts", "arming: the machine runs, but did not begin to count within 1.0 s"),
    ],
)
def test_a_machine_that_does_not_count_is_no_cell(
    tmp_path: Path, behaviour: str, said: str
) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    argv = command(record, port, machine(port, behaviour), "--ready-timeout-s", "1")
    run(argv, 1, said)
    assert partial(record).read_text() == ""


def test_a_guest_that_never_serves_is_no_cell(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    server = ["sh", "-c", f"exec {program('softpmu_writer')} {{page}} {GUEST_CPUS} counts"]
    argv = command(record, port, server, "--ready-timeout-s", "1")
    run(argv, 1, "waiting for the simulated machine to serve", "no transaction completed")


def test_a_simulator_that_is_missing_is_named(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    argv = command(record, port, ["qemu-system-none", "-plugin", "x.so,page={page}"])
    run(argv, 1, "qemu-system-none: No such file or directory")


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("fails", "the simulated machine's counters failed: the cache models ran out of ways"),
        ("dies", "the simulated machine exited with status 1"),
    ],
)
def test_a_machine_that_breaks_down_leaves_earlier_windows(
    tmp_path: Path, behaviour: str, said: str
) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    options = ["--windows", "1000", "--window-s", "0.05", "--sample-ms", "50"]
    options += ["--idle-s", "0.05", "--warmup-s", "0.01", "--warmup-max-s", "0.02"]
    options += ["--completions", "1"]
    argv = command(record, port, machine(port, behaviour), *options)
    run(argv, 1, said)
    kinds = [line["type"] for line in lines(partial(record))]
    assert kinds[:2] == ["header", "idle"]
    assert "window" in kinds
    assert "footer" not in kinds
    assert not record.exists()


@pytest.mark.parametrize("killed", ["simulator", "collector"])
def test_nothing_is_left_of_what_was_killed(tmp_path: Path, killed: str) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    argv = command(record, port, machine(port), "--windows", "1000", "--window-max-s", "1")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: partial(record).exists() and '"window"' in partial(record).read_text())
            everyone = processes_below(process.pid)
            victim = pid_of(process.pid, "tlscost-serve") if killed == "simulator" else process.pid
            os.kill(victim, signal.SIGKILL)
            _, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    if killed == "simulator":
        assert "the simulated machine was killed by signal 9" in stderr
        assert process.returncode == 1
    wait_for(lambda: all(is_gone(pid) for pid in everyone))
    assert '"window"' in partial(record).read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--network", "loopback"], "--network user and --simulated-cpus go together"),
        (["--simulated-cpus", "0"], "--simulated-cpus"),
    ],
)
def test_options_that_contradict_are_refused(tmp_path: Path, change: list[str], said: str) -> None:
    port = free_port()
    run(command(tmp_path / "r.jsonl", port, machine(port), *change), 2, said)


def test_a_simulator_without_a_page_is_refused(tmp_path: Path) -> None:
    argv = command(tmp_path / "r.jsonl", free_port(), ["qemu-system-i386"])
    run(argv, 2, "the simulated machine's arguments lack {page}")
