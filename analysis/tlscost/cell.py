"""A cell: one measured combination of machine, server, TLS profile, file size, CPUs and load."""

import hashlib
import os
import re
import shlex
import string
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from tlscost.machine import NATIVE, check, machine_names
from tlscost.profiles import OFF, profile_names

__all__ = ["Cell", "CommandServer", "Load", "Rules", "human_size", "size_bytes"]

CLOSED_LOOP_CONNECTIONS = 16
OPEN_LOOP_CONNECTIONS = 64  # a limit, seldom reached
SIMULATED_CPUS_MOST = 8
PLACEHOLDERS = ("address", "port", "size", "cpus", "cpu_list", "bodies", "certificate")

_BYTE_SIZE = TypeAdapter(ByteSize)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def human_size(size_bytes: int) -> str:
    """Return a size as the published tables spell it: 30B, 36KiB, 1MiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def _for_a_command_line(value: str) -> None:
    if "\0" in value:
        raise ValueError("a NUL cannot stand in a command line")


def size_bytes(value: object) -> int:
    """Return a body's size [bytes] of a number or of a text such as `36KiB`; else ValueError."""
    if type(value) is int and value >= 0:
        return value
    if type(value) is str and value.isascii() and "." not in value:
        try:
            return _BYTE_SIZE.validate_python(value)
        except ValidationError:
            pass
    raise ValueError("a size is a whole number of bytes, 0 or more, or a text such as '36KiB'")


def _event_set(value: str) -> str:
    _for_a_command_line(value)
    if any(not name.strip() for name in value.split(",")):
        raise ValueError("an event set is a list of event names with commas between them")
    return value


def _known_profile(value: str) -> str:
    allowed = [OFF, *profile_names()]
    if value not in allowed:
        raise ValueError(f"no such TLS profile; allowed: {', '.join(allowed)}")
    return value


def _there(cpu: int) -> int:
    present = os.sched_getaffinity(0)
    if cpu not in present:
        raise ValueError(f"no such CPU here; allowed: {', '.join(map(str, sorted(present)))}")
    return cpu


def _known_machine(value: str) -> str:
    if value not in machine_names():
        raise ValueError(f"no such machine; allowed: {', '.join(machine_names())}")
    check(value)
    return value


def _distinct(cpus: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(cpus)) != len(cpus):
        raise ValueError("a CPU is named twice")
    return cpus


