"""doctor: what it says of this machine, and of machines that are told of."""

from __future__ import annotations

import copy
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serve import program

from tlscost import doctor
from tlscost.findings import Finding
from tlscost.probe import Probe, cpu_list
from tlscost.uarch import identity_here

OK = {"status": "ok", "reason": None}
NO_RIGHT = {"status": "not_permitted", "reason": "no right"}
NO_EVENT = {"status": "unsupported", "reason": "no such event"}
PROC = ["idle_ns", "idle_fine_ns", "steal_ns", "user_ns", "system_ns", "irq_ns", "softirq_ns"]
PROC += ["mem_available_bytes", "net_rx_bytes", "net_tx_bytes", "tcp_retransmits", "disk_queue"]
PROC += ["context_switches", "interrupts", "procs_running"]
UNCORE = ["memory_read_bytes", "memory_write_bytes"]
IDENTITY = {"vendor_id": "GenuineIntel", "cpu family": "6", "model": "85", "stepping": "4"}
ALL_RIGHTS, NO_RIGHTS = "000001ffffffffff", "0000000000000000"
FIELDS = {"id", "severity", "message", "remedy"}


def source(name: str, events: list[str]) -> dict[str, Any]:
    """Return a source that counts these, several modes of an event in one entry."""
    modes: dict[str, dict[str, Any]] = {}
    for event in events:
        mode = event[-1] if event.endswith((":u", ":k")) else "uk"
        modes.setdefault(event.removesuffix(f":{mode}"), {})[mode] = OK
    tried = [{"event": event, "modes": of_it} for event, of_it in modes.items()]
    return {"name": name, "available": True, "scope": "cpu", "reason": None, "events": tried}


def quiet_machine() -> dict[str, Any]:
    """What the collector tells of a server that is made for measuring: nothing is to be found."""
    tried = doctor.events(doctor.formulas(IDENTITY))
    return {
        "schema": "tlscost-probe/1",
        "sources": [source("perf", tried), source("proc", PROC), source("uncore", UNCORE)],
        "pmu": {
            **{"present": True, "counters": 8, "reason": None},
            **{"kinds": [], "devices": ["cpu", "software"]},
        },
        "host": {
            "user": {"uid": 0, "capabilities": ALL_RIGHTS, "seccomp": "0"},
            "limits": {"files": 1024, "files_most": 1048576, "locked_bytes": None},
            "perf": {
                **{"paranoid": 2, "sample_rate_max": 100000, "cpu_time_max_percent": 25},
                **{"locked_kib": 516, "nmi_watchdog": 0},
            },
            "cpus": {
                **{"possible": "0-3", "online": "0-3", "offline": "", "isolated": "2-3"},
                **{"nohz_full": "2-3", "allowed": "0-3"},
                "siblings": {"0": 1, "1": 1, "2": 1, "3": 1},
            },
            "frequency": {
                **{"driver": "intel_pstate", "governors": {"performance": 4}},
                **{"boost": None, "no_turbo": 1},
            },
            "virtual": dict.fromkeys(("type", "vendor", "product", "device_tree")),
            "steal": {
                **{"cpu": 0, "interval_ns": 500_000_000, "stolen_ns": 0, "tick_ns": 10_000_000},
                **{"stolen_since_boot_ns": 0, "busy_since_boot_ns": 10**12},
            },
        },
        "provenance": {
            **{"cpu_model": "A CPU", "cpu_identity": IDENTITY, "kernel": "Linux x86_64"},
            **{"mitigations": {"mds": "Not affected", "l1tf": "Vulnerable"}, "numa_nodes": "0"},
            **{"tsc_hz": 2 * 10**9, "hypervisor": None, "clocksource": "tsc"},
        },
    }


def altered(changes: dict[str, Any]) -> dict[str, Any]:
    """The quiet machine with facts replaced, each by its path: "host.perf.paranoid"."""
    machine = copy.deepcopy(quiet_machine())
    for path, value in changes.items():
        *way, last = path.split(".")
        place = machine
        for key in way:
            place = place[key]
        assert last in place
        place[last] = value
    return machine


