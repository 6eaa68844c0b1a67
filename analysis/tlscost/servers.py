"""How each server of a cell is started: its command line, its files, its versions."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jinja2

from tlscost.cell import Cell, CommandServer
from tlscost.errors import CANNOT, FAILED, TlscostError
from tlscost.openssl import command
from tlscost.paths import profiles_dir, program, root
from tlscost.profiles import OFF, Profile, profile

__all__ = [
    "Server",
    "Site",
    "load_command",
    "make_certificate",
    "nginx_configuration",
    "prepare",
    "serve_options",
    "url",
]

_PROTOCOLS = ("SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")


@dataclass(frozen=True)
class Site:
    """Where a cell's server lives.

    Attributes
    ----------
    directory : Path
        The cell's own, emptied away after it.
    address, port : str, int
        What the server listens on: loopback, or in a network namespace of the cell's own.
    cpus : tuple of int
        The server's CPUs, one worker each.
    """

    directory: Path
    address: str
    port: int
    cpus: tuple[int, ...]

    @property
    def authority(self) -> str:
        """Return address and port as URLs have them."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Server:
    """A server ready to be started in the foreground, and where its body then is.

    `check` is what the load generator may expect of the body: our pattern, or only its size.
    """

    argv: list[str]
    url: str
    versions: dict[str, str]
    check: Literal["pattern", "size"] = "pattern"


def prepare(cell: Cell, site: Site, say: Callable[[str], None] = lambda _line: None) -> Server:
    """Write what the cell's server needs into the site's directory and say how to start it.

    Parameters
    ----------
    say : callable
        Gets a line for each step of building an OpenSSL that is not there yet.
    """
    if isinstance(cell.server, CommandServer):
        return _command(cell, cell.server, site)
    return (_serve if cell.server == "serve" else _nginx)(cell, site, say)


def load_command(
    cell: Cell, say: Callable[[str], None] = lambda _line: None
) -> tuple[list[str], dict[str, str]]:
    """Return how to start the cell's load generator, without options, and its versions."""
    argv = command(cell.tls, program("tlscost-load"), say)
    version, openssl = _output([*argv, "--version"]).splitlines()
    return argv, {"load": version, "load_openssl": openssl}


def url(cell: Cell, authority: str) -> str:
    """Return where the body of a cell's size is."""
    return f"{'http' if cell.tls == OFF else 'https'}://{authority}/{cell.size}"


def serve_options(cell: Cell, site: Site, settings: Path, certificate: Path) -> list[str]:
    """Return tlscost-serve's options.

    Parameters
    ----------
    settings, certificate : Path
        The TLS profile's file, and the directory with cert.pem and key.pem; unused without TLS.
    """
    options = ["--listen", site.authority, "--size", str(cell.size)]
    options += ["--cpu-list", ",".join(map(str, site.cpus))]
    options += ["--resumption", "on" if cell.load.resumption else "off"]
    if cell.tls != OFF:
        options += ["--profile", str(settings), "--certificate", str(certificate)]
        if profile(cell.tls).weak:
            # Asked for by name, on an address that only the cell reaches: a server that may not
            # look at /proc/1/ns/net cannot see that for itself.
            options.append("--allow-weak")
    return options


def _serve(cell: Cell, site: Site, say: Callable[[str], None]) -> Server:
    argv = command(cell.tls, program("tlscost-serve"), say)
    certificate = site.directory / "certificate"
    if cell.tls != OFF:
        make_certificate(cell, certificate)
    settings = profiles_dir() / f"{cell.tls}.cnf"
    version, openssl = _output([*argv, "--version"]).splitlines()
    return Server(
        [*argv, *serve_options(cell, site, settings, certificate)],
        url(cell, site.authority),
        {"server": version, "server_openssl": openssl},
    )


