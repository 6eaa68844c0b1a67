"""The machines that a server can run on: this one, and those described in data/machines."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tlscost.errors import TlscostError
from tlscost.paths import machines_dir, program

__all__ = [
    "NATIVE",
    "Simulated",
    "check",
    "descriptions",
    "machine_names",
    "observed",
    "simulated",
    "simulated_or_file",
]

NATIVE = "native"
"""This machine itself."""


@dataclass(frozen=True)
class Simulated:
    """A simulated machine: a machine file, and which of its variants are observed.

    Attributes
    ----------
    variant : str or None
        The one observed; None: all that the file has, in one run.
    guest, qemu_cpu : str
        The architecture that a guest is built for, and QEMU's CPU model.
    """

    name: str
    file: Path
    variant: str | None
    description: str
    guest: str
    qemu_cpu: str


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True)  # geometry and the like are the collector's to check

    name: str


class _L2(BaseModel):
    model_config = ConfigDict(frozen=True)

    variants: Annotated[list[_Named], Field(min_length=1)]


def _plain(value: Any) -> Any:
    """Return a constant, which comes with its source: {"value": ..., "source": ...}."""
    return value["value"] if isinstance(value, dict) and "value" in value else value


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)

    description: Annotated[str, AfterValidator(str.strip)]
    guest: str
    qemu_cpu: str
    l2: _L2


@cache
def _known() -> dict[str, Simulated]:
    """All simulated machines by name: each file's, and each file's variants'."""
    return {
        machine.name: machine
        for path in sorted(machines_dir().glob("*.json"))
        for machine in _of_file(path)
    }


def _of_file(path: Path) -> Iterator[Simulated]:
    read = _read(path)
    variants = [variant.name for variant in read.l2.variants]
    for variant in [None, *variants]:
        yield Simulated(
            name=path.stem if variant is None else f"{path.stem}-{variant}",
            file=path,
            variant=variant,
            description=f"{read.description}; L2: {variant or ', '.join(variants)}",
            guest=read.guest,
            qemu_cpu=read.qemu_cpu,
        )


def _read(path: Path) -> _File:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _File.model_validate({key: _plain(value) for key, value in document.items()})
    except (OSError, ValueError, AttributeError) as error:
        raise TlscostError(f"{path}: not a machine file: {error}") from error


@cache
def check(name: str) -> None:
    """Have the collector's reader check what a simulated machine is made of.

    Raises
    ------
    ValueError
        The machine file's constants make no machine; the message names file, key and value.
    """
    machine = simulated(name)
    if machine is not None:
        argv = [program("tlscost-machine-check"), machine.file]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(done.stderr.strip() or f"{machine.file}: cannot be checked")


def machine_names() -> list[str]:
    """Names of all machines, this one first."""
    return [NATIVE, *_known()]


def simulated(name: str) -> Simulated | None:
    """Return the simulated machine of that name, None for this machine itself.

    Raises
    ------
    KeyError
        No machine has that name.
    """
    return None if name == NATIVE else _known()[name]


def simulated_or_file(name: str) -> Simulated:
    """Return the simulated machine of that name, or all variants of a machine file (NAME.json)."""
    if name.endswith(".json"):
        return next(_of_file(Path(name)))
    if name in _known():
        return _known()[name]
    raise TlscostError(
        f"--machine: given {name!r}; expected a machine file (.json) or one of "
        f"{', '.join(_known())}"
    )


def observed(machine: str, variant: str | None) -> str:
    """Return the machine that one variant of a run's machine is: p3-xeon and 2m are p3-xeon-2m."""
    if not isinstance(variant, str) or machine.endswith(f"-{variant}"):
        return machine
    return f"{machine}-{variant}"


def descriptions() -> dict[str, str]:
    """Return what each machine is, by name."""
    return {
        NATIVE: "this machine itself",
        **{name: machine.description for name, machine in _known().items()},
    }
