"""What options of the command line say, as a cell."""

from typing import Any

from pydantic import ValidationError

from tlscost.cell import Cell
from tlscost.errors import TlscostError

__all__ = ["cell_of", "given", "numbers"]


def given(**values: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def numbers(option: str, text: str | None) -> list[int] | None:
    """Read a list of numbers, "0,2".

    Raises
    ------
    TlscostError
        The text is no such list.
    """
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise TlscostError(f"{option}: given {text!r}; expected numbers such as 0,2") from None


def cell_of(**values: Any) -> Cell:
    """Make a cell of what options gave.

    Raises
    ------
    TlscostError
        A value is refused, by its option's name.
    """
    options = given(**values)
    if "cpus" in options and "cpu_list" in options:
        raise TlscostError("--cpu-list: given beside --cpus; expected one of the two")
    checked = {}
    for name, value in options.items():
        try:
            checked[name] = Cell.check(name, value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            inner = [part for part in first["loc"] if part in given(**_as_dict(value))]
            option = str(inner[0] if inner else name).replace("_", "-")
            problem = first["msg"].removeprefix("Value error, ")
            raise TlscostError(f"--{option}: given {first['input']!r}; {problem}") from error
    for name, value in checked.items():
        problem_here = Cell.unfit(checked["machine"], name, value)
        if problem_here is not None:
            option = name.replace("_", "-")
            raise TlscostError(f"--{option}: given {options[name]!r}; {problem_here}")
    return Cell.of_checked(checked)


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
