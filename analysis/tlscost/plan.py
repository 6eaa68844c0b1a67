"""Plans: TOML files that name the cells of a sweep (docs/plans.md).

Every value is checked while the plan is read, once however many cells it is part of; cells are
made as they are asked for.
"""

import bisect
import difflib
import itertools
import math
import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tlscost.cell import Cell, CommandServer, Load, Rules
from tlscost.errors import TlscostError
from tlscost.machine import NATIVE
from tlscost.profiles import OFF, profile

__all__ = ["Plan", "read", "weak_profile_warnings"]

MAX_CELLS = 1_000_000

Location = tuple[str | int, ...]

_CELL_KEYS = [name for name in Cell.model_fields if name != "repetition"]
_REQUIRED = [name for name in _CELL_KEYS if Cell.model_fields[name].is_required()]
_LIST_VALUED = {"cpu_list", "events"}
_NESTED: dict[str, type[BaseModel]] = {"server": CommandServer, "load": Load, "rules": Rules}


class _Head(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: str = ""
    repetitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    allow_weak: bool = False


@dataclass(frozen=True)
class Plan:
    """A checked plan.

    Attributes
    ----------
    tables : tuple of dict
        One per `[cells]` table: for each key the checked values whose product makes the cells.
    warnings : tuple of str
        What the user should know before the sweep starts.
    """

    path: Path
    name: str
    repetitions: int
    retries: int
    tables: tuple[dict[str, tuple[Any, ...]], ...]
    warnings: tuple[str, ...]

    def __len__(self) -> int:
        """Count the cells without making them (a cell named by two tables counts twice)."""
        return self.repetitions * sum(
            math.prod(len(values) for values in table.values()) for table in self.tables
        )

    def cells(self) -> Iterator[Cell]:
        """Make the cells one after the other: all of repetition 1, then all of 2, and so on.

        Repetitions are interleaved so that slow drifts of the machine show as spread between
        them, not as differences between cells.
        """
        for repetition in range(1, self.repetitions + 1):
            for table in self.tables:
                for values in itertools.product(*table.values()):
                    chosen = dict(zip(table, values, strict=True))
                    yield Cell.of_checked({**chosen, "repetition": repetition})


def read(path: Path) -> Plan:
    """Read and check a plan.

    Raises
    ------
    TlscostError
        Naming file, line, key, what was given and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TlscostError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise TlscostError(f"{path}:{line}: a plan is UTF-8 text: {error}") from error
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Besides TOMLDecodeError: numbers too long to convert, and arrays too deep to parse.
        line = _line_that_fails(text, error)
        raise TlscostError(f"{path}:{line}: not TOML: {error}") from error
    return _Reader(path, text).plan(document)


def weak_profile_warnings(names: Collection[str]) -> list[str]:
    """Return one warning for each weak profile among the names."""
    return [
        f"TLS profile {name}: weak; it protects nothing and is for measuring only"
        for name in names
        if name != OFF and profile(name).weak
    ]


@dataclass(frozen=True)
class _Reader:
    path: Path
    text: str

    def plan(self, document: dict[str, Any]) -> Plan:
        self._known_keys((), document, ["plan", "cells"])
        head = self._head(document.get("plan"))
        tables = tuple(
            self._table(where, table) for where, table in self._cell_tables(document.get("cells"))
        )
        names = sorted({name for table in tables for name in table["tls"]})
        plan = Plan(
            path=self.path,
            name=head.name,
            repetitions=head.repetitions,
            retries=head.retries,
            tables=tables,
            warnings=() if head.allow_weak else tuple(weak_profile_warnings(names)),
        )
        if len(plan) > MAX_CELLS:
            raise self._refusal(
                ("cells",), f"{len(plan):,} cells; allowed: up to {MAX_CELLS:,} in one plan"
            )
        return plan

    def _head(self, table: object) -> _Head:
        if not isinstance(table, dict):
            raise self._refusal(
                ("plan",), "missing; expected a table [plan] with at least a `name`"
            )
        self._known_keys(("plan",), table, _Head.model_fields)
        try:
            return _Head.model_validate(table)
        except ValidationError as error:
            raise self._bad_value(("plan",), error) from error

    def _cell_tables(self, cells: object) -> list[tuple[Location, dict[str, Any]]]:
        if isinstance(cells, dict):
            return [(("cells",), cells)]
        if isinstance(cells, list) and cells and all(isinstance(table, dict) for table in cells):
            return [(("cells", index), table) for index, table in enumerate(cells)]
        raise self._refusal(("cells",), "expected a table [cells], or several [[cells]]")

    def _table(self, where: Location, table: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
        self._known_keys(where, table, _CELL_KEYS)
        for key in _REQUIRED:
            if key not in table:
                raise self._refusal(
                    (*where, key), f"missing; required: {', '.join(_REQUIRED)}", where
                )
        if "cpus" in table and "cpu_list" in table:
            raise self._refusal(
                (*where, "cpu_list"), "given beside `cpus`; expected one of the two"
            )
        checked = {key: self._values((*where, key), key, given) for key, given in table.items()}
        self._fit_machines(where, table, checked)
        return checked

    def _fit_machines(
        self, where: Location, table: dict[str, Any], checked: dict[str, tuple[Any, ...]]
    ) -> None:
        for machine in checked.get("machine", (NATIVE,)):
            for key, values in checked.items():
                for index, value in enumerate(values):
                    if problem := Cell.unfit(machine, key, value):
                        several = isinstance(table[key], list) and key not in _LIST_VALUED
                        given = table[key][index] if several else table[key]
                        place = (*where, key, index) if several else (*where, key)
                        raise self._refusal(place, f"given {_shown(given)}; {problem}")

    def _values(self, where: Location, key: str, given: object) -> tuple[Any, ...]:
        """Check one key's value or values: lists multiply, where a list is not the value itself."""
        if not isinstance(given, list) or (
            key in _LIST_VALUED and not (given and all(isinstance(item, list) for item in given))
        ):
            return (self._value(where, key, given),)
        if not given:
            raise self._refusal(where, "given []; an empty list makes no cells")
        checked = tuple(self._value((*where, index), key, item) for index, item in enumerate(given))
        for index, value in enumerate(checked):
            if value in checked[:index]:
                raise self._refusal(
                    (*where, index), f"{given[index]!r} is the same as an earlier value"
                )
        return checked

    def _value(self, where: Location, key: str, given: object) -> Any:
        if isinstance(given, dict) and key in _NESTED:
            self._known_keys(where, given, _NESTED[key].model_fields)
        try:
            return Cell.check(key, given)
        except ValidationError as error:
            raise self._bad_value(where, error) from error

    def _known_keys(self, where: Location, table: dict[str, Any], allowed: Collection[str]) -> None:
        for key in table:
            if key not in allowed:
                close = difflib.get_close_matches(key, allowed, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ";"
                raise self._refusal(
                    (*where, key), f"unknown key{hint} allowed: {', '.join(allowed)}"
                )

    def _bad_value(self, where: Location, error: ValidationError) -> TlscostError:
        first = error.errors(include_url=False)[0]
        within = first["loc"]
        if where[-1:] == ("server",) or where[-2:-1] == ("server",):
            within = within[1:]  # which of `server`'s two forms it is: not a key of the plan
        if first["type"] == "missing":
            return self._refusal((*where, *within), "missing; required", where)
        problem = first["msg"].removeprefix("Value error, ")
        problem = problem.replace("Input should be", "expected")
        return self._refusal((*where, *within), f"given {_shown(first['input'])}; {problem}")

    def _refusal(self, where: Location, problem: str, near: Location | None = None) -> TlscostError:
        line = _line_of(self.text, where if near is None else near)
        key = ".".join(part for part in where if isinstance(part, str))
        return TlscostError(f"{self.path}:{line}: {key}: {problem}")


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _line_that_fails(text: str, error: ValueError | RecursionError) -> int:
    if position := re.search(r"\(at line (\d+), column \d+\)$", str(error)):
        return int(position[1])
    lines = text.split("\n")
    if isinstance(error, tomllib.TOMLDecodeError):  # "(at end of document)"
        return len(lines)

    def fails_so(count: int) -> bool:
        try:
            tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            return False  # ends within a statement
        except (ValueError, RecursionError):
            return True
        return False

    return bisect.bisect_left(range(1, len(lines)), True, key=fails_so) + 1


def _line_of(text: str, where: Location) -> int:
    """Find the line on which the statement starts that brings `where` into the document.

    tomllib tells no positions, but a document's leading lines are a document too: the statement
    ends with the first line that makes the key appear.
    """
    lines = text.split("\n")

    def complete_until(count: int) -> tuple[int, dict[str, Any]]:
        for end in range(count, 0, -1):
            try:
                return end, tomllib.loads("\n".join(lines[:end]))
            except (ValueError, RecursionError):
                continue  # ends within a statement
        return 0, {}

    last = bisect.bisect_left(
        range(len(lines) + 1), True, key=lambda count: _holds(complete_until(count)[1], where)
    )
    if last > len(lines):  # missing altogether
        return 1
    return complete_until(last - 1)[0] + 1 if last else 1


def _holds(document: Any, where: Location) -> bool:
    for part in where:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True
