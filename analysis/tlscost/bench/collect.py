"""`bench collect`: the collector's own CPU at 100 ms sampling against `perf stat -a -I 100`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track

from tlscost.bench.clients import Target
from tlscost.bench.load import PORT, SIZES, serving
from tlscost.bench.network import Network
from tlscost.bench.place import peer
from tlscost.bench.process import run as run_process
from tlscost.paths import program
from tlscost.runner import LOOPBACK

__all__ = ["run"]

SAMPLE_MS = 100


def _events() -> list[str]:
    """Events that both count here: the collector's own default set, by perf's names."""
    probe = subprocess.run(
        [str(program("tlscost-collect")), "--probe"], capture_output=True, text=True, check=True
    )
    sources = {source["name"]: source for source in json.loads(probe.stdout)["sources"]}
    return [event["event"] for event in sources["perf"]["events"] if event["available"]]


@contextmanager
def _busy_cpus() -> Iterator[None]:
    """Keep every CPU busy the way a cell does: tlscost-serve on one CPU, tlscost-load on others."""
    cpus = sorted(os.sched_getaffinity(0))
    server_cpu, load_cpus = cpus[0], cpus[1:] or cpus
    target = Target(LOOPBACK, PORT, SIZES[0], None, load_cpus[0])
    with serving(Network([], [], LOOPBACK), server_cpu, "off"):
        load = subprocess.Popen(
            [
                *[str(program("tlscost-load")), "--url", target.url],
                *["--cpu-list", ",".join(map(str, load_cpus)), "--connections", "64"],
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            load.terminate()
            load.wait()


def run(rounds: int = 3, seconds: int = 20) -> pd.DataFrame:
    """Measure both, interleaved, on all CPUs and with the same events.

    Parameters
    ----------
    rounds : how often each runs.
    seconds : of each run [s].

    Returns
    -------
    One row per (cpus, tool, round): cpu_s, the tool's own CPU time, start-up included [s], and
    cpu_us_per_sample [us]. `cpus` tells whether the CPUs sampled were busy, as in a cell, or idle.
    """
    perf = peer("perf", "linux-perf")
    events = _events()
    cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0)))
    samples = seconds * 1000 // SAMPLE_MS
    rows = []
    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as scratch:
        record = Path(scratch) / "samples.jsonl"
        commands = {
            "tlscost-collect": [
                *[str(program("tlscost-collect")), "--sample-only", "--cpus", cpus],
                *["--duration-s", str(seconds), "--sample-ms", str(SAMPLE_MS)],
                *["--events", ",".join(events), "--record", str(record)],
            ],
            "perf stat": [
                *[perf, "stat", "-a", "-x,", "-I", str(SAMPLE_MS), "-e", ",".join(events)],
                *["--", "sleep", str(seconds)],
            ],
        }
        conditions: dict[str, AbstractContextManager[None]]
        conditions = {"busy": _busy_cpus(), "idle": nullcontext()}
        for condition, kept in conditions.items():
            with kept:
                for number in track(
                    range(rounds), f"{condition} CPUs", console=Console(stderr=True)
                ):
                    for tool, command in commands.items():
                        cpu_s = run_process(command).cpu_s
                        rows.append(
                            {
                                "cpus": condition,
                                "tool": tool,
                                "round": number,
                                "cpu_s": cpu_s,
                                "cpu_us_per_sample": 1e6 * cpu_s / samples,
                            }
                        )
    return pd.DataFrame(rows)
