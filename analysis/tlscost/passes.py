"""Event sets that fit a PMU's counters: from the metrics wanted to the passes that count them."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from tlscost import dictionary, probe
from tlscost.dictionary import Formula
from tlscost.uarch import Counters

__all__ = ["ANCHORS", "fits", "here", "of_microarchitecture", "plan"]

ANCHORS = ("instructions", "cycles")
"""Counted in every pass where counters allow, the first of them before the second."""

# Counted by the kernel itself, beside whatever a PMU counts.
_SOFTWARE = (
    *("cpu-clock", "context-switches", "cpu-migrations"),
    *("page-faults:u", "page-faults:k", "minor-faults", "major-faults"),
)
# Of a CPU that no file is about: the collector tries every set, and splits what does not fit.
_UNKNOWN = Counters(general=4, watchdog="cycles")

Room = Callable[[Sequence[str]], bool]
Passes = tuple[tuple[str, ...], ...]


def fits(events: Iterable[str], counters: Counters, *, smt: bool, watchdog: bool) -> bool:
    """Whether events can be counted at the same time.

    Parameters
    ----------
    events : iterable of str
        NAME or NAME:MODE; an event in two modes takes two counters.
    smt : bool
        Sibling threads share the core's counters.
    watchdog : bool
        The NMI watchdog runs, and takes one of them.
    """
    general = counters.general
    if not smt and counters.general_without_smt is not None:
        general = counters.general_without_smt
    taken = [dictionary.split_mode(event)[0] for event in events]
    if watchdog and counters.watchdog is not None:
        taken.append(counters.watchdog)
    with_own = sum(name in taken for name in counters.fixed)
    return len(taken) - with_own <= general


def plan(formulas: Iterable[Formula], counters: Counters, *, smt: bool, watchdog: bool) -> Passes:
    """Put the events of formulas into passes, a formula's into one pass where they fit.

    Parameters
    ----------
    formulas : iterable of Formula
        Over events of the PMU only.

    Returns
    -------
    tuple of tuple of str
        Per pass its events: NAME counts user and kernel together, NAME:u and NAME:k apart, where a
        formula asks for that.
    """

    def room(events: Sequence[str]) -> bool:
        return fits(events, counters, smt=smt, watchdog=watchdog)

    passes: list[list[str]] = []
    for group in sorted((formula.events for formula in formulas), key=len, reverse=True):
        for events in [group] if room(group) else [[event] for event in group]:
            _put([event for event in events if not _holds(passes, event)], passes, room)
    return tuple(tuple(one) for one in passes)


def _holds(passes: Iterable[Sequence[str]], event: str) -> bool:
    return any(event in one for one in passes)


def _put(events: list[str], passes: list[list[str]], room: Room) -> None:
    """Put events into the first pass of their modes that has room for all, else into a new one."""
    modes = _modes(events)
    for one in passes:
        if _modes(one) == modes and room([*one, *events]):
            one.extend(events)
            return
    begun: list[str] = []
    for anchor in ANCHORS:
        apart = [f"{anchor}:{mode}" if mode else anchor for mode in modes]
        more = [event for event in apart if event not in events]
        if room([*begun, *more, *events]):
            begun += more
    if events:
        passes.append([*begun, *events])


def _modes(events: Iterable[str]) -> list[str]:
    return sorted({dictionary.split_mode(event)[1] or "" for event in events}, reverse=True)


def of_microarchitecture(name: str | None, *, smt: bool, watchdog: bool) -> Passes:
    """Return the passes for all metrics of a microarchitecture; None: one that no file is about.

    Parameters
    ----------
    smt, watchdog : bool
        As for `fits`.
    """
    counters = _UNKNOWN if name is None else dictionary.microarchitecture(name).counters
    formulas = dictionary.load(dictionary.KERNEL if name is None else name)
    return plan(formulas, counters, smt=smt, watchdog=watchdog)


@cache
def here() -> tuple[str, ...]:
    """Return this machine's event sets for the collector's --events; none where no PMU counts.

    The first has the kernel's software events, too.
    """
    found = probe.run(())
    if not found.pmu.present:
        return ()
    siblings = found.host.cpus.siblings or {}
    passes = of_microarchitecture(
        dictionary.recognise(found.provenance.cpu_identity),
        smt=any(threads > 1 for threads in siblings.values()),
        watchdog=bool(found.host.perf.nmi_watchdog),
    )
    first, *others = passes
    return tuple(",".join(one) for one in [(*first, *_SOFTWARE), *others])
