"""`./tlscost test`: runs the project's tests, part by part, with the runners' own words.

A part that fails does not stop the others. The runners' summary lines are repeated at the end, and
the last line counts the tests of all of them.
"""

import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tlscost.errors import DONE, FAILED, TlscostError
from tlscost.paths import root

__all__ = ["PARTS", "Session", "reports_fail", "run"]

_RUNNERS = re.compile(
    r"^\d+% tests passed, \d+ tests? failed out of \d+"  # ctest
    r"|^=+ .*\b(passed|failed|error|errors|skipped|no tests ran)\b.* in .* =+$"  # pytest
)
_CHECKERS = re.compile(
    r"^Found \d+ errors?|^Success: no issues found"  # ruff, mypy
    r"|^All checks passed|^\d+ files? (already formatted|would be reformatted)"  # ruff
)
_C_SOURCES = ("collector", "workloads")
# What drives the programs as their users do; quick enough to repeat under each sanitizer.
_CLIENT_TESTS = ("test_serve_clients", "test_serve_options", "test_load", "test_collect")
# Nothing new to a sanitizer: profiles that differ in keys and ciphers only, rates, growth.
_CLIENT_SELECTION = "not (krsa3072 or rsa1024 or chacha20 or stall or rate_is_kept or memory)"


@dataclass
class Session:
    """What the parts have said and done so far.

    Attributes
    ----------
    results : Path
        Where the runners leave their machine-readable results.
    env : dict of str
        Added to the environment of what is run.
    steps : list of str
        What each step came to.
    summaries : list of str
        The runners' own summary lines.
    passed, failures : int
        Numbers of tests, as the runners' results have them; a failing step of another kind is one
        failure.
    skipped : list of str
        "name: reason" of every test that skipped.
    """

    results: Path
    part: str = ""
    env: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    passed: int = 0
    failures: int = 0
    skipped: list[str] = field(default_factory=list)

    def tests(
        self,
        name: str,
        argv: Sequence[str | Path],
        results: Path,
        *,
        cwd: Path | None = None,
    ) -> None:
        """Run a test runner that leaves its results in a JUnit file, and count them."""
        results.unlink(missing_ok=True)
        exit_code = self._run(name, argv, cwd)
        passed, failed, skipped = _results(results) if results.exists() else (0, 0, [])
        self.passed += passed
        self.skipped += skipped
        if exit_code != 0:
            # It may have failed without a failing test: by its options, say, or by a crash.
            self.fail(f"{name}: exit code {exit_code}", tests=max(failed, 1))

    def step(self, name: str, argv: Sequence[str | Path], *, cwd: Path | None = None) -> bool:
        """Run a command that passes or fails as a whole."""
        exit_code = self._run(name, argv, cwd)
        if exit_code != 0:
            self.fail(f"{name}: exit code {exit_code}")
        return exit_code == 0

    def fail(self, what: str, tests: int = 1) -> None:
        """Note a failure and go on."""
        print(f"--- {self.part}: FAILED: {what}", flush=True)
        self.steps.append(f"FAILED: {self.part}: {what}")
        self.failures += tests

    def _run(self, name: str, argv: Sequence[str | Path], cwd: Path | None) -> int:
        """Run a command, its output streaming through; keep its summary lines."""
        print(f"\n--- {self.part}: {name}", flush=True)
        process = subprocess.Popen(
            list(map(str, argv)),
            cwd=cwd or root(),
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if _RUNNERS.match(line):
                self.summaries.append(line.rstrip())
            if _CHECKERS.match(line):
                self.steps.append(f"{self.part}: {name}: {line.rstrip()}")
        return process.wait()


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
    for line in (*session.steps, *session.summaries):
        print(line)
    counts = (session.passed, session.failures, len(session.skipped))
    print("tests: {} passed, {} failed, {} skipped".format(*counts), flush=True)
    return FAILED if session.failures else DONE


def _c(session: Session) -> None:
    if _build(session, "dev"):
        _ctest(session, "dev")
    _build(session, "dev-clang")


def _sanitizers(session: Session) -> None:
    for preset in ("asan-ubsan", "tsan"):
        if _build(session, preset):
            _ctest(session, preset)
            _clients(session, preset)


def _clients(session: Session, preset: str) -> None:
    """Run the programs of a sanitizer build under real clients."""
    name = f"clients {preset}"
    with reports_fail(session, name):
        session.env["TLSCOST_BIN"] = str(root() / "build" / preset / "bin")
        tests = [f"tests/{module}.py" for module in _CLIENT_TESTS]
        _pytest(session, name, [*tests, "-k", _CLIENT_SELECTION])


@contextmanager
def reports_fail(session: Session, name: str) -> Iterator[None]:
    """Make any sanitizer's report in the meantime a failure.

    Exit codes would not do: what a test kills has none, and the collector asks for none of those
    that it stops.
    """
    with tempfile.TemporaryDirectory(prefix="tlscost-sanitizer-") as directory:
        reports = Path(directory)
        reports.chmod(0o1777)  # for programs that tests start as another user
        before = session.env
        options = f"log_path={reports / 'report'}"
        session.env = before | {f"{it}_OPTIONS": options for it in ("ASAN", "TSAN", "UBSAN")}
        try:
            yield
        finally:
            session.env = before
        for report in sorted(reports.iterdir()):
            print(report.read_text(errors="replace"), flush=True)
            session.fail(f"{name}: a sanitizer's report, above ({report.name})")


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
    _pytest(session, "pytest")


def _pytest(session: Session, name: str, options: Sequence[str] = ()) -> None:
    results = session.results / f"{name.replace(' ', '-')}.xml"
    argv = [sys.executable, "-m", "pytest", "--color=no", f"--junitxml={results}", *options]
    session.tests(name, argv, results, cwd=root() / "analysis")


def _notebooks(session: Session) -> None:
    """Execute each notebook on the reference records or, without them, on records made now."""
    from tlscost.report import render  # noqa: PLC0415  # heavy, and only this part needs it

    records = root() / "data" / "reference"
    with tempfile.TemporaryDirectory(prefix="tlscost-notebooks-") as temporary:
        if not any(records.rglob("*.jsonl*")):
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
                session.passed += 1
                session.steps.append(f"{session.part}: {notebook.name}: executed")


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
    session.tests(
        f"ctest {preset}",
        [
            *["ctest", "--preset", preset, "--no-tests=error"],
            *["--output-junit", str(results), "--test-output-size-passed", "1000000"],
        ],
        results,
    )


def _c_sources() -> list[Path]:
    return sorted(
        path
        for name in _C_SOURCES
        for pattern in ("*.c", "*.h")
        for path in (root() / name).rglob(pattern)
    )


def _results(path: Path) -> tuple[int, int, list[str]]:
    """Count what passed and failed in a JUnit file of pytest or ctest; "name: reason" of skips.

    cmocka's skipped tests stand in the output of a ctest that passed.
    """
    passed, failed, skipped = 0, 0, []
    for case in ET.parse(path).getroot().iter("testcase"):
        reason = case.find("skipped")
        if reason is not None:
            name = f"{case.get('classname', '')}::{case.get('name')}"
            skipped.append(f"{name}: {reason.get('message') or ''}")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
        for output in case.iter("system-out"):
            names = re.findall(r"^\[  SKIPPED \] (\w+)$", output.text or "", re.MULTILINE)
            skipped += [f"{case.get('name')}::{name}: " for name in dict.fromkeys(names)]
    return passed, failed, skipped


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
