"""A cell's server within a simulated machine: QEMU's command line, and what the guest is told.

The guest itself is workloads/guest; docs/guest.md explains the choices made here.
"""

import argparse
import contextlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tlscost import cpio
from tlscost.cell import Cell, CommandServer, human_size
from tlscost.errors import BAD_INPUT, CANNOT, TlscostError
from tlscost.guest_image import Image, image
from tlscost.openssl import InGuest, in_guest
from tlscost.paths import profiles_dir
from tlscost.profiles import OFF
from tlscost.servers import (
    Server,
    Site,
    make_certificate,
    nginx_configuration,
    serve_options,
    url,
)

__all__ = ["CONSOLE", "SERVING", "last_words", "prepare"]

CONSOLE = "console"
"""Name of the file in the site's directory that holds what the guest says."""

SERVING = "tlscost-guest: serving"
"""What the guest says once its server listens: QEMU accepts connections long before."""

_HOME = Path("/cell")
_ADDRESS, _PORT = "10.0.2.15", 8443  # of QEMU's own network, which nothing else is in
_MAC = "52:54:00:12:34:56"
_RAM_MIB = 128
_SIZE_MOST = 256 << 20  # a guest's files are in its memory
_MIB = 1 << 20
_HELD_US = 2000  # by the host's clock, to which the guest's timer runs ten times slower


