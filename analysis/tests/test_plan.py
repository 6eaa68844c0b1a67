"""Plans: what is refused and where, what the product is, and that nothing else ever escapes."""

import itertools
import json
import os
import re
from pathlib import Path

import corpus
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tlscost import plan, quickstart, sweep
from tlscost.cell import Cell, CommandServer
from tlscost.errors import BAD_INPUT, TlscostError
from tlscost.paths import plan_file
from tlscost.progress import Progress

HEAD = '[plan]\nname = "p"\nrepetitions = 2\n\n'
CELLS = '[cells]\nserver = "serve"\ntls = "off"\nsize = [\n  "30",\n  "36KiB",\n]\n'


def read(directory: Path, text: str) -> plan.Plan:
    path = directory / "p.toml"
    path.write_text(text, encoding="utf-8")
    return plan.read(path)


@pytest.mark.parametrize(
    ("text", "where", "fragments"),
    [
        (HEAD + CELLS + "cpuz = 1\n", "12: cells.cpuz", ["did you mean 'cpus'?", "allowed: mach"]),
        (HEAD + CELLS.replace('"30"', "-5"), "8: cells.size", ["given -5", "0 or more"]),
        (HEAD + CELLS.replace('"30"', '"1.5KiB"'), "8: cells.size", ["'1.5KiB'", "whole number"]),
        (HEAD + CELLS.replace('"30"', "true"), "8: cells.size", ["given True"]),
        (HEAD + CELLS.replace('"30"', '"36KiB"'), "8: cells.size", ["same as an earlier"]),
        (HEAD + CELLS.replace('"off"', '"tls9"'), "7: cells.tls", ["'tls9'", "allowed: off, 3des"]),
        (HEAD + CELLS + "cpus = 4096\n", "12: cells.cpus", ["given 4096", "allowed: 1 to "]),
        (HEAD + CELLS + "cpus = 0\n", "12: cells.cpus", ["given 0", "greater than 0"]),
        (HEAD + CELLS + "cpus = 1\ncpu_list = [0]\n", "13: cells.cpu_list", ["beside `cpus`"]),
        (HEAD + CELLS + "cpu_list = [0, 4096]\n", "12: cells.cpu_list", ["4096", "no such CPU"]),
        (HEAD + CELLS + "cpu_list = [0, 0]\n", "12: cells.cpu_list", ["named twice"]),
        (HEAD + CELLS + 'machine = "p9"\n', "12: cells.machine", ["'p9'", "allowed: native"]),
        (HEAD + CELLS.replace('"serve"', '"ngnix"'), "6: cells.server", ["'serve' or 'nginx'"]),
        (HEAD + CELLS.replace('server = "serve"\n', ""), "5: cells.server", ["missing; required"]),
        (HEAD + CELLS.replace('"serve"', "[]"), "6: cells.server", ["makes no cells"]),
        (
            HEAD + CELLS.replace('"serve"', '{ command = "x {prt}", url = "http://h" }'),
            "6: cells.server.command",
            ["unknown placeholder {prt}", "{port}"],
        ),
        (HEAD + CELLS.replace('"serve"', '{ command = "x" }'), "6: cells.server.url", ["missing"]),
        (
            HEAD + CELLS + "load = [{ connections = 3 },\n  { conections = 3 }]\n",
            "12: cells.load.conections",
            ["did you mean 'connections'?"],
        ),
        (HEAD + CELLS + "load.rate = -1\n", "12: cells.load.rate", ["given -1"]),
        (HEAD + CELLS + 'load.arrivals = "poisson"\n', "12: cells.load", ["give a rate too"]),
        (HEAD + CELLS + "\n[cells.rules]\nwindow_s = 0\n", "14: cells.rules.window_s", ["given 0"]),
        (HEAD + CELLS + 'events = ["a,,b"]\n', "12: cells.events", ["commas between"]),
        (CELLS, "1: plan", ["missing"]),
        (HEAD, "1: cells", ["[cells]"]),
        (HEAD + "cells = 3\n", "5: plan.cells", ["unknown key"]),
        ("[plan]\n\nname = 3\n" + CELLS, "3: plan.name", ["given 3"]),
        ('[plan]\nname = "a/b"\n' + CELLS, "2: plan.name", ["'a/b'"]),
        ('[plan]\nname = "p"\nretries = -1\n' + CELLS, "3: plan.retries", ["given -1"]),
        (HEAD + CELLS + "[sells]\n", "12: sells", ["did you mean 'cells'?"]),
    ],
)
def test_refusals_name_file_line_key_given_and_allowed(
    tmp_path: Path, text: str, where: str, fragments: list[str]
) -> None:
    with pytest.raises(TlscostError) as refusal:
        read(tmp_path, text)
    message = str(refusal.value)
    assert refusal.value.exit_code == BAD_INPUT
    assert message.startswith(f"{tmp_path / 'p.toml'}:{where}: ")
    for fragment in fragments:
        assert fragment in message


