"""The check of the metric dictionary: formulas encoded, evaluated, their units, their event sets.

docs/metrics.md says what is checked. What fails is told, and counted; nothing is repaired.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tlscost import dictionary, encoder, passes
from tlscost.dictionary import Formula
from tlscost.errors import TlscostError

__all__ = ["MOST_UNDEFINED", "Report", "check", "encodings", "qualified", "undefined_share"]

MOST_UNDEFINED = 0.2
"""Of a server microarchitecture's metrics, at most this share may be undefined."""

_RAW = re.compile("r[0-9a-f]+")
_NOUNS = {"misses": "access", "access": "access"}  # every other plural ends in s
_RATE = 3.0  # any number that is no power of another: what scales by it shows its exponent


@dataclass
class Report:
    """What was checked.

    Attributes
    ----------
    formulas, encodings, evaluations, sets : int
        Formulas over events; encodings of one event on one PMU; evaluations of a formula on made-up
        counts; event sets that were fitted into counters.
    failures : list of str
        What is wrong.
    skipped : list of str
        What could not be checked here, and why.
    """

    formulas: int = 0
    encodings: int = 0
    evaluations: int = 0
    sets: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.formulas} formulas, {self.encodings} encodings, {self.evaluations} "
            f"evaluations, {self.sets} event sets, {len(self.skipped)} skipped, "
            f"{len(self.failures)} failures"
        )


def check(names: Iterable[str]) -> Report:
    """Check the files of microarchitectures."""
    report = Report()
    for problem in _wrong_units():
        report.failures.append(f"{dictionary.COMMON}: {problem}")
    for name in names:
        formulas = [one for one in dictionary.load(name) if one.formula is not None]
        report.formulas += len(formulas)
        report.failures += [f"{name}: {problem}" for problem in _not_linear(name)]
        share = undefined_share(name)
        if dictionary.microarchitecture(name).server and share > MOST_UNDEFINED:
            report.failures.append(f"{name}: {share:.0%} of its metrics are undefined")
        _check_encodings(name, report)
        _check_values(name, formulas, report)
        _check_sets(name, formulas, report)
    return report


def qualified(pmu: str, event: str) -> str:
    """Return an event's name with the PMU of libpfm4 that has it."""
    if event in _kernels_own():
        return f"perf::{event}"
    return f"perf_raw::{event}" if _RAW.fullmatch(event) else f"{pmu}::{event}"


def encodings(name: str) -> dict[tuple[str, str], encoder.Encoding]:
    """Encode a microarchitecture's events on each of its PMUs: by (PMU, event).

    Raises
    ------
    TlscostError
        That build of libpfm4 cannot be had or run here.
    """
    uarch = dictionary.microarchitecture(name)
    pairs = list(itertools.product(uarch.pmu, _events(dictionary.load(name))))
    found = encoder.encode((qualified(*pair) for pair in pairs), uarch.tables)
    return {pair: found[qualified(*pair)] for pair in pairs}


def undefined_share(name: str) -> float:
    """Return which share of the metrics that a microarchitecture is asked for is undefined."""
    asked = [one for one in dictionary.load(name) if not one.optional or one.formula is not None]
    return sum(one.formula is None for one in asked) / len(asked)


def _kernels_own() -> set[str]:
    return {event for one in dictionary.load(dictionary.KERNEL) for event in _events([one])}


def _events(formulas: Iterable[Formula]) -> list[str]:
    """Return the events of formulas, without modes, each once."""
    named = (dictionary.split_mode(event)[0] for one in formulas for event in one.events)
    return list(dict.fromkeys(named))


def _check_encodings(name: str, report: Report) -> None:
    try:
        found = encodings(name)
    except TlscostError as error:
        report.skipped.append(f"{name}: encodings: {error}")
        return
    report.encodings += len(found)
    for (pmu, event), encoding in found.items():
        if encoding.error is not None:
            report.failures.append(f"{name}: {pmu}: {event}: {encoding.error}")


