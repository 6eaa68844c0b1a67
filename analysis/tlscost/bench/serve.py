"""`bench serve`: tlscost-serve's CPU per transaction against nginx's, by our own collector."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from tlscost import frame, metrics, plan, sweep
from tlscost.bench.crypto import crypto_cost
from tlscost.bench.place import two_cpus
from tlscost.errors import TlscostError
from tlscost.paths import plan_file
from tlscost.progress import Progress

__all__ = ["run"]


def run(rounds: int, progress: Progress) -> pd.DataFrame:
    """Measure both servers in every cell of data/plans/bench-serve.toml, interleaved.

    Returns
    -------
    One row per (profile, size_bytes, server, round): cpu_us (busy time of the server's CPU per
    transaction, interrupts included [us]), crypto_us (of that, what `openssl speed` says the
    cryptography costs [us]) and beyond_us (the rest [us]).
    """
    todo = plan.read(plan_file("bench-serve"))
    cells = [cell for cell in todo.cells() if cell.repetition <= rounds]
    server_cpu, _ = two_cpus()
    crypto = {tls: crypto_cost(tls, server_cpu) for tls in dict.fromkeys(c.tls for c in cells)}
    with tempfile.TemporaryDirectory(prefix="tlscost-bench-") as out:
        result = sweep.run(cells, Path(out), retries=todo.retries, progress=progress)
        if result.failures:
            raise TlscostError(f"bench serve: {result.failures[0].reason}", exit_code=1)
        values = metrics.run_values(frame.load([out]))
    rows = values[values["metric"] == "cpu_time"]
    cpu_us = 1e3 * rows["value"]
    crypto_us = rows[["tls", "size_bytes"]].apply(
        lambda row: 1e6 * crypto[row["tls"]].server_s(row["size_bytes"]), axis="columns"
    )
    return pd.DataFrame(
        {
            "profile": rows["tls"],
            "size_bytes": rows["size_bytes"],
            "server": rows["server"],
            "round": rows["repetition"],
            "cpu_us": cpu_us,
            "crypto_us": crypto_us,
            "beyond_us": cpu_us - crypto_us,
        }
    )
