"""Two network namespaces joined by a veth pair, for peers that the collector does not place."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tlscost.errors import TlscostError
from tlscost.runner import LOOPBACK, VETH_LOAD, VETH_SERVER

__all__ = ["Network", "veth_pair"]


@dataclass(frozen=True)
class Network:
    """Where the two ends run: a command prefix for each, and the server's address."""

    server_prefix: list[str]
    client_prefix: list[str]
    server_address: str


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TlscostError(f"ip {' '.join(words)}: {done.stderr.strip()}", exit_code=3)


def _in_namespace(name: str, script: str) -> None:
    _ip("netns", "exec", name, "sh", "-c", script)


@contextmanager
def veth_pair(server_cpu: int, client_cpu: int) -> Iterator[Network]:
    """Join two namespaces of our own, each end's input steered to its own CPU.

    Without root there are no namespaces: both ends are on loopback then, where the sender's CPU
    does part of the receiver's work.
    """
    if os.geteuid() != 0:
        yield Network([], [], LOOPBACK)
        return
    server, client = (f"tlscost-{end}-{os.getpid()}" for end in ("server", "client"))
    ends = (
        (server, "tcb0", VETH_SERVER, server_cpu),
        (client, "tcb1", VETH_LOAD, client_cpu),
    )
    try:
        for namespace, _, _, _ in ends:
            _ip("netns", "add", namespace)
        _ip("link", "add", "tcb0", "netns", server, "type", "veth", "peer", "tcb1", "netns", client)
        for namespace, device, address, cpu in ends:
            _ip("-n", namespace, "address", "add", f"{address}/30", "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _in_namespace(
                namespace,
                f"echo {1 << cpu:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus &&"
                " echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse &&"
                " echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range",
            )
        yield Network(["ip", "netns", "exec", server], ["ip", "netns", "exec", client], VETH_SERVER)
    finally:
        for namespace, _, _, _ in ends:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