def test_error_of_the_second_table_has_its_own_line(tmp_path: Path) -> None:
    text = HEAD + "[" + CELLS.replace("]\n", "]]\n", 1) + "\n[[cells]]\nserver = 'serve'\n"
    with pytest.raises(TlscostError, match=r"p\.toml:13: cells\.tls: missing"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"x = 1\nx = [[", 2),
        (b"x = 1\ny = 2\nx = [1,\n", 4),
        (b"#\n\xff\xfe\n#\n", 2),
        (b"#\n\nx = " + b"[" * 5000 + b"\n#\n", 3),
        (b"#\nx = [\n1,\n" + b"9" * 5000 + b"\n]\n#\n", 4),
        (b"x = " + b"9" * 5000, 1),
        (b"[plan]\nname='a'\n", 1),
    ],
)
def test_what_is_not_a_plan_is_refused(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    with pytest.raises(TlscostError, match=rf"p\.toml:{line}: "):
        plan.read(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TlscostError, match="No such file"):
        plan.read(tmp_path / "none.toml")


def test_lists_multiply_and_repetitions_are_outermost(tmp_path: Path) -> None:
    checked = read(tmp_path, HEAD + CELLS.replace('"serve"', '["serve", "nginx"]'))
    cells = list(checked.cells())
    assert len(cells) == len(checked) == 8
    assert [(c.repetition, c.server, c.size) for c in cells] == list(
        itertools.product([1, 2], ["serve", "nginx"], [30, 36864])
    )
    assert len({c.id for c in cells}) == 8


def test_lists_that_are_values_do_not_multiply(tmp_path: Path) -> None:
    text = HEAD + CELLS + 'events = ["instructions,cycles", "branches"]\ncpu_list = [0]\n'
    cells = list(read(tmp_path, text).cells())
    assert len(cells) == 4
    assert cells[0].events == ("instructions,cycles", "branches")
    assert (cells[0].cpu_list, cells[0].cpus) == ((0,), 1)


def test_lists_of_lists_multiply(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    text = HEAD + CELLS + f"cpu_list = [[{first}], [{first}, {second}]]\n"
    assert {c.cpus for c in read(tmp_path, text).cells()} == {1, 2}


def test_hundred_thousand_cells_are_planned_lazily(tmp_path: Path) -> None:
    sizes = list(range(50_000))
    text = HEAD + f"[cells]\nserver = 'serve'\ntls = 'off'\nsize = {sizes}\n"
    checked = read(tmp_path, text)
    assert len(checked) == 100_000
    assert [cell.size for cell in itertools.islice(checked.cells(), 3)] == [0, 1, 2]
    assert len({cell.id for cell in checked.cells()}) == 100_000


def test_too_many_cells_are_refused_without_making_them(tmp_path: Path) -> None:
    sizes = list(range(2000))
    text = HEAD + (
        f"[cells]\nserver = 'serve'\ntls = 'off'\nsize = {sizes}\n"
        f"load = [{', '.join(f'{{connections = {n + 1}}}' for n in range(2000))}]\n"
    )
    with pytest.raises(TlscostError, match="8,000,000 cells; allowed"):
        read(tmp_path, text)


def test_weak_profile_by_name_warns_unless_allowed(tmp_path: Path) -> None:
    weak = CELLS.replace('"off"', '"tls12-krsa512-aes128gcm"')
    assert "weak" in read(tmp_path, HEAD + weak).warnings[0]
    allowed = HEAD.replace("[plan]\n", "[plan]\nallow_weak = true\n")
    assert read(tmp_path, allowed + weak).warnings == ()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(
    "path", sorted(plan_file("quickstart").parent.glob("*.toml")), ids=lambda path: path.stem
)
def test_own_plans_are_valid(path: Path) -> None:
    checked = plan.read(path)
    assert len({cell.id for cell in checked.cells()}) == len(checked) > 0


@pytest.mark.parametrize("present", [{0, 1}, {0, 1, 2}])
def test_quickstart_repeats_what_has_intervals(
    present: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where idle time comes in ticks, nor where server and load share their CPUs."""
    cells: list[list[str]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: present)
    monkeypatch.setattr(sweep, "run", lambda given, *_, **__: cells.append([c.id for c in given]))
    monkeypatch.setattr(quickstart, "_why_not_counted", lambda: None)
    for fine in (tmp_path, tmp_path / "nowhere"):
        monkeypatch.setattr(quickstart, "FINE_IDLE_TIME", fine)
        quickstart.measure(tmp_path, Progress())
    often, once = cells
    assert len(often) == len(set(often)) == 18 * 3 + 18 * (1 if len(present) == 2 else 3)
    assert len(once) == 36
    assert set(once) < set(often)


def test_quickstart_simulates_where_nothing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines: list[list[str]] = []
    monkeypatch.setattr(
        sweep, "run", lambda given, *_, **__: machines.append([c.machine for c in given])
    )
    for reason in ("no PMU here", None):
        monkeypatch.setattr(quickstart, "_why_not_counted", lambda reason=reason: reason)
        quickstart.measure(tmp_path, Progress())
    without, with_pmu = machines
    assert set(without) == {"native", "p3-xeon"}
    assert set(with_pmu) == {"native"}


def test_machines_take_what_they_have(tmp_path: Path) -> None:
    checked = read(tmp_path, HEAD + CELLS + 'machine = "p3-xeon-2m"\ncpus = 4\n')
    assert {cell.cpus for cell in checked.cells()} == {4}  # however many this machine has
    assert all(cell.id.startswith("p3-xeon-2m-serve-") for cell in checked.cells())
    several = HEAD + CELLS + 'machine = ["p3-xeon", "native"]\ncpus = [1, 9]\n'
    with pytest.raises(TlscostError, match=r":13: cells.cpus: given 9; p3-xeon is simulated"):
        read(tmp_path, several)
    with pytest.raises(TlscostError, match="the CPUs of p3-xeon are its own"):
        read(tmp_path, HEAD + CELLS + 'machine = "p3-xeon"\ncpu_list = [0]\n')
    command = '{ command = "x", url = "http://{address}" }'
    with pytest.raises(TlscostError, match="runs the servers 'serve' and 'nginx' only"):
        read(tmp_path, HEAD + CELLS.replace('"serve"', command) + 'machine = "p3-xeon"\n')


def test_ids_are_stable_and_safe() -> None:
    cell = Cell.model_validate({"server": "nginx", "tls": "off", "size": "36KiB"})
    assert cell.id == "nginx-off-36KiB-1cpu-r1-26e6dc015c"
    spelled_out = Cell.model_validate(
        {"server": "nginx", "tls": "off", "size": 36864, "load": {"connections": 16}}
    )
    assert spelled_out.id == cell.id
    server = CommandServer(name="mine", command="sh -c 'x y/z'", url="http://{address}:{port}/")
    assert "/" not in Cell(server=server, tls="off", size=1).id


def test_values_checked_alone_make_the_same_cell() -> None:
    values = {"server": "nginx", "tls": "off", "size": "1MiB", "load": {"rate": 10}}
    checked = Cell.of_checked({name: Cell.check(name, value) for name, value in values.items()})
    assert checked == Cell.model_validate(values)
    assert checked.id == Cell.model_validate(values).id
    assert checked.for_record()["load"]["arrivals"] == "poisson"


def test_cells_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Cell(server="serve", tls="off", size=1).size = 2


def toml(value: object) -> str:
    """Write a value as TOML: JSON's strings and numbers are TOML's too."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(k, ensure_ascii=False)} = {toml(v)}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


KEYS = st.sampled_from(
    [
        *["plan", "cells", "name", "repetitions", "retries", "machine", "server", "tls", "size"],
        *["cpus", "cpu_list", "load", "rules", "events", "command", "url", "connections", "rate"],
    ]
) | st.text(max_size=5)
SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["serve", "nginx", "off", "native", "30", "36KiB", "{port}", "http://x"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6)
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4) | st.fixed_dictionaries(
    {
        "plan": st.fixed_dictionaries({"name": st.just("p")}),
        "cells": st.fixed_dictionaries(
            {"server": VALUES, "tls": VALUES, "size": VALUES},
            optional=dict.fromkeys(("cpus", "cpu_list", "load", "rules", "events"), VALUES),
        ),
    }
)


def is_read(path: Path) -> bool:
    """Whether the file is read; a refusal must be ours and name file and line."""
    try:
        checked = plan.read(path)
    except TlscostError as refusal:
        named = rf"{re.escape(str(path))}:\d+: "
        assert re.match(named, str(refusal))  # noqa: PT017  # either outcome is right
        return False
    for cell in itertools.islice(checked.cells(), 10):
        assert cell.id
    return True


@corpus.replayed("plan")
def test_corpus_is_refused_or_read(path: Path, expected: bool) -> None:
    assert is_read(path) == expected


@given(content=corpus.mutated("plan"))
def test_mutated_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_bytes(content)
    is_read(path)


@given(text=st.text(max_size=200))
def test_any_text_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "text.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    is_read(path)


@given(document=DOCUMENTS)
def test_any_toml_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "document.toml"
    lines = (f"{json.dumps(k, ensure_ascii=False)} = {toml(v)}" for k, v in document.items())
    path.write_text("\n".join(lines), encoding="utf-8")
    is_read(path)
