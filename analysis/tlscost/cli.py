"""The command line (its contract: options, JSON shapes and exit codes that scripts rely on).

Results go to standard output, everything else to standard error. What is heavy to import is
imported by the command that needs it.
"""

import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tlscost.bench.cli import app as bench
from tlscost.errors import DONE, INTERRUPTED, TlscostError
from tlscost.events_cli import events
from tlscost.import_cli import app as imports

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table
    from rich.text import Text

    from tlscost.plan import Plan
    from tlscost.sweep import Result

__all__ = ["app", "main"]

RESULTS = Path("tlscost-results")
WIDE = 400

app = typer.Typer(
    help="What a TLS transaction costs a server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
app.command()(events)
app.add_typer(imports, name="import")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Records, or directories that hold them.")
]


class Format(StrEnum):
    """How `metrics` prints."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class Weights(StrEnum):
    """How `decompose` weighs its points."""

    RELATIVE = "relative"
    EQUAL = "equal"
    COLUMN = "column"


class Engine(StrEnum):
    """What runs a sweep's cells."""

    LOCAL = "local"


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        app()
    except TlscostError as error:
        _say(f"error: {error}")
        sys.exit(error.exit_code)
    sys.exit(DONE)


@app.command()
def run(
    server: Annotated[str, typer.Option(help="serve, nginx, or a command line (with --url).")],
    tls: Annotated[str, typer.Option(help="off, or a profile: see `profiles`.")],
    size: Annotated[str, typer.Option(help="Body size: 30, 36KiB, 1MiB ...")],
    machine: Annotated[str, typer.Option(help="See `machines`.")] = "native",
    url: Annotated[str | None, typer.Option(help="Where a --server COMMAND answers.")] = None,
    cpus: Annotated[int | None, typer.Option(help="Number of the server's CPUs [1].")] = None,
    cpu_list: Annotated[str | None, typer.Option(help="The server's CPUs instead: 0,2")] = None,
    connections: Annotated[
        int | None, typer.Option(help="Closed loop [16]; limit of an open one [64].")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: transactions/s.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="constant, poisson or pareto.")] = None,
    keepalive: Annotated[bool, typer.Option("--keepalive", help="Keep connections open.")] = False,
    resumption: Annotated[float, typer.Option(help="Fraction of resumed handshakes.")] = 0.0,
    timeout_s: Annotated[float | None, typer.Option(help="Limit of a transaction.")] = None,
    idle_s: Annotated[float | None, typer.Option(help="Length of idle windows.")] = None,
    warmup_s: Annotated[float | None, typer.Option(help="Warm-up at least.")] = None,
    warmup_max_s: Annotated[float | None, typer.Option(help="Warm-up at most.")] = None,
    window_s: Annotated[float | None, typer.Option(help="Length of windows at least.")] = None,
    completions: Annotated[
        int | None, typer.Option(help="Completions per connection that end a window.")
    ] = None,
    windows: Annotated[int | None, typer.Option(help="Windows per pass.")] = None,
    source: Annotated[str, typer.Option(help="Who counts: perf or papi.")] = "perf",
    events: Annotated[
        list[str] | None, typer.Option(metavar="SET", help="An event set (a pass); repeatable.")
    ] = None,
    repetition: Annotated[int, typer.Option(help="Which re-run of the cell this is.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The record [tlscost-results/run/ID.jsonl].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure one cell; done at once if its whole record is there."""
    from tlscost import sweep as engine
    from tlscost.options import cell_of, given, numbers
    from tlscost.plan import weak_profile_warnings
    from tlscost.progress import Progress
    from tlscost.record import is_whole

    cell = cell_of(
        machine=machine,
        server=server if url is None else {"command": server, "url": url},
        tls=tls,
        size=size,
        cpus=cpus,
        cpu_list=numbers("--cpu-list", cpu_list),
        load=given(
            connections=connections,
            rate=rate,
            arrivals=arrivals,
            keepalive=keepalive,
            resumption=resumption,
            timeout_s=timeout_s,
        ),
        rules=given(
            idle_s=idle_s,
            warmup_s=warmup_s,
            warmup_max_s=warmup_max_s,
            window_s=window_s,
            completions_per_connection=completions,
            windows=windows,
        ),
        source=source,
        events=events,
        repetition=repetition,
    )
    for warning in weak_profile_warnings([cell.tls]):
        _say(f"warning: {warning}")
    record = out or RESULTS / "run" / f"{cell.id}.jsonl"
    if record.suffix != ".jsonl":
        raise TlscostError(f"--out: given {str(record)!r}; the name of a record ends in .jsonl")
    _make_directory(record.parent)
    if is_whole(record):
        _say(f"{record}: measured already; to measure again, delete it or give --repetition")
    else:
        with _interruptible(lambda: f"{record}: not measured"):
            outcome = engine.measure_cell(cell, record, 1, Progress())
        if outcome.exit_code != DONE:
            raise TlscostError(f"{cell.id}: {outcome.reason}", outcome.exit_code)
    table = _metrics_of([record])
    if as_json:
        from tlscost.metrics import to_json

        _print_json({"cell": cell.id, "record": str(record), "metrics": to_json(table)})
    else:
        from tlscost.tables import metrics_table

        _print_tables(metrics_table(table))
        _say(f"record: {record}")


@app.command()
def sweep(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="See docs/plans.md.")],
    out: Annotated[Path | None, typer.Option(help="Records go to OUT/records.")] = None,
    engine: Annotated[Engine, typer.Option(help="What runs the cells.")] = Engine.LOCAL,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Simulated cells at once [as CPUs and memory allow]."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and list the cells.")] = False,
    as_json: Json = False,
) -> None:
    """Measure a plan's cells; started again, it goes on where it stopped."""
    from tlscost import plan as plans
    from tlscost.progress import Progress
    from tlscost.sweep import run as run_sweep

    checked = plans.read(plan)
    for warning in checked.warnings:
        _say(f"warning: {warning}")
    if dry_run:
        _list_cells(checked, as_json=as_json)
        return
    if out is None:
        raise TlscostError("--out: missing; expected the directory for the records")
    _make_directory(out)
    with _interruptible(lambda: f"what is done is in {out}; to go on, give the same command again"):
        result = run_sweep(
            checked.cells(), out, retries=checked.retries, progress=Progress(), jobs=jobs
        )
    if as_json:
        _print_json({"plan": checked.name, "out": str(out), **dataclasses.asdict(result)})
    _say_result(result)
    _say(f"records: {out / 'records'}")
    raise typer.Exit(result.exit_code)


