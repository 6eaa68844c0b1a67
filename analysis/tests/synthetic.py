"""Builds whole records with known numbers, from the contract in docs/record-format.md."""

import hashlib
import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

SECOND = 1_000_000_000


def histogram(values_ns: Iterable[int]) -> str:
    """Encode as the load generator does: 1 us to 120 s, 3 significant figures."""
    result = HdrHistogram(1000, 120 * SECOND, 3)
    for value in values_ns:
        result.record_value(value)
    return result.encode().decode()


def header(**cell: Any) -> dict[str, Any]:
    """Header of a cell; `cell` overrides its keys."""
    return {
        "type": "header",
        "schema": "tlscost-record/1",
        "started_utc": "2026-01-01T00:00:00Z",
        "cell": {
            "machine": "native",
            "server": "serve",
            "tls": "off",
            "size_bytes": 36864,
            "cpus": 1,
            "load": {"connections": 8, "loop": "closed"},
            "repetition": 0,
            **cell,
        },
        "program": {"version": "0.1.0", "build": "release"},
        "commands": {"server": ["serve"], "load": ["load"], "collect": ["collect"]},
        "provenance": {
            "cpu_model": "Test CPU",
            "microarchitecture": None,
            "kernel": "6.1",
            "governor": None,
            "smt": False,
            "memory_bytes": 8 << 30,
            "mitigations": {"spectre_v2": "Mitigation: Retpolines"},
        },
        "placement": {
            "server_cpus": [0],
            "load_cpus": [1],
            "collector_cpus": [1],
            "overlap": False,
            "reason": None,
            "numa": {"server_nodes": [0], "policy": "local"},
        },
        "network": {"kind": "veth", "mtu": 1500, "reason": None},
        "sources": [{"name": "proc", "available": True, "reason": None, "scope": "cpu"}],
        "passes": [[{"event": "instructions", "mode": "u"}]],
        "rules": {"window_s": 1, "completions_per_connection": 20},
    }


def count(event: str, mode: str, value: float | None, **other: Any) -> dict[str, Any]:
    """One counter of CPU 0; a null value has status and reason."""
    missing = {"status": "unsupported", "reason": f"{event}: this machine shows no PMU"}
    return {
        "cpu": 0,
        "event": event,
        "mode": mode,
        "source": "perf",
        "raw": None if value is None else value + 1000,
        "corrected": value,
        "enabled_ns": SECOND,
        "running_ns": SECOND,
        "origin": "counted",
        **({"status": "ok", "reason": None} if value is not None else missing),
        **other,
    }


