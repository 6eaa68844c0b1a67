"""Guests' kernels and file systems, made of Debian's packages and our server, and cached.

workloads/guest says what they are made of; docs/guest.md says why.
"""

import json
import lzma
import os
import re
import struct
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tlscost import cached, cpio, debian
from tlscost.cached import file_digest, made_once
from tlscost.errors import CANNOT, TlscostError
from tlscost.paths import root

__all__ = [
    "ARCHITECTURES",
    "Image",
    "build",
    "compile_for",
    "compile_serve",
    "compiler",
    "fetch",
    "image",
    "serve_sources",
    "sysroot",
    "with_libraries",
]

ARCHITECTURES = ("i386", "x86_64", "arm64")

_COMPILE_TIMEOUT_S = 300
_LZ4_LEGACY = bytes.fromhex("02214c18")
_ARM64_IMAGE = b"ARM\x64"  # at 56: docs of Linux's arm64 boot protocol; never compressed by Debian


@dataclass(frozen=True)
class Image:
    """A guest's kernel and file system, without the cell's own files.

    Attributes
    ----------
    directory : Path
        In the cache; its name ends in the hash of all that the image is made of.
    versions : dict of str to str
        Of the Debian packages in it.
    """

    directory: Path
    architecture: str
    versions: dict[str, str]

    @property
    def kernel(self) -> Path:
        """The kernel, not compressed: it boots in a fraction of the time."""
        return self.directory / "vmlinux"

    @property
    def initramfs(self) -> Path:
        """The first file system; another archive may be appended to it."""
        return self.directory / "initramfs.cpio"

    @property
    def openssl_soname(self) -> str:
        """Which OpenSSL the programs of its packages are linked with: 3 of libssl.so.3."""
        libraries = [name for name in self.versions if re.fullmatch(r"libssl[0-9.]+(t64)?", name)]
        return libraries[0].removeprefix("libssl").removesuffix("t64")

    @property
    def qemu(self) -> str:
        """Name of the QEMU program that runs it."""
        return str(_recipe(self.architecture)["qemu"])

    @property
    def topology(self) -> str:
        """QEMU's -smp argument, with {cpus} in it."""
        return str(_recipe(self.architecture)["topology"])

    @property
    def kernel_command_line(self) -> str:
        """What every cell's kernel is told."""
        return " ".join(_recipe(self.architecture)["kernel_command_line"])


def image(architecture: str, say: Callable[[str], None] = lambda _line: None) -> Image:
    """Find the image in the cache, or make it.

    Parameters
    ----------
    architecture : str
        One of `ARCHITECTURES`.
    say : callable
        Gets a line for each step that takes its time.
    """
    if architecture not in ARCHITECTURES:
        raise TlscostError(
            f"guest architecture {architecture!r}: allowed: {', '.join(ARCHITECTURES)}"
        )
    packages = fetch(architecture, say)

    def make(directory: Path) -> None:
        say(f"building the {architecture} guest")
        build(architecture, packages, directory)

    made_of = [*_made_of(architecture), *map(file_digest, packages)]
    directory = made_once(f"guest-{architecture}", made_of, make, say)
    versions = json.loads((directory / "versions.json").read_text(encoding="utf-8"))
    return Image(directory, architecture, versions)


def build(architecture: str, packages: list[Path], into: Path) -> None:
    """Build an image of package files; the same input gives the same bytes."""
    recipe = _recipe(architecture)
    with tempfile.TemporaryDirectory(prefix="tlscost-guest-") as temporary:
        tree = Path(temporary)
        for package in packages:
            kernel = package.name.startswith("linux-image-")
            debian.extract(package, tree, _kernel_files(recipe) if kernel else [])
        compressed = _only(tree, "boot/vmlinuz-*").read_bytes()
        (into / "vmlinux").write_bytes(_decompressed(compressed))
        compile_serve(_compiler(recipe, tree), tree / "tlscost-serve")
        entries = _entries(recipe, tree)
        (into / "initramfs.cpio").write_bytes(cpio.pack(entries))
    versions = debian.versions(packages)
    (into / "versions.json").write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")


@cache
def _recipe(architecture: str) -> dict[str, Any]:
    """Return what `image.toml` says of an architecture, lists joined to the common ones."""
    recipes = tomllib.loads((_home() / "image.toml").read_text(encoding="utf-8"))
    common, own = recipes["common"], recipes[architecture]
    gcc = _said([own["compiler"], "-dumpversion"]).split(".", maxsplit=1)[0]
    joined = {name: common.get(name, []) + own.get(name, []) for name in common}
    joined["build_packages"] = [name.format(gcc=gcc) for name in joined["build_packages"]]
    return {**own, **joined}