def _check_values(name: str, formulas: Iterable[Formula], report: Report) -> None:
    """Evaluate each formula on counts that follow from chosen quantities: the answer is known."""
    known = dictionary.quantities(name)
    for number, formula in enumerate(formulas):
        metric = next((one for one in dictionary.common().metric if one.name == formula.name), None)
        rng = np.random.default_rng(number)
        events = {event: float(rng.integers(1_000, 1_000_000)) for event in _events([formula])}
        counts = {event: events[dictionary.split_mode(event)[0]] for event in formula.events}
        value = formula.evaluate(pd.DataFrame([counts])).iloc[0]
        report.evaluations += 1
        if not np.isfinite(value):
            report.failures.append(f"{name}: {formula.name}: {value} on finite counts")
        if metric is None:
            continue
        amounts = {quantity: _amount(known[quantity], events) for quantity in metric.quantities}
        given = {
            used: amounts[dictionary.split_mode(used)[0]]
            for used in dictionary.names(metric.formula)
        }
        expected = _value(metric.formula, given)
        if not np.isclose(value, expected, rtol=1e-12):
            report.failures.append(
                f"{name}: {formula.name}: {value}, expected {expected} of its quantities"
            )


def _amount(quantity: dictionary.Quantity, events: Mapping[str, float]) -> float:
    if not isinstance(quantity.events, str):
        return float(quantity.events or 0)
    return _value(quantity.events, events)


def _value(expression: str, counts: Mapping[str, float]) -> float:
    result = pd.DataFrame([counts]).eval(expression, engine="python")
    return float(pd.Series(result).iloc[0])


def _not_linear(name: str) -> Iterator[str]:
    """Name the quantities that are not linear in their events: a unit would not carry over."""
    for title, quantity in dictionary.quantities(name).items():
        if not quantity.names:
            continue
        rng = np.random.default_rng(1)
        events = {event: float(rng.integers(1_000, 1_000_000)) for event in quantity.names}
        more = {event: _RATE * count for event, count in events.items()}
        if not np.isclose(_amount(quantity, more), _RATE * _amount(quantity, events), rtol=1e-12):
            yield f"[quantity.{title}]: not linear in its events"


def _wrong_units() -> Iterator[str]:
    """Name the common metrics whose unit is not what their quantities' units make of it.

    Counts of one unit are multiplied by a factor: the value has to change by the power of that
    factor which the metric's unit says. A sum of unlike things changes by no power.
    """
    common = dictionary.common()
    for metric in common.metric:
        units = {name: _dimension(common.units[name]) for name in metric.quantities}
        metrics_own = _dimension(metric.unit)
        base = {basis for unit in (*units.values(), metrics_own) for basis in unit} - {"op"}
        rng = np.random.default_rng(2)
        used = dictionary.names(metric.formula)
        counts = {name: float(rng.integers(1_000, 1_000_000)) for name in used}
        before = _value(metric.formula, counts)
        for basis in sorted(base | {"op"}):
            scaled = {
                name: count * _RATE ** _exponent(units, name, basis)
                for name, count in counts.items()
            }
            after = _value(metric.formula, scaled)
            if not np.isclose(after, before * _RATE ** metrics_own.get(basis, 0), rtol=1e-9):
                yield f"{metric.name}: unit {metric.unit!r} does not follow from its quantities'"
                break


def _exponent(units: Mapping[str, Mapping[str, int]], name: str, basis: str) -> int:
    """Return the exponent of a basis in a count per transaction; a constant is not per one."""
    unit = units[dictionary.split_mode(name)[0]]
    if basis == "op":
        return 0 if "/" in dictionary.common().units[dictionary.split_mode(name)[0]] else -1
    return unit.get(basis, 0)


def _dimension(unit: str) -> dict[str, int]:
    """Read a unit such as "bytes/op": exponents by singular nouns; misses are accesses."""
    top, _, bottom = unit.partition("/")
    exponents: dict[str, int] = {}
    for text, sign in ((top, 1), (bottom, -1)):
        if text not in ("", "1"):
            noun = _NOUNS.get(text, text.removesuffix("s"))
            exponents[noun] = exponents.get(noun, 0) + sign
    return exponents


def _check_sets(name: str, formulas: list[Formula], report: Report) -> None:
    """See that all events stand in a pass, and that every pass fits, on each kind of machine."""
    counters = dictionary.microarchitecture(name).counters
    for smt, watchdog in itertools.product((True, False), repeat=2):
        planned = passes.of_microarchitecture(name, smt=smt, watchdog=watchdog)
        report.sets += len(planned)
        there = {event for one in planned for event in one}
        lacking = [event for one in formulas for event in one.events if event not in there]
        if lacking:
            report.failures.append(f"{name}: in no pass: {', '.join(dict.fromkeys(lacking))}")
        for one in planned:
            if len(set(one)) != len(one) or not passes.fits(
                one, counters, smt=smt, watchdog=watchdog
            ):
                report.failures.append(f"{name}: does not fit: {','.join(one)}")