def window(**other: Any) -> dict[str, Any]:
    """One second, 1000 transactions, CPU 0 idle for a quarter."""
    return {
        "type": "window",
        "pass": 0,
        "index": 0,
        "start_ns": 10 * SECOND,
        "end_ns": 11 * SECOND,
        "start_utc": "2026-01-01T00:00:10Z",
        "cpus": [
            {
                "cpu": 0,
                "idle_ns": SECOND // 4,
                "idle_resolution_ns": 1,
                "steal_ns": 0,
                "user_ns": SECOND // 4,
                "system_ns": SECOND // 4,
                "irq_ns": 0,
                "softirq_ns": SECOND // 4,
            }
        ],
        "counts": [
            count("instructions", "u", 2e8),
            count("instructions", "k", 1e8),
            count("cycles", "u", 4e8),
            count("cycles", "k", 2e8),
        ],
        "system": {
            "mem_available_bytes": 4 << 30,
            "net_rx_bytes": 1_000_000,
            "net_tx_bytes": 38_000_000,
            "tcp_retransmits": 10,
            "disk_queue": 0.0,
            "context_switches": 3000,
            "interrupts": 5000,
            "procs_running": 2,
        },
        "transactions": 1000,
        "bytes": 36_864_000,
        "connections": 1000,
        "handshakes_full": 0,
        "handshakes_resumed": 0,
        "tickets": 0,
        "late": 0,
        "clamped": 0,
        "started": 1002,
        "errors": {"timeout": 2, "reset": 0},
        "latency": {
            "connect": histogram(range(10_000, 110_000, 100)),
            "handshake": None,
            "first_byte": histogram(range(1_000_000, 2_000_000, 1000)),
            "last_byte": histogram(range(2_000_000, 3_000_000, 1000)),
        },
        "server_rss_bytes": 5 << 20,
        "samples": {
            "how": "ring",
            "reason": None,
            "t_ns": [SECOND],
            "transactions": [1000],
            "idle_ns": {"0": [SECOND // 4]},
            "counts": {
                "0": {"t_ns": [SECOND // 2, SECOND], "cycles:u": [200_500_000, 400_001_000]}
            },
        },
        **other,
    }


def idle() -> dict[str, Any]:
    """The idle line of the pass of `window`."""
    line = {key: deepcopy(window()[key]) for key in ("pass", "index", "cpus", "counts", "system")}
    for item in line["counts"]:
        item["corrected"] = None
    return {"type": "idle", **line, "start_ns": 0, "end_ns": SECOND}


def encode(head: dict[str, Any], lines: list[dict[str, Any]]) -> bytes:
    """The bytes of a whole record."""
    return seal(b"".join(json.dumps(line).encode() + b"\n" for line in [head, *lines]))


def seal(body: bytes) -> bytes:
    """The record of these lines: with the footer that fits them."""
    footer = {
        "type": "footer",
        "lines": body.count(b"\n"),
        "windows": body.count(b'"type": "window"'),
        "ended_utc": "2026-01-01T00:01:00Z",
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return body + json.dumps(footer).encode() + b"\n"


def write(
    path: Path,
    windows: list[dict[str, Any]] | None = None,
    edit: Callable[[dict[str, Any]], None] = lambda head: None,
    **cell: Any,
) -> Path:
    """Write a record; `edit` may change the header before it is sealed."""
    head = header(**cell)
    edit(head)
    path.write_bytes(encode(head, [idle(), *([window()] if windows is None else windows)]))
    return path


def simulated_header(machine: str = "p3-xeon", **cell: Any) -> dict[str, Any]:
    """Header of a cell on a simulated machine of 500 MHz with two L2 variants."""
    return {
        **header(machine=machine, **cell),
        "machine": {
            "name": "p3-xeon",
            "variants": ["512k", "2m"],
            "cpus": 1,
            "clock_hz": 500_000_000,
            "bus_clock_hz": 100_000_000,
        },
        "network": {"kind": "user", "mtu": 1500, "reason": "its own"},
    }


def simulated_window(**other: Any) -> dict[str, Any]:
    """1000 transactions of 3e5 instructions; L2 misses and cycles differ between the variants."""
    reason = "this machine says nothing about the simulated one"

    def pair(
        event: str, user: float, kernel: float, origin: str, **more: Any
    ) -> list[dict[str, Any]]:
        common = {"source": "softpmu", "origin": origin, "enabled_ns": 0, "running_ns": 0, **more}
        return [count(event, "u", user, **common), count(event, "k", kernel, **common)]

    system = ("net_rx_bytes", "net_tx_bytes", "interrupts")
    times = ("steal_ns", "user_ns", "system_ns", "irq_ns", "softirq_ns")
    cpu = {"cpu": 0, "idle_ns": SECOND // 4, "idle_resolution_ns": 1}
    return window(
        cpus=[{**cpu, **dict.fromkeys(times)}],
        system=dict.fromkeys(system),
        null_reasons=dict.fromkeys([*system, *times, "server_rss_bytes"], reason),
        server_rss_bytes=None,
        counts=[
            *pair("INST_RETIRED", 2e8, 1e8, "counted"),
            *pair("IFU_IFETCH", 1e8, 5e7, "simulated"),
            *pair("IFU_IFETCH_MISS", 2e6, 1e6, "simulated"),
            *pair("DATA_MEM_REFS", 8e7, 4e7, "simulated"),
            *pair("DCU_LINES_IN", 4e6, 2e6, "simulated"),
            *pair("L2_LINES_IN", 6e5, 3e5, "simulated", variant="512k"),
            *pair("L2_LINES_IN", 2e5, 1e5, "simulated", variant="2m"),
            *pair("CPU_CLK_UNHALTED", 6e8, 3e8, "modelled", variant="512k"),
            *pair("CPU_CLK_UNHALTED", 4e8, 2e8, "modelled", variant="2m"),
            *pair("BUS_DRDY_CLOCKS", 4e6, 2e6, "simulated", variant="2m"),
            *pair("BUS_DRDY_CLOCKS", 8e6, 4e6, "simulated", variant="512k"),
        ],
        **other,
    )