def _home() -> Path:
    return root() / "workloads" / "guest"


def serve_sources() -> list[Path]:
    """Return what tlscost-serve is compiled of; page.c is what only the load generator needs."""
    workloads = root() / "workloads"
    found = [*workloads.glob("common/*.[ch]"), *workloads.glob("server/*.[ch]")]
    return sorted(path for path in found if path.name != "page.c")


def _made_of(architecture: str) -> list[str]:
    files = [_home() / "image.toml", _home() / "init", root() / "CMakeLists.txt", *serve_sources()]
    builders = [Path(__file__), Path(cached.__file__), Path(cpio.__file__)]
    compiler = _said([_recipe(architecture)["compiler"], "--version"])
    return [architecture, compiler, *map(file_digest, [*files, *builders])]


def fetch(architecture: str, say: Callable[[str], None]) -> list[Path]:
    """Return the package files, downloaded where the cache does not have them.

    They stay the same, and with them the image, until somebody deletes them from the cache.
    """
    recipe = _recipe(architecture)
    wanted = [*recipe["packages"], *recipe["build_packages"]]

    def make(directory: Path) -> None:
        with tempfile.TemporaryDirectory() as private:
            apt = debian.PrivateApt(Path(private), recipe["debian_architecture"])
            say(f"fetching the list of Debian's {apt.architecture} packages")
            apt.update()
            kernel = apt.newest(recipe["kernel_package"])
            say(f"fetching {kernel} and {len(wanted)} small packages")
            apt.download([kernel, *wanted], directory)

    kind = f"guest-packages-{architecture}"
    directory = made_once(kind, [recipe["kernel_package"], *wanted], make, say)
    return sorted(directory.glob("*.deb"))


def _kernel_files(recipe: dict[str, Any]) -> list[str]:
    """Name the few files that are needed of a package that holds thousands."""
    return ["./boot/vmlinuz-*", *(f"*/{name}.ko" for name in recipe["modules"])]


def _decompressed(bzimage: bytes) -> bytes:
    """Return the ELF file within a compressed kernel (offsets of Linux's boot protocol).

    One for arm64 is what it is.
    """
    if bzimage[56:60] == _ARM64_IMAGE:
        return bzimage
    setup_sectors = bzimage[0x1F1] or 4
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = bzimage[start : start + length - 4]  # the length after decompression ends it
    if payload.startswith(_LZ4_LEGACY):
        vmlinux = _run(["lz4", "--decompress", "--stdout"], payload)
    else:
        vmlinux = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    if not vmlinux.startswith(b"\x7fELF"):
        raise TlscostError("the guest's kernel package: no ELF file within its kernel", CANNOT)
    return vmlinux


def sysroot(architecture: str, say: Callable[[str], None] = lambda _line: None) -> Path:
    """Find the unpacked packages of a guest, which programs for it are built against, or make them.

    Returns
    -------
    Path
        A directory in the cache.
    """
    packages = [it for it in fetch(architecture, say) if not it.name.startswith("linux-image-")]

    def make(directory: Path) -> None:
        for package in packages:
            debian.extract(package, directory)

    return made_once(f"guest-sysroot-{architecture}", map(file_digest, packages), make, say)


def with_libraries(sysroot: Path, programs: Iterable[Path]) -> dict[str, cpio.Entry]:
    """Return a guest's entries for programs built against its libraries: bin/NAME, and those."""
    entries: dict[str, cpio.Entry] = {}
    for program in programs:
        entries[f"bin/{program.name}"] = cpio.file(program.read_bytes(), 0o755)
        entries |= _libraries(sysroot, program)
    return entries


def compiler(architecture: str, say: Callable[[str], None] = lambda _line: None) -> list[str]:
    """Return the command line of a compiler for a guest's own C library."""
    return _compiler(_recipe(architecture), sysroot(architecture, say))


