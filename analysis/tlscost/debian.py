"""Debian packages of any architecture, without touching what this system has installed."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tlscost.errors import CANNOT, TlscostError

__all__ = ["PrivateApt", "extract", "versions"]

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LOCAL_TIMEOUT_S = 60
_DOWNLOAD_TIMEOUT_S = 1800


def extract(package: Path, into: Path, patterns: Sequence[str] = ()) -> None:
    """Unpack a package's files, or those only that match patterns (tar's, from "./" on)."""
    if not patterns:
        _run(["dpkg-deb", "-x", str(package), str(into)], timeout_s=_LOCAL_TIMEOUT_S)
        return
    with tempfile.NamedTemporaryFile(dir=into, suffix=".tar") as whole:
        _run(["dpkg-deb", "--fsys-tarfile", str(package)], timeout_s=_LOCAL_TIMEOUT_S, output=whole)
        _run(
            ["tar", "-xf", whole.name, "-C", str(into), "--wildcards", *patterns],
            timeout_s=_LOCAL_TIMEOUT_S,
        )


@dataclass(frozen=True)
class PrivateApt:
    """An apt with lists, cache and status of its own, and the mirror of the system's sources.

    Attributes
    ----------
    directory : Path
        Where it keeps everything; whoever made it removes it.
    architecture : str
        As Debian names it: i386, amd64.
    release : str, optional
        The codename of the release whose packages it has; None: of this system's.
    """

    directory: Path
    architecture: str
    release: str | None = None

    def update(self, *, kind: Literal["deb", "deb-src"] = "deb") -> None:
        """Fetch the list of the release's packages, or sources, and no other list."""
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "status").touch()
        lines = (f"{kind} {mirror} {self.release or suite} main\n" for mirror, suite in _sources())
        (self.directory / "sources.list").write_text("".join(lines))
        self._apt("apt-get", "update", "--error-on=any")

    def newest(self, metapackage: str) -> str:
        """Return the name of the package that a metapackage stands for now."""
        said = self._apt("apt-cache", "depends", "--important", metapackage)
        depends = re.search(r"^ +Depends: (\S+)$", said, re.MULTILINE)
        if depends is None:
            raise TlscostError(f"Debian package {metapackage}: depends on no other", CANNOT)
        return depends.group(1)

    def download(self, packages: Sequence[str], into: Path) -> None:
        """Download packages into a directory."""
        self._apt("apt-get", "download", *packages, where=into)

    def download_source(self, source: str, into: Path) -> Path:
        """Download a source package's upstream archive, without Debian's changes, and return it."""
        self._apt("apt-get", "source", "--download-only", "--tar-only", source, where=into)
        return next(into.glob(f"{source}_*.orig.tar.*"))

    def _apt(self, program: str, *arguments: str, where: Path | None = None) -> str:
        settings = {
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            "APT::Sandbox::User": "root",  # else it wants a user _apt that can write here
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Retries": "2",
            "Dir::Cache": str(self.directory / "cache"),
            "Dir::Etc::SourceList": str(self.directory / "sources.list"),
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": str(self.directory / "state"),
            "Dir::State::Status": str(self.directory / "status"),
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return _run(
            [program, "--quiet=2", *options, *arguments],
            timeout_s=_DOWNLOAD_TIMEOUT_S,
            where=where,
        )


def versions(packages: Iterable[Path]) -> dict[str, str]:
    """Return the versions of package files by their packages' names."""
    found = {}
    for package in sorted(packages):
        name, version = _run(
            ["dpkg-deb", "--show", "--showformat", r"${Package}\t${Version}", str(package)],
            timeout_s=_LOCAL_TIMEOUT_S,
        ).split("\t")
        found[name] = version
    return found


def _sources() -> list[tuple[str, str]]:
    """Return where the system has its own release from: no backports, nobody else's packages.

    Without security updates too: the guest is reached by its own load only, and lists that change
    at point releases only make images that last.

    Returns
    -------
    list of (str, str)
        Mirror, as a line of sources.list has it, and suite.
    """
    codename = _release()
    form = json.dumps({"uri": "$(REPO_URI)", "suite": "$(RELEASE)", "component": "$(COMPONENT)"})
    said = _run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        timeout_s=_LOCAL_TIMEOUT_S,
    )
    targets = [json.loads(line) for line in said.splitlines()]
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    found = {
        (f"{signed}{target['uri']}", target["suite"])
        for target in targets
        if target["suite"] in (codename, "stable") and target["component"] == "main"
    }
    if not found:
        raise TlscostError(
            f"apt's sources (/etc/apt/sources.list*) do not name component main of {codename}, "
            "from whose packages guests are made",
            CANNOT,
        )
    return sorted(found)


def _release() -> str:
    said = Path("/etc/os-release").read_text(encoding="utf-8")
    codename = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', said, re.MULTILINE)
    if codename is None or shutil.which("apt-get") is None:
        raise TlscostError(
            "guests are made of Debian's packages; this system is no Debian release", CANNOT
        )
    return codename.group(1)


def _run(
    argv: list[str], *, timeout_s: float, where: Path | None = None, output: IO[bytes] | None = None
) -> str:
    done = subprocess.run(
        argv,
        check=False,
        cwd=where,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        what = " ".join([argv[0], *(word for word in argv[1:] if "=" not in word and word != "-o")])
        raise TlscostError(f"{what}: {done.stderr.strip()}", CANNOT)
    return done.stdout or ""