@app.command()
def metrics(
    paths: Paths,
    how: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TABLE,
) -> None:
    """Turn records into metrics with intervals, quality and source."""
    table = _metrics_of(paths)
    if how is Format.JSON:
        from tlscost.metrics import to_json

        _print_json(to_json(table))
    elif how is Format.CSV:
        table.to_csv(sys.stdout, index=False)
    else:
        from tlscost.tables import metrics_table

        _print_tables(metrics_table(table))


@app.command()
def decompose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...|CSV",
            help="Records, or a CSV file with columns tls (on, off), size_kib, time_ms [, weight].",
        ),
    ],
    at: Annotated[
        list[float] | None, typer.Option(metavar="KIB", help="Size for shares [36]; repeatable.")
    ] = None,
    weights: Annotated[Weights, typer.Option(help="Of the points.")] = Weights.RELATIVE,
    as_json: Json = False,
) -> None:
    """Fit what of a transaction's time is handshake, encryption and the rest."""
    from tlscost import decompose as study

    fits = study.fit_paths(paths, weights.value, at or [36.0])
    if as_json:
        _print_json(study.to_json(fits))
        return
    from tlscost.tables import decomposition_tables

    _print_tables(*decomposition_tables(fits))


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A record, or a directory of records.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Those to compare with it.")],
    as_json: Json = False,
) -> None:
    """Compare two sets of records: ratio B / A, interval, significant or not, per metric."""
    from tlscost import compare as study

    table = study.compare(a, b)
    if as_json:
        _print_json(study.to_json(table))
        return
    from tlscost.tables import comparison_table

    _print_tables(comparison_table(table))


@app.command()
def claims(paths: Paths, as_json: Json = False) -> None:
    """Judge each published claim of kant2000 by records: its figure, ours, holds or not."""
    from tlscost import claims as study

    judgements = study.judge_records(paths)
    if as_json:
        _print_json(study.to_json(judgements))
        return
    from tlscost.tables import claims_table

    _print_tables(claims_table(judgements))


@app.command()
def report(
    paths: Paths,
    out: Annotated[Path, typer.Option(help="Gets report.html and figures/.")],
    notebook: Annotated[
        str | None, typer.Option(help="Of notebooks/ [kant2000 for its records, else quickstart].")
    ] = None,
) -> None:
    """Execute a notebook on records: its HTML, and its figures as PNG."""
    from tlscost.report import notebook_for, render

    print(render(paths, out, notebook or notebook_for(paths)))


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Gets records/, metrics.csv and report.html.")] = RESULTS
    / "quickstart",
) -> None:
    """Measure the main job on this machine's defaults and report it; goes on where it stopped."""
    from tlscost.progress import Progress
    from tlscost.quickstart import finish, measure

    _make_directory(out)
    progress = Progress()
    with _interruptible(lambda: f"what is done is in {out}; to go on, give the same command again"):
        result = measure(out, progress)
    _say_result(result)
    if len(result.failures) == result.cells:  # nothing to report; the reasons are said
        raise typer.Exit(result.exit_code)
    page = finish(out, progress)
    _say(f"metrics: {out / 'metrics.csv'}")
    _say(f"report: {page}")
    raise typer.Exit(result.exit_code)