def compile_for(
    architecture: str, sources: list[Path], program: Path, options: Sequence[str] = ()
) -> None:
    """Compile a program, static, for what a guest can be given besides its image."""
    argv = [*compiler(architecture), "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    _run([*argv, "-o", str(program), *map(str, sources), *options])


def compile_serve(compiler: list[str], program: Path) -> None:
    """Compile tlscost-serve with a guest's compiler, and the OpenSSL that it is told of."""
    text = (root() / "CMakeLists.txt").read_text(encoding="utf-8")
    version = re.search(r"project\(tlscost VERSION (\S+)", text)
    assert version is not None
    argv = [*compiler, "-DNDEBUG", f'-DTC_VERSION="{version.group(1)}"']
    argv += ['-DTC_BUILD_NAME="release"']
    argv += [str(path.relative_to(root())) for path in serve_sources() if path.suffix == ".c"]
    _run([*argv, "-s", "-o", str(program), "-lssl", "-lcrypto", "-lhttp_parser", "-pthread"])


def _compiler(recipe: dict[str, Any], tree: Path) -> list[str]:
    """Return the compiler's command line for the C library in the tree.

    For x86 it is this machine's: it knows both architectures, and only lacks the other one's start
    files and libraries, which are in the tree.
    """
    compiler = recipe["compiler"]
    startup = _only(tree, "usr/lib/gcc/*/*/crtbegin.o").parent
    libraries = _only(tree, "usr/lib/*/crt1.o").parent
    headers = [Path(_said([compiler, "-print-file-name=include"])), tree / "usr/include"]
    headers.append(tree / "usr/include" / libraries.name)
    argv = [compiler, *recipe["compiler_flags"], f"--sysroot={tree}", "-nostdinc", "-I."]
    argv += [word for path in headers for word in ("-isystem", str(path))]
    argv += [word for path in (startup, libraries) for word in (f"-B{path}", f"-L{path}")]
    return [*argv, "-D_GNU_SOURCE"]


def _entries(recipe: dict[str, Any], tree: Path) -> dict[str, cpio.Entry]:
    entries = {path: cpio.directory() for path in ("proc", "sys", "dev")}
    entries |= {"run": cpio.directory(), "tmp": cpio.directory(0o1777)}
    entries["init"] = cpio.file((_home() / "init").read_bytes(), 0o755)
    entries["etc/passwd"] = cpio.file(b"root:x:0:0:root:/:/bin/sh\n")
    entries["etc/group"] = cpio.file(b"root:x:0:\n")
    busybox = (tree / "bin/busybox").read_bytes()
    entries["bin/busybox"] = cpio.file(busybox, 0o755)
    for program in (tree / "tlscost-serve", tree / "usr/sbin/nginx"):
        entries[f"usr/sbin/{program.name}"] = cpio.file(program.read_bytes(), 0o755)
        entries |= _libraries(tree, program)
    for name in recipe["modules"]:
        module = _only(tree, f"lib/modules/*/**/{name}.ko")
        entries[f"modules/{name}.ko"] = cpio.file(module.read_bytes())
    entries["modules/order"] = cpio.file(
        "".join(f"{name}\n" for name in recipe["modules"]).encode()
    )
    return entries


def _libraries(tree: Path, program: Path) -> dict[str, cpio.Entry]:
    """Return the shared libraries that a program needs, at their places."""
    entries: dict[str, cpio.Entry] = {}
    unseen = [program]
    while unseen:
        said = _said(["readelf", "--wide", "--dynamic", "--program-headers", str(unseen.pop())])
        names = re.findall(r"\(NEEDED\).*\[(.+)\]", said)
        loader = re.search(r"program interpreter: /(.+)\]", said)
        places = [str(_library(tree, name).relative_to(tree)) for name in names]
        for place in [*places, *([loader.group(1)] if loader else [])]:
            if place not in entries:
                entries[place] = cpio.file((tree / place).resolve().read_bytes(), 0o755)
                unseen.append(tree / place)
    return entries


def _library(tree: Path, name: str) -> Path:
    for directory in ("lib", "lib/*-linux-gnu", "usr/lib/*-linux-gnu"):
        for path in tree.glob(f"{directory}/{name}"):
            return path
    raise TlscostError(f"workloads/guest/image.toml: no package has the library {name}", CANNOT)


def _only(tree: Path, pattern: str) -> Path:
    found = list(tree.glob(pattern))
    if len(found) != 1:
        raise TlscostError(
            f"the guest's packages have {len(found)} files {pattern}, expected one", CANNOT
        )
    return found[0]


def _said(argv: list[str]) -> str:
    return _run(argv).decode().strip()


def _run(argv: list[str], given: bytes = b"") -> bytes:
    """Run a program in the project's directory; what it writes to standard output."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            cwd=root(),
            env={**os.environ, "LC_ALL": "C"},
            input=given,
            capture_output=True,
            timeout=_COMPILE_TIMEOUT_S,
        )
    except FileNotFoundError:
        packages = "gcc binutils lz4" if "-" not in argv[0] else "gcc-aarch64-linux-gnu"
        raise TlscostError(
            f"{argv[0]}: not installed; as root: apt-get install {packages}", CANNOT
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise TlscostError(f"{argv[0]} for the guest: {said}", CANNOT)
    return done.stdout
