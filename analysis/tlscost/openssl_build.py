"""OpenSSLs with suites that the system's has not, built of Debian's sources and cached.

workloads/openssl-legacy says what is built; docs/openssl-legacy.md says why.
"""

import inspect
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlscost.cached import file_digest, made_once
from tlscost.debian import PrivateApt
from tlscost.errors import CANNOT, TlscostError
from tlscost.guest_image import compile_serve, compiler, serve_sources
from tlscost.paths import root

__all__ = [
    "HOST",
    "OURS",
    "Openssl",
    "Say",
    "guest_serve",
    "openssl",
    "programs",
    "recipe_of",
    "silent",
]

HOST = "host"
"""In the place of a guest's architecture: built for this machine."""

OURS = ("tlscost-serve", "tlscost-load")
_TIMEOUT_S = 1800

Say = Callable[[str], None]


def silent(_line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Openssl:
    """An OpenSSL of ours, for this machine or for guests of one architecture.

    Attributes
    ----------
    name : str
        As profiles and the recipe name it.
    soname : str
        What the programs that it fits are linked with: 3 of libssl.so.3.
    version : str
        As OpenSSL itself says it.
    directory : Path
        In the cache: lib, include, for this machine bin, and openssl.cnf where it needs one.
    home : Path
        Where it is in guests.
    """

    name: str
    soname: str
    version: str
    directory: Path
    home: Path

    def environment(self, place: Path | None = None) -> list[str]:
        """Return NAME=VALUE pairs for programs that are to run with it where `place` is it."""
        place = place or self.directory
        pairs = [f"LD_LIBRARY_PATH={place / 'lib'}"]
        if (self.directory / "openssl.cnf").exists():
            pairs.append(f"OPENSSL_CONF={place / 'openssl.cnf'}")
        return pairs


def openssl(name: str, architecture: str, say: Say = silent) -> Openssl:
    """Find an OpenSSL in the cache, or build it.

    Parameters
    ----------
    name : str
        As a profile's `openssl` has it.
    architecture : str
        `HOST`, or a guest's.
    """
    recipe = recipe_of(name)
    archive = _archive(name, recipe, say)
    patch = _home() / recipe["patch"]
    files = [archive, patch, *_configuration(recipe)]
    how = [inspect.getsource(step) for step in (_build, _keep)]
    configure, cc = _configure(recipe, architecture), _compiler(architecture, say)
    made_of = [*configure, *how, *map(file_digest, files), *_compiler_is(cc)]

    def make(directory: Path) -> None:
        say(f"building OpenSSL {name} ({architecture}): a minute or two")
        with tempfile.TemporaryDirectory(prefix="tlscost-openssl-") as temporary:
            tree = Path(temporary)
            _run(["tar", "-xf", str(archive), "--strip-components=1", "-C", temporary])
            _run(["patch", "-p1", "-i", str(patch)], where=tree)
            _build(tree, configure, cc, with_programs=architecture == HOST)
            _keep(tree, recipe, directory)

    directory = made_once(f"openssl-{name}-{architecture}", made_of, make, say)
    header = (directory / "include/openssl/opensslv.h").read_text(encoding="utf-8")
    version = re.search(r'OPENSSL_VERSION_TEXT\s+"([^"]+)"', header)
    assert version is not None
    said = " ".join(version.group(1).split())
    return Openssl(name, recipe["soname"], said, directory, Path(recipe["prefix"]))


def _home() -> Path:
    return root() / "workloads" / "openssl-legacy"


def _recipes() -> dict[str, Any]:
    return tomllib.loads((_home() / "recipe.toml").read_text(encoding="utf-8"))


def recipe_of(name: str) -> dict[str, Any]:
    """Return what recipe.toml says of a name, with what it says of all."""
    recipes = _recipes()
    common, targets = recipes.pop("common"), recipes.pop("targets")
    if name not in recipes:
        raise TlscostError(f"OpenSSL {name!r}: allowed: {', '.join(recipes)}")
    own = recipes[name]
    return {
        **own,
        "options": [*common["options"], *own["options"]],
        "prefix": common["prefix"].format(name=name),
        "targets": targets,
    }


def _configuration(recipe: dict[str, Any]) -> list[Path]:
    return [_home() / recipe["configuration"]] if "configuration" in recipe else []


def _archive(name: str, recipe: dict[str, Any], say: Say) -> Path:
    """Return the source's archive, downloaded where the cache does not have it."""
    release, sha256 = recipe["release"], recipe.get("sha256")

    def make(directory: Path) -> None:
        say(f"fetching OpenSSL {name}: the source of Debian {release}")
        with tempfile.TemporaryDirectory() as private:
            apt = PrivateApt(Path(private), _debian_architecture(), release)
            try:
                apt.update(kind="deb-src")
                apt.download_source("openssl", directory)
            except TlscostError as error:
                kept = directory.with_suffix("")  # what it is called once it is whole
                raise TlscostError(
                    f"{error}; needed: the source of OpenSSL {name}, which Debian {release} has: "
                    f"add a mirror that has it, or put its openssl_*.orig.tar.gz into {kept}",
                    CANNOT,
                ) from error

    directory = made_once(f"openssl-source-{name}", [release, sha256 or ""], make, say)
    archive = next(directory.glob("openssl_*.orig.tar.*"))
    found = file_digest(archive).split()[-1]
    if sha256 not in (None, found):
        raise TlscostError(f"{archive}: SHA-256 {found}; expected the pinned {sha256}", CANNOT)
    return archive


def _debian_architecture() -> str:
    return _run(["dpkg", "--print-architecture"]).strip()


def _compiler(architecture: str, say: Say) -> list[str]:
    """Return the compiler's command line; of a guest's the sysroot in it has its packages' hash."""
    if architecture == HOST:
        return ["gcc"]
    program, *options = compiler(architecture, say)
    # Its own libcrypto before the sysroot's; its assembly is GNU's.
    return [program, "-L.", *options, "-std=gnu11"]


def _compiler_is(argv: list[str]) -> list[str]:
    """Return what the compiler's output hangs on besides what it is given."""
    return [_run([argv[0], "--version"]), *map(os.path.basename, argv[1:])]


def _configure(recipe: dict[str, Any], architecture: str) -> list[str]:
    machine = platform.machine() if architecture == HOST else architecture
    if machine not in recipe["targets"]:
        raise TlscostError(
            f"OpenSSL for {machine}: workloads/openssl-legacy/recipe.toml knows "
            f"{', '.join(recipe['targets'])}",
            CANNOT,
        )
    places = [f"--{option}={recipe['prefix']}" for option in ("prefix", "openssldir")]
    return ["perl", "Configure", recipe["targets"][machine], *recipe["options"], *places]


def _build(tree: Path, configure: list[str], cc: list[str], *, with_programs: bool) -> None:
    _run(configure, where=tree, variables={"CC": " ".join(cc)})
    for target in ["build_libs", *(["build_programs"] if with_programs else [])]:
        _run(["make", f"-j{os.cpu_count()}", target], where=tree)


def _keep(tree: Path, recipe: dict[str, Any], into: Path) -> None:
    """Copy what is needed of a finished build."""
    for name in ("lib", "include/openssl", "bin"):
        (into / name).mkdir(parents=True)
    for library in ("libssl", "libcrypto"):
        shutil.copy(tree / f"{library}.so.{recipe['soname']}", into / "lib")
        (into / "lib" / f"{library}.so").symlink_to(f"{library}.so.{recipe['soname']}")
    for header in (tree / "include/openssl").glob("*.h"):
        shutil.copy(header, into / "include/openssl")
    for program in tree.glob("apps/openssl"):
        shutil.copy(program, into / "bin")
    for configuration in _configuration(recipe):
        shutil.copy(configuration, into / "openssl.cnf")


def programs(made: Openssl, say: Say) -> Path:
    """Return the directory of our programs, compiled against an OpenSSL for this machine."""
    workloads = root() / "workloads"
    files = [root() / "CMakeLists.txt", root() / "CMakePresets.json"]
    files += [path for path in workloads.rglob("*") if path.suffix in (".c", ".h", ".txt")]
    cc = _run(["gcc", "--version"])
    hdrhistogram = os.environ.get("TC_HDRHISTOGRAM_DIR", "")
    made_of = [made.directory.name, cc, hdrhistogram, *map(file_digest, sorted(files))]

    def make(directory: Path) -> None:
        say(f"building {' and '.join(OURS)} with OpenSSL {made.name}")
        with tempfile.TemporaryDirectory(prefix="tlscost-build-") as build:
            _run(
                [
                    *["cmake", "--preset", "release", "-S", str(root()), "-B", build],
                    *[f"-DOPENSSL_ROOT_DIR={made.directory}", "-DCMAKE_SKIP_RPATH=ON"],
                ],
                where=root(),
            )
            _run(["cmake", "--build", build, "--target", *OURS])
            for name in OURS:
                shutil.copy(Path(build) / "bin" / name, directory)

    return made_once(f"programs-openssl-{made.name}", made_of, make, say)


def guest_serve(made: Openssl, architecture: str, say: Say) -> Path:
    """Return tlscost-serve, compiled against an OpenSSL for guests."""

    def make(directory: Path) -> None:
        say(f"building tlscost-serve ({architecture}) with OpenSSL {made.name}")
        cc = compiler(architecture, say)
        # Before the guest's own: the first directory that has a file wins.
        ours = ["-isystem", str(made.directory / "include"), f"-L{made.directory / 'lib'}"]
        compile_serve([cc[0], *ours, *cc[1:]], directory / "tlscost-serve")

    files = [root() / "CMakeLists.txt", *serve_sources()]
    made_of = [made.directory.name, *map(file_digest, files)]
    return made_once(f"serve-openssl-{made.name}-{architecture}", made_of, make) / "tlscost-serve"


def _run(
    argv: list[str], *, where: Path | None = None, variables: dict[str, str] | None = None
) -> str:
    """Run a program of the build; what it writes to standard output."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            cwd=where,
            env={**os.environ, "LC_ALL": "C", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise TlscostError(
            f"{argv[0]}: not installed; as root: apt-get install make perl patch binutils cmake",
            CANNOT,
        ) from None
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}".strip()[-2000:]
        raise TlscostError(f"OpenSSL cannot be built: {' '.join(argv[:3])}: {said}", CANNOT)
    return done.stdout
