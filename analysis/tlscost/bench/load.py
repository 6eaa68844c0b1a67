"""`bench load`: tlscost-load's CPU per transaction against wrk, h2load and openssl s_time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import psutil
from rich.console import Console
from rich.progress import track

from tlscost.bench.clients import CLIENTS, Client, Target
from tlscost.bench.crypto import crypto_cost
from tlscost.bench.network import Network, veth_pair
from tlscost.bench.place import peer, profile_path, two_cpus
from tlscost.errors import TlscostError
from tlscost.paths import program

__all__ = ["OURS", "PORT", "PROFILES", "SIZES", "run", "serving"]

OURS = ["tlscost-load", "tlscost-load --check size"]

SIZES = (30, 36 * 1024, 1024 * 1024)
PROFILES = ("off", "tls12-krsa2048-aes128gcm", "tls13-ecdsa-x25519")
PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client", "openssl": "openssl"}
PORT = 8443


@contextmanager
def serving(network: Network, cpu: int, profile: str) -> Iterator[None]:
    """tlscost-serve on one CPU for as long as the block lasts."""
    path = profile_path(profile)
    command = [
        *[*network.server_prefix, str(program("tlscost-serve"))],
        *["--listen", f"{network.server_address}:{PORT}", "--cpu-list", str(cpu)],
        *[word for size in SIZES for word in ("--size", str(size))],
        *([] if path is None else ["--profile", str(path)]),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            if not server.stderr.readline():
                raise TlscostError("bench: tlscost-serve did not start", exit_code=1)
            yield
        finally:
            server.terminate()


def _busy_s(cpu: int) -> float:
    """Busy time of a CPU [s] since boot; ticks of 10 ms."""
    times = psutil.cpu_times(percpu=True)[cpu]
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _measure(
    client: Client, target: Target, network: Network, seconds: int, count: int
) -> tuple[int, float, float]:
    """One run of one client alone on its CPU: transactions, busy time [s] and elapsed time [s]."""
    command = [*network.client_prefix, *client.command(target, seconds, count)]
    busy, start = _busy_s(target.cpu), time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=20 * seconds + 30,
        preexec_fn=lambda: os.sched_setaffinity(0, {target.cpu}),
    )
    elapsed = time.monotonic() - start
    busy = _busy_s(target.cpu) - busy
    if done.returncode != 0:
        raise TlscostError(f"{' '.join(command)} failed: {done.stderr[-400:]}", exit_code=1)
    return client.transactions(done.stdout), busy, elapsed


def run(rounds: int = 5, seconds: int = 3) -> pd.DataFrame:
    """Measure every client at every size and profile, interleaved.

    Parameters
    ----------
    rounds : how often each client runs at each point.
    seconds : of each run [s].

    Returns
    -------
    One row per (profile, size_bytes, client, round): transactions, busy_s (all of the client's
    CPU, interrupts included [s]), cpu_us (busy time per transaction [us]), crypto_us (of that,
    what `openssl speed` says the cryptography costs [us]) and beyond_us (the rest [us]).
    """
    for command, package in PACKAGES.items():
        peer(command, package)
    server_cpu, client_cpu = two_cpus()
    os.sched_setaffinity(0, {server_cpu})  # nothing of ours on the measured CPU
    rows = []
    with veth_pair(server_cpu, client_cpu) as network:
        for profile in PROFILES:
            crypto = crypto_cost(profile, client_cpu)
            with serving(network, server_cpu, profile):
                for size in track(SIZES, profile, console=Console(stderr=True)):
                    target = Target(
                        network.server_address, PORT, size, profile_path(profile), client_cpu
                    )
                    clients = [c for c in CLIENTS if profile != "off" or not c.tls_only]
                    count = 200
                    for number in range(-1, rounds):  # round -1 warms up and finds the rate
                        for client in clients:
                            done, busy, elapsed = _measure(client, target, network, seconds, count)
                            if number < 0:
                                count = max(200, int(seconds * done / elapsed))
                                continue
                            cpu_us = 1e6 * busy / done
                            crypto_us = 1e6 * crypto.client_s(size)
                            rows.append(
                                {
                                    "profile": profile,
                                    "size_bytes": size,
                                    "client": client.name,
                                    "round": number,
                                    "transactions": done,
                                    "busy_s": busy,
                                    "cpu_us": cpu_us,
                                    "crypto_us": crypto_us,
                                    "beyond_us": cpu_us - crypto_us,
                                }
                            )
    return pd.DataFrame(rows)
