"""Which OpenSSL a cell's programs run with: the one that its profile asks for."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tlscost import cpio
from tlscost.errors import CANNOT, TlscostError
from tlscost.openssl_build import (
    HOST,
    OURS,
    Say,
    guest_serve,
    openssl,
    programs,
    recipe_of,
    silent,
)
from tlscost.profiles import OFF, profile

__all__ = ["InGuest", "command", "in_guest"]


@dataclass(frozen=True)
class InGuest:
    """What a guest gets besides its image to run a cell's server with an OpenSSL of ours.

    Attributes
    ----------
    files : dict of Path to cpio.Entry
        By their absolute paths.
    prefix : list of str
        What the server's command line begins with.
    serve : str
        tlscost-serve as it is to be started.
    version : str or None
        As OpenSSL itself says it; None: the image's own is used.
    """

    files: dict[Path, cpio.Entry] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    serve: str = "tlscost-serve"
    version: str | None = None


def command(tls: str, path: Path, say: Say = silent) -> list[str]:
    """Return how to start a program of this machine with the OpenSSL that a profile asks for.

    Parameters
    ----------
    tls : str
        The profile's name, or "off".
    path : Path
        The program. One of ours is compiled again where it is linked with another OpenSSL.
    say : callable
        Gets a line for each step that takes its time.
    """
    if tls == OFF or not profile(tls).openssl:
        return [str(path)]
    ours = path.name in OURS
    made = openssl(_chosen(tls, None if ours else _soname(path)), HOST, say)
    if ours and _soname(path) != made.soname:
        path = programs(made, say) / path.name
    return ["env", *made.environment(), str(path)]


def in_guest(
    tls: str, architecture: str, *, soname: str | None = None, say: Say = silent
) -> InGuest:
    """Return what a guest needs to serve by a profile.

    Parameters
    ----------
    soname : str, optional
        Of the OpenSSL that the server is linked with: 3 of libssl.so.3. None: the server is
        tlscost-serve, which is compiled against any.
    """
    if tls == OFF or not profile(tls).openssl:
        return InGuest()
    made = openssl(_chosen(tls, soname), architecture, say)
    files = {
        made.home / path.relative_to(made.directory): cpio.file(path.read_bytes(), 0o755)
        for path in (*made.directory.glob("lib/*.so.*"), *made.directory.glob("openssl.cnf"))
    }
    serve = made.home / "bin" / "tlscost-serve"
    if soname is None:
        files[serve] = cpio.file(guest_serve(made, architecture, say).read_bytes(), 0o755)
    return InGuest(files, ["env", *made.environment(made.home)], str(serve), made.version)


def _chosen(tls: str, soname: str | None) -> str:
    """Return the first OpenSSL of a profile that a program can run with.

    `soname` is of what the program is linked with; None: it can be linked with any.
    """
    wanted = profile(tls).openssl
    for name in wanted:
        if soname in (None, recipe_of(name)["soname"]):
            return name
    raise TlscostError(
        f"TLS profile {tls}: needs OpenSSL {' or '.join(wanted)}; the server is linked with "
        f"libssl.so.{soname}; use server serve, or another profile",
        CANNOT,
    )


def _soname(program: Path) -> str:
    """Return which OpenSSL a program is linked with: 3 of libssl.so.3."""
    argv = ["readelf", "--wide", "--dynamic", str(program)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    needed = re.search(r"\(NEEDED\).*\[libssl\.so\.(.+)\]", said)
    if needed is None:
        raise TlscostError(f"{program}: not linked with a libssl.so; cannot be given another")
    return needed.group(1)
