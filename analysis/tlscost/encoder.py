"""How libpfm4 encodes events of CPUs that are not here, whatever their architecture.

libpfm4 knows the 32-bit processors' events in its i386 build only, and ARM's in ARM's: there our
encoder (collector/encode.c) is built for that architecture and run by QEMU.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tlscost import debian
from tlscost.errors import CANNOT, TlscostError
from tlscost.guest_image import compile_for
from tlscost.paths import cache_dir, program, root

__all__ = ["Encoding", "encode"]

_SOURCES = ("collector/encode.c", "collector/events.c", "workloads/common/error.c")
_HEADERS = ("collector/events.h", "workloads/common/error.h")
_QEMU = {"i386": "qemu-i386", "arm64": "qemu-aarch64"}
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Encoding:
    """What perf_event_open would be given for an event.

    Attributes
    ----------
    type, config, config1 : int
        Fields of `perf_event_attr`; None where libpfm4 does not know the event.
    error : str or None
        Why there is no encoding.
    """

    type: int | None
    config: int | None
    config1: int | None
    error: str | None = None

    def __str__(self) -> str:
        """Return it as people write raw events: type/config[/config1], hexadecimal."""
        if self.error is not None or self.config is None:
            return self.error or ""
        more = f"/{self.config1:x}" if self.config1 else ""
        return f"{self.type}/{self.config:x}{more}"


def encode(names: Iterable[str], tables: str) -> dict[str, Encoding]:
    """Encode events by one build of libpfm4.

    Parameters
    ----------
    names : iterable of str
        As libpfm4 spells them: PMU::EVENT:MASK...
    tables : {"native", "i386", "arm64"}
        The build.

    Returns
    -------
    dict of str to Encoding
        For each name.

    Raises
    ------
    TlscostError
        The encoder cannot be had or run here; the remedy is in the message.
    """
    wanted = list(dict.fromkeys(names))
    argv = _command(tables)
    try:
        done = subprocess.run(
            argv,
            input="".join(f"{name}\n" for name in wanted),
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise TlscostError(f"{' '.join(argv)}: {error}", CANNOT) from error
    said = [line.split("\t", 1) for line in done.stdout.splitlines()]
    if [name for name, *_ in said] != wanted:
        raise TlscostError(f"{' '.join(argv)}: did not answer for every event", CANNOT)
    return {name: _read(answer) for name, answer in said}


def _read(answer: str) -> Encoding:
    if answer.startswith("error: "):
        return Encoding(None, None, None, answer.removeprefix("error: "))
    kind, config, config1 = answer.split()
    return Encoding(int(kind), int(config, 16), int(config1, 16))


@cache
def _command(tables: str) -> list[str]:
    if tables == "native":
        return [str(program("tlscost-encode"))]
    qemu = shutil.which(_QEMU[tables])
    if qemu is None:
        raise TlscostError(
            f"{_QEMU[tables]} is not installed, and libpfm4's {tables} tables exist in that build "
            "only; as root: apt-get install qemu-user",
            CANNOT,
        )
    return [qemu, str(_built(tables))]


def _built(architecture: str) -> Path:
    """Return the encoder for an architecture; it is built once, and again when it changes."""
    contents = [(root() / name).read_bytes() for name in (*_SOURCES, *_HEADERS)]
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    built = cache_dir() / f"encode-{architecture}-{digest}"
    if not built.exists():
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tlscost-encode-", dir=cache_dir()) as temporary:
            sources = [Path(name) for name in _SOURCES]
            made = Path(temporary) / "tlscost-encode"
            compile_for(architecture, sources, made, _libpfm4(Path(temporary), architecture))
            made.rename(built)  # whole, or not there
    return built


def _libpfm4(directory: Path, architecture: str) -> list[str]:
    """Fetch that architecture's libpfm4; the compiler's options that name it."""
    apt = debian.PrivateApt(directory / "apt", architecture)
    apt.update()
    apt.download(["libpfm4-dev"], directory)
    for package in directory.glob("*.deb"):
        debian.extract(package, directory)
    [library] = directory.glob("usr/lib/*/libpfm.a")
    return ["-isystem", str(directory / "usr" / "include"), str(library)]
