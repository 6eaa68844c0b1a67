"""Guests: the image is reproducible and cached, guests boot and serve, failures have words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serve import need, pattern
from tests.test_servers import free_port
from tlscost import cpio, guest
from tlscost.cell import Cell
from tlscost.debian import PrivateApt, versions
from tlscost.errors import BAD_INPUT, CANNOT, TlscostError
from tlscost.guest_image import ARCHITECTURES, build, fetch, image
from tlscost.orphans import no_orphan
from tlscost.paths import cache_dir
from tlscost.servers import Server, Site

BOOT_S = 120  # machines are shared; a quiet one takes two seconds
CPU_MODELS = {"i386": "pentium3", "x86_64": "max"}


def cell(**values: object) -> Cell:
    return Cell.model_validate({"server": "serve", "tls": "off", "size": 30, **values})


def site(directory: Path, cpus: int = 1) -> Site:
    return Site(directory, "127.0.0.1", free_port(), tuple(range(cpus)))


def prepare(wanted: Cell, where: Site, architecture: str = "i386") -> Server:
    need(f"qemu-system-{architecture}")
    return guest.prepare(
        wanted, where, architecture=architecture, qemu_cpu=CPU_MODELS[architecture]
    )


@contextmanager
def running(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        no_orphan(argv, "KILL"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def console(where: Site) -> str:
    path = where.directory / guest.CONSOLE
    return path.read_text(errors="replace") if path.exists() else ""


def wait_for(text: str, where: Site, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_S
    while text not in console(where):
        assert process.poll() is None, guest.last_words(where.directory)
        assert time.monotonic() < deadline, guest.last_words(where.directory)
        time.sleep(0.05)


def got(url: str) -> bytes:
    """Return the body as curl gets it, weak profiles too."""
    return subprocess.run(
        [
            need("curl"),
            *["--silent", "--show-error", "--fail", "--insecure", "--max-time", "60"],
            *["--ciphers", "ALL:@SECLEVEL=0", url],
        ],
        check=True,
        capture_output=True,
    ).stdout


@pytest.mark.parametrize(
    ("architecture", "cpus", "values"),
    [
        ("i386", 1, {"server": "serve", "size": 30}),
        ("i386", 4, {"server": "serve", "tls": "tls12-krsa2048-aes128gcm", "size": 1 << 20}),
        ("i386", 1, {"server": "serve", "tls": "tls10-rsa1024-aes128", "size": 36864}),
        ("i386", 4, {"server": "nginx", "size": 36864}),
        ("i386", 2, {"server": "nginx", "tls": "tls13-ecdsa-x25519", "size": 1 << 20}),
        ("x86_64", 2, {"server": "serve", "tls": "tls13-ecdsa-x25519", "size": 36864}),
        ("x86_64", 1, {"server": "nginx", "size": 30}),
    ],
    ids=str,
)
def test_guest_serves(
    tmp_path: Path, architecture: str, cpus: int, values: dict[str, object]
) -> None:
    wanted, where = cell(**values), site(tmp_path, cpus)
    made = prepare(wanted, where, architecture)
    with running(made.argv) as process:
        wait_for(guest.SERVING, where, process)
        for _ in range(3):
            assert got(made.url) == pattern(wanted.size)
        process.terminate()
        assert process.wait(timeout=20) == 0


def test_memory_has_a_name_and_the_key_is_nobody_elses(tmp_path: Path) -> None:
    where = site(tmp_path)
    made = prepare(cell(tls="tls13-ecdsa-x25519"), where)
    assert (tmp_path / "initramfs").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"initramfs"}
    with running(made.argv) as process:
        wait_for(guest.SERVING, where, process)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "/memfd:memory-backend-memfd" in maps


def test_panic_is_told(tmp_path: Path) -> None:
    where = site(tmp_path)
    made = prepare(cell(), where)
    with (tmp_path / "initramfs").open("ab") as more:
        more.write(cpio.pack({"init": cpio.file(b"#!/bin/busybox false\n", 0o755)}))
    with running(made.argv) as process:
        assert process.wait(timeout=BOOT_S) == 0
    said = guest.last_words(tmp_path)
    assert "Kernel panic - not syncing: Attempted to kill init!" in said
    assert "Call Trace" not in said


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"echo no good >&2; exit 3\n", "the server ended with exit code 3"),
        (b"kill -9 $$\n", "the server ended with exit code 137"),
    ],
)
def test_server_that_ends_ends_the_guest(tmp_path: Path, start: bytes, told: str) -> None:
    where = site(tmp_path)
    made = prepare(cell(), where)
    with (tmp_path / "initramfs").open("ab") as more:
        more.write(cpio.pack({"cell/start": cpio.file(start)}))
    with running(made.argv) as process:
        process.wait(timeout=BOOT_S)
    said = guest.last_words(tmp_path)
    assert f"tlscost-guest: {told}" in said
    assert guest.SERVING not in said
    if b"echo" in start:
        assert "no good" in said


def test_server_that_never_serves_is_not_taken_for_one(tmp_path: Path) -> None:
    where = site(tmp_path)
    made = prepare(cell(), where)
    with (tmp_path / "initramfs").open("ab") as more:
        more.write(cpio.pack({"cell/start": cpio.file(b"echo asleep; exec sleep 1000\n")}))
    with running(made.argv) as process:
        wait_for("asleep", where, process)
        time.sleep(1)
        assert process.poll() is None
    assert guest.SERVING not in console(where)


# What the kernel's own clock, which is not the timer's, says of the timer.
TICKING = b"""
look() { echo "ticks: $(cut -d ' ' -f 1 /proc/uptime) $(grep LOC: /proc/interrupts)"; }
(sleep 2; look; sleep 0.5; look; echo looked) &
. /cell/settings
exec httpd -f -p "$port"
"""


@pytest.mark.parametrize("architecture", ["i386", "x86_64"])
def test_timer_ticks_at_a_tenth_on_every_cpu(tmp_path: Path, architecture: str) -> None:
    where = site(tmp_path, 2)
    made = prepare(cell(), where, architecture)
    with (tmp_path / "initramfs").open("ab") as more:
        more.write(cpio.pack({"cell/start": cpio.file(TICKING)}))
    with running(made.argv) as process:
        wait_for("looked", where, process)
    looks = [line.split() for line in console(where).splitlines() if line.startswith("ticks:")]
    assert console(where).index(guest.SERVING) < console(where).index("ticks:")
    (begin, *first), (end, *second) = ([float(it) for it in (w[1], *w[3:5])] for w in looks)
    for before, after in zip(first, second, strict=True):
        assert 0.5 < (after - before) / (end - begin) / 25 < 1.5


def test_killed_qemu_leaves_nothing(tmp_path: Path) -> None:
    where = site(tmp_path)
    made = prepare(cell(), where)
    with running(made.argv) as process:
        wait_for(guest.SERVING, where, process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        assert children == ""
        process.kill()
        assert process.wait() == -9
    refused = subprocess.run([need("curl"), "--silent", made.url], check=False)
    assert refused.returncode == 7


def test_silent_guest_has_last_words_too(tmp_path: Path) -> None:
    assert guest.last_words(tmp_path) == "the guest said nothing"


def test_missing_qemu_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image("i386")
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(TlscostError, match="apt-get install qemu-system-x86") as caught:
        guest.prepare(cell(), site(tmp_path), architecture="i386", qemu_cpu="pentium3")
    assert caught.value.exit_code == CANNOT


@pytest.mark.parametrize(
    ("values", "architecture", "told"),
    [
        ({"size": 1 << 30}, "i386", "size 1GiB: .* up to 256MiB"),
        ({"server": {"command": "x", "url": "http://x"}}, "i386", "serve and nginx only"),
        ({}, "vax", "'vax': allowed: i386, x86_64, arm64"),
    ],
)
def test_what_a_guest_cannot_be_is_refused(
    tmp_path: Path, values: dict[str, object], architecture: str, told: str
) -> None:
    with pytest.raises(TlscostError, match=told) as caught:
        guest.prepare(cell(**values), site(tmp_path), architecture=architecture, qemu_cpu="max")
    assert caught.value.exit_code == BAD_INPUT


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_two_builds_are_identical(tmp_path: Path, architecture: str) -> None:
    if architecture == "arm64":
        need("aarch64-linux-gnu-gcc")
    cached = image(architecture)
    packages = fetch(architecture, print)
    (tmp_path / "again").mkdir()
    build(architecture, packages, tmp_path / "again")
    names = sorted(path.name for path in cached.directory.iterdir())
    assert names == ["initramfs.cpio", "versions.json", "vmlinux"]
    for name in names:
        assert (cached.directory / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_image_is_built_once_and_again_where_missing(tmp_path: Path) -> None:
    image("i386")
    for packages in cache_dir().glob("guest-packages-i386-*"):
        (tmp_path / packages.name).symlink_to(packages)
    (tmp_path / "guest-i386-stale.partial").mkdir()
    program = "from tlscost.guest_image import image; print(image('i386', print).directory)"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "TLSCOST_CACHE": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=BOOT_S)[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum("building the i386 guest" in lines for lines in said) == 1
    assert {lines[-1] for lines in said} == {str(tmp_path / image("i386").directory.name)}


def test_private_apt_leaves_the_systems_alone(tmp_path: Path) -> None:
    kept = [Path("/var/lib/dpkg/status"), Path("/var/lib/apt/lists")]
    before = [path.stat().st_mtime_ns for path in kept]
    apt = PrivateApt(tmp_path / "apt", "i386")
    apt.update()
    (tmp_path / "packages").mkdir()
    apt.download(["libhttp-parser2.9"], tmp_path / "packages")
    found = list((tmp_path / "packages").iterdir())
    assert [path.name.endswith("_i386.deb") for path in found] == [True]
    assert set(versions(found)) == {"libhttp-parser2.9"}
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_no_debian_sources_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = 'Dir::Etc::SourceList "/dev/null";\nDir::Etc::SourceParts "/dev/null";\n'
    (tmp_path / "apt.conf").write_text(none)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    with pytest.raises(TlscostError, match="do not name component main of") as caught:
        PrivateApt(tmp_path / "apt", "i386").update()
    assert caught.value.exit_code == CANNOT
