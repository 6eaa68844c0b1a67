"""An arm64 guest whose emulated PMU counts cycles and instructions; docs/guest.md.

It boots, runs a script as root and ends; what the script leaves in /out comes back. Time in it goes
by the instructions executed (-icount), so counts are those of its own clock, however busy this
machine is.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.serve import need
from tlscost import cpio
from tlscost.guest_image import image, sysroot, with_libraries
from tlscost.paths import root

__all__ = ["Finished", "programs", "run_in_guest"]

ARCHITECTURE = "arm64"
BUILD_S = 900
TIMEOUT_S = 300  # machines are shared; a quiet one boots in a few seconds

_RAM_MIB = 512
_DISK_BYTES = 32 << 20  # as much as a guest may have to say
_ENDED = "tlscost-guest: the script ended with exit code 0"
_PASSWD = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
_START = b"""mkdir -p /out /tmp
cd /tmp
sh /cell/script >/out/stdout 2>/out/stderr
echo $? >/out/status
tar -cf /dev/vda -C /out . && sync
"""


@dataclass(frozen=True)
class Finished:
    """What became of a script.

    Attributes
    ----------
    returncode : int
        Its exit code.
    stdout, stderr : str
        What it wrote.
    out : Path
        A copy of the guest's /out: whatever else the script put there.
    console : str
        The kernel's words.
    """

    returncode: int
    stdout: str
    stderr: str
    out: Path
    console: str


def programs(*names: str) -> dict[str, cpio.Entry]:
    """Return a guest's files for programs of this project, their tests included: bin/NAME."""
    directory = _build()
    return with_libraries(sysroot(ARCHITECTURE), [directory / "bin" / name for name in names])


@cache
def _build() -> Path:
    """Build the project for the guest; what has not changed is not built again."""
    need("aarch64-linux-gnu-gcc")
    directory = root() / "build" / ARCHITECTURE
    env = {**os.environ, "TC_SYSROOT": str(sysroot(ARCHITECTURE))}
    steps = [["cmake", "--preset", ARCHITECTURE], ["cmake", "--build", "--preset", ARCHITECTURE]]
    for argv in steps:
        done = subprocess.run(
            argv, check=False, cwd=root(), env=env, capture_output=True, text=True, timeout=BUILD_S
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return directory


def run_in_guest(
    directory: Path,
    script: str,
    *,
    files: Mapping[str, cpio.Entry] | None = None,
    cpus: int = 1,
    timeout_s: float = TIMEOUT_S,
) -> Finished:
    """Boot a guest, run a script in it and return what it said.

    Parameters
    ----------
    directory : Path
        Empty; gets the guest's files, and its /out as `out`.
    script : str
        For busybox's sh, as root, in /tmp. /proc, /sys and /dev are there, loopback is up;
        `su nobody -c COMMAND` runs one as an ordinary user.
    files : mapping of str to Entry, optional
        More files, by their paths without a leading slash.
    cpus : int
        More than one share one instruction counter: QEMU's emulated PMU counts the instructions of
        all CPUs on each.
    """
    qemu = need("qemu-system-aarch64")
    need("aarch64-linux-gnu-gcc")
    made = image(ARCHITECTURE)
    given = {
        "cell/settings": cpio.file(b"address=\n"),
        "cell/start": cpio.file(_START),
        "cell/script": cpio.file(script.encode()),
        "etc/passwd": cpio.file(_PASSWD),
        **(files or {}),
    }
    initramfs, disk = directory / "initramfs", directory / "disk"
    initramfs.write_bytes(made.initramfs.read_bytes() + cpio.pack(given))
    with disk.open("wb") as empty:
        empty.truncate(_DISK_BYTES)
    argv = [
        *[qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
        *["-machine", "virt", "-cpu", "neoverse-n1", "-m", f"{_RAM_MIB}M"],
        *["-smp", made.topology.format(cpus=cpus)],
        # Two nanoseconds an instruction; a CPU that sleeps does not take this machine's time.
        *["-icount", "shift=1,sleep=off"],
        *["-serial", "stdio", "-device", "virtio-rng-pci"],
        *["-drive", f"if=none,id=disk,format=raw,file={disk}"],
        *["-device", "virtio-blk-pci,drive=disk"],
        *["-kernel", str(made.kernel), "-initrd", str(initramfs)],
        *["-append", made.kernel_command_line],
    ]
    done = subprocess.run(
        argv,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
    )
    console = done.stdout.decode(errors="replace")
    assert done.returncode == 0, console[-4000:]
    assert _ENDED in console, console[-4000:]
    out = directory / "out"
    with tarfile.open(disk) as said:
        said.extractall(out)

    def text(name: str) -> str:
        return (out / name).read_text(errors="replace")

    return Finished(int(text("status")), text("stdout"), text("stderr"), out, console)