def diagnosis(changes: dict[str, Any] | None = None) -> doctor.Diagnosis:
    return doctor.diagnose(Probe.model_validate(altered(changes or {})))


def found(changes: dict[str, Any]) -> dict[str, Finding]:
    return {finding.id: finding for finding in diagnosis(changes).findings}


def test_a_machine_made_for_measuring_has_no_findings() -> None:
    said = diagnosis()
    assert said.findings == ()
    assert (said.pmu_present, said.pmu_reason, said.hypervisor) == (True, None, None)
    undefined = {one.metric for one in said.metrics if one.quality == "undefined"}
    assert undefined == {"memory_utilisation", "data_bus_utilisation"}  # wherever it is looked for
    assert all(metric.reason for metric in said.metrics)
    assert {"pmu", "steal", "smt", "governor", "turbo"} <= {one.id for one in said.fine}


CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"host.perf.nmi_watchdog": 1}, "nmi-watchdog", "warning", "kernel.nmi_watchdog=0"),
    (
        {"host.frequency.governors": {"performance": 3, "powersave": 1}},
        *("governor", "warning", "scaling_governor"),
    ),
    ({"host.frequency.no_turbo": 0}, "turbo", "warning", "echo 1 | sudo tee"),
    (
        {"host.frequency.no_turbo": None, "host.frequency.boost": 1},
        *("turbo", "warning", "echo 0 | sudo tee"),
    ),
    ({"host.cpus.siblings": {"0,2": 2, "1,3": 2}}, "smt", "warning", "smt/control"),
    ({"host.cpus.isolated": ""}, "isolated-cpus", "info", "isolcpus=2-3"),
    ({"host.cpus.offline": "4-5"}, "cpus", "info", "cpu4/online"),
    ({"host.cpus.allowed": "0"}, "cpus", "warning", "taskset"),
    (
        {"host.steal.stolen_ns": 100_000_000},
        *("steal", "warning", "vmstat"),
    ),
    ({"host.steal.stolen_since_boot_ns": 10**11}, "steal", "warning", "vmstat"),
    (
        {"provenance.mitigations": {"meltdown": "Mitigation: PTI"}},
        *("mitigations", "info", "mitigations=off"),
    ),
    ({"host.limits.files_most": 512}, "file-limit", "warning", "prlimit"),
    ({"host.limits.files_most": 4096}, "file-limit", "info", "prlimit"),
    ({"provenance.numa_nodes": "0-1"}, "numa", "info", "lscpu"),
    ({"host.perf.sample_rate_max": 500}, "sample-rate", "warning", "perf_event_max_sample_rate"),
    ({"host.perf.paranoid": -1}, "perf-open-to-all", "info", "perf_event_paranoid=2"),
    (
        {"provenance.cpu_identity": {"vendor_id": "GenuineIntel", "cpu family": "99"}},
        *("microarchitecture", "info", "./tlscost events"),
    ),
    ({"provenance.clocksource": "hpet"}, "clock", "warning", "echo tsc"),
    ({"provenance.hypervisor": "KVMKVMKVM"}, "hypervisor", "info", "virsh vcpupin"),
    (
        {
            "pmu.kinds": [
                {"name": "cpu_atom", "cpus": "2-3"},
                {"name": "cpu_core", "cpus": "0-1"},
            ]
        },
        *("hybrid-cpus", "warning", "--cpu-list 2,3"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]} {next(iter(case[0]))}")
def test_each_thing_is_found_with_its_remedy(case: tuple[dict[str, Any], str, str, str]) -> None:
    changes, name, severity, remedy = case
    findings = found(changes)
    assert set(findings) == {name}
    assert findings[name].severity == severity
    assert remedy in findings[name].remedy
    assert findings[name].message


def test_memory_for_rings_is_a_finding_of_who_counts_cpus_without_the_right() -> None:
    by_sysctl = {"host.user.capabilities": NO_RIGHTS, "host.perf.paranoid": 0}
    assert "locked-memory" not in found({"host.perf.locked_kib": 68, "host.perf.paranoid": 0})
    assert "locked-memory" in found({"host.perf.locked_kib": 68, **by_sysctl})
    assert "locked-memory" not in found({"host.perf.locked_kib": 6800, **by_sysctl})


