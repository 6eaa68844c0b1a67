"""What of a machine hurts measurements, and the command that remedies it.

Each function judges one thing of a probe: it gives a `Finding`, or a text where all is well, or
None where the machine has no such thing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tlscost import dictionary
from tlscost.probe import CAP_IPC_LOCK, CAP_PERFMON, CAP_SYS_ADMIN, Probe, cpu_list

__all__ = ["SIMULATED_RUN", "Finding", "Fine", "examine", "hypervisor"]

SIMULATED_RUN = "./tlscost run --machine p3-xeon-2m --server serve --tls off --size 36KiB --cpus 1"
"""What counts where no PMU does."""

_SIGNATURES = {
    "KVMKVMKVM": "KVM",
    "Microsoft Hv": "Hyper-V",
    "VMwareVMware": "VMware",
    "XenVMMXenVMM": "Xen",
    "TCGTCGTCGTCG": "QEMU without acceleration",
    "VBoxVBoxVBox": "VirtualBox",
    "bhyve bhyve ": "bhyve",
}
"""CPUID leaf 0x40000000."""

_VENDORS = {
    "QEMU": "QEMU",
    "Amazon EC2": "Amazon's",
    "Google": "Google's",
    "VMware, Inc.": "VMware",
    "Xen": "Xen",
    "innotek GmbH": "VirtualBox",
}
"""Vendors that DMI names for virtual machines only (bare metal of a cloud has a PMU)."""

_PMU_REMEDIES = {
    "KVM": "qemu-system-x86_64 -accel kvm -cpu host,pmu=on",
    "QEMU": "qemu-system-aarch64 -accel kvm -cpu host,pmu=on",
    "Hyper-V": 'Set-VMProcessor -VMName NAME -Perfmon @("pmu")',
    "VMware": "echo 'vpmc.enable = \"TRUE\"' >> NAME.vmx",
    "Xen": "sed -i 's/^GRUB_CMDLINE_XEN=\"/&vpmu=on /' /etc/default/grub && update-grub",
}
"""Given on the host, or when the guest is started."""

_REFUSALS = {
    "another program holds": "sudo find /proc/[0-9]*/fd -lname '*perf_event*'",
    "out of file descriptors": "sudo prlimit --pid $$ --nofile=1048576:1048576",
    "sandbox": "docker run --cap-add PERFMON --security-opt seccomp=unconfined IMAGE",
}
"""By words of collector/perf_explain.c; else a right lacks."""

_STEAL_MOST = 0.01
_FILES_ENOUGH = 65536
_FILES_LEAST = 1024
_FILES_OTHER = 64  # a load generator's and a server's, beside their connections
_RING_KIB = 68  # that the kernel samples a CPU's counters into, for each pass
_PASSES = 8
_SAMPLES_PER_S = 10
_OPEN_TO_ALL = -1


@dataclass(frozen=True)
class Finding:
    """Something that hurts, and what helps.

    Attributes
    ----------
    severity : str
        error: figures are missing or wrong until it is remedied; warning: figures are fewer, or
        less certain; info: to be known when figures are compared.
    remedy : str
        A command that can be pasted.
    """

    id: str
    severity: Literal["error", "warning", "info"]
    message: str
    remedy: str


@dataclass(frozen=True)
class Fine:
    """Something that was looked at and is well."""

    id: str
    message: str


_Judged = Finding | str | None


def examine(probe: Probe) -> Iterator[Finding | Fine]:
    """Judge everything, what hurts most first."""
    order = {"error": 0, "warning": 1, "info": 2}
    findings: list[Finding] = []
    fine: list[Fine] = []
    for name, judge in _JUDGES.items():
        said = judge(probe)
        if isinstance(said, Finding):
            findings.append(said)
        elif said is not None:
            fine.append(Fine(name, said))
    yield from sorted(findings, key=lambda finding: order[finding.severity])
    yield from fine


def hypervisor(probe: Probe) -> str | None:
    """Name what this machine runs on, None where it seems to be no virtual machine."""
    virtual = probe.host.virtual
    signature = probe.provenance.hypervisor
    if signature:
        return _SIGNATURES.get(signature, f"a hypervisor that calls itself {signature.strip()!r}")
    if virtual.type:
        return _SIGNATURES.get(virtual.type, virtual.type.capitalize())
    if virtual.device_tree == "linux,dummy-virt":
        return "QEMU"
    is_hyper_v = (virtual.vendor, virtual.product) == ("Microsoft Corporation", "Virtual Machine")
    return "Hyper-V" if is_hyper_v else _VENDORS.get(virtual.vendor or "")


def _permit(reason: str) -> str:
    """Return the command against the collector's reason why the kernel refuses an event."""
    remedies = (remedy for words, remedy in _REFUSALS.items() if words in reason)
    return next(remedies, "sudo sysctl kernel.perf_event_paranoid=0")


