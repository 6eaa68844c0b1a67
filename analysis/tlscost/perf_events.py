"""Names of events as perf prints them, to those of records and of the metric dictionary."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["SOFTWARE", "Event", "codes", "known_names", "parse"]

_CORE = re.compile(r"cpu|cpu_core|cpu_atom|cpum_cf|armv[78]\w+|apple_\w+")
_PMU = re.compile(r"(?P<pmu>[\w.-]+)/(?P<terms>[^/]*)/:?(?P<modifiers>[A-Za-z]*)")
_MEMORY = re.compile(
    r"uncore_imc(?:_\d+)?/(?P<event>cas_count_read|cas_count_write|data_reads|data_writes)/"
)
# u, k, h: levels; p, P: skid; S, D, W, e, I: how perf counts. G and H are not there: they restrict
# the count to guests or the host, which makes another event of it.
_MODIFIERS = re.compile(r"[ukhpPSDWeI]+")
_ALIASES = {
    "branch-instructions": "branches",
    "cpu-cycles": "cycles",
    "cs": "context-switches",
    "faults": "page-faults",
    "migrations": "cpu-migrations",
    # What the kernel's generic events are on Intel's and Arm's PMUs.
    "inst_retired.any": "instructions",
    "inst_retired.any_p": "instructions",
    "cpu_clk_unhalted.thread": "cycles",
    "cpu_clk_unhalted.thread_p": "cycles",
    "inst_retired": "instructions",
    "cpu_cycles": "cycles",
}
# Raw codes of the same event on all of a vendor's CPUs: Intel SDM volume 3, architectural
# performance events (from Core on); AMD PPRs, core events PMCx0C0, 076, 0C2, 0C3; Arm ARM, PMUv3
# events INST_RETIRED and CPU_CYCLES.
_CODES = {
    "GenuineIntel": {
        "r00c0": "instructions",
        "r003c": "cycles",
        "r00c4": "branches",
        "r00c5": "branch-misses",
        "r4f2e": "cache-references",
        "r412e": "cache-misses",
    },
    "AuthenticAMD": {
        "r00c0": "instructions",
        "r0076": "cycles",
        "r00c2": "branches",
        "r00c3": "branch-misses",
    },
    "ARM": {"r0008": "instructions", "r0011": "cycles"},
}
_BEFORE_ARCHITECTURAL = {"p6", "pentium_m", "netburst"}
SOFTWARE = frozenset(
    {
        *("cpu-clock", "task-clock", "context-switches", "cpu-migrations", "cgroup-switches"),
        *("page-faults", "minor-faults", "major-faults", "alignment-faults", "emulation-faults"),
    }
)
"""Events that the kernel itself counts: they never wait for a counter."""

_CLOCKS = {"cpu-clock", "task-clock"}
_IN_KERNEL = {"context-switches", "cpu-migrations", "cgroup-switches"}
_TO_BASE = {"msec": (1e6, "ns"), "ns": (1.0, "ns"), "MiB": (1048576.0, "bytes"), "": (1.0, None)}


@dataclass(frozen=True)
class Event:
    """An event of perf's.

    Attributes
    ----------
    name, mode : str
        As in records: the dictionary's spelling where it has the event; `u`, `k` or `uk`.
    pmu : str or None
        The kind of core that perf names (`cpu_core` ...); None: none, or not a core's.
    of_machine : bool
        Counted by a PMU outside the cores, for many of them at once.
    factor, unit : float, str or None
        What makes perf's figure one in the base unit (ns, bytes); None: a plain count.
    void : str or None
        Why the figure means nothing although perf prints one.
    """

    name: str
    mode: str
    pmu: str | None
    of_machine: bool
    factor: float
    unit: str | None
    void: str | None


def known_names(events: Iterable[str]) -> dict[str, str]:
    """Return the dictionary's spellings by what is compared: no case, `.` and `:` the same."""
    return {_compared(event): event for event in events if not re.search(r":(?:u|k|uk)$", event)}