def _nginx(cell: Cell, site: Site, say: Callable[[str], None]) -> Server:
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        raise TlscostError(
            "server nginx: no such program here; as root: apt-get install nginx-light", CANNOT
        )
    bodies, certificate = _bodies(cell, site), site.directory / "certificate"
    if cell.tls != OFF:
        make_certificate(cell, certificate)
    configuration = site.directory / "nginx.conf"
    configuration.write_text(
        nginx_configuration(cell, site, bodies, certificate, as_root=os.geteuid() == 0)
    )
    argv = command(cell.tls, Path(binary), say)
    version = _output([*argv, "-V"])
    openssl = re.search(r"running with (.+?)\)", version) or re.search(r"built with (.+)", version)
    return Server(
        [*argv, "-p", str(site.directory), "-c", str(configuration), "-e", "stderr"],
        url(cell, site.authority),
        {
            "server": version.splitlines()[0].removeprefix("nginx version: "),
            "server_openssl": openssl.group(1) if openssl else "unknown",
            "server_build": version,
        },
    )


def _command(cell: Cell, server: CommandServer, site: Site) -> Server:
    template = f"{server.command} {server.url}"
    values = {
        "address": site.address,
        "port": site.port,
        "size": cell.size,
        "cpus": len(site.cpus),
        "cpu_list": ",".join(map(str, site.cpus)),
        "bodies": _bodies(cell, site) if "{bodies}" in template else "",
        "certificate": "",
    }
    if "{certificate}" in template:
        if cell.tls == OFF:
            raise TlscostError(
                f"server {server.name}: {{certificate}} needs a TLS profile; the cell has tls = off"
            )
        values["certificate"] = site.directory / "certificate"
        make_certificate(cell, site.directory / "certificate")
    # Split first: a value with a space in it stays one argument.
    argv = [word.format_map(values) for word in shlex.split(server.command)]
    return Server(
        argv,
        server.url.format_map(values),
        {"server": server.name},
        check="pattern" if "{bodies}" in template else "size",
    )


def nginx_configuration(
    cell: Cell, site: Site, bodies: Path, certificate: Path, *, as_root: bool
) -> str:
    """Render nginx's configuration, equal in policy to tlscost-serve's.

    Parameters
    ----------
    certificate : Path
        The directory with cert.pem and key.pem; unused without TLS.
    as_root : bool
        Whether nginx is started by root.
    """
    tls = None if cell.tls == OFF else profile(cell.tls)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root() / "workloads" / "nginx"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # not HTML
    )
    return environment.get_template("nginx.conf.j2").render(
        cell=cell,
        site=site,
        bodies=bodies,
        tls=tls,
        protocols=_protocols(tls) if tls else [],
        certificate=certificate,
        masks=[f"{1 << cpu:b}" for cpu in site.cpus],
        worker_connections=max(1024, 4 * cell.load.connections),
        as_root=as_root,
    )


def _protocols(tls: Profile) -> list[str]:
    """List the range of a profile: nginx forbids versions that its own directive does not name."""
    bounds = []
    for name, default in (("MinProtocol", _PROTOCOLS[0]), ("MaxProtocol", _PROTOCOLS[-1])):
        bound = tls.ssl_conf.get(name, default)
        if bound not in _PROTOCOLS:
            raise TlscostError(
                f"TLS profile {tls.name}: {name} = {bound}; nginx knows {', '.join(_PROTOCOLS)}"
            )
        bounds.append(_PROTOCOLS.index(bound))
    return list(_PROTOCOLS[bounds[0] : bounds[1] + 1])


def make_certificate(cell: Cell, directory: Path) -> None:
    """Make a key and certificate of the kind that the cell's profile asks for."""
    directory.mkdir(mode=0o700)
    settings = str(profiles_dir() / f"{cell.tls}.cnf")
    _output(
        [
            *[str(program("tlscost-serve")), "--profile", settings],
            *["--write-certificate", str(directory)],
        ]
    )


def _bodies(cell: Cell, site: Site) -> Path:
    directory = site.directory / "bodies"
    directory.mkdir()
    _output(
        [
            *[str(program("tlscost-serve")), "--size", str(cell.size)],
            *["--write-bodies", str(directory)],
        ]
    )
    return directory


def _output(argv: list[str]) -> str:
    """Run a short command that must succeed; its output, standard error included."""
    done = subprocess.run(
        argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )
    text = done.stdout.decode(errors="replace").strip()
    if done.returncode != 0:
        code = done.returncode if done.returncode in (2, 3) else FAILED
        raise TlscostError(f"{shlex.join(argv)}: exit code {done.returncode}: {text}", code)
    return text