def _grub(words: str) -> str:
    """Return the command that adds words to the kernel's command line."""
    return (
        f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub && "
        "sudo update-grub && sudo reboot"
    )


def _pmu(probe: Probe) -> _Judged:
    pmu, where = probe.pmu, hypervisor(probe)
    if pmu.present:
        return f"counts; {pmu.counters} counters at once"
    reason = pmu.reason or "no reason was found"
    if reason.startswith("broken PMU"):
        return Finding("pmu", "error", reason, _PMU_REMEDIES.get(where or "", SIMULATED_RUN))
    if pmu.exists:
        message = f"the PMU is there but does not count now for this user: {reason}"
        return Finding("pmu", "warning", message, _permit(reason))
    if where is None:
        remedy = "sudo dmesg | grep -i -e 'Performance Events' -e PMU"
        return Finding("pmu", "warning", f"no PMU: {reason}", remedy)
    return Finding(
        "pmu",
        "warning",
        f"no PMU: a virtual machine on {where}, which passes none through: {reason}",
        _PMU_REMEDIES.get(where, SIMULATED_RUN),
    )


def _microarchitecture(probe: Probe) -> _Judged:
    name = dictionary.recognise(probe.provenance.cpu_identity)
    if name is not None:
        return dictionary.microarchitecture(name).title
    if not probe.pmu.exists:
        return None
    message = (
        "the metric dictionary does not know this processor's events: the kernel's generic ones "
        "are counted, which are approximate"
    )
    return Finding("microarchitecture", "info", message, "./tlscost events")


def _simulated(probe: Probe) -> _Judged:
    if probe.pmu.present:
        return None
    message = (
        "a simulated machine counts instructions, caches, branches and bus transactions here, "
        "of the whole server: ./tlscost machines lists them"
    )
    return Finding("simulated-machine", "info", message, SIMULATED_RUN)


def _hypervisor(probe: Probe) -> _Judged:
    where = hypervisor(probe)
    if where is None:
        return "none seen"
    message = f"a virtual machine on {where}: other guests may share its processors and caches"
    return Finding(
        "hypervisor", "info", message, "virsh vcpupin NAME 0 2 # on the host: CPU 0 on 2"
    )


def _permission(probe: Probe) -> _Judged:
    perf, paranoid = probe.source("perf"), probe.host.perf.paranoid
    user = probe.host.user
    privileged = user.may(CAP_PERFMON) or user.may(CAP_SYS_ADMIN)
    if perf.available and perf.scope == "cpu":
        if privileged:
            return f"whole CPUs, by this user's capabilities (perf_event_paranoid {paranoid})"
        return f"whole CPUs, by anyone (perf_event_paranoid {paranoid})"
    remedy = _permit(perf.reason or "")
    if not perf.available:
        return Finding("perf-permission", "error", f"perf counts nothing: {perf.reason}", remedy)
    part = "user mode" if paranoid is None or paranoid > 1 else "user and kernel mode"
    message = (
        f"perf_event_paranoid is {paranoid} and this user has neither CAP_PERFMON nor "
        f"CAP_SYS_ADMIN: the server's own processes are counted, in {part}, not whole CPUs"
    )
    return Finding("perf-permission", "warning", message, remedy)


def _open_to_all(probe: Probe) -> _Judged:
    if probe.host.perf.paranoid != _OPEN_TO_ALL:
        return None
    message = "perf_event_paranoid is -1: any user may trace the kernel; set it back afterwards"
    return Finding("perf-open-to-all", "info", message, "sudo sysctl kernel.perf_event_paranoid=2")


def _root(probe: Probe) -> _Judged:
    if probe.host.user.uid == 0:
        return "server and load get network namespaces of their own"
    message = (
        "not root: server and load meet on loopback, and the server's counts hold part of the "
        "load's TCP work"
    )
    return Finding("network-namespaces", "warning", message, "sudo ./tlscost quickstart")


def _idle_clock(probe: Probe) -> _Judged:
    said = probe.said("proc", "idle_fine_ns", "uk")
    if said is None or said.status == "ok":
        return "idle time in nanoseconds"
    message = f"idle time comes in ticks, so that windows last 5 s or more: {said.reason}"
    return Finding("idle-clock", "info", message, "sudo ./tlscost quickstart")


