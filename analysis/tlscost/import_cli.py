"""The `import` sub-commands: what other tools counted, as records."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tlscost.errors import TlscostError

if TYPE_CHECKING:
    from tlscost.load_log import LoadLog
    from tlscost.perf_stat import Output

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Make records of what other tools counted.")


class Scope(StrEnum):
    """What perf counted."""

    CPU = "cpu"
    PROCESS = "process"


@app.callback()
def _several() -> None:
    """Make records of what other tools counted."""


@app.command(name="perf-stat")
def perf_stat(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Of `perf stat -x,` or `-j`; each a re-run."),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the records.")],
    server: Annotated[str, typer.Option(help="What was measured: nginx, myserver ...")],
    tls: Annotated[str, typer.Option(help="off, a profile's name, or any of your own.")],
    size: Annotated[str, typer.Option(help="Body size: 30, 36KiB, 1MiB ...")],
    transactions: Annotated[
        list[int] | None,
        typer.Option(min=0, max=10**18, help="While perf counted; one, or one a file."),
    ] = None,
    load_log: Annotated[
        list[Path] | None,
        typer.Option(help="Or: output of tlscost-load --json, wrk or h2load; one a file."),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Number of the server's CPUs.")] = None,
    cpu_list: Annotated[str | None, typer.Option(help="The server's CPUs: 0,2")] = None,
    scope: Annotated[
        Scope, typer.Option(help="Whole CPUs, or the server's processes.")
    ] = Scope.CPU,
    shared: Annotated[
        bool, typer.Option("--shared", help="The load generator ran on these CPUs, too.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(help="How long perf counted.")] = None,
    from_s: Annotated[
        float | None, typer.Option("--from", metavar="S", help="Intervals (-I) from here on.")
    ] = None,
    to_s: Annotated[
        float | None, typer.Option("--to", metavar="S", help="Intervals up to here.")
    ] = None,
    passes: Annotated[
        bool, typer.Option("--passes", help="The files are event sets of one run, no re-runs.")
    ] = False,
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="PERF=NAME", help="The name of perf's event here; repeatable."),
    ] = None,
    pmu: Annotated[str | None, typer.Option(help="Kind of core: cpu_core, cpu_atom.")] = None,
    uarch: Annotated[str | None, typer.Option(help="That machine's: skylake_server ...")] = None,
    connections: Annotated[int | None, typer.Option(min=1, help="Of the load.")] = None,
    separator: Annotated[
        str | None, typer.Option(help="perf's -x, if none of , ; | or tab.")
    ] = None,
) -> None:
    """Make records of perf stat's output, so that metrics, compare and report take them."""
    from tlscost import perf_import, record_writer
    from tlscost import perf_stat as reader
    from tlscost.cell import size_bytes

    try:
        size_of_body = size_bytes(size)
    except ValueError as error:
        raise TlscostError(f"--size: given {size!r}; {error}") from error
    load = {} if connections is None else {"connections": connections}
    request = perf_import.Request(
        cell={
            "machine": "native",
            "server": server,
            "tls": tls,
            "size_bytes": size_of_body,
            "load": load,
        },
        cpus=cpus,
        cpu_list=_cpu_list(cpu_list),
        scope=scope.value,
        shared=shared,
        seconds=_positive("--seconds", seconds),
        from_s=from_s,
        to_s=to_s,
        pmu=pmu,
        names={**_codes(uarch), **_names(event or [])},
        uarch=uarch,
        known=_known(uarch),
    )
    loads = _loads(len(files), transactions, load_log)
    outputs = [reader.read(path, separator) for path in files]
    both: list[tuple[Output, LoadLog | int | None]] = list(zip(outputs, loads, strict=True))
    runs = [both] if passes else [[one] for one in both]
    built = [perf_import.build(run, request, number) for number, run in enumerate(runs, 1)]
    _make_directory(out)
    paths = [out / f"{run[0][0].path.name}-r{number}.jsonl" for number, run in enumerate(runs, 1)]
    for path in paths:
        record_writer.check_absent(path)
    for path, (header, lines) in zip(paths, built, strict=True):
        record_writer.write(path, header, lines)
        typer.echo(f"tlscost: record: {path}", err=True)


def _loads(
    files: int, transactions: list[int] | None, logs: list[Path] | None
) -> "list[LoadLog | int | None]":
    """Transactions of each file; None: nobody told."""
    from tlscost import load_log

    if transactions and logs:
        raise TlscostError("--transactions: given beside --load-log; expected one of the two")
    if logs:
        if len(logs) != files:
            raise TlscostError(
                f"--load-log: given {len(logs)} times for {files} files; expected one a file"
            )
        return [load_log.read(path) for path in logs]
    if not transactions:
        return [None] * files
    if len(transactions) not in (1, files):
        raise TlscostError(
            f"--transactions: given {len(transactions)} times for {files} files; expected one, or "
            "one a file"
        )
    return [*(transactions if len(transactions) == files else transactions * files)]


def _cpu_list(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        raise TlscostError(f"--cpu-list: given {text!r}; expected numbers such as 0,2")
    cpus = tuple(map(int, parts))
    if len(set(cpus)) != len(cpus):
        raise TlscostError(f"--cpu-list: given {text!r}; a CPU is named twice")
    return cpus


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < 1e9:
        raise TlscostError(f"{option}: given {value}; expected seconds, more than 0")
    return value


def _names(pairs: list[str]) -> dict[str, str]:
    names = {}
    for pair in pairs:
        perf, equals, name = pair.rpartition("=")
        if not equals or not perf or not name:
            raise TlscostError(f"--event: given {pair!r}; expected perf's name=name")
        names[perf] = name
    return names


def _codes(uarch: str | None) -> dict[str, str]:
    """Return names of raw codes, which need the microarchitecture to mean anything."""
    from tlscost import dictionary, perf_events

    if uarch is None:
        return {}
    known = dictionary.microarchitectures()
    if uarch not in known:
        raise TlscostError(f"--uarch: given {uarch!r}; known: {', '.join(known)}")
    return perf_events.codes(uarch, dictionary.microarchitecture(uarch).recognised[0].vendor)


def _known(uarch: str | None) -> dict[str, str]:
    """Return the names of the metric dictionary's events for a microarchitecture."""
    from tlscost import dictionary, perf_events

    formulas = dictionary.formulas(dictionary.files_for("native", uarch))
    return perf_events.known_names(event for formula in formulas for event in formula.events)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TlscostError(f"--out: {path}: cannot be made: {error.strerror}") from error
