"""Real programs with fixed work, and an environment in which every simulator runs the same code.

Libraries choose their code by the CPU they find, and a stack that lies elsewhere within its page
meets other lines in a cache. So the CPU's features are masked to plain x86-64 for glibc and
OpenSSL, and `environment` pads what the kernel puts on top of the stack to one size. malloc()
takes from the heap only: of mappings, valgrind gives freed addresses again and QEMU new ones.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tlscost.bench.place import peer
from tlscost.errors import FAILED, TlscostError
from tlscost.paths import root

__all__ = ["STACK_BYTES", "Program", "debian_python", "environment", "programs", "quick_programs"]

STACK_BYTES = 4096  # of strings on top of the stack; more than any program's here take
_FEATURES = (
    *("AVX", "AVX2", "BMI1", "BMI2", "ERMS", "F16C", "FMA", "FSRM", "HLE", "LZCNT", "MOVBE"),
    *("POPCNT", "RTM", "SSE3", "SSE4_1", "SSE4_2", "SSSE3", "XSAVE", "XSAVEC"),
)
_TUNABLES = {
    "hwcaps": ",".join(f"-{name}" for name in _FEATURES),
    "x86_data_cache_size": "0x4000",
    "x86_shared_cache_size": "0x80000",
    "x86_non_temporal_threshold": "0x40000000",
    "x86_rep_movsb_threshold": "0x40000000",
    "x86_rep_stosb_threshold": "0x40000000",
}
_MMAP_NEVER = "glibc.malloc.mmap_threshold=0x10000000"
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "LD_BIND_NOW": "1",  # the lazy way has FXSAVE, of whose 512 bytes cachegrind sees a line's
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENSSL_ia32cap": "0x0383fbff:0",  # SSE2 and nothing later
    "GLIBC_TUNABLES": ":".join(
        [*(f"glibc.cpu.{key}={value}" for key, value in _TUNABLES.items()), _MMAP_NEVER]
    ),
}
_SQL = """\
CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER, s TEXT);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 12000)
INSERT INTO t SELECT i, i * 7919 % 1009, printf('row %d of %x', i, i * 2654435761) FROM c;
CREATE INDEX tk ON t(k, s);
SELECT k % 10, count(*), max(s), sum(length(s)) FROM t GROUP BY k % 10 ORDER BY 1;
SELECT count(*) FROM t a JOIN t b ON a.k = b.k WHERE a.id < b.id AND a.k < 100;
"""
_PYTHON = """\
import json, re
rows = [{"id": i, "name": "row %d" % i, "v": [i * j % 97 for j in range(8)]} for i in range(1500)]
text = json.dumps(rows)
assert json.loads(text) == rows
seen = {}
for found in re.finditer(r"[0-9]+", text):
    seen[found.group()] = seen.get(found.group(), 0) + 1
print(len(text), sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:5])
"""
_BASH = "for ((i = 0; i < 8000; i++)); do a[i % 100]=$i; done; echo ${#a[@]}"


@dataclass(frozen=True)
class Program:
    """A program whose work is the same at each run; it does not fork.

    Attributes
    ----------
    name : what tables call it.
    linking : "dynamic" or "static".
    argv : absolute path of the program, then its arguments.
    """

    name: str
    linking: str
    argv: tuple[str, ...]


def environment(program: Program, *, preload: str = "") -> dict[str, str]:
    """Return the variables that `program` sees, in this order; preload: LD_PRELOAD's value.

    LD_PRELOAD is always there, as valgrind sets it. Strings and their number (made even) come to
    the same size for every program, so that the stack's place depends on who starts it only.
    """
    variables = {"LD_PRELOAD": preload, **_ENVIRONMENT}
    if (len(program.argv) + len(variables)) % 2 == 0:  # TC_PAD makes it one more
        variables["TC_EVEN"] = ""
    strings = [*program.argv, program.argv[0], *(f"{k}={v}" for k, v in variables.items())]
    taken = sum(len(text.encode()) + 1 for text in strings) + len("TC_PAD=") + 1
    if taken > STACK_BYTES:
        raise ValueError(f"{program.name}: {taken} bytes of arguments, expected {STACK_BYTES}")
    return {**variables, "TC_PAD": "x" * (STACK_BYTES - taken)}


def programs(directory: Path) -> list[Program]:
    """Write the programs' input into `directory`, and return them: some seconds of work each."""
    text = _text(directory / "text", 2_000_000)
    half = _text(directory / "half", 1_000_000)
    key = directory / "rsa.pem"
    _run("openssl", "genrsa", "-out", str(key), "4096")
    script, sql = directory / "script.py", directory / "script.sql"
    script.write_text(_PYTHON, encoding="utf-8")
    sql.write_text(_SQL, encoding="utf-8")
    openssl, busybox = peer("openssl", "openssl"), peer("busybox", "busybox-static")
    zeros = "0" * 32
    aes = ("-aes-128-cbc", "-K", zeros, "-iv", zeros, "-in", text, "-out", "/dev/null")
    return [
        _dynamic("openssl sha256", openssl, "dgst", "-sha256", text),
        _dynamic("openssl aes-128-cbc", openssl, "enc", *aes),
        _dynamic("openssl rsa4096", openssl, "dgst", "-sign", str(key), "-out", "/dev/null", sql),
        _dynamic("gzip", peer("gzip", "gzip"), "-c", half),
        _dynamic("sqlite3", peer("sqlite3", "sqlite3"), "-init", str(sql), ":memory:", ".quit"),
        _dynamic("python3", debian_python(), "-S", str(script)),
        _dynamic("cc1 -O2", *_compile(directory)),
        Program("busybox sha512", "static", (busybox, "sha512sum", text)),
        Program("busybox gzip", "static", (busybox, "gzip", "-c", half)),
        Program("busybox sort", "static", (busybox, "sort", text)),
        Program("bash", "static", (peer("bash-static", "bash-static"), "-c", _BASH)),
    ]


def quick_programs(directory: Path) -> list[Program]:
    """Return two small ones, one of each linking."""
    text = _text(directory / "text", 60_000)
    return [
        _dynamic("gzip", peer("gzip", "gzip"), "-c", text),
        Program("busybox sort", "static", (peer("busybox", "busybox-static"), "sort", text)),
    ]


def debian_python() -> str:
    """Debian's own interpreter: others, built elsewhere, may choose code by what built them."""
    return str(Path(shutil.which("python3", path="/usr/bin") or peer("python3", "python3")))


def _dynamic(name: str, *argv: str | Path) -> Program:
    return Program(name, "dynamic", tuple(map(str, argv)))


def _text(path: Path, size_bytes: int) -> str:
    """Write words of Zipf's frequencies: text to compress, sort and hash."""
    source = random.Random(2000)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(source.choices(letters, k=source.randint(2, 10))) for _ in range(4000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    with path.open("w", encoding="utf-8") as out:
        while out.tell() < size_bytes:
            out.write(" ".join(source.choices(words, weights, k=12)) + "\n")
    return str(path)


def _compile(directory: Path) -> tuple[str, ...]:
    """Preprocess one of our own sources; the compiler proper on the result is the program."""
    source = root() / "collector" / "ring.c"
    out = directory / "ring.i"
    _run("gcc", "-E", "-D_GNU_SOURCE", f"-I{root()}", str(source), "-o", str(out))
    compiler = _run("gcc", "-print-prog-name=cc1").strip()
    return (compiler, "-quiet", "-O2", "-fpreprocessed", str(out), "-o", "/dev/null")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TlscostError(f"{' '.join(argv)}: {done.stderr.strip()[-400:]}", FAILED)
    return done.stdout