def _template(value: str) -> str:
    _for_a_command_line(value)
    try:
        fields = [field for _, *field in string.Formatter().parse(value) if field[0] is not None]
        shlex.split(value)
    except ValueError as error:
        raise ValueError(f"not a template: {error}") from error
    for name, form, conversion in fields:
        known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
        if name not in PLACEHOLDERS:
            raise ValueError(f"unknown placeholder {{{name}}}; allowed: {known}")
        if form or conversion:
            raise ValueError(f"placeholder {{{name}}} with a format; allowed: {known}")
    return value


Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
Template = Annotated[str, Field(min_length=1), AfterValidator(_template)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class CommandServer(_Frozen):
    """Any server: how to start it in the foreground, and where it then answers.

    `command` and `url` may hold {address}, {port}, {size} [bytes], {cpus} (their number),
    {cpu_list}, {bodies} (a directory with the body at /SIZE) and {certificate} (a directory with
    cert.pem and key.pem; only with a TLS profile).
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")] = "command"
    command: Template
    url: Annotated[Template, Field(pattern=r"^https?://")]


class Load(_Frozen):
    """What the load generator does: a closed loop, or an open one where a rate is given.

    `connections` is the number of a closed loop's, and the limit of an open loop's.
    """

    connections: Annotated[int, Field(gt=0, le=1_000_000)] = CLOSED_LOOP_CONNECTIONS
    rate: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)] | None = None
    arrivals: Literal["constant", "poisson", "pareto"] | None = None
    keepalive: bool = False
    resumption: Annotated[float, Field(ge=0, le=1)] = 0.0
    timeout_s: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_loop(cls, values: object) -> object:
        """Spell out what is meant, so that the same load never has two names."""
        if not isinstance(values, dict):
            return values
        if values.get("rate") is not None:
            return {"arrivals": "poisson", "connections": OPEN_LOOP_CONNECTIONS, **values}
        if values.get("arrivals") is not None:
            raise ValueError("arrivals belong to an open loop: give a rate too")
        return values


class Rules(_Frozen):
    """How long the phases of a cell last; what is not given is the collector's default."""

    idle_s: Seconds | None = None
    warmup_s: Seconds | None = None
    warmup_max_s: Seconds | None = None
    window_s: Seconds | None = None
    completions_per_connection: Annotated[int, Field(gt=0)] | None = None
    windows: Annotated[int, Field(gt=0, le=1000)] | None = None
    sample_ms: Annotated[int, Field(gt=0, le=10_000)] | None = None


class Cell(_Frozen):
    """One measured combination. `size` is in bytes; `cpus` is the number of the server's CPUs."""

    machine: Annotated[str, AfterValidator(_known_machine)] = NATIVE
    server: Annotated[
        Annotated[Literal["serve", "nginx"], Tag("name")] | Annotated[CommandServer, Tag("table")],
        Discriminator(lambda value: "name" if isinstance(value, str) else "table"),
    ]
    tls: Annotated[str, AfterValidator(_known_profile)]
    size: Annotated[int, Field(lt=1 << 40), BeforeValidator(size_bytes)]
    cpus: Annotated[StrictInt, Field(gt=0)] = 1
    cpu_list: (
        Annotated[
            tuple[Annotated[StrictInt, Field(ge=0), AfterValidator(_there)], ...],
            Field(min_length=1, strict=False),
            AfterValidator(_distinct),
        ]
        | None
    ) = None
    load: Load = Load()
    rules: Rules = Rules()
    source: Literal["perf", "papi"] = "perf"
    events: Annotated[
        tuple[Annotated[str, AfterValidator(_event_set)], ...], Field(strict=False)
    ] = ()
    repetition: Annotated[StrictInt, Field(ge=1)] = 1

    @classmethod
    def check(cls, field: str, value: object) -> Any:
        """Check one field's value, so that a product of lists is checked per value, not per cell.

        Raises
        ------
        pydantic.ValidationError
            With `loc` relative to the field.
        """
        return _ADAPTERS[field].validate_python(value)

    @classmethod
    def unfit(cls, machine: str, field: str, value: object) -> str | None:
        """Say why a field's checked value is not to be had on a machine; None: it is."""
        if machine == NATIVE:
            most = len(os.sched_getaffinity(0))
            if field == "cpus" and isinstance(value, int) and value > most:
                return f"this machine has {most} CPUs; allowed: 1 to {most}"
            return None
        if field == "cpus" and isinstance(value, int) and value > SIMULATED_CPUS_MOST:
            return f"{machine} is simulated with 1 to {SIMULATED_CPUS_MOST} CPUs"
        if field == "cpu_list" and value is not None:
            return f"the CPUs of {machine} are its own; give their number as `cpus`"
        if isinstance(value, CommandServer):
            return f"{machine} runs the servers 'serve' and 'nginx' only"
        return None

    @classmethod
    def of_checked(cls, values: Mapping[str, Any]) -> "Cell":
        """Build a cell of values that `check` returned; costs microseconds."""
        cpu_list = values.get("cpu_list")
        return _BLANK.model_copy(update={**values, "cpus": len(cpu_list)} if cpu_list else values)

    @cached_property
    def id(self) -> str:
        """Name of the cell: readable, safe in file names, the same in every run.

        Ends in a hash of every value that is not its field's default, so that a field added later
        leaves the names of older cells alone.
        """
        digest = hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode())
        words = (
            *([] if self.machine == NATIVE else [self.machine]),
            self.server_name,
            self.tls,
            human_size(self.size),
            f"{self.cpus}cpu",
            f"r{self.repetition}",
            digest.hexdigest()[:10],
        )
        return _UNSAFE.sub("_", "-".join(words))

    @property
    def server_name(self) -> str:
        """The server's name as tables show it."""
        return self.server if isinstance(self.server, str) else self.server.name

    def for_record(self) -> dict[str, Any]:
        """Return the cell as the record's header holds it (docs/record-format.md)."""
        values = self.model_dump(mode="json", exclude={"server", "size"}, exclude_none=True)
        values |= {"server": self.server_name, "size_bytes": self.size}
        if isinstance(self.server, CommandServer):
            values |= {"server_command": self.server.command, "server_url": self.server.url}
        return values


_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(cast(Any, Annotated[info.annotation, info]))
    for name, info in Cell.model_fields.items()
}

# Copied for each cell: several times as fast as model_construct().
_BLANK = Cell.model_construct(None, server="serve", tls=OFF, size=0)