def test_an_ordinary_user() -> None:
    machine = altered({"host.user.uid": 1000, "host.user.capabilities": NO_RIGHTS})
    perf = machine["sources"][0]
    perf["scope"] = "process"
    for event in perf["events"]:
        event["modes"] = dict.fromkeys(event["modes"], NO_RIGHT)
    machine["sources"][1]["events"][1]["modes"]["uk"] = NO_RIGHT
    said = doctor.diagnose(Probe.model_validate(machine))
    findings = {finding.id: finding for finding in said.findings}
    assert set(findings) == {"perf-permission", "network-namespaces", "idle-clock"}
    assert findings["perf-permission"].remedy == "sudo sysctl kernel.perf_event_paranoid=0"
    quality = {metric.metric: metric.quality for metric in said.metrics}
    assert quality["path_length"] == quality["page_faults"] == "not permitted"
    # Counted on the server's CPUs it would be exact; of the whole machine it is still had.
    assert quality["context_switches"] == "approximate"
    assert quality["throughput"] == "exact"


def test_a_right_that_would_not_help_is_not_asked_for() -> None:
    machine = altered({"pmu.present": False, "pmu.reason": "no PMU", "pmu.devices": []})
    for event in machine["sources"][0]["events"]:
        event["modes"] = dict.fromkeys(event["modes"], NO_RIGHT)
    said = doctor.diagnose(Probe.model_validate(machine))
    metrics = {metric.metric: metric for metric in said.metrics}
    assert (metrics["path_length"].quality, metrics["path_length"].reason) == (
        "undefined",
        "no PMU",
    )
    assert metrics["page_faults"].quality == "not permitted"


