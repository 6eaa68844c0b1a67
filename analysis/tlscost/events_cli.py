"""The `events` sub-command: the metric dictionary, its check, and its table."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tlscost.errors import CANNOT, FAILED, TlscostError

if TYPE_CHECKING:
    from tlscost.dictionary import Formula

__all__ = ["events"]

_WIDE = 400


def events(
    uarch: Annotated[
        str | None, typer.Option(metavar="NAME", help="A microarchitecture [this machine's].")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check all files, or that of --uarch.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Print the table of docs/metrics.md: all metrics.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.")
    ] = False,
) -> None:
    """List a microarchitecture's metrics: formula, quality and the events' encodings."""
    from tlscost import dictionary
    from tlscost.uarch import identity_here

    if uarch is not None:
        dictionary.microarchitecture(uarch)  # an unknown name is an error that names the others
    if check:
        _check(uarch, as_json=as_json)
    elif table:
        from tlscost.dictionary_table import markdown

        print(markdown(), end="")
    else:
        document = _document(uarch or dictionary.recognise(identity_here()))
        if as_json:
            print(json.dumps(document, indent=1))
        else:
            _print(document)


def _check(uarch: str | None, *, as_json: bool) -> None:
    """Run the check; fails where something is wrong, cannot where nothing could be encoded."""
    from dataclasses import asdict

    from tlscost import dictionary, dictionary_check

    report = dictionary_check.check([uarch] if uarch else dictionary.microarchitectures())
    if as_json:
        print(json.dumps(asdict(report), indent=1))
    else:
        for failure in report.failures:
            print(f"failed: {failure}")
        for skip in report.skipped:
            print(f"skipped: {skip}")
        print(report.summary)
    if report.failures:
        raise typer.Exit(FAILED)
    if report.formulas and not report.encodings:
        raise typer.Exit(CANNOT)


def _document(name: str | None) -> dict[str, Any]:
    """Return what is told of a microarchitecture; None: of one that no file is about."""
    from tlscost import dictionary, passes

    known = {
        one: dictionary.microarchitecture(one).title for one in dictionary.microarchitectures()
    }
    encodings, why_none = _encodings(name)
    document: dict[str, Any] = {
        "uarch": name,
        "title": known.get(name or "", "a CPU that no file is about: the kernel's generic events"),
        "metrics": [_metric(one) for one in dictionary.load(name or dictionary.KERNEL)],
        "encodings": encodings,
        "encodings_reason": why_none,
        "passes": [
            list(one) for one in passes.of_microarchitecture(name, smt=True, watchdog=False)
        ],
        "microarchitectures": known,
    }
    if name is not None:
        document |= dictionary.microarchitecture(name).model_dump(
            include={"counters", "constraints"}
        )
    return document


def _metric(formula: "Formula") -> dict[str, Any]:
    return {
        "metric": formula.name,
        "unit": formula.unit,
        "quality": formula.quality,
        "formula": formula.formula,
        "events": formula.events,
        "why": formula.why,
    }


def _encodings(name: str | None) -> tuple[list[dict[str, Any]], str | None]:
    from tlscost import dictionary_check

    if name is None:
        return [], "the kernel encodes its generic events itself"
    try:
        found = dictionary_check.encodings(name)
    except TlscostError as error:
        return [], str(error)
    return [
        {"pmu": pmu, "event": event, "encoding": str(one)} for (pmu, event), one in found.items()
    ], None


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    metrics = Table(
        "metric", "unit", "quality", "formula", "why", box=None, title=document["title"]
    )
    for one in document["metrics"]:
        formula = one["formula"] or "-"
        metrics.add_row(one["metric"], one["unit"], one["quality"], formula, one["why"])
    encodings = Table("PMU", "event", "type/config", box=None)
    for one in document["encodings"]:
        encodings.add_row(one["pmu"], one["event"], one["encoding"])
    sets = Table("pass", "events", box=None)
    for number, one in enumerate(document["passes"], 1):
        sets.add_row(str(number), ",".join(one))
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    console.print(metrics, sets, *([encodings] if document["encodings"] else []))
    if document["encodings_reason"]:
        print(f"no encodings: {document['encodings_reason']}")
    print("microarchitectures: " + ", ".join(document["microarchitectures"]))
