"""The metric dictionary: formulas over events, read from data/events/ (docs/metrics.md)."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from tlscost import paths
from tlscost.errors import TlscostError
from tlscost.machine import NATIVE
from tlscost.uarch import Microarchitecture, detect

__all__ = [
    "COMMON",
    "GENERIC",
    "KERNEL",
    "PAPI",
    "Common",
    "Formula",
    "Quality",
    "Quantity",
    "common",
    "files_for",
    "formulas",
    "load",
    "microarchitecture",
    "microarchitectures",
    "names",
    "quantities",
    "recognise",
    "split_mode",
]

COMMON = "common"  # the formulas over quantities
KERNEL = "kernel"  # quantities by the kernel's generic events, for CPUs that no file is about
PAPI = "papi"  # quantities by PAPI's presets
GENERIC = "generic"  # what is no matter of the CPU

Parsed = TypeVar("Parsed", bound=BaseModel)
Quality = Literal["exact", "approximate", "undefined"]
_FROM_BEST: tuple[Quality, ...] = ("exact", "approximate", "undefined")

# No attribute, call, index, string or assignment can be written in these characters, so that
# evaluating a formula can do arithmetic and nothing else.
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`[\w:.-]+`)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<operator>[-+*/()]))"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
_MODE = re.compile(r"(?P<name>.+):(?P<mode>u|k|uk)")


def _tokens(expression: str) -> list[tuple[str | None, str]]:
    """Return the (name or None, text) of each token of an arithmetic expression."""
    tokens = []
    position = 0
    while expression[position:].strip():
        token = _TOKEN.match(expression, position)
        if token is None:
            raise ValueError(
                f"cannot read {expression[position:]!r} in formula {expression!r}; expected event "
                "names (in back-quotes where they hold other than letters, digits and _), numbers, "
                "+ - * / and parentheses"
            )
        name = token["name"] or (token["quoted"] or "").strip("`") or None
        tokens.append((name, token[0].strip()))
        position = token.end()
    return tokens


def names(expression: str) -> list[str]:
    """Return the names in an arithmetic expression, in order of appearance."""
    found = list(dict.fromkeys(name for name, _ in _tokens(expression) if name))
    if not found:
        raise ValueError(f"formula {expression!r} names no event")
    return found


def _readable(expression: str) -> str:
    ones = pd.DataFrame(1.0, index=[0], columns=names(expression))
    try:
        ones.eval(expression, engine="python")
    except SyntaxError as error:
        raise ValueError(f"formula {expression!r} is not an expression: {error}") from error
    return expression


def _with_names(expression: str, text_of: Callable[[str], str]) -> str:
    """Replace every name of an expression by what `text_of` makes of it."""
    texts = [text if name is None else text_of(name) for name, text in _tokens(expression)]
    return re.sub(r"(?<=\() | (?=\))", "", " ".join(texts))


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"


Expression = Annotated[str, AfterValidator(_readable)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Formula(_Frozen):
    """How one metric follows from events; see docs/metrics.md.

    Attributes
    ----------
    optional : bool
        A metric that not every microarchitecture is asked for.
    """

    name: str
    formula: Expression | None = None
    unit: str
    quality: Quality
    why: str
    own_cpus: bool = False
    per_window: Literal["mean", "variation"] | None = None
    optional: bool = False

    @model_validator(mode="after")
    def _defined_or_not(self) -> "Formula":
        if (self.formula is None) != (self.quality == "undefined"):
            raise ValueError(f"metric {self.name}: has a formula unless its quality is undefined")
        return self

    @property
    def events(self) -> list[str]:
        """Names of the events that the formula takes."""
        return [] if self.formula is None else names(self.formula)

    def evaluate(self, counts: pd.DataFrame) -> "pd.Series[float]":
        """Evaluate over `counts`, shape (runs, events); null where an event is null or missing."""
        if self.formula is None:
            return pd.Series(np.nan, index=counts.index)
        present = counts.reindex(columns=self.events)
        result = present.eval(self.formula, engine="python")
        return pd.Series(result, index=counts.index, dtype="float64")


class Quantity(_Frozen):
    """What a microarchitecture's events make of something that common formulas take.

    Attributes
    ----------
    events : str or None
        An expression over events, linear in them, or a number; None where quality is undefined.
    """

    events: str | float | None = None
    quality: Quality
    why: str

    @model_validator(mode="after")
    def _defined_or_not(self) -> "Quantity":
        if (self.events is None) != (self.quality == "undefined"):
            raise ValueError("a quantity has `events` unless its quality is undefined")
        if isinstance(self.events, str):
            _readable(self.events)
        return self

    @property
    def names(self) -> list[str]:
        """Names of the events."""
        return names(self.events) if isinstance(self.events, str) else []

    def text(self, mode: str | None) -> str:
        """Return the expression as part of another one, its events in one mode if that is given."""
        if not isinstance(self.events, str):
            return str(self.events)

        def in_mode(name: str) -> str:
            return _quoted(f"{name}:{mode}" if mode else name)

        text = _with_names(self.events, in_mode)
        return text if len(_tokens(self.events)) == 1 else f"({text})"


class CommonMetric(_Frozen):
    """A metric over quantities; see data/events/common.toml."""

    name: str
    formula: Expression
    unit: str
    why: str
    quality: Literal["exact", "approximate"] = "exact"
    optional: bool = False

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities that it takes."""
        return list(dict.fromkeys(split_mode(name)[0] for name in names(self.formula)))

    def over(self, known: Mapping[str, Quantity], document: str) -> Formula | None:
        """Make the formula over events; None where it is optional and a quantity is not known."""
        missing = [name for name in self.quantities if name not in known]
        if missing and self.optional:
            return None
        if missing:
            raise ValueError(f"metric {self.name}: expected [quantity.{missing[0]}]")
        parts = [known[name] for name in self.quantities]
        quality = max(self.quality, *(part.quality for part in parts), key=_FROM_BEST.index)
        lacking = [part.why for part in parts if part.quality == "undefined"]
        whys = dict.fromkeys([self.why, *(part.why for part in parts if part.why)])
        why = lacking[0] if lacking else "; ".join(whys)
        return Formula(
            name=self.name,
            formula=None if lacking else _with_names(self.formula, lambda name: _text(name, known)),
            unit=self.unit,
            quality=quality,
            why=f"{why} ({document})" if document else why,
            own_cpus=True,
            optional=self.optional,
        )


