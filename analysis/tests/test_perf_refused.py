"""What a user reads for each errno of perf_event_open, and of a PMU that counts nothing.

The collector runs as it is; the kernel answers otherwise for hardware events, by a seccomp filter
that collector/tests/perf_supervisor.c installs, or because limits and rights are what they are.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from serve import need, program

HARDWARE = [("instructions", "u"), ("cycles", "k")]
SOFTWARE = ("page-faults", "u")
EVENTS = "instructions:u,cycles:k,page-faults:u"
WAYS = {
    "EACCES": ("not_permitted", "sysctl kernel.perf_event_paranoid=0"),
    "EPERM": ("not_permitted", "--cap-add PERFMON --security-opt seccomp=unconfined"),
    "ENOENT": ("unsupported", "measure on a simulated machine"),
    "EINVAL": ("unsupported", "name fewer events"),
    "EMFILE": ("failed", "ulimit -n 65536"),
    "EBUSY": ("failed", "find /proc/[0-9]*/fd -lname '*perf_event*'"),
    "EOPNOTSUPP": ("unsupported", "ask for another mode"),
    "ENODEV": ("unsupported", "echo 1 > /sys/devices/system/cpu/cpuN/online"),
    "ENOSYS": ("unsupported", "CONFIG_PERF_EVENTS"),
}
SILENT = "broken PMU: it accepts events but counted 0 instructions in a loop of 200000"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def supervised(answer: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the collector where perf_event_open gives that answer for hardware events."""
    argv = [program("perf_supervisor"), answer, "--", program("tlscost-collect"), *arguments]
    done = subprocess.run(
        list(map(str, argv)), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 125:
        pytest.skip(f"no seccomp notification here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done


def events_of(probe: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Status and reason of each event and mode that perf was asked for."""
    (perf,) = [source for source in probe["sources"] if source["name"] == "perf"]
    return {
        (event["event"], mode): said
        for event in perf["events"]
        for mode, said in event["modes"].items()
    }


def counts_of(record: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The counts of the one sample line, by event and mode."""
    lines = map(json.loads, record.read_text().splitlines())
    (sample,) = [line for line in lines if line["type"] == "sample"]
    return {(count["event"], count["mode"]): count for count in sample["counts"]}


@pytest.mark.parametrize("name", WAYS)
def test_a_refused_event_has_its_reason_and_remedy(name: str) -> None:
    code = str(getattr(errno, name))
    probe = json.loads(supervised(code, "--probe", "--events", EVENTS).stdout)
    status, remedy = WAYS[name]
    said = events_of(probe)
    for event in HARDWARE:
        assert said[event]["status"] == status
        assert remedy in said[event]["reason"]
    assert probe["pmu"]["present"] is False
    assert remedy in probe["pmu"]["reason"]
    assert said[SOFTWARE]["status"] == "ok"


@pytest.mark.parametrize("name", ["EBUSY", "EINVAL", "ENODEV"])
def test_a_refused_event_is_null_in_the_record(tmp_path: Path, name: str) -> None:
    record = tmp_path / "r.jsonl"
    options = ["--sample-only", "--cpus", min(os.sched_getaffinity(0)), "--duration-s", "0.3"]
    supervised(str(getattr(errno, name)), *options, "--events", EVENTS, "--record", record)
    status, remedy = WAYS[name]
    counts = counts_of(record)
    for event in HARDWARE:
        assert (counts[event]["status"], counts[event]["raw"]) == (status, None)
        assert remedy in counts[event]["reason"]
    if os.geteuid() == 0:
        assert counts[SOFTWARE]["status"] == "ok"


def test_a_pmu_that_counts_nothing_is_broken_and_null(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    probe = json.loads(supervised("silent", "--probe", "--events", EVENTS).stdout)
    assert probe["pmu"]["present"] is False
    assert SILENT in probe["pmu"]["reason"]
    assert all(SILENT in events_of(probe)[event]["reason"] for event in HARDWARE)
    if os.geteuid() != 0:
        return  # of whole CPUs a record needs more rights
    options = ["--sample-only", "--cpus", min(os.sched_getaffinity(0)), "--duration-s", "0.3"]
    supervised("silent", *options, "--events", EVENTS, "--record", record)
    counts = counts_of(record)
    for event in HARDWARE:
        assert (counts[event]["status"], counts[event]["raw"]) == ("unsupported", None)
        assert SILENT in counts[event]["reason"]
    assert counts[SOFTWARE]["raw"] is not None


@needs_root
def test_too_few_files_for_the_events(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    argv = [need("prlimit"), "--nofile=14:14", program("tlscost-collect"), "--sample-only"]
    argv += ["--cpus", str(min(os.sched_getaffinity(0))), "--duration-s", "0.3"]
    subprocess.run([*argv, "--record", str(record)], timeout=60, check=True)
    counts = counts_of(record)
    assert counts["cpu-clock", "uk"]["status"] == "ok"
    without = [count for count in counts.values() if "ulimit -n 65536" in (count["reason"] or "")]
    assert without
    assert all((count["status"], count["raw"]) == ("failed", None) for count in without)


def test_the_kernels_part_is_not_an_ordinary_users(as_nobody: tuple[list[str], Path]) -> None:
    """By the real kernel.perf_event_paranoid, which is left as it is."""
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid < 2:
        pytest.skip(f"kernel.perf_event_paranoid is {paranoid}: an ordinary user may")
    words, directory = as_nobody
    argv = [*words, str(directory / "tlscost-collect"), "--probe", "--events", EVENTS]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    probe = json.loads(done.stdout)
    assert probe["host"]["user"]["uid"] == 65534
    assert events_of(probe)["cycles", "k"]["status"] == "not_permitted"
    assert "sysctl kernel.perf_event_paranoid=1" in events_of(probe)["cycles", "k"]["reason"]
    if paranoid == 2:
        assert events_of(probe)[SOFTWARE]["status"] == "ok"


@needs_root
def test_cpus_of_different_kinds_are_no_set(tmp_path: Path) -> None:
    """In a mount namespace of its own /sys is a hybrid machine's; the CPUs are this one's."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    devices = Path("/sys/bus/event_source/devices")
    fake = tmp_path / "devices"
    for name, number, cpu in (("cpu_core", 4, cpus[0]), ("cpu_atom", 10, cpus[1])):
        (fake / name).mkdir(parents=True)
        (fake / name / "type").write_text(f"{number}\n")
        (fake / name / "cpus").write_text(f"{cpu}\n")
    record = tmp_path / "r.jsonl"

    def sample(cpu_list: str) -> subprocess.CompletedProcess[str]:
        collect = f"{program('tlscost-collect')} --sample-only --duration-s 0.2 --record {record}"
        script = f"mount --bind {fake} {devices} && exec {collect} --cpus {cpu_list}"
        argv = [need("unshare"), "--mount", "--propagation", "private", "sh", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    mixed = sample(f"{cpus[0]},{cpus[1]}")
    assert mixed.returncode == 2
    said = f"CPU {cpus[0]} is counted by cpu_core, CPU {cpus[1]} by cpu_atom"
    assert said in mixed.stderr
    assert "name CPUs of one kind" in mixed.stderr
    assert not record.exists()
    alone = sample(str(cpus[1]))
    assert (alone.returncode, alone.stderr) == (0, "")
    assert counts_of(record)["cpu-clock", "uk"]["status"] == "ok"
