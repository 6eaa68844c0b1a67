"""One cell: from what the plan says to command lines, and from those to a record."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tlscost.cell import Cell
from tlscost.errors import DONE, FAILED, TlscostError
from tlscost.paths import profiles_dir, program
from tlscost.profiles import OFF
from tlscost.servers import Server, Site, prepare

__all__ = ["Outcome", "Placement", "measure", "place"]

VETH_SERVER, VETH_LOAD = "198.18.0.1", "198.18.0.2"  # as workloads/common/profile.h has them
LOOPBACK = "127.0.0.1"
VETH_PORT = 8443  # the namespace is the cell's own, so any port is free
STDERR_LINES_KEPT = 200
TERMINATION_S = 30

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
    """
    present = sorted(os.sched_getaffinity(0))
    server = cell.cpu_list or tuple(present[: cell.cpus])
    rest = tuple(cpu for cpu in present if cpu not in server)
    return Placement(server, (rest or server)[: cell.load.connections])


def measure(
    cell: Cell, record: Path, *, lock: int, said: Callable[[str], None] = lambda _line: None
) -> Outcome:
    """Measure one cell with tlscost-collect.

    Parameters
    ----------
    record : Path
        Where the whole record will be; until then it is `record` with ".partial" added.
    lock : int
        Descriptor of the machine's lock, which the collector inherits.
    said : callable
        Gets each line that the collector writes to standard error, as it comes.
    """
    prefix = f"tlscost-cell-{os.fstat(lock).st_ino}-"
    _remove_stale_directories(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as temporary:
        directory = Path(temporary)
        try:
            argv = _command_line(cell, record, directory)
        except TlscostError as error:
            return Outcome(error.exit_code, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            return Outcome(FAILED, f"while preparing the cell: {error}")
        return run_command(argv, lock=lock, said=said)


def _remove_stale_directories(prefix: str) -> None:
    """Remove what a killed sweep left behind: of one lock only its holder's directory is in use."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if path.lstat().st_uid == os.geteuid() and not path.is_symlink():
            shutil.rmtree(path)


def run_command(argv: list[str], *, lock: int, said: Callable[[str], None]) -> Outcome:
    """Run a measuring command to its end, or stop it in order when this program is interrupted.

    It is told to stop, too, when this program dies by SIGKILL, and holds the machine's lock until
    it has stopped.
    """
    kept: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
    process = subprocess.Popen(
        [*_stop_with_parent(), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C is for this program, which then stops the measurement
    )
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


def _stop_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


def _command_line(cell: Cell, record: Path, directory: Path) -> list[str]:
    placement = place(cell)
    veth = os.geteuid() == 0
    address = VETH_SERVER if veth else LOOPBACK
    port = VETH_PORT if veth else _free_port()
    site = Site(directory, address, port, placement.server)
    server = prepare(cell, site)
    header = directory / "header.json"
    header.write_text(json.dumps(_header(cell, server)))
    argv = [str(program("tlscost-collect")), "--record", str(record), "--header", str(header)]
    argv += ["--server-cpus", _cpus(placement.server), "--load-cpus", _cpus(placement.load)]
    if veth:
        argv += ["--network", "veth", "--server-address", VETH_SERVER, "--load-address", VETH_LOAD]
    else:
        argv += ["--network", "loopback"]
    argv += ["--connect", site.authority]
    for events in cell.events:
        argv += ["--events", events]
    argv += _options(
        {
            "--idle-s": cell.rules.idle_s,
            "--warmup-s": cell.rules.warmup_s,
            "--warmup-max-s": cell.rules.warmup_max_s,
            "--window-s": cell.rules.window_s,
            "--completions": cell.rules.completions_per_connection,
            "--windows": cell.rules.windows,
            "--sample-ms": cell.rules.sample_ms,
        }
    )
    return [*argv, "--", *server.argv, "--", *_load(cell, server, placement)]


def _load(cell: Cell, server: Server, placement: Placement) -> list[str]:
    load = cell.load
    argv = [str(program("tlscost-load")), "--url", server.url, "--cpu-list", _cpus(placement.load)]
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
    return [*argv, "--page", "{page}"]


def _options(values: dict[str, object]) -> list[str]:
    return [
        word for name, value in values.items() if value is not None for word in (name, str(value))
    ]


def _header(cell: Cell, server: Server) -> dict[str, Any]:
    return {"cell": cell.for_record(), **server.versions, "packages": _package_versions()}


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