def _nmi_watchdog(probe: Probe) -> _Judged:
    on = probe.host.perf.nmi_watchdog
    if not on or not probe.pmu.present:
        return "off, or without a counter"
    message = "the NMI watchdog keeps one counter: fewer events to a pass"
    return Finding("nmi-watchdog", "warning", message, "sudo sysctl kernel.nmi_watchdog=0")


def _governor(probe: Probe) -> _Judged:
    governors = probe.host.frequency.governors
    if governors is None:
        if hypervisor(probe) is None:
            return "none: the clock does not change by the kernel's will"
        message = "the host decides on the clock's frequency, which is not seen from here"
        return Finding("governor", "info", message, "cpupower frequency-info # on the host")
    if set(governors) == {"performance"}:
        return "performance"
    named = ", ".join(f"{count} CPUs {name}" for name, count in governors.items())
    message = f"the clock follows the load ({named}): time and cycles of a transaction disagree"
    remedy = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return Finding("governor", "warning", message, remedy)


def _turbo(probe: Probe) -> _Judged:
    frequency = probe.host.frequency
    if frequency.boost is None and frequency.no_turbo is None:
        return None
    if frequency.no_turbo == 1 or (frequency.no_turbo is None and frequency.boost == 0):
        return "off"
    intel = frequency.no_turbo is not None
    path = "intel_pstate/no_turbo" if intel else "cpufreq/boost"
    message = "turbo is on: the clock depends on heat and on how many CPUs are busy"
    remedy = f"echo {int(intel)} | sudo tee /sys/devices/system/cpu/{path}"
    return Finding("turbo", "warning", message, remedy)


def _smt(probe: Probe) -> _Judged:
    cores = probe.host.cpus.siblings or {}
    shared = [cpus for cpus in cores if len(cpu_list(cpus)) > 1]
    if not shared:
        return "each CPU seen is a core of its own"
    message = (
        f"{len(shared)} cores have several CPUs ({', '.join(shared[:4])}"
        f"{' ...' if len(shared) > 4 else ''}), which share caches and units: what one does "
        "changes the other's counts"
    )
    remedy = "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    return Finding("smt", "warning", message, remedy)


