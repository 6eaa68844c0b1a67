"""What may go wrong with a cell on a simulated machine, through `run`, `sweep` and `count`.

Each time: a clear error, earlier windows kept, nothing left running.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import start, tlscost
from serve import need
from small_disk import small_disk
from test_run import until
from test_run_simulated import MACHINE, QEMU, cell, failure, nothing_is_left

from tlscost import cpio, runner
from tlscost.cell import Cell
from tlscost.errors import BAD_INPUT, CANNOT, DONE, FAILED
from tlscost.guest_image import image
from tlscost.paths import machines_dir, root

ENDLESS = ["--windows", "1000"]


def before_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Have a shell run some lines as QEMU's process, with its arguments, before QEMU begins."""
    directory = tmp_path / "before"
    directory.mkdir()
    script = directory / QEMU
    script.write_text(f'#!/bin/sh\n{lines}\nexec {need(QEMU)} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def in_the_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, cpio.Entry]
) -> None:
    """Have the cell's guest find these files in place of its own."""
    more = tmp_path / "more.cpio"
    more.write_bytes(cpio.pack(files))
    words = f'for word; do [ "${{word##*/}}" != initramfs ] || cat {more} >>"$word"; done'
    before_qemu(tmp_path, monkeypatch, words)


def measured_here(out: Path) -> runner.Outcome:
    """Measure a cell within this process."""
    values = {"machine": MACHINE, "server": "serve", "tls": "off", "size": 30}
    with out.with_name("lock").open("w") as lock:
        return runner.measure(Cell.model_validate(values), out, locks=(lock.fileno(),))


def windows_in(partial: Path) -> int:
    return partial.read_text().count('"type":"window"') if partial.exists() else 0


