"""`./tlscost test`: runs the project's tests, part by part, with the runners' own words.

A part that fails does not stop the others. The runners' summary lines are repeated at the end.
"""

import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tlscost.errors import DONE, FAILED, TlscostError
from tlscost.paths import root

__all__ = ["PARTS", "run"]

_SUMMARY = re.compile(
    r"^\d+% tests passed, \d+ tests? failed out of \d+"  # ctest
    r"|^=+ .*\b(passed|failed|error|errors|skipped|no tests ran)\b.* in .* =+$"  # pytest
    r"|^Found \d+ errors?|^Success: no issues found"  # ruff, mypy
    r"|^All checks passed|^\d+ files? (already formatted|would be reformatted)"  # ruff
)
_C_SOURCES = ("collector", "workloads")


@dataclass
class Session:
    """What the parts have said and done so far.

    Attributes
    ----------
    results : Path
        Where the runners leave their machine-readable results.
    skipped : list of str
        "name: reason" of every test that skipped.
    """

    results: Path
    part: str = ""
    summaries: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def step(self, name: str, argv: Sequence[str | Path], *, cwd: Path | None = None) -> bool:
        """Run a command, its output streaming through; keep its summary lines and its verdict."""
        print(f"\n--- {self.part}: {name}", flush=True)
        process = subprocess.Popen(
            list(map(str, argv)),
            cwd=cwd or root(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if _SUMMARY.match(line):
                self.summaries.append(f"{self.part}: {name}: {line.rstrip()}")
        passed = process.wait() == 0
        if not passed:
            self.fail(f"{name}: exit code {process.returncode}")
        return passed

    def fail(self, what: str) -> None:
        """Note a failure and go on."""
        print(f"--- {self.part}: FAILED: {what}", flush=True)
        self.failed.append(f"{self.part}: {what}")


def run(parts: Sequence[str]) -> int:
    """Run the named parts, or all, and return the exit code.

    Raises
    ------
    TlscostError
        A part that is not there.
    """
    for part in parts:
        if part not in PARTS:
            raise TlscostError(f"test: no part {part!r}; allowed: {', '.join(PARTS)}")
    results = root() / "build" / "test-results"
    results.mkdir(parents=True, exist_ok=True)
    session = Session(results)
    for part in parts or PARTS:
        session.part = part
        PARTS[part](session)
    _check_skips(session, complete=not parts)
    print("\n--- summary")
    for line in (*session.summaries, *(f"FAILED: {what}" for what in session.failed)):
        print(line)
    print("tests: FAILED" if session.failed else "tests: passed", flush=True)
    return FAILED if session.failed else DONE


def _c(session: Session) -> None:
    if _build(session, "dev"):
        _ctest(session, "dev")
    _build(session, "dev-clang")


def _sanitizers(session: Session) -> None:
    for preset in ("asan-ubsan", "tsan"):
        if _build(session, preset):
            _ctest(session, preset)


def _fuzz(session: Session) -> None:
    if _build(session, "fuzz"):
        _ctest(session, "fuzz")


def _lint(session: Session) -> None:
    sources = _c_sources()
    session.step("clang-format", ["clang-format", "--dry-run", "-Werror", *sources])
    if _build(session, "dev-clang"):  # whose flags clang-tidy understands
        # Third-party sources are in the same compilation database.
        ours = [f"^{root() / name}/" for name in _C_SOURCES]
        database = root() / "build" / "dev-clang"
        session.step("clang-tidy", ["run-clang-tidy", "-quiet", "-p", database, *ours])
    analysis = root() / "analysis"
    for name, argv in {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
    }.items():
        session.step(name, [sys.executable, "-m", *argv], cwd=analysis)


def _python(session: Session) -> None:
    results = session.results / "pytest.xml"
    results.unlink(missing_ok=True)
    session.step(
        "pytest",
        [sys.executable, "-m", "pytest", "--color=no", f"--junitxml={results}"],
        cwd=root() / "analysis",
    )
    if results.exists():
        session.skipped += _skips(results)


def _notebooks(session: Session) -> None:
    """Execute each notebook on the reference records or, without them, on records made now."""
    from tlscost.report import render  # noqa: PLC0415  # heavy, and only this part needs it

    records = root() / "data" / "reference"
    with tempfile.TemporaryDirectory(prefix="tlscost-notebooks-") as temporary:
        if not any(records.rglob("*.jsonl")):
            records = Path(temporary) / "sweep"
            plan = root() / "data" / "plans" / "smoke.toml"
            sweep = [sys.executable, "-m", "tlscost", "sweep", str(plan)]
            if not session.step("records", [*sweep, "--out", str(records)]):
                return
        for notebook in sorted((root() / "notebooks").glob("*.ipynb")):
            print(f"\n--- {session.part}: {notebook.name}", flush=True)
            try:
                render([records], Path(temporary) / notebook.stem, notebook.stem)
            except TlscostError as error:
                session.fail(str(error))
            else:
                session.summaries.append(f"{session.part}: {notebook.name}: executed")


PARTS: dict[str, Callable[[Session], None]] = {
    "c": _c,
    "sanitizers": _sanitizers,
    "fuzz": _fuzz,
    "lint": _lint,
    "python": _python,
    "notebooks": _notebooks,
}


def _build(session: Session, preset: str) -> bool:
    directory = root() / "build" / preset
    configured = (directory / "build.ninja").exists() or session.step(
        f"configure {preset}", ["cmake", "--preset", preset]
    )
    return configured and session.step(f"build {preset}", ["cmake", "--build", directory])


def _ctest(session: Session, preset: str) -> None:
    results = session.results / f"ctest-{preset}.xml"
    session.step(
        f"ctest {preset}",
        [
            *["ctest", "--preset", preset, "--no-tests=error"],
            *["--output-junit", str(results), "--test-output-size-passed", "1000000"],
        ],
    )
    if results.exists():
        session.skipped += _skips(results)


def _c_sources() -> list[Path]:
    return sorted(
        path
        for name in _C_SOURCES
        for pattern in ("*.c", "*.h")
        for path in (root() / name).rglob(pattern)
    )


def _skips(results: Path) -> list[str]:
    """Names and reasons of skipped tests in a JUnit file of pytest or ctest.

    cmocka's skipped tests stand in the output of a ctest that passed.
    """
    found = []
    for case in ET.parse(results).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            name = f"{case.get('classname', '')}::{case.get('name')}"
            found.append(f"{name}: {skipped.get('message') or ''}")
        for output in case.iter("system-out"):
            names = re.findall(r"^\[  SKIPPED \] (\w+)$", output.text or "", re.MULTILINE)
            found += [f"{case.get('name')}::{name}: " for name in dict.fromkeys(names)]
    return found


def _check_skips(session: Session, *, complete: bool) -> None:
    """Compare what skipped with what is expected to on a machine like this one."""
    session.part = "skips"
    path = root() / "analysis" / "tests" / "expected_skips.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    here = _conditions()
    expected = [entry["test"] for entry in entries if set(entry["when"]) <= here]
    surprising = [
        skip
        for skip in session.skipped
        if not any(fnmatch.fnmatch(skip.split(": ")[0], pattern) for pattern in expected)
    ]
    ran = [
        pattern
        for pattern in expected
        if complete and not fnmatch.filter([s.split(": ")[0] for s in session.skipped], pattern)
    ]
    print(f"\n--- skipped tests: {len(session.skipped)} (this machine: {', '.join(sorted(here))})")
    for skip in session.skipped:
        print(f"{'UNEXPECTED ' if skip in surprising else ''}{skip}")
    for pattern in ran:
        print(f"expected to skip here, but ran: {pattern}")
    if (surprising or ran) and os.environ.get("CI"):
        session.fail(f"skips differ from {path.name}: {len(surprising) + len(ran)}")


def _conditions() -> set[str]:
    """Tell what of this machine decides which tests can run; the words of expected_skips.toml."""
    pmu = any(Path("/sys/bus/event_source/devices").glob("cpu*"))
    return {
        "root" if os.geteuid() == 0 else "user",
        "pmu" if pmu else "no_pmu",
        "one_cpu" if len(os.sched_getaffinity(0)) < 2 else "cpus",
    }