def split_mode(name: str) -> tuple[str, str | None]:
    """Return an event's name, and the mode that it is counted in (u, k, uk) if it is given."""
    match = _MODE.fullmatch(name)
    return (match["name"], match["mode"]) if match else (name, None)


def _text(name: str, known: Mapping[str, Quantity]) -> str:
    quantity, mode = split_mode(name)
    return known[quantity].text(mode)


class Common(_Frozen):
    """The file of the common metrics: formulas over quantities, and what each quantity counts."""

    units: dict[str, str]
    metric: tuple[CommonMetric, ...]


class _File(_Frozen):
    """A file of formulas over events, or of what a microarchitecture makes of the quantities.

    `extends` names the file whose quantities it has, too, but for those that it gives itself.
    """

    extends: str | None = None
    uarch: Microarchitecture | None = None
    quantity: dict[str, Quantity] = {}
    metric: tuple[Formula, ...] = ()


def files_for(machine: str, uarch: str | None = None, *, papi: bool = False) -> tuple[str, ...]:
    """Names of the dictionary's files for records of a machine, best first.

    Parameters
    ----------
    uarch : str or None
        The microarchitecture of a native machine, of `microarchitectures`; None: unknown.
    papi : bool
        PAPI counted: the events are its presets.
    """
    if machine != NATIVE:
        return ("simulated", "p6")
    if papi:
        return (GENERIC, PAPI)
    known = [uarch] if uarch in microarchitectures() else []
    return (GENERIC, *known, KERNEL)


def formulas(files: Iterable[str]) -> tuple[Formula, ...]:
    """Formulas of files, alternatives of a metric best first.

    What a file says is undefined has no alternative in the files behind it.
    """
    found: list[Formula] = []
    undefined: set[str] = set()
    for name in files:
        own = [one for one in load(name) if one.name not in undefined]
        undefined |= {one.name for one in own if one.quality == "undefined"}
        found += own
    return tuple(found)


@cache
def load(name: str) -> tuple[Formula, ...]:
    """Read data/events/NAME.toml: the formulas, alternatives of a metric in order of preference."""
    given, uarch = quantities(name), _file(name).uarch
    document = uarch.document if uarch else ""
    try:
        made = [metric.over(given, document) for metric in common().metric] if given else []
    except ValueError as error:
        raise TlscostError(f"{_path(name)}: {error}") from error
    return (*(formula for formula in made if formula is not None), *_file(name).metric)


@cache
def quantities(name: str) -> Mapping[str, Quantity]:
    """Return the quantities of data/events/NAME.toml and of the files that it extends.

    Raises
    ------
    TlscostError
        A file cannot be read, or gives a quantity that common.toml does not know.
    """
    file = _file(name)
    inherited = quantities(file.extends) if file.extends else {}
    for quantity in file.quantity:
        if quantity not in common().units:
            known = ", ".join(common().units)
            raise TlscostError(f"{_path(name)}: [quantity.{quantity}]: expected one of: {known}")
    return {**inherited, **file.quantity}


@cache
def common() -> Common:
    """Read data/events/common.toml."""
    return _validated(COMMON, Common)


@cache
def microarchitectures() -> tuple[str, ...]:
    """Names of the microarchitectures that a file is about, by vendor and age."""
    files = [path.stem for path in _path(COMMON).parent.glob("*.toml") if path.stem != COMMON]
    known = [name for name in files if _file(name).uarch is not None]
    return tuple(sorted(known, key=lambda name: microarchitecture(name).order))


def microarchitecture(name: str) -> Microarchitecture:
    """Return what is known of a microarchitecture.

    Raises
    ------
    TlscostError
        No file is about it.
    """
    if _path(name).is_file() and name != COMMON:
        found = _file(name).uarch
        if found is not None:
            return found
    known = ", ".join(microarchitectures())
    raise TlscostError(f"microarchitecture {name!r}: expected one of: {known}")


def recognise(identity: Mapping[str, str]) -> str | None:
    """Return the microarchitecture of a CPU, None where no file is about it.

    Parameters
    ----------
    identity : mapping of str to str
        As a record's provenance holds it in `cpu_identity`: lines of /proc/cpuinfo.
    """
    return detect(identity, ((name, microarchitecture(name)) for name in microarchitectures()))


@cache
def _file(name: str) -> _File:
    return _validated(name, _File)


def _validated(name: str, model: type[Parsed]) -> Parsed:
    try:
        given: dict[str, Any] = tomllib.loads(_path(name).read_text(encoding="utf-8"))
        return model.model_validate(given)
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise TlscostError(f"{_path(name)}: not a metric dictionary: {error}") from error


def _path(name: str) -> Path:
    return paths.root() / "data" / "events" / f"{name}.toml"
