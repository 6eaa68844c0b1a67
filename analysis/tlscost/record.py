"""Reads a record (docs/record-format.md) and refuses one that cannot be trusted.

A record is refused, with file, line, what was expected and the remedy, when it is cut short,
altered, of an unknown schema version or measured by a sanitizer build.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tlscost.errors import TlscostError

__all__ = [
    "SANITIZER_BUILDS",
    "SCHEMA",
    "Cell",
    "Count",
    "CpuTimes",
    "Footer",
    "Header",
    "Idle",
    "Imported",
    "Machine",
    "Record",
    "Window",
    "is_whole",
    "read",
    "read_header",
]

SCHEMA = "tlscost-record/1"
SANITIZER_BUILDS = frozenset({"asan-ubsan", "tsan", "fuzz"})

_MEASURE_AGAIN = "delete it and measure the cell again: records are never edited"

T = TypeVar("T")
Origin = Literal["counted", "scaled", "derived", "simulated", "modelled"]
Status = Literal["ok", "overlap", "unsupported", "not_permitted", "failed"]
Nanoseconds = Annotated[int, Field(ge=0)]


class _Line(BaseModel):
    # Unknown keys are to be ignored by readers, but kept: the report shows provenance whole.
    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


class Cell(_Line):
    """What was measured; keys beyond these come from the plan and are kept."""

    machine: str
    server: str
    tls: str
    size_bytes: Annotated[int, Field(ge=0)]
    cpus: Annotated[int, Field(gt=0)]
    load: dict[str, Any] = {}
    repetition: int = 0


class Program(_Line):
    """The program that measured."""

    version: str
    build: str


class Placement(_Line):
    """Which CPUs did what."""

    server_cpus: Annotated[list[int], Field(min_length=1)] | None
    load_cpus: list[int]
    overlap: bool
    reason: str | None = None


class Machine(_Line):
    """The simulated machine that was measured."""

    name: str
    variants: Annotated[list[str], Field(min_length=1)]
    clock_hz: Annotated[int, Field(gt=0)]
    bus_clock_hz: Annotated[int, Field(ge=0)]


class Imported(_Line):
    """Where an imported record's counts come from; another tool counted them."""

    tool: str
    not_corrected: str | None
    files: list[dict[str, Any]]


class Header(_Line):
    """The first line: the cell and where it was measured."""

    type: Literal["header"]
    schema_: Annotated[Literal["tlscost-record/1"], Field(alias="schema")]
    started_utc: str | None
    cell: Cell
    program: Program
    commands: dict[str, Any] = {}
    provenance: dict[str, Any] = {}
    machine: Machine | None = None
    imported: Imported | None = None
    placement: Placement
    network: dict[str, Any] = {}
    sources: list[dict[str, Any]] = []
    passes: list[list[dict[str, Any]]] = []
    rules: dict[str, Any] = {}


class CpuTimes(_Line):
    """How one CPU of the server's set spent a window; `idle_ns` includes iowait."""

    cpu: int
    idle_ns: Nanoseconds | None
    idle_resolution_ns: Nanoseconds | None = None
    steal_ns: Nanoseconds | None = None
    user_ns: Nanoseconds | None = None
    system_ns: Nanoseconds | None = None
    irq_ns: Nanoseconds | None = None
    softirq_ns: Nanoseconds | None = None


class Count(_Line):
    """One event on one CPU (None: the whole process tree)."""

    cpu: int | None
    event: str
    mode: str
    variant: str | None = None
    source: str
    raw: float | None
    corrected: float | None
    enabled_ns: Nanoseconds | None = None
    running_ns: Nanoseconds | None = None
    origin: Origin | None = None
    status: Status
    reason: str | None = None


class _Measured(_Line):
    pass_: Annotated[int, Field(alias="pass")]
    index: int
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    cpus: list[CpuTimes]
    counts: list[Count] = []
    system: dict[str, float | None] = {}
    null_reasons: dict[str, str] = {}
    notes: list[str] = []


class Idle(_Measured):
    """What the server's CPUs do while nobody asks anything of them."""

    type: Literal["idle"]


class Window(_Measured):
    """Counts and the transactions that belong to them; null transactions: nobody counted any."""

    type: Literal["window"]
    transactions: Annotated[int, Field(ge=0)] | None
    bytes: int | None = None
    connections: int | None = None
    handshakes_full: int | None = None
    handshakes_resumed: int | None = None
    tickets: int | None = None
    late: int | None = None
    clamped: int | None = None
    started: int | None = None
    errors: dict[str, int] = {}
    latency: dict[str, str | None] = {}
    server_rss_bytes: int | None = None
    samples: dict[str, Any] | None = None


class Footer(_Line):
    """The last line: it makes a record whole."""

    type: Literal["footer"]
    lines: int
    windows: int
    ended_utc: str | None = None
    sha256: str


