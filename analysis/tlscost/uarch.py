"""Microarchitectures: what tells one from the others, and how many counters it has."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Counters", "Microarchitecture", "Model", "detect", "identity_here"]

_CPUINFO = Path("/proc/cpuinfo")
_KEYS = {
    *("vendor_id", "cpu family", "model", "stepping"),
    *("CPU implementer", "CPU part", "CPU variant"),
}

Hex = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Frozen):
    """CPUs of one kind: x86's by family, models and steppings, ARM's by part.

    Attributes
    ----------
    models, steppings : tuple of int
        Empty: all of them.
    """

    vendor: Literal["GenuineIntel", "AuthenticAMD", "ARM"]
    family: int | None = None
    models: tuple[int, ...] = ()
    steppings: tuple[int, ...] = ()
    part: Hex | None = None

    def covers(self, identity: Mapping[str, str]) -> bool:
        """Whether a record's `cpu_identity` (lines of /proc/cpuinfo) is of this kind."""
        if self.vendor == "ARM":
            return (
                _number(identity, "CPU implementer") == _ARM_LIMITED
                and _number(identity, "CPU part") == self.part
            )
        return (
            identity.get("vendor_id") == self.vendor
            and _number(identity, "cpu family") == self.family
            and (not self.models or _number(identity, "model") in self.models)
            and (not self.steppings or _number(identity, "stepping") in self.steppings)
        )


_ARM_LIMITED = 0x41


class Counters(_Frozen):
    """The counters that a hardware thread has for events of its core.

    Attributes
    ----------
    general : int
        With SMT on, or where there is none.
    general_without_smt : int or None
        Where SMT is off, if that differs.
    fixed : tuple of str
        Events that have a counter of their own besides, as the kernel names them.
    watchdog : str or None
        The event that the NMI watchdog counts.
    """

    general: Annotated[int, Field(gt=0)]
    general_without_smt: Annotated[int, Field(gt=0)] | None = None
    fixed: tuple[str, ...] = ()
    watchdog: str | None = None


class Microarchitecture(_Frozen):
    """A microarchitecture of the metric dictionary.

    Attributes
    ----------
    title : str
        As people call it.
    order : int
        Its place in lists: by vendor and age.
    server : bool
        Servers of its time ran on it.
    document : str
        The vendor's document that defines its events.
    tables : {"native", "i386", "arm64"}
        The build of libpfm4 that knows its events.
    pmu : tuple of str
        Names of its PMUs in libpfm4, one per variant of the microarchitecture.
    recognised : tuple of Model
        The CPUs that are of it.
    counters : Counters
    constraints : dict of str to str
        Known restrictions of events to some of the counters: the kernel knows and keeps them.
    """

    title: str
    order: int
    server: bool = True
    document: str
    tables: Literal["native", "i386", "arm64"] = "native"
    pmu: Annotated[tuple[str, ...], Field(min_length=1)]
    recognised: Annotated[tuple[Model, ...], Field(min_length=1)]
    counters: Counters
    constraints: dict[str, str] = {}


def detect(
    identity: Mapping[str, str], known: Iterable[tuple[str, Microarchitecture]]
) -> str | None:
    """Return the name of a CPU's microarchitecture, None where no file is about it.

    Parameters
    ----------
    identity : mapping of str to str
        The CPU's lines of /proc/cpuinfo, as a record's provenance holds them in `cpu_identity`.
    known : iterable of (str, Microarchitecture)
    """
    for name, uarch in known:
        if any(model.covers(identity) for model in uarch.recognised):
            return name
    return None


def identity_here(cpuinfo: Path = _CPUINFO) -> dict[str, str]:
    """Return what tells this machine's first CPU from others, as records hold it."""
    identity: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in _KEYS:
            identity.setdefault(key, value)
    return identity


def _number(identity: Mapping[str, str], key: str) -> int | None:
    try:
        return int(identity.get(key, ""), 0)
    except ValueError:
        return None
