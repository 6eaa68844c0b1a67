"""The `bench` sub-commands: our cost, the peers' and the ratio, as a table or one JSON document."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Benchmarks: each against its peers, in one run.")

Rounds = Annotated[int, typer.Option(min=2, help="how often each tool runs, interleaved")]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on standard output")]


def _show(title: str, ratios: pd.DataFrame, as_json: bool) -> None:
    if as_json:
        print(ratios.to_json(orient="records", double_precision=4))
        return
    table = Table(title=escape(title))
    for column in ratios.columns:
        table.add_column(column, justify="left" if ratios[column].dtype == object else "right")
    for row in ratios.itertuples(index=False):
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=200).print(table)


@app.command()
def load(
    rounds: Rounds = 5,
    seconds: Annotated[int, typer.Option(min=1, help="of each run")] = 3,
    as_json: Json = False,
) -> None:
    """tlscost-load against wrk, h2load and openssl s_time: client CPU per transaction."""
    from tlscost.bench import load as bench
    from tlscost.bench.ratio import against_best

    ratios = against_best(
        bench.run(rounds, seconds),
        by=["profile", "size_bytes", "crypto_us"],
        who="client",
        ours=bench.OURS,
        value="beyond_us",
    )
    _show("client CPU per transaction beyond cryptography [us]", ratios, as_json)


@app.command()
def serve(rounds: Rounds = 5, as_json: Json = False) -> None:
    """tlscost-serve against nginx: server CPU per transaction."""
    from tlscost.bench import serve as bench
    from tlscost.bench.ratio import against_best
    from tlscost.progress import Progress

    ratios = against_best(
        bench.run(rounds, Progress()),
        by=["profile", "size_bytes", "crypto_us"],
        who="server",
        ours=["serve"],
        value="beyond_us",
    )
    _show("server CPU per transaction beyond cryptography [us]", ratios, as_json)


@app.command()
def collect(
    rounds: Rounds = 3,
    seconds: Annotated[int, typer.Option(min=1, help="of each run")] = 20,
    as_json: Json = False,
) -> None:
    """tlscost-collect against `perf stat -a -I 100`: their own CPU time."""
    from tlscost.bench import collect as bench
    from tlscost.bench.ratio import against_best

    ratios = against_best(
        bench.run(rounds, seconds),
        by=["cpus"],
        who="tool",
        ours=["tlscost-collect"],
        value="cpu_us_per_sample",
    )
    _show("the sampler's own CPU per sample [us]", ratios, as_json)


@app.command()
def fidelity(
    write: Annotated[
        bool, typer.Option("--write", help="put the table into docs/fidelity.md, too")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plugin against cachegrind: counts on real programs, of one geometry."""
    from tlscost.bench import fidelity as bench
    from tlscost.bench.programs import programs
    from tlscost.paths import root

    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
        comparison = bench.compare(programs(Path(scratch)))
    if write:
        page = root() / "docs" / "fidelity.md"
        bench.write_between_markers(page, bench.markdown(comparison))
    _show("counts in cachegrind's sense", comparison, as_json)


@app.command()
def softpmu(
    rounds: Rounds = 3,
    machine: Annotated[str, typer.Option(help="see `tlscost machines`")] = "p3-xeon-512k",
    as_json: Json = False,
) -> None:
    """Plugin against cachegrind, empty callbacks and bare TCG: time that real programs take."""
    from tlscost.bench import softpmu as bench
    from tlscost.bench.programs import programs
    from tlscost.bench.ratio import against_each
    from tlscost.machine import simulated_or_file

    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
        runs = bench.run(programs(Path(scratch)), simulated_or_file(machine), rounds)
    ratios = against_each(
        runs,
        by=["program", "instructions_m", "measure"],
        who="way",
        ours=bench.WAYS[0],
        value="ns_per_instruction",
    )
    _show("time per instruction [ns]; ratios: ours to theirs", ratios, as_json)


@app.command()
def guest(
    rounds: Rounds = 3,
    seconds: Annotated[int, typer.Option(min=1, help="of each run")] = 2,
    cpus: Annotated[list[int], typer.Option(min=1, help="of the guests")] = [1, 2, 4],  # noqa: B006
    machine: Annotated[str, typer.Option(help="see `tlscost machines`")] = "p3-xeon",
    as_json: Json = False,
) -> None:
    """Armed guests against empty callbacks and unarmed ones: time per transaction served."""
    from tlscost.bench import guest as bench
    from tlscost.bench.ratio import against_each
    from tlscost.machine import simulated_or_file

    runs = bench.run(simulated_or_file(machine), cpus, bench.TLS, rounds, seconds)
    ratios = against_each(
        runs,
        by=["cpus", "tls", "measure"],
        who="way",
        ours=bench.WAYS[0],
        value="ms_per_transaction",
    )
    _show("time per transaction [ms]; ratios: armed to the others", ratios, as_json)
