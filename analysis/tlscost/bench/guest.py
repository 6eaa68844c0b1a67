"""`bench guest`: how fast a guest serves armed, with empty callbacks and unarmed."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
from rich.console import Console
from rich.progress import track

from tlscost import guest, softpmu_page
from tlscost.bench.place import profile_path
from tlscost.cell import Cell
from tlscost.count import plugin_option
from tlscost.errors import FAILED, TlscostError
from tlscost.machine import Simulated
from tlscost.orphans import no_orphan
from tlscost.paths import program
from tlscost.profiles import OFF
from tlscost.runner import LOOPBACK, free_port
from tlscost.servers import Site

__all__ = ["MEASURES", "TLS", "WAYS", "run"]

WAYS = ("armed", "empty callbacks", "unarmed")
TLS = (OFF, "tls12-krsa2048-aes128gcm")
MEASURES = ("CPU time of QEMU", "CPU time of its CPUs", "elapsed")

_SIZE_BYTES = 36 * 1024
_CONNECTIONS_PER_CPU = 4  # that none idles
_WARM_UP_S = 1  # what was translated anew by arming
_BOOT_S = 120  # machines are shared; a quiet one takes three seconds
_PATIENCE_S = 60  # for a transaction


@dataclass(frozen=True)
class _Guest:
    """A guest that serves.

    Attributes
    ----------
    page : its counters.
    """

    process: psutil.Process
    url: str
    page: Path
    cell: Cell
    cpus: int

    def cost(self, seconds: int, armed: bool) -> dict[str, float]:
        """Return what a transaction costs by each of MEASURES [ms]."""
        (softpmu_page.arm if armed else softpmu_page.disarm)(self.page)
        self._load(_WARM_UP_S)
        before, start = self._cpu_s(), time.monotonic()
        completed = self._load(seconds)
        elapsed_s, after = time.monotonic() - start, self._cpu_s()
        softpmu_page.disarm(self.page)  # beside other guests
        spent_s = [*(late - early for early, late in zip(before, after, strict=True)), elapsed_s]
        return {name: 1e3 * s / completed for name, s in zip(MEASURES, spent_s, strict=True)}

    def _load(self, seconds: int) -> int:
        """Keep the guest busy; return the transactions completed, which are all that were begun."""
        path = profile_path(self.cell.tls)
        tls = [] if path is None else ["--profile", str(path)]
        command = [
            *[str(program("tlscost-load")), "--url", self.url, *tls, "--json"],
            *["--expect-size", str(self.cell.size), "--duration", str(seconds)],
            *["--connections", str(_CONNECTIONS_PER_CPU * self.cpus)],
            *["--timeout", str(_PATIENCE_S), "--drain-timeout", str(_PATIENCE_S)],
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        counts = json.loads(done.stdout)["counts"] if done.returncode == 0 else {}
        if not counts or counts["started"] != counts["completed"]:
            raise TlscostError(f"{' '.join(command)}: {counts} {done.stderr[-400:]}", FAILED)
        return int(counts["completed"])

    def _cpu_s(self) -> tuple[float, float]:
        """CPU time of all of QEMU's threads, and of all but that of network and timers [s]."""
        spent = {t.id: t.user_time + t.system_time for t in self.process.threads()}
        return sum(spent.values()), sum(spent.values()) - spent[self.process.pid]


@contextmanager
def _serving(machine: Simulated, cpus: int, tls: str, way: str) -> Iterator[_Guest]:
    """Run a disarmed guest whose plugin counts in that way for as long as the block lasts."""
    cell = Cell.model_validate({"server": "serve", "tls": tls, "size": _SIZE_BYTES})
    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
        site = Site(Path(scratch), LOOPBACK, free_port(), tuple(range(cpus)))
        page = site.directory / "page"
        arguments = {"machine": machine.file, "variant": machine.variant or "all", "page": page}
        server = guest.prepare(
            cell,
            site,
            architecture=machine.guest,
            qemu_cpu=machine.qemu_cpu,
            plugin=plugin_option({**arguments, "cpus": cpus, "armed": "off", "count": way}),
        )
        argv = no_orphan(server.argv, "KILL")
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_until_it_serves(site, process)
                yield _Guest(psutil.Process(process.pid), server.url, page, cell, cpus)
            finally:
                process.kill()


def _wait_until_it_serves(site: Site, process: subprocess.Popen[bytes]) -> None:
    console = site.directory / guest.CONSOLE
    deadline = time.monotonic() + _BOOT_S
    while not console.exists() or guest.SERVING not in console.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise TlscostError(f"bench: {guest.last_words(site.directory)}", FAILED)
        time.sleep(0.05)


def run(
    machine: Simulated, cpus: Sequence[int], tls: Sequence[str], rounds: int, seconds: int
) -> pd.DataFrame:
    """Load guests in each of WAYS, interleaved; armed and unarmed is the same guest by turns.

    Parameters
    ----------
    cpus, tls : of the guests.
    seconds : of each run [s].

    Returns
    -------
    One row per (cpus, tls, measure, way, round): ms_per_transaction [ms].
    """
    rows = []
    points = [(count, name) for count in cpus for name in tls]
    for count, name in track(points, "guests", console=Console(stderr=True)):
        with (
            _serving(machine, count, name, "models") as models,
            _serving(machine, count, name, "nothing") as empty,
        ):
            for number in range(rounds):
                costs = (
                    models.cost(seconds, armed=True),
                    empty.cost(seconds, armed=True),
                    models.cost(seconds, armed=False),
                )
                rows += [
                    {
                        "cpus": count,
                        "tls": name,
                        "measure": measure,
                        "way": way,
                        "round": number,
                        "ms_per_transaction": ms,
                    }
                    for way, cost in zip(WAYS, costs, strict=True)
                    for measure, ms in cost.items()
                ]
    return pd.DataFrame(rows)
