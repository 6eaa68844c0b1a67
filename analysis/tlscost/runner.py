"""One cell: from what the plan says to command lines, and from those to a record."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tlscost import guest, passes
from tlscost.cell import Cell
from tlscost.count import plugin_option
from tlscost.errors import DONE, FAILED, INTERRUPTED, TlscostError
from tlscost.machine import NATIVE, Simulated, simulated
from tlscost.orphans import no_orphan
from tlscost.paths import profiles_dir, program
from tlscost.profiles import OFF
from tlscost.servers import Server, Site, load_command, prepare

__all__ = ["Outcome", "Placement", "Running", "free_port", "measure", "place"]

VETH_SERVER, VETH_LOAD = "198.18.0.1", "198.18.0.2"  # as workloads/common/profile.h has them
LOOPBACK = "127.0.0.1"
VETH_PORT = 8443  # the namespace is the cell's own, so any port is free
STDERR_LINES_KEPT = 200
TERMINATION_S = 30
GUEST_READY_S = 120  # to boot on a busy machine
GUEST_SAMPLE_MS = 500  # its time is not this machine's
GUEST_WARMUP_MAX_S = 60

_CAPABILITIES = "OPENSSL_ia32cap"
_PACKAGES = ("libssl3", "nginx-core", "nginx-light", "libpfm4", "libnuma1", "libc6")


@dataclass(frozen=True)
class Placement:
    """Which CPUs the server and the load generator run on."""

    server: tuple[int, ...]
    load: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """How a measurement ended: an exit code of `tlscost.errors`, and what was said on the way."""

    exit_code: int
    stderr: str

    @property
    def reason(self) -> str:
        """The last thing said, which names what went wrong."""
        lines = self.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit code {self.exit_code} without a word"


def place(cell: Cell) -> Placement:
    """Give the server the first CPUs, or those it asks for, and the load generator the rest.

    Where nothing is left they share, and the record says so. A load CPU needs a connection.
    A simulated machine runs anywhere: its CPUs are not this machine's.
    """
    present = sorted(os.sched_getaffinity(0))
    if cell.machine != NATIVE:
        return Placement(tuple(present), (present[-1],))
    server = cell.cpu_list or tuple(present[: cell.cpus])
    rest = tuple(cpu for cpu in present if cpu not in server)
    return Placement(server, (rest or server)[: cell.load.connections])


class Running:
    """The measuring commands that run now, for a thread that has to stop them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    @contextmanager
    def start(
        self, begin: Callable[[], "subprocess.Popen[str]"]
    ) -> Iterator["subprocess.Popen[str]"]:
        """Start a command and know it while the context lasts."""
        with self._lock:
            if self._stopped:
                raise TlscostError("stopped before it began", INTERRUPTED)
            process = begin()
            self._processes.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._processes.discard(process)
        if self._stopped:  # what it ended with is not the measurement's doing
            raise TlscostError("stopped", INTERRUPTED)

    def stop(self) -> None:
        """Stop what runs in order, and let nothing start any more."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()


def measure(
    cell: Cell,
    record: Path,
    *,
    locks: tuple[int, ...],
    said: Callable[[str], None] = lambda _line: None,
    running: Running | None = None,
) -> Outcome:
    """Measure one cell with tlscost-collect.

    Parameters
    ----------
    record : Path
        Where the whole record will be; until then it is `record` with ".partial" added.
    locks : tuple of int
        Descriptors of locks that the collector inherits; nobody else holds the first.
    said : callable
        Gets each line that the collector writes to standard error, as it comes.
    running : Running, optional
        Knows the collector while it runs.
    """
    own = os.fstat(locks[0])
    prefix = f"tlscost-cell-{own.st_dev}-{own.st_ino}-"
    try:
        _remove_stale_directories(prefix)
        temporary = tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        return Outcome(FAILED, f"no directory for the cell's files (see TMPDIR): {error}")
    with temporary as name:
        directory = Path(name)
        try:
            argv = _command_line(cell, record, directory, said)
        except TlscostError as error:
            return Outcome(error.exit_code, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            return Outcome(FAILED, f"while preparing the cell in {directory} (see TMPDIR): {error}")
        outcome = run_command(argv, locks=locks, said=said, running=running or Running())
        if outcome.exit_code == DONE or cell.machine == NATIVE:
            return outcome
        return replace(outcome, stderr=f"{guest.last_words(directory)}\n{outcome.stderr}")


def _remove_stale_directories(prefix: str) -> None:
    """Remove what a killed sweep left behind: of one lock only its holder's directory is in use."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if path.lstat().st_uid == os.geteuid() and not path.is_symlink():
            shutil.rmtree(path)