@app.command(name="test")
def run_tests(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART...]", help="c, sanitizers, fuzz, lint, python, notebooks [all]."
        ),
    ] = None,
) -> None:
    """Run the project's tests; ends with the runners' summary lines."""
    from tlscost import testing

    raise typer.Exit(testing.run(parts or []))


@app.command()
def profiles(as_json: Json = False) -> None:
    """List the TLS profiles that can be named."""
    from tlscost.profiles import profile, profile_names

    known = [profile(name) for name in profile_names()]
    if as_json:
        _print_json([dataclasses.asdict(one) for one in known])
        return
    for one in known:
        print(f"{one.name:32} {one.description}{' (weak)' if one.weak else ''}")


@app.command(context_settings={"ignore_unknown_options": True})
def count(
    command: Annotated[
        list[str], typer.Argument(metavar="PROGRAM ARGS...", help="After --.", show_default=False)
    ],
    machine: Annotated[str, typer.Option(help="A simulated one: see `machines`; or a .json file.")],
    cpus: Annotated[int, typer.Option(help="Simulated CPUs: each thread needs one.", min=1)] = 1,
    cpu_model: Annotated[
        str | None, typer.Option(help="QEMU's CPU model [the machine's where it fits].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count a program's user-mode events on a simulated machine; exits as the program does."""
    from tlscost import count as counting
    from tlscost.machine import simulated_or_file

    counts = counting.count(
        simulated_or_file(machine),
        command,
        cpus=cpus,
        cpu_model=cpu_model,
        stdout=sys.stderr.fileno() if as_json else None,
    )
    if as_json:
        _print_json(counting.to_json(counts))
    else:
        from tlscost.tables import counts_table

        _print_tables(counts_table(counts))
    raise typer.Exit(counts.status)


@app.command()
def doctor(
    probe: Annotated[
        Path | None,
        typer.Option(help="Judge what `tlscost-collect --probe` printed elsewhere [this machine]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what this machine can measure and what not, why, and the remedy."""
    from tlscost import doctor as doctors
    from tlscost.probe import read

    diagnosis = doctors.look() if probe is None else doctors.diagnose(read(probe))
    if as_json:
        _print_json(doctors.to_json(diagnosis))
    else:
        from tlscost.tables import doctor_tables

        _print_tables(*doctor_tables(diagnosis))


@app.command()
def machines(as_json: Json = False) -> None:
    """List the machines that can be named."""
    from tlscost.machine import descriptions

    known = descriptions()
    if as_json:
        _print_json([{"name": name, "description": text} for name, text in known.items()])
        return
    for name, text in known.items():
        print(f"{name:32} {text}")


def _say(text: str) -> None:
    print(f"tlscost: {text}", file=sys.stderr)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TlscostError(f"--out: {path}: cannot be made: {error.strerror}") from error


def _list_cells(plan: "Plan", *, as_json: bool) -> None:
    if as_json:
        cells = [{"id": cell.id, "cell": cell.for_record()} for cell in plan.cells()]
        _print_json({"plan": plan.name, "cells": cells})
        return
    for cell in plan.cells():
        print(cell.id)
    _say(f"plan {plan.name}: {len(plan)} cells")


def _say_result(result: "Result") -> None:
    for failure in result.failures:
        _say(f"failed: {failure.cell}: {failure.reason}")
    _say(
        f"{result.cells} cells: {result.measured} measured now, {result.already} before, "
        f"{len(result.failures)} failed"
    )


@contextmanager
def _interruptible(what_now: Callable[[], str]) -> Iterator[None]:
    """Stop the measurement in order on Ctrl-C and SIGTERM, and tell the user how to go on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        _say(f"interrupted; {what_now()}")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _metrics_of(paths: list[Path]) -> "pd.DataFrame":
    from tlscost import frame
    from tlscost.metrics import metrics_of

    return metrics_of(frame.load(paths))


def _print_tables(*tables: "Table | Text") -> None:
    from rich.console import Console
    from rich.text import Text

    # On a pipe nothing may be cut or folded to the width of a terminal that is not there; text is
    # not folded at all: there are commands in it, to be pasted.
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, Text))