@pytest.mark.parametrize(
    ("changes", "named", "remedy"),
    [
        ({"provenance.hypervisor": "KVMKVMKVM"}, "KVM", "pmu=on"),
        ({"provenance.hypervisor": "Microsoft Hv"}, "Hyper-V", "-Perfmon"),
        ({"provenance.hypervisor": "VMwareVMware"}, "VMware", "vpmc.enable"),
        ({"provenance.hypervisor": "XenVMMXenVMM"}, "Xen", "vpmu=on"),
        ({"provenance.hypervisor": "NobodyKnows!"}, "'NobodyKnows!'", "--machine p3-xeon-2m"),
        ({"host.virtual.type": "xen"}, "Xen", "vpmu=on"),
        ({"host.virtual.vendor": "QEMU"}, "QEMU", "pmu=on"),
        ({"host.virtual.device_tree": "linux,dummy-virt"}, "QEMU", "pmu=on"),
        ({"host.virtual.vendor": "Dell Inc."}, None, "dmesg"),
    ],
)
def test_without_a_pmu_the_hypervisor_is_named(
    changes: dict[str, Any], named: str | None, remedy: str
) -> None:
    none = {"pmu.present": False, "pmu.counters": None, "pmu.reason": "not counted"}
    said = diagnosis({**none, "pmu.devices": ["software"], **changes})
    findings = {finding.id: finding for finding in said.findings}
    assert said.pmu_present is False
    assert (named is None) == (said.hypervisor is None)
    assert (named or "no PMU") in findings["pmu"].message
    assert remedy in findings["pmu"].remedy
    assert "p3-xeon-2m" in findings["simulated-machine"].remedy
    assert findings["pmu"].severity == "warning"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("EBUSY", "find /proc/[0-9]*/fd"),
        ("EMFILE", "prlimit"),
        ("EPERM", "--cap-add PERFMON"),
        ("EACCES", "kernel.perf_event_paranoid=0"),
    ],
)
def test_why_a_pmu_that_is_there_does_not_count(name: str, remedy: str) -> None:
    """In the collector's own words, by the kernel's own answer."""
    argv = [program("perf_supervisor"), str(getattr(errno, name)), "--"]
    argv += [program("tlscost-collect"), "--probe"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 125:
        pytest.skip(f"no seccomp notification here: {done.stderr.strip()}")
    reason = json.loads(done.stdout)["pmu"]["reason"]
    said = diagnosis({"pmu.present": False, "pmu.counters": None, "pmu.reason": reason})
    (pmu,) = [finding for finding in said.findings if finding.id == "pmu"]
    assert said.pmu_present
    assert (pmu.severity, said.pmu_reason) == ("warning", pmu.message)
    assert reason in pmu.message
    assert remedy in pmu.remedy


def test_a_broken_pmu_is_an_error_and_counts_nothing() -> None:
    reason = "broken PMU: it accepts events but counted 0 instructions in a loop of 200000"
    refused = {"status": "unsupported", "reason": reason}
    machine = altered({"pmu.present": False, "pmu.counters": None, "pmu.reason": reason})
    for event in machine["sources"][0]["events"]:
        if event["event"] != "page-faults":
            event["modes"] = dict.fromkeys(event["modes"], refused)
    said = doctor.diagnose(Probe.model_validate(machine))
    assert said.findings[0].id == "pmu"
    assert said.findings[0].severity == "error"
    metrics = {metric.metric: metric for metric in said.metrics}
    assert metrics["cpi"].quality == "undefined"
    assert metrics["cpi"].reason == reason
    assert metrics["page_faults"].quality == "exact"


def test_lists_of_cpus() -> None:
    assert cpu_list("0-2,8\n") == [0, 1, 2, 8]
    assert cpu_list("") == cpu_list(None) == []


def tlscost(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not (Path(os.environ.get("TLSCOST_BIN", "")) / "tlscost-collect").is_file():
        pytest.skip("TLSCOST_BIN does not name a directory with tlscost-collect")
    return subprocess.run(
        [sys.executable, "-m", "tlscost", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_this_machine() -> None:
    done = tlscost("doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["cpu"]
    assert (said["pmu"]["reason"] is None) or said["pmu"]["reason"]
    assert said["findings"]
    for finding in said["findings"]:
        assert set(finding) == FIELDS
        assert all(finding.values())
    qualities = {metric["metric"]: metric["quality"] for metric in said["metrics"]}
    assert qualities["throughput"] == "exact"
    assert set(qualities.values()) <= {"exact", "approximate", "undefined", "not permitted"}
    assert all(metric["reason"] for metric in said["metrics"])
    if not said["pmu"]["present"]:
        assert said["pmu"]["reason"]
        assert qualities["path_length"] == "undefined"
        assert "simulated-machine" in {finding["id"] for finding in said["findings"]}


def test_this_machine_as_an_ordinary_user(as_nobody: tuple[list[str], Path]) -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid < 1:
        pytest.skip(f"kernel.perf_event_paranoid is {paranoid}: an ordinary user counts CPUs")
    words, directory = as_nobody
    sets = ",".join(doctor.events(doctor.formulas(identity_here())))
    argv = [*words, str(directory / "tlscost-collect"), "--probe", "--events", sets]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    said = doctor.diagnose(Probe.model_validate_json(done.stdout))
    findings = {finding.id: finding for finding in said.findings}
    assert {"perf-permission", "network-namespaces", "idle-clock"} <= set(findings)
    assert f"perf_event_paranoid is {paranoid}" in findings["perf-permission"].message
    metrics = {metric.metric: metric for metric in said.metrics}
    assert metrics["throughput"].quality == "exact"
    if not said.pmu_present:
        assert metrics["path_length"].quality == "undefined"
    if paranoid > 1:
        assert metrics["page_faults"].quality == "not permitted"
        assert "CAP_PERFMON" in metrics["page_faults"].reason


def test_a_probe_from_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    file.write_text(json.dumps(altered({"host.perf.nmi_watchdog": 1})))
    said = json.loads(tlscost("doctor", "--probe", file, "--json").stdout)
    assert [finding["id"] for finding in said["findings"]] == ["nmi-watchdog"]
    table = tlscost("doctor", "--probe", file)
    assert table.returncode == 0
    assert "sudo sysctl kernel.nmi_watchdog=0" in table.stdout.splitlines()[3].split("         ")
    file.write_text("{}")
    refused = tlscost("doctor", "--probe", file)
    assert refused.returncode == 2
    assert str(file) in refused.stderr
    assert "Traceback" not in refused.stderr