def run_command(
    argv: list[str], *, locks: tuple[int, ...], said: Callable[[str], None], running: Running
) -> Outcome:
    """Run a measuring command to its end, or stop it in order when this program is interrupted.

    It is told to stop, too, when this program dies by SIGKILL, and holds the locks until it has
    stopped.
    """
    kept: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

    def begin() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            no_orphan(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=locks,
            start_new_session=True,  # Ctrl-C is for this program, which then stops the measurement
        )

    with running.start(begin) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                kept.append(line)
                said(line.rstrip("\n"))
            returncode = process.wait()
        except BaseException:
            _stop(process)
            raise
        finally:
            process.stderr.close()
    if returncode < 0:
        kept.append(f"{argv[0]}: killed by signal {-returncode}\n")
    return Outcome(returncode if DONE <= returncode <= 3 else FAILED, "".join(kept))


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=TERMINATION_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _command_line(
    cell: Cell, record: Path, directory: Path, said: Callable[[str], None]
) -> list[str]:
    machine = simulated(cell.machine)
    placement = place(cell)
    rules = cell.rules.model_dump()
    if machine is None:
        server, where = _native(cell, directory, placement, said)
    else:
        server, where = _simulated(cell, directory, machine, said)
        rules |= {
            "ready_timeout_s": GUEST_READY_S,
            "sample_ms": rules["sample_ms"] or GUEST_SAMPLE_MS,
            "warmup_max_s": rules["warmup_max_s"] or GUEST_WARMUP_MAX_S,
        }
    header = directory / "header.json"
    load, load_versions = _load(cell, server, placement, said)
    header.write_text(json.dumps(_header(cell, {**server.versions, **load_versions})))
    argv = [str(program("tlscost-collect")), "--record", str(record), "--header", str(header)]
    argv += ["--server-cpus", _cpus(placement.server), "--load-cpus", _cpus(placement.load), *where]
    if machine is None:
        argv += ["--source", cell.source]
        sets = cell.events or (passes.here() if cell.source == "perf" else ())
        argv += [word for events in sets for word in ("--events", events)]
    argv += _options(
        {
            "--idle-s": rules["idle_s"],
            "--warmup-s": rules["warmup_s"],
            "--warmup-max-s": rules["warmup_max_s"],
            "--window-s": rules["window_s"],
            "--completions": rules["completions_per_connection"],
            "--windows": rules["windows"],
            "--sample-ms": rules["sample_ms"],
            "--ready-timeout-s": rules.get("ready_timeout_s"),
        }
    )
    return [*argv, "--", *server.argv, "--", *load]


def _native(
    cell: Cell, directory: Path, placement: Placement, said: Callable[[str], None]
) -> tuple[Server, list[str]]:
    """Prepare a server on this machine; with it the collector's options that say where it is."""
    veth = os.geteuid() == 0
    address = VETH_SERVER if veth else LOOPBACK
    port = VETH_PORT if veth else free_port()
    site = Site(directory, address, port, placement.server)
    network = ["--network", "loopback"]
    if veth:
        network = ["--network", "veth", "--server-address", VETH_SERVER]
        network += ["--load-address", VETH_LOAD]
    return prepare(cell, site, said), [*network, "--connect", site.authority]


def _simulated(
    cell: Cell, directory: Path, machine: Simulated, said: Callable[[str], None]
) -> tuple[Server, list[str]]:
    """Prepare a guest with the server in it; with it the collector's options about it."""
    site = Site(directory, LOOPBACK, free_port(), tuple(range(cell.cpus)))
    plugin = plugin_option(
        {
            "machine": machine.file,
            "variant": machine.variant or "all",
            "page": "{page}",
            "cpus": cell.cpus,
            "armed": "off",
        }
    )
    server = guest.prepare(
        cell,
        site,
        architecture=machine.guest,
        qemu_cpu=machine.qemu_cpu,
        plugin=plugin,
        say=said,
    )
    return server, ["--simulated-cpus", str(cell.cpus), "--network", "user"]


def _load(
    cell: Cell, server: Server, placement: Placement, said: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Return the load generator's command line, and its versions."""
    load = cell.load
    argv, versions = load_command(cell, said)
    argv = [*argv, "--url", server.url, "--cpu-list", _cpus(placement.load)]
    if cell.tls != OFF:
        argv += ["--profile", str(profiles_dir() / f"{cell.tls}.cnf")]
    argv += _options(
        {
            "--connections": load.connections,
            "--rate": load.rate,
            "--arrivals": load.arrivals,
            "--resumption": load.resumption or None,
            "--expect-size": cell.size,
            "--check": server.check,
            "--timeout": load.timeout_s,
        }
    )
    if load.keepalive:
        argv.append("--keepalive")
    return [*argv, "--page", "{page}"], versions


def _options(values: dict[str, object]) -> list[str]:
    return [
        word for name, value in values.items() if value is not None for word in (name, str(value))
    ]


def _header(cell: Cell, versions: dict[str, str]) -> dict[str, Any]:
    header = {"cell": cell.for_record(), **versions, "packages": _package_versions()}
    if _CAPABILITIES in os.environ:  # what OpenSSL takes the CPU for; not in a guest
        header[_CAPABILITIES.lower()] = os.environ[_CAPABILITIES]
    return header


@cache
def _package_versions() -> dict[str, str] | None:
    """Versions of the Debian packages that a figure may hang on; None without dpkg."""
    if shutil.which("dpkg-query") is None:
        return None
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat", r"${Package} ${Version}\n", *_PACKAGES],
        check=False,  # fails for those of the list that are not installed
        capture_output=True,
        text=True,
    )
    pairs = (line.split(" ", 1) for line in done.stdout.splitlines())
    return {package: version for package, version in pairs if version}


def _cpus(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus))


def free_port() -> int:
    """Return a port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