def codes(uarch: str, vendor: str) -> dict[str, str]:
    """Return names of the raw codes that mean the same on all CPUs of a microarchitecture's kind.

    Parameters
    ----------
    uarch, vendor : str
        As the metric dictionary has them.
    """
    return {} if uarch in _BEFORE_ARCHITECTURAL else dict(_CODES.get(vendor, {}))


def parse(text: str, unit: str, known: Mapping[str, str], names: Mapping[str, str]) -> Event:
    """Take an event of perf's apart.

    Parameters
    ----------
    text, unit : str
        As perf prints them: `instructions:u`, `cpu_core/instructions/`, `r00c0`.
    known : mapping
        The dictionary's names, as `known_names` gives them.
    names : mapping
        {perf's name without modifiers: name} that the user gave, which go first.
    """
    base, modifiers, pmu = _split(text)
    of_machine = "/" in base
    factor, base_unit = _TO_BASE.get(unit, (1.0, unit))
    named = names.get(base) or names.get(text) or _memory(base, base_unit)
    name = named or known.get(_compared(base)) or _ALIASES.get(base.lower(), base)
    name = known.get(_compared(name), name)
    user, kernel = "u" in modifiers, "k" in modifiers
    mode = "uk" if user == kernel else "u" if user else "k"
    void = None
    if name in _CLOCKS:
        mode = "uk"  # a clock knows no levels
    elif name in _IN_KERNEL and mode == "u":
        void = (
            f"{text}: happens in the kernel, so perf without permission for it always prints 0; "
            "lower kernel.perf_event_paranoid to 1 and measure again"
        )
    return Event(name, mode, pmu, of_machine, factor, base_unit, void)


def _memory(base: str, unit: str | None) -> str | None:
    """Name what Intel's memory controllers move as the collector does; None: something else."""
    traffic = _MEMORY.fullmatch(base)
    if traffic is None or unit != "bytes":
        return None
    return "memory_read_bytes" if "read" in traffic["event"] else "memory_write_bytes"


def _split(text: str) -> tuple[str, str, str | None]:
    """Name without modifiers and, of a core's PMU, without the PMU; modifiers; the core's PMU."""
    form = _PMU.fullmatch(text)
    if form is not None and (not form["modifiers"] or _MODIFIERS.fullmatch(form["modifiers"])):
        if _CORE.fullmatch(form["pmu"]):
            return _raw(form["terms"]) or form["terms"], form["modifiers"], form["pmu"]
        return f"{form['pmu']}/{form['terms']}/", form["modifiers"], None
    base, _, modifiers = text.rpartition(":")
    if base and _MODIFIERS.fullmatch(modifiers):
        return _code(base) or base, modifiers, None
    return _code(text) or text, "", None


def _code(text: str) -> str | None:
    """One spelling for a raw code: r00c0, r0c0 and rC0 are the same; None: no code."""
    code = re.fullmatch(r"r([0-9a-fA-F]{1,16})", text)
    return None if code is None else f"r{int(code[1], 16):04x}"


def _raw(terms: str) -> str | None:
    """`event=0xc0,umask=0x1` as the raw code r01c0; None: other terms."""
    pairs = [term.partition("=") for term in terms.split(",")]
    values = {key: value for key, _, value in pairs}
    number = re.compile(r"0[xX][0-9a-fA-F]{1,4}|\d{1,5}")
    if not {"event"} <= values.keys() <= {"event", "umask"} or len(values) < len(pairs):
        return None
    if not all(number.fullmatch(value) for value in values.values()):
        return None
    event, umask = (
        int(value, 16 if value[:2] in ("0x", "0X") else 10)
        for value in (values["event"], values.get("umask", "0"))
    )
    return f"r{umask << 8 | event:04x}"


def _compared(name: str) -> str:
    return name.lower().replace(".", ":")
