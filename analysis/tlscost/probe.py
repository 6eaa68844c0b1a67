"""What tlscost-collect finds out about a machine: `tlscost-collect --probe`, read and checked.

The probe holds facts without a judgement (docs/doctor.md), so that one made where there is no
Python, in a guest or on a machine that has the collector alone, can be judged here.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tlscost.errors import CANNOT, TlscostError
from tlscost.paths import program

__all__ = [
    "CAP_IPC_LOCK",
    "CAP_PERFMON",
    "CAP_SYS_ADMIN",
    "Probe",
    "Said",
    "cpu_list",
    "read",
    "run",
]

CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_PERFMON = 14, 21, 38
"""Numbers of capabilities(7)."""

_TIMEOUT_S = 120
_SET_EVENTS = 64  # as many as the collector takes in one --events


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True)  # keys that are not known are to be ignored


class Said(_Facts):
    """What became of trying an event in one mode; `reason` is None where it can be counted."""

    status: Literal["ok", "overlap", "unsupported", "not_permitted", "failed"]
    reason: str | None


class Event(_Facts):
    """An event, and what became of it by mode (u, k, uk)."""

    event: str
    modes: dict[str, Said]


class Source(_Facts):
    """A counter source: whether it is there, and whole CPUs or a process tree only."""

    name: str
    available: bool
    scope: Literal["cpu", "process"]
    reason: str | None
    events: list[Event]


class Kind(_Facts):
    """One kind of CPU of a hybrid machine, by the name of its PMU."""

    name: str
    cpus: str


class Pmu(_Facts):
    """The PMU of the CPU that was tried."""

    present: bool
    counters: int | None
    reason: str | None
    kinds: list[Kind]
    devices: list[str]

    @property
    def exists(self) -> bool:
        """Whether the kernel knows a PMU of the CPUs, whoever may use it."""
        return self.present or bool(self.kinds) or "cpu" in self.devices


class User(_Facts):
    """Who asked; `capabilities` is the effective set, in hexadecimal."""

    uid: int
    capabilities: str | None
    seccomp: str | None

    def may(self, capability: int) -> bool:
        """Whether the user has the capability, by its number."""
        return bool(int(self.capabilities or "0", 16) >> capability & 1)


class Limits(_Facts):
    """Resource limits; None: none."""

    files: int | None
    files_most: int | None
    locked_bytes: int | None


class Perf(_Facts):
    """Settings of the kernel's perf events; None: the kernel has no such setting."""

    paranoid: int | None
    sample_rate_max: int | None
    cpu_time_max_percent: int | None
    locked_kib: int | None
    nmi_watchdog: int | None


class Cpus(_Facts):
    """Lists of CPUs in the kernel's notation; `siblings`: CPUs of one core, by that list."""

    possible: str | None
    online: str | None
    offline: str | None
    isolated: str | None
    nohz_full: str | None
    allowed: str | None
    siblings: dict[str, int] | None


class Frequency(_Facts):
    """What governs the clock; None: not seen from here."""

    driver: str | None
    governors: dict[str, int] | None
    boost: int | None
    no_turbo: int | None


class Virtual(_Facts):
    """What tells of a hypervisor beside the processor itself."""

    type: str | None
    vendor: str | None
    product: str | None
    device_tree: str | None


class Steal(_Facts):
    """What a hypervisor took of a CPU [ns] that was kept busy, and since boot."""

    cpu: int
    interval_ns: int
    stolen_ns: int
    tick_ns: int
    stolen_since_boot_ns: int
    busy_since_boot_ns: int


class Host(_Facts):
    """The machine and this user's limits."""

    user: User
    limits: Limits
    perf: Perf
    cpus: Cpus
    frequency: Frequency
    virtual: Virtual
    steal: Steal | None


class Provenance(_Facts):
    """The part of a record's provenance that is judged."""

    cpu_model: str | None
    cpu_identity: dict[str, str]
    kernel: str | None
    mitigations: dict[str, str | None] | None
    numa_nodes: str | None
    tsc_hz: int | None
    hypervisor: str | None
    clocksource: str | None


class Probe(_Facts):
    """All that the collector found out."""

    format: Literal["tlscost-probe/1"] = Field(alias="schema")
    sources: list[Source]
    pmu: Pmu
    host: Host
    provenance: Provenance

    def source(self, name: str) -> Source:
        """Return the source of that name."""
        return next(source for source in self.sources if source.name == name)

    def said(self, source: str, event: str, mode: str) -> Said | None:
        """Return what became of an event, None where it was not tried."""
        for tried in self.source(source).events:
            if tried.event == event:
                return tried.modes.get(mode)
        return None


def run(events: Sequence[str]) -> Probe:
    """Have the collector look at this machine and try `events` (NAME or NAME:MODE), each alone.

    Raises
    ------
    TlscostError
        The collector is not there, or cannot look.
    """
    argv = [str(program("tlscost-collect")), "--probe"]
    for first in range(0, len(events), _SET_EVENTS):
        argv += ["--events", ",".join(events[first : first + _SET_EVENTS])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise TlscostError(f"doctor: tlscost-collect --probe: {said.strip()}", CANNOT) from error
    return Probe.model_validate_json(done.stdout)


def read(path: Path) -> Probe:
    """Read what `tlscost-collect --probe` printed elsewhere.

    Raises
    ------
    TlscostError
        The file cannot be read or is no probe.
    """
    try:
        return Probe.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise TlscostError(
            f"--probe: {path}: expected what `tlscost-collect --probe` prints: {error}"
        ) from error


def cpu_list(text: str | None) -> list[int]:
    """Return the CPUs of a list in the kernel's notation, as "0-3,8"."""
    cpus: list[int] = []
    for part in filter(None, (text or "").strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
