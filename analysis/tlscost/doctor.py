"""What this machine can measure and what not, why, and the remedy.

Each metric of the dictionary is judged by trying its events; each setting that hurts measurements
is a finding. The facts are the collector's (tlscost.probe): another machine's can be judged, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tlscost import dictionary
from tlscost.dictionary import Formula
from tlscost.findings import Finding, Fine, examine, hypervisor
from tlscost.machine import NATIVE
from tlscost.probe import Probe, Said, run
from tlscost.uarch import identity_here

__all__ = ["Diagnosis", "Judged", "diagnose", "events", "formulas", "look", "to_json"]

_MODES = {"u", "k", "uk"}
_COUNTED = Said(status="ok", reason=None)
_KERNELS = {  # counted by the kernel itself, without a PMU
    *["cpu-clock", "task-clock", "context-switches", "cpu-migrations"],
    *["page-faults", "minor-faults", "major-faults", "alignment-faults", "emulation-faults"],
}

Quality = Literal["exact", "approximate", "undefined", "not permitted"]


@dataclass(frozen=True)
class Judged:
    """What one metric is here.

    Attributes
    ----------
    quality : str
        exact, approximate, undefined or not permitted.
    reason : str
        Why the quality is what it is, or why there is no value.
    """

    metric: str
    quality: Quality
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """All that is said of a machine.

    Attributes
    ----------
    cpu : str
        The processor's name.
    microarchitecture : str or None
        Its file in the metric dictionary; None: it has none.
    pmu_present : bool
    pmu_reason : str or None
        Why there is none, or why it does not count for this user; None where it counts.
    findings : tuple of Finding
        What hurts most first.
    """

    cpu: str
    microarchitecture: str | None
    hypervisor: str | None
    pmu_present: bool
    pmu_reason: str | None
    counters: int | None
    metrics: tuple[Judged, ...]
    findings: tuple[Finding, ...]
    fine: tuple[Fine, ...]


def look() -> Diagnosis:
    """Diagnose this machine.

    Raises
    ------
    TlscostError
        The collector is not there, or cannot look.
    """
    return diagnose(run(events(formulas(identity_here()))))


def diagnose(probe: Probe) -> Diagnosis:
    """Judge what the collector found out, here or elsewhere."""
    said = list(examine(probe))
    findings = tuple(one for one in said if isinstance(one, Finding))
    pmu = next((one for one in findings if one.id == "pmu"), None)
    return Diagnosis(
        cpu=_cpu(probe),
        microarchitecture=dictionary.recognise(probe.provenance.cpu_identity),
        hypervisor=hypervisor(probe),
        pmu_present=probe.pmu.exists,
        pmu_reason=pmu.message if pmu else None,
        counters=probe.pmu.counters,
        metrics=tuple(_judge_all(probe, formulas(probe.provenance.cpu_identity))),
        findings=findings,
        fine=tuple(one for one in said if isinstance(one, Fine)),
    )


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the JSON document that `doctor --json` prints."""
    return {
        "cpu": diagnosis.cpu,
        "microarchitecture": diagnosis.microarchitecture,
        "pmu": {
            "present": diagnosis.pmu_present,
            "reason": diagnosis.pmu_reason,
            "counters": diagnosis.counters,
            "hypervisor": diagnosis.hypervisor,
        },
        "metrics": [asdict(metric) for metric in diagnosis.metrics],
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "fine": [asdict(one) for one in diagnosis.fine],
    }


def events(ways: Sequence[Formula]) -> list[str]:
    """Return the events to be tried for these formulas, as the collector's --events takes them."""
    named = (name for formula in ways for name in formula.events)
    return list(dict.fromkeys(name for name in named if _source(name) == "perf"))


def formulas(identity: Mapping[str, str]) -> Sequence[Formula]:
    """Return the ways to a machine's metrics, best first, by what its CPU says of itself."""
    return dictionary.formulas(dictionary.files_for(NATIVE, dictionary.recognise(identity)))


def _cpu(probe: Probe) -> str:
    identity = probe.provenance.cpu_identity
    known = dictionary.recognise(identity)
    title = dictionary.microarchitecture(known).title if known else "a CPU"
    named = ", ".join(f"{name} {value}" for name, value in identity.items())
    return f"{probe.provenance.cpu_model or title} ({named or 'which says nothing of itself'})"


def _source(event: str) -> Literal["perf", "proc", "uncore", "load", "clock"]:
    """Where a formula's event comes from; frame.py and metrics.py give them their names."""
    if event in {"elapsed_ns", "cpu_elapsed_ns", "server_rss_bytes"} or event.startswith("load_"):
        return "load"
    if event == "ref_cycles":
        return "clock"
    if event in {"memory_read_bytes", "memory_write_bytes", "memory_bytes"}:
        return "uncore"
    return "proc" if event.startswith(("cpu_", "system_")) else "perf"


def _said(probe: Probe, event: str) -> Said:
    """Tell what became of a formula's event."""
    source = _source(event)
    if source == "load":
        return _COUNTED
    if source == "clock":
        known = probe.provenance.tsc_hz is not None
        reason = "this processor has no time stamp counter"
        return _COUNTED if known else Said(status="unsupported", reason=reason)
    name, _, mode = event.rpartition(":")
    if mode not in _MODES:
        name, mode = event, "uk"
    if source == "proc":
        name = name.partition("_")[2]  # of "cpu_" and "system_"
    said = probe.said(source, name, mode)
    if said is None:
        return Said(status="unsupported", reason=f"{event} was not tried")
    if said.status == "not_permitted" and name not in _KERNELS and not probe.pmu.exists:
        return Said(status="unsupported", reason=probe.pmu.reason)  # a right would not help
    return said


def _judge(probe: Probe, formula: Formula) -> Judged:
    """Judge one way to a metric."""
    refused = [said for said in (_said(probe, event) for event in formula.events) if said.reason]
    if not refused:
        return Judged(formula.name, formula.quality, formula.why)
    # A right that is had changes nothing where the machine cannot count another of the events.
    refused.sort(key=lambda said: said.status == "not_permitted")
    permitted = refused[0].status != "not_permitted"
    quality: Quality = "undefined" if permitted else "not permitted"
    return Judged(formula.name, quality, refused[0].reason or "")


def _judge_all(probe: Probe, all_ways: Sequence[Formula]) -> Iterator[Judged]:
    """Judge each metric by the best of its ways: one that counts, or one that lacks a right."""
    order = {"exact": 0, "approximate": 0, "not permitted": 1, "undefined": 2}
    ways: dict[str, list[Judged]] = {}
    for formula in all_ways:
        ways.setdefault(formula.name, []).append(_judge(probe, formula))
    for judged in ways.values():
        yield min(judged, key=lambda one: order[one.quality])
