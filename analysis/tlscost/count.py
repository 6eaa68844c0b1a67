"""A program's user-mode events on a simulated machine: QEMU's user-mode emulation with the plugin.

The program runs as any other would: with its standard input, error output and exit status. What it
forks runs, too, but is not counted; nor is what the kernel does for it.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlscost.errors import BAD_INPUT, CANNOT, FAILED, TlscostError
from tlscost.machine import Simulated
from tlscost.orphans import no_orphan
from tlscost.paths import program

__all__ = ["Counts", "Event", "count", "plugin_option", "read_counts", "to_json"]

PLUGIN = "libtlscost-softpmu.so"
REPORT = "tlscost-softpmu-report"
_SIGNALLED = 128
_ELF_MACHINES = {3: "i386", 62: "x86_64"}
_SHEBANG_DEPTH = 4  # as Linux allows


@dataclass(frozen=True)
class Event:
    """One event's counts in user mode.

    Attributes
    ----------
    user : dict of str to int
        By variant of the machine; an event that is the same in all has one, under "".
    """

    name: str
    unit: str
    origin: str
    user: dict[str, int]


@dataclass(frozen=True)
class Counts:
    """What a program's run left.

    Attributes
    ----------
    status : int
        The program's exit status, 128 + the signal's number where a signal ended it.
    executed, repeats : int
        Instructions counted a second, independent way (0 where not asked for), and iterations of
        string instructions beyond their first, which that way counts, too.
    """

    machine: str
    program: list[str]
    variants: list[str]
    status: int
    events: list[Event]
    executed: int
    repeats: int


def count(
    machine: Simulated,
    command: Sequence[str],
    *,
    cpus: int = 1,
    cpu_model: str | None = None,
    way: str = "models",
    stdout: int | None = None,
) -> Counts:
    """Run a program on a simulated machine.

    Parameters
    ----------
    command : sequence of str
        The program, looked for in PATH, and its arguments.
    cpus : int
        Simulated CPUs: each of the program's threads needs one.
    cpu_model : str or None
        QEMU's name of the CPU whose instructions there are; None: the machine's, where the program
        is of the guest's architecture, else QEMU's default.
    way : str
        The plugin's way of counting: models, inline, callback or nothing.
    stdout : int or None
        Where the program's standard output goes, as for `subprocess.Popen`.

    Raises
    ------
    TlscostError
        No such program, no QEMU, a bad machine file, or the program left no counts.
    """
    words = _interpreted(command)
    architecture = _architecture(Path(words[0]))
    if cpu_model is None and architecture == machine.guest:
        cpu_model = machine.qemu_cpu
    with _scratch() as directory:
        page = Path(directory) / "page"
        arguments = {
            "machine": machine.file,
            "variant": machine.variant or "all",
            "cpus": cpus,
            "count": way,
            "page": page,
        }
        full = [
            _qemu(architecture),
            *([] if cpu_model is None else ["-cpu", cpu_model]),
            *["-plugin", plugin_option(arguments)],
            *words,
        ]
        status = _run(full, stdout)
        return read_counts(page, machine, list(command), status)


def to_json(counts: Counts) -> dict[str, Any]:
    """Return the document of `count --json`.

    Events that differ between the variants of a machine observed as a whole stand in "variants",
    by variant and event; all others, and all events of a machine of one variant, in "events".
    """
    several = len(counts.variants) > 1
    events: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = {name: {} for name in counts.variants}
    for event in counts.events:
        for variant, user in event.user.items():
            value = {"user": user, "kernel": None, "origin": event.origin}
            if several and variant:
                variants[variant][event.name] = value
            else:
                events[event.name] = value
    return {
        "machine": counts.machine,
        "program": counts.program,
        "status": counts.status,
        "events": events,
        **({"variants": variants} if several else {}),
    }


def plugin_option(arguments: dict[str, Any]) -> str:
    """Return the value of QEMU's option -plugin; commas within values are doubled for QEMU."""
    values = {"file": program(PLUGIN), **arguments}
    return ",".join(f"{key}={str(value).replace(',', ',,')}" for key, value in values.items())


def read_counts(page: Path, machine: Simulated, command: list[str], status: int) -> Counts:
    """Return what a run of `command` that ended with `status` left in the plugin's page."""
    done = subprocess.run([program(REPORT), page], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TlscostError(
            f"QEMU did not start (its messages are above), or the disk is full: {done.stderr}",
            CANNOT,
        )
    document = json.loads(done.stdout)
    if "error" in document:
        bad = document["errno"] in ("EINVAL", "ENOENT")
        raise TlscostError(document["error"], BAD_INPUT if bad else CANNOT)
    if not document["ended"] and status < _SIGNALLED:
        raise TlscostError(
            f"{command[0]} replaced itself by another program (exec), which is not counted: "
            "name that program instead",
            FAILED,
        )
    names = document["variants"]
    return Counts(
        machine=machine.name,
        program=command,
        variants=names,
        status=status,
        events=[
            Event(
                name=event["name"],
                unit=event["unit"],
                origin=event["origin"],
                user=dict(zip(names if event["varies"] else [""], event["user"], strict=True)),
            )
            for event in document["events"]
        ],
        executed=document["executed"],
        repeats=document["repeats"],
    )


def _scratch() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="tlscost-count-")
    except OSError as error:
        raise TlscostError(
            f"no temporary directory for the counts: {error}; make room, or set TMPDIR", CANNOT
        ) from error


def _interpreted(command: Sequence[str]) -> list[str]:
    """Return the command with the interpreter of a script before it: QEMU runs ELF files only."""
    path = shutil.which(command[0])
    if path is None:
        raise TlscostError(f"{command[0]}: no such program here or in PATH")
    words = [path, *command[1:]]
    for _ in range(_SHEBANG_DEPTH):
        first = _head(Path(words[0])).partition(b"\n")[0]
        if not first.startswith(b"#!"):
            break
        words = [*os.fsdecode(first[2:]).strip().split(None, 1), *words]
    return words


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(256)
    except OSError as error:
        raise TlscostError(f"{path}: cannot be read: {error.strerror}") from error


def _architecture(path: Path) -> str:
    head = _head(path)
    machine = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or machine not in _ELF_MACHINES:
        raise TlscostError(
            f"{path}: not a program of x86-64 or i386 (ELF), and no script that names one"
        )
    return _ELF_MACHINES[machine]


def _qemu(architecture: str) -> str:
    name = f"qemu-{architecture}"
    path = shutil.which(name)
    if path is None:
        raise TlscostError(f"{name}: not found in PATH; as root: apt-get install qemu-user", CANNOT)
    return path


def _run(command: list[str], stdout: int | None) -> int:
    try:
        process = subprocess.Popen(no_orphan(command, "KILL"), stdout=stdout)
    except OSError as error:
        raise TlscostError(f"{command[0]}: cannot be started: {error.strerror}", CANNOT) from error
    # Signals are for the program: what it has counted until then is reported as it ends. Ctrl-C it
    # gets from the terminal.
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(
            signal.SIGTERM, lambda number, _: process.send_signal(number)
        ),
    }
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _SIGNALLED - status if status < 0 else status
