"""A guest whose every access is counted: started, armed, read and taken down by a test."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serve import need
from tests.test_guest import running, site, wait_for
from tlscost import cpio, guest, softpmu_page
from tlscost.cell import Cell
from tlscost.count import REPORT, plugin_option
from tlscost.machine import simulated_or_file
from tlscost.paths import program
from tlscost.servers import Site

__all__ = ["ArmedGuest", "armed"]


@dataclass
class ArmedGuest:
    """One that runs.

    Attributes
    ----------
    url : str
        Of its server.
    page : Path
        Its counters.
    """

    process: subprocess.Popen[bytes]
    site: Site
    url: str
    page: Path

    def report(self) -> dict[str, Any]:
        """Return what has been counted so far, summed over the CPUs."""
        done = subprocess.run([program(REPORT), self.page], capture_output=True, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        assert "error" not in document, document
        return document


@contextmanager
def armed(
    directory: Path,
    machine: str,
    cpus: int,
    *,
    tls: str = "off",
    files: Mapping[str, cpio.Entry] | None = None,
    changes: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    **plugin: str,
) -> Iterator[ArmedGuest]:
    """Run an armed guest of a machine, with tlscost-serve or what `files` put in its place.

    Parameters
    ----------
    files : mapping of str to Entry
        What the guest has besides the cell's own files, or instead of them.
    changes, options : mapping of str to str, sequence of str
        Words of QEMU's command line and what stands in their place; further words.
    plugin : str
        Further arguments of the plugin.
    """
    described = simulated_or_file(machine)
    need(f"qemu-system-{described.guest}")
    where, page = site(directory, cpus), directory / "page"
    arguments = {"machine": described.file, "variant": described.variant or "all", "page": page}
    server = guest.prepare(
        Cell.model_validate({"server": "serve", "tls": tls, "size": 30}),
        where,
        architecture=described.guest,
        qemu_cpu=described.qemu_cpu,
        plugin=plugin_option({**arguments, "cpus": cpus, "armed": "off", **plugin}),
    )
    with (directory / "initramfs").open("ab") as more:
        more.write(cpio.pack(files or {}))
    argv = [(changes or {}).get(word, word) for word in server.argv]
    with running([*argv, *options]) as process:
        wait_for(guest.SERVING, where, process)
        started = ArmedGuest(process, where, server.url, page)
        softpmu_page.arm(page)
        yield started