def _isolated(probe: Probe) -> _Judged:
    cpus = probe.host.cpus
    online = cpu_list(cpus.online)
    if cpus.isolated:
        return f"CPUs {cpus.isolated}"
    if len(online) < 2:
        return None
    half = online[len(online) // 2 :]
    named = f"{half[0]}-{half[-1]}" if len(half) > 1 else str(half[0])
    message = "no CPU is isolated: other work and timer ticks run on the server's CPUs, too"
    return Finding("isolated-cpus", "info", message, _grub(f"isolcpus={named} nohz_full={named}"))


def _cpus(probe: Probe) -> _Judged:
    cpus = probe.host.cpus
    online, allowed = cpu_list(cpus.online), cpu_list(cpus.allowed)
    if cpus.offline:
        first = cpu_list(cpus.offline)[0]
        message = f"CPUs {cpus.offline} are offline and cannot be named in a cell"
        remedy = f"echo 1 | sudo tee /sys/devices/system/cpu/cpu{first}/online"
        return Finding("cpus", "info", message, remedy)
    if len(online) < 2:
        message = "one CPU: server and load share it, and nothing of the server alone is had"
        return Finding("cpus", "warning", message, "virsh setvcpus NAME 2 --live # on the host")
    if allowed and set(allowed) != set(online):
        message = f"CPUs {cpus.online} are online, this process may run on {cpus.allowed} only"
        return Finding("cpus", "warning", message, f"sudo taskset -pc {cpus.online} $$")
    return f"{len(online)} online"


def _kinds(probe: Probe) -> _Judged:
    kinds = probe.pmu.kinds
    if len(kinds) < 2:
        return None
    named = ", ".join(f"{kind.name} counts {kind.cpus}" for kind in kinds)
    message = f"CPUs of {len(kinds)} kinds ({named}): a cell's server may have those of one only"
    cpus = ",".join(map(str, cpu_list(kinds[0].cpus)[:2]))
    remedy = f"./tlscost run --cpu-list {cpus} --server serve --tls off --size 36KiB"
    return Finding("hybrid-cpus", "warning", message, remedy)


def _steal(probe: Probe) -> _Judged:
    steal = probe.host.steal
    if steal is None:
        return None
    now = steal.stolen_ns / steal.interval_ns
    used = steal.busy_since_boot_ns + steal.stolen_since_boot_ns
    since_boot = steal.stolen_since_boot_ns / used if used else 0.0
    seen = (
        f"{now:.1%} of CPU {steal.cpu} while it was kept busy for {steal.interval_ns / 1e9:.1f} s, "
        f"{since_boot:.1%} of its busy time since boot"
    )
    if max(now, since_boot) <= _STEAL_MOST:
        return seen
    message = f"the hypervisor took {seen}: measure when it is quiet, or on dedicated CPUs"
    return Finding("steal", "warning", message, "vmstat 1 10 # column st")


def _mitigations(probe: Probe) -> _Judged:
    mitigations = probe.provenance.mitigations
    if mitigations is None:
        return None
    active = sorted(
        name for name, text in mitigations.items() if (text or "").startswith("Mitigation")
    )
    if not active:
        return "none active"
    message = (
        f"the kernel mitigates {', '.join(active)}: entries into it cost more, which is part of "
        "what is measured"
    )
    return Finding("mitigations", "info", message, _grub("mitigations=off"))


def _files(probe: Probe) -> _Judged:
    most = probe.host.limits.files_most
    if most is None or most >= _FILES_ENOUGH:
        return "unlimited" if most is None else f"{most} files: {most - _FILES_OTHER} connections"
    fits = max(most - _FILES_OTHER, 0)
    message = (
        f"a process may open {most} files: loads of up to {fits} connections (one file each, in "
        "server and load)"
    )
    severity: Literal["warning", "info"] = "warning" if fits < _FILES_LEAST else "info"
    remedy = "sudo prlimit --pid $$ --nofile=1048576:1048576"
    return Finding("file-limit", severity, message, remedy)


def _locked_memory(probe: Probe) -> _Judged:
    kib, user = probe.host.perf.locked_kib, probe.host.user
    if kib is None:
        return None
    if user.may(CAP_IPC_LOCK) or probe.host.perf.paranoid == _OPEN_TO_ALL:
        return "no limit for this user"
    passes = kib // _RING_KIB
    if passes >= _PASSES or probe.source("perf").scope != "cpu":
        return f"{kib} KiB a CPU for the kernel's samples: {passes} passes"
    message = (
        f"perf may lock {kib} KiB a CPU: the kernel samples the counters of {passes} passes, "
        "beyond which the collector wakes up to read them"
    )
    remedy = f"sudo sysctl kernel.perf_event_mlock_kb={_RING_KIB * 64}"
    return Finding("locked-memory", "info", message, remedy)


def _sample_rate(probe: Probe) -> _Judged:
    rate = probe.host.perf.sample_rate_max
    if rate is None:
        return None
    if rate >= 100 * _SAMPLES_PER_S:
        return f"up to {rate} samples/s"
    message = f"the kernel samples at most {rate} times a second and may drop counters' samples"
    remedy = "sudo sysctl kernel.perf_event_max_sample_rate=100000"
    return Finding("sample-rate", "warning", message, remedy)


def _numa(probe: Probe) -> _Judged:
    nodes = cpu_list(probe.provenance.numa_nodes)
    if len(nodes) < 2:
        return "one node"
    message = (
        f"{len(nodes)} NUMA nodes: put a server's CPUs on one of them, its load's on another, or "
        "remote memory is part of the counts"
    )
    return Finding("numa", "info", message, "lscpu --extended=CPU,NODE # then run --cpu-list")


def _clock(probe: Probe) -> _Judged:
    clock = probe.provenance.clocksource
    if clock is None or "x86" not in (probe.provenance.kernel or ""):
        return None
    if clock == "tsc":
        return clock
    message = f"the kernel's clock is {clock}: reading the time costs a system call or an exit"
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    return Finding("clock", "warning", message, f"echo tsc | sudo tee {path}")


_JUDGES: dict[str, Callable[[Probe], _Judged]] = {
    "pmu": _pmu,
    "microarchitecture": _microarchitecture,
    "simulated-machine": _simulated,
    "hypervisor": _hypervisor,
    "perf-permission": _permission,
    "perf-open-to-all": _open_to_all,
    "network-namespaces": _root,
    "idle-clock": _idle_clock,
    "nmi-watchdog": _nmi_watchdog,
    "governor": _governor,
    "turbo": _turbo,
    "smt": _smt,
    "isolated-cpus": _isolated,
    "cpus": _cpus,
    "hybrid-cpus": _kinds,
    "steal": _steal,
    "mitigations": _mitigations,
    "file-limit": _files,
    "locked-memory": _locked_memory,
    "sample-rate": _sample_rate,
    "numa": _numa,
    "clock": _clock,
}