def prepare(
    cell: Cell,
    site: Site,
    *,
    architecture: str,
    qemu_cpu: str,
    plugin: str | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Server:
    """Write what the cell's guest needs into the site's directory and say how to start it.

    Parameters
    ----------
    site : Site
        Address and port are those of this machine that lead to the guest's server; of `cpus` only
        the number counts.
    architecture, qemu_cpu : str
        What the guest is built for, and QEMU's CPU model, as the machine file has them.
    plugin : str, optional
        QEMU's -plugin argument.
    say : callable
        Gets a line for each step of making an image that is not there yet.
    """
    if isinstance(cell.server, CommandServer):
        raise TlscostError(
            f"server {cell.server.name}: a simulated machine runs serve and nginx only", BAD_INPUT
        )
    if cell.size > _SIZE_MOST:
        raise TlscostError(
            f"size {human_size(cell.size)}: a simulated machine serves from its small memory; "
            f"allowed: up to {human_size(_SIZE_MOST)}",
            BAD_INPUT,
        )
    made = image(architecture, say)
    # nginx is linked already, with the release's own.
    soname = None if cell.server == "serve" else made.openssl_soname
    openssl = in_guest(cell.tls, architecture, soname=soname, say=say)
    initramfs = site.directory / "initramfs"
    initramfs.touch(mode=0o600)  # it holds the key
    initramfs.write_bytes(
        made.initramfs.read_bytes() + cpio.pack(_files(cell, len(site.cpus), openssl))
    )
    argv = _command_line(made, site, qemu_cpu, _RAM_MIB + 2 * cell.size // _MIB, initramfs)
    if plugin is not None:
        argv += ["-plugin", plugin]
    name = {"serve": "tlscost-serve", "nginx": "nginx"}[cell.server]
    versions = {
        "server": f"{name} {made.versions.get(name, '')}".strip(),
        "server_openssl": openssl.version or f"libssl3 {made.versions['libssl3']}",
        "guest": made.directory.name,
        "guest_packages": ", ".join(" ".join(pair) for pair in made.versions.items()),
    }
    return Server(argv, url(cell, site.authority), versions)


def last_words(directory: Path, lines: int = 15) -> str:
    """Return the last lines of a guest's console, for the message of a cell that failed."""
    try:
        said = (directory / CONSOLE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "the guest said nothing"
    said = said.partition("Call Trace:")[0]  # of a panic: what came before says more
    kept = [line for line in said.splitlines() if line.strip()][-lines:]
    return "\n".join(["the guest's last words:", *(f"    {line}" for line in kept)])


def _command_line(
    made: Image, site: Site, qemu_cpu: str, ram_mib: int, initramfs: Path
) -> list[str]:
    qemu = shutil.which(made.qemu)
    if qemu is None:
        raise TlscostError(
            f"{made.qemu}: no such program here; as root: apt-get install qemu-system-x86", CANNOT
        )
    forward = f"hostfwd=tcp:{site.address}:{site.port}-{_ADDRESS}:{_PORT}"
    return [
        *[qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
        # What a server does not need takes time to find.
        *["-machine", "pc,memory-backend=ram,i8042=off,vmport=off,hpet=off,usb=off,smbus=off"],
        # A memfd has a name in /proc/PID/maps, by which the plugin finds the guest's memory.
        *["-object", f"memory-backend-memfd,id=ram,size={ram_mib}M", "-m", f"{ram_mib}M"],
        *[
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            qemu_cpu,
            "-smp",
            made.topology.format(cpus=len(site.cpus)),
        ],
        *["-netdev", f"user,id=net,restrict=on,ipv6=off,{forward}"],
        # Packets for the guest wait for the next of these instants. Otherwise chance decides how
        # many of them one interrupt finds, and with that the path length.
        *["-object", f"filter-buffer,id=held,netdev=net,queue=tx,interval={_HELD_US}"],
        # Two functions of one slot share an interrupt line: setting up another one takes 0.2 s.
        *["-device", f"virtio-net-pci,netdev=net,mac={_MAC},romfile=,addr=2.0,multifunction=on"],
        *["-device", "virtio-rng-pci,addr=2.1"],
        # To the console's file, and to standard output for whoever supervises QEMU.
        *["-chardev", f"stdio,id=console,signal=off,logfile={site.directory / CONSOLE}"],
        *["-serial", "chardev:console"],
        *["-kernel", str(made.kernel), "-initrd", str(initramfs)],
        *["-append", made.kernel_command_line],
    ]


def _files(cell: Cell, cpus: int, openssl: InGuest) -> dict[str, cpio.Entry]:
    """Return the cell's own files as the guest will find them."""
    inside = Site(_HOME, _ADDRESS, _PORT, tuple(range(cpus)))
    certificate, settings = _HOME / "certificate", _HOME / "profile.cnf"
    if cell.server == "serve":
        start = [[openssl.serve, *serve_options(cell, inside, settings, certificate)]]
        files = {}
    else:
        bodies = _HOME / "bodies"
        start = [
            ["mkdir", str(bodies)],
            ["tlscost-serve", "--size", str(cell.size), "--write-bodies", str(bodies)],
            ["nginx", "-p", str(_HOME), "-c", str(_HOME / "nginx.conf"), "-e", "stderr"],
        ]
        text = nginx_configuration(cell, inside, bodies, certificate, as_root=True)
        files = {_HOME / "nginx.conf": cpio.file(text.encode())}
    start[-1] = ["exec", *openssl.prefix, *start[-1]]
    files |= openssl.files
    files[_HOME / "start"] = cpio.file(("set -e\n" + "".join(map(_line, start))).encode())
    files[_HOME / "settings"] = cpio.file(
        f"address={_ADDRESS}\nport={_PORT}\ncpu_mask={(1 << cpus) - 1:x}\n".encode()
    )
    if cell.tls != OFF:
        files[settings] = cpio.file((profiles_dir() / f"{cell.tls}.cnf").read_bytes())
        with tempfile.TemporaryDirectory(prefix="tlscost-key-") as temporary:
            made = Path(temporary) / "certificate"
            make_certificate(cell, made)
            for path in made.iterdir():
                files[certificate / path.name] = cpio.file(path.read_bytes(), 0o600)
    return {str(path).removeprefix("/"): entry for path, entry in files.items()}


def _line(words: list[str]) -> str:
    return shlex.join(words) + "\n"


def _by_hand() -> None:
    """Run a guest in the foreground until it is interrupted: `python -m tlscost.guest --help`."""
    parser = argparse.ArgumentParser(prog="python -m tlscost.guest", description=_by_hand.__doc__)
    parser.add_argument("--architecture", default="i386")
    parser.add_argument("--qemu-cpu", default="pentium3")
    parser.add_argument("--server", default="serve")
    parser.add_argument("--tls", default=OFF)
    parser.add_argument("--size", default="30B")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--plugin", help="QEMU's -plugin argument")
    given = parser.parse_args()
    cell = Cell.model_validate({"server": given.server, "tls": given.tls, "size": given.size})
    with tempfile.TemporaryDirectory(prefix="tlscost-guest-") as temporary:
        site = Site(Path(temporary), "127.0.0.1", given.port, tuple(range(given.cpus)))
        server = prepare(
            cell,
            site,
            architecture=given.architecture,
            qemu_cpu=given.qemu_cpu,
            plugin=given.plugin,
            say=print,
        )
        print(f"{shlex.join(server.argv)}\nwill serve {server.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            subprocess.run(server.argv, check=False)


if __name__ == "__main__":
    try:
        _by_hand()
    except TlscostError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