def test_a_panic_leaves_the_windows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest panics by itself once it has accepted 1000 connections: within a window."""
    init = (root() / "workloads" / "guest" / "init").read_text()
    passive_opens = "$(awk '/^Tcp: [0-9]/ { print $7 }' /proc/net/snmp)"
    panics = f"""(until [ "{passive_opens}" -ge 1000 ]; do usleep 100000; done
    echo c >/proc/sysrq-trigger) &\n"""
    served = "sh /cell/start &\n"
    assert served in init
    changed = init.replace(served, panics + served).encode()
    in_the_guest(tmp_path, monkeypatch, {"init": cpio.file(changed, 0o755)})
    out = tmp_path / "r.jsonl"
    done = tlscost(*cell(out, *ENDLESS))
    assert done.returncode == FAILED
    assert "window" in failure(out)["reason"]
    assert "the simulated machine exited with status 0" in failure(out)["reason"]
    assert "Kernel panic - not syncing: sysrq triggered crash" in failure(out)["stderr"]
    partial = out.with_name(f"{out.name}.partial")
    assert windows_in(partial) > 0
    assert all(json.loads(line) for line in partial.read_text().splitlines())
    assert not out.exists()
    nothing_is_left(out)


def test_a_server_that_ends_in_the_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"cell/start": cpio.file(b"echo no good >&2; exit 3\n")}
    in_the_guest(tmp_path, monkeypatch, ends)
    out = tmp_path / "r.jsonl"
    assert tlscost(*cell(out)).returncode == FAILED
    assert "no good" in failure(out)["stderr"]
    assert "tlscost-guest: the server ended with exit code 3" in failure(out)["stderr"]
    nothing_is_left(out)


def test_a_server_that_never_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(QEMU)
    sleeps = {"cell/start": cpio.file(b"echo asleep; exec sleep 1000\n")}
    in_the_guest(tmp_path, monkeypatch, sleeps)
    monkeypatch.setattr(runner, "GUEST_READY_S", 5)
    out = tmp_path / "r.jsonl"
    outcome = measured_here(out)
    assert outcome.exit_code == FAILED
    assert "waiting for the simulated machine to serve" in outcome.reason
    assert "asleep" in outcome.stderr
    nothing_is_left(out)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("trap '' XFSZ; ulimit -f 4096", "failed to resize memfd to 134217728: File too large"),
        ("ulimit -f 4096", "the simulated machine was killed by signal 25 (File size limit"),
        ("ulimit -v 200000", "annot allocate memory"),
    ],
    ids=["shared memory", "killed by its limit", "address space"],
)
def test_memory_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, said: str
) -> None:
    before_qemu(tmp_path, monkeypatch, lines)
    out = tmp_path / "r.jsonl"
    assert tlscost(*cell(out)).returncode == FAILED
    assert said in failure(out)["stderr"]
    nothing_is_left(out)


def test_no_room_for_the_initramfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(QEMU)
    out = tmp_path / "r.jsonl"
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        assert tlscost(*cell(out)).returncode == FAILED
        assert list(disk.iterdir()) == []
    assert f"while preparing the cell in {tmp_path}/disk" in failure(out)["reason"]
    assert "No space left on device" in failure(out)["reason"]
    nothing_is_left(out)


def test_no_room_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(QEMU)
    with small_disk(tmp_path / "disk", 1 << 20, inodes=1) as disk:
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        outcome = measured_here(tmp_path / "r.jsonl")
    assert outcome.exit_code == FAILED
    assert "no directory for the cell's files (see TMPDIR)" in outcome.reason
    assert "No space left on device" in outcome.reason


def test_no_room_for_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for people: the cell does not need it."""
    need(QEMU)
    out = tmp_path / "r.jsonl"
    page = os.sysconf("SC_PAGESIZE")
    initramfs = image("i386").initramfs.stat().st_size
    with small_disk(tmp_path / "disk", (initramfs // page + 5) * page) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        process = start(*cell(out))
        until(lambda: shutil.disk_usage(disk).free == 0 or process.poll() is not None)
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == DONE, stderr
        assert list(disk.iterdir()) == []


def test_a_full_disk_keeps_the_windows_it_has(tmp_path: Path) -> None:
    need(QEMU)
    with small_disk(tmp_path / "disk", 192 << 10) as disk:
        out = disk / "r.jsonl"
        done = tlscost(*cell(out, *ENDLESS))
        assert done.returncode == FAILED
        assert "No space left on device" in done.stderr
        partial = out.with_name(f"{out.name}.partial")
        assert windows_in(partial) > 0
        assert all(json.loads(line) for line in partial.read_text().splitlines())
        nothing_is_left(out)


def test_a_missing_simulator_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(QEMU)
    only = tmp_path / "bin"
    only.mkdir()
    for directory in os.environ["PATH"].split(":"):
        for program in Path(directory).glob("*") if Path(directory).is_dir() else ():
            if not program.name.startswith("qemu-") and not (only / program.name).exists():
                (only / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(only))
    assert shutil.which(QEMU) is None
    out = tmp_path / "r.jsonl"
    done = tlscost(*cell(out))
    assert done.returncode == CANNOT
    assert f"{QEMU}: no such program here; as root: apt-get install qemu-system-x86" in done.stderr


@contextmanager
def broken_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have the project's machine files describe what cannot be."""
    top = tmp_path / "root"
    top.mkdir()
    for path in root().iterdir():
        if path.name != "data":
            (top / path.name).symlink_to(path)
    shutil.copytree(root() / "data", top / "data")
    monkeypatch.setenv("TLSCOST_ROOT", str(top))
    broken = machines_dir() / f"{MACHINE}.json"
    document = json.loads(broken.read_text())
    document["l1d"]["line_bytes"]["value"] = 33
    broken.write_text(json.dumps(document))
    yield broken


def test_an_impossible_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts, by key and value, and in a plan by file and line, too."""
    out, plan = tmp_path / "r.jsonl", tmp_path / "p.toml"
    plan.write_text(
        f'[plan]\nname = "p"\n[cells]\nmachine = "{MACHINE}-2m"\nserver = "serve"\ntls = "off"\n'
        "size = 30\n"
    )
    with broken_machine(tmp_path, monkeypatch) as broken:
        for command, place in [
            (cell(out), "--machine: given 'p3-xeon'"),
            (["sweep", plan, "--out", tmp_path / "out"], f"{plan}:4"),
            (["sweep", plan, "--out", tmp_path / "out", "--dry-run"], f"{plan}:4"),
            (["count", "--machine", MACHINE, "--", "true"], str(broken)),
            (["count", "--machine", broken, "--", "true"], str(broken)),
        ]:
            done = tlscost(*command)
            assert (done.returncode, done.stdout) == (BAD_INPUT, "")
            for words in (place, str(broken), "l1d", "33"):
                assert words in done.stderr
    assert not list(tmp_path.glob("r.*"))
    assert not (tmp_path / "out").exists()