_OBJECT = TypeAdapter(dict[str, Any])
_HEADER = TypeAdapter(Header)
_MEASURED: TypeAdapter[Idle | Window] = TypeAdapter(
    Annotated[Idle | Window, Field(discriminator="type")]
)
_FOOTER = TypeAdapter(Footer)


@dataclass(frozen=True)
class Record:
    """A whole record, in the order in which it was measured."""

    path: Path
    header: Header
    idle: tuple[Idle, ...]
    windows: tuple[Window, ...]
    footer: Footer


def is_whole(path: Path | str) -> bool:
    """Whether a record is there, complete and unaltered; it may still be of a refused build."""
    try:
        _split(Path(path))
    except TlscostError:
        return False
    return True


def read(path: Path | str) -> Record:
    """Read one record.

    Parameters
    ----------
    path : Path or str
        A `.jsonl` file, or one compressed by gzip, `.jsonl.gz`.

    Returns
    -------
    Record
        Every line checked against the record format.

    Raises
    ------
    TlscostError
        Exit code 2: the file cannot be read, is cut short, altered, of another schema version or
        of a sanitizer build; the message names file and line.
    """
    path = Path(path)
    lines, footer = _split(path)
    header = _header(path, lines[0])
    measured = [
        _line(_MEASURED, path, number, text, "an `idle` or `window` line")
        for number, text in enumerate(lines[1:], 2)
    ]
    windows = tuple(line for line in measured if isinstance(line, Window))
    if footer.windows != len(windows):
        raise _refusal(
            path,
            len(lines) + 1,
            f"the footer speaks of {footer.windows} windows, the record holds {len(windows)}",
            _MEASURE_AGAIN,
        )
    for number, line in enumerate(measured, 2):
        if line.end_ns <= line.start_ns:
            raise _refusal(path, number, "`end_ns` must come after `start_ns`", _MEASURE_AGAIN)
    return Record(
        path=path,
        header=header,
        idle=tuple(line for line in measured if isinstance(line, Idle)),
        windows=windows,
        footer=footer,
    )


def read_header(path: Path | str) -> Header:
    """Read what a record is of, and no more: `read` alone tells whether the record is whole."""
    path = Path(path)
    return _header(path, _content(path).partition(b"\n")[0])


def _content(path: Path) -> bytes:
    """Read a record's bytes; one that is kept compressed (.gz) is the same record."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as compressed:
                return compressed.read()
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TlscostError(f"{path}: cannot be read: {reason}") from error


def _split(path: Path) -> tuple[list[bytes], Footer]:
    """Lines before the footer, and the footer, whose counts and checksum hold."""
    content = _content(path)
    if not content.endswith(b"\n"):
        raise _refusal(
            path,
            content.count(b"\n") + 1,
            "the record is cut short: it does not end in a footer and a line feed",
            _MEASURE_AGAIN,
        )
    head_length = content.rfind(b"\n", 0, -1) + 1
    lines = content[:head_length].split(b"\n")[:-1]
    number = len(lines) + 1
    footer = _line(_FOOTER, path, number, content[head_length:], "the footer of a whole record")
    if not lines:
        raise _refusal(path, number, "a footer without a header before it", _MEASURE_AGAIN)
    if footer.lines != len(lines):
        raise _refusal(
            path,
            number,
            f"the footer speaks of {footer.lines} lines before it, there are {len(lines)}",
            _MEASURE_AGAIN,
        )
    found = hashlib.sha256(content[:head_length]).hexdigest()
    if footer.sha256.lower() != found:
        raise _refusal(
            path,
            number,
            f"the record was altered: its checksum is {found}, the footer says {footer.sha256}",
            "take the original, or " + _MEASURE_AGAIN,
        )
    return lines, footer


def _header(path: Path, text: bytes) -> Header:
    schema = _line(_OBJECT, path, 1, text, "a JSON object").get("schema")
    if schema != SCHEMA:
        raise _refusal(
            path,
            1,
            f"schema {schema!r}, this program reads {SCHEMA!r}",
            "read it with the version of tlscost that wrote it, or measure the cell again",
        )
    header = _line(_HEADER, path, 1, text, "the header")
    if header.program.build in SANITIZER_BUILDS:
        raise _refusal(
            path,
            1,
            f"measured by the {header.program.build} build, whose timings mean nothing",
            "measure again with the release build",
        )
    return header


def _line(adapter: TypeAdapter[T], path: Path, number: int, text: bytes, expected: str) -> T:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"expected {expected}: {f'`{where}`: ' if where else ''}{first['msg']}"
        raise _refusal(path, number, message, _MEASURE_AGAIN) from error


def _refusal(path: Path, line: int, message: str, remedy: str) -> TlscostError:
    return TlscostError(f"{path}:{line}: {message}. Remedy: {remedy}.")
