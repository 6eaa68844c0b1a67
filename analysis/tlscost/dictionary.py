"""The metric dictionary: formulas over events, read from data/events/."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from tlscost import paths
from tlscost.errors import TlscostError
from tlscost.machine import NATIVE

__all__ = ["Formula", "files_for", "load"]

# No attribute, call, index, string or assignment can be written in these characters, so that
# evaluating a formula can do arithmetic and nothing else.
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`[\w:.-]+`)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<operator>[-+*/()]))"
)


def _names(expression: str) -> list[str]:
    """Event names of an arithmetic expression, in order of appearance."""
    names: dict[str, None] = {}
    position = 0
    while expression[position:].strip():
        token = _TOKEN.match(expression, position)
        if token is None:
            raise ValueError(
                f"cannot read {expression[position:]!r} in formula {expression!r}; expected event "
                "names (in back-quotes where they hold other than letters, digits and _), numbers, "
                "+ - * / and parentheses"
            )
        name = token["name"] or (token["quoted"] or "").strip("`")
        if name:
            names[name] = None
        position = token.end()
    if not names:
        raise ValueError(f"formula {expression!r} names no event")
    return list(names)


def _readable(expression: str) -> str:
    ones = pd.DataFrame(1.0, index=[0], columns=_names(expression))
    try:
        ones.eval(expression, engine="python")
    except SyntaxError as error:
        raise ValueError(f"formula {expression!r} is not an expression: {error}") from error
    return expression


class Formula(BaseModel):
    """How one metric follows from events; see data/events/generic.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    formula: Annotated[str, AfterValidator(_readable)] | None = None
    unit: str
    quality: Literal["exact", "approximate", "undefined"]
    why: str
    own_cpus: bool = False
    per_window: Literal["mean", "variation"] | None = None

    @model_validator(mode="after")
    def _defined_or_not(self) -> "Formula":
        if (self.formula is None) != (self.quality == "undefined"):
            raise ValueError(f"metric {self.name}: has a formula unless its quality is undefined")
        return self

    @property
    def events(self) -> list[str]:
        """Names of the events that the formula takes."""
        return [] if self.formula is None else _names(self.formula)

    def evaluate(self, counts: pd.DataFrame) -> "pd.Series[float]":
        """Evaluate over `counts`, shape (runs, events); null where an event is null or missing."""
        if self.formula is None:
            return pd.Series(np.nan, index=counts.index)
        present = counts.reindex(columns=self.events)
        result = present.eval(self.formula, engine="python")
        return pd.Series(result, index=counts.index, dtype="float64")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: list[Formula]


def files_for(machine: str) -> tuple[str, ...]:
    """Names of the dictionary's files for records of a machine."""
    return ("generic",) if machine == NATIVE else ("p6", "simulated")


@cache
def load(name: str) -> tuple[Formula, ...]:
    """Read data/events/NAME.toml: the formulas, alternatives of a metric in order of preference."""
    path: Path = paths.root() / "data" / "events" / f"{name}.toml"
    try:
        return tuple(_File.model_validate(tomllib.loads(path.read_text())).metric)
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise TlscostError(f"{path}: not a metric dictionary: {error}") from error
