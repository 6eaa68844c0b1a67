"""What `./tlscost test` makes of its runners' results, with real runners and sanitizers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tlscost import testing

RESULTS = """
def test_passes(): pass
def test_fails(): assert False
def test_skips(): import pytest; pytest.skip("because")
"""
OVERRUN = """
#include <stdlib.h>
int main(int argc, char **argv)
{
    (void)argv;
    volatile char *one = malloc(1);
    one[argc] = 1;
    return 0;
}
"""
RACE = """
#include <pthread.h>
static int count;
static void *more(void *unused)
{
    count++;
    return unused;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, more, NULL);
    count++;
    pthread_join(thread, NULL);
    return 0;
}
"""
RUNS = """
import subprocess
def test_runs(): subprocess.run([{program!r}], check=False)
"""


def run_pytest(session: testing.Session, directory: Path, text: str) -> None:
    tests = directory / "test_it.py"
    tests.write_text(text)
    results = directory / "it.xml"
    argv = [
        sys.executable,
        "-m",
        "pytest",
        f"--junitxml={results}",
        tests,
        "-p",
        "no:cacheprovider",
    ]
    session.tests("pytest", argv, results, cwd=directory)


def test_counts_and_last_words_are_the_runners(tmp_path: Path) -> None:
    session = testing.Session(tmp_path)
    run_pytest(session, tmp_path, RESULTS)
    assert (session.passed, session.failures) == (1, 1)
    assert session.skipped == ["test_it::test_skips: because"]
    (summary,) = session.summaries
    assert summary.startswith("=")
    assert "1 failed, 1 passed, 1 skipped in" in summary


def test_a_runner_that_fails_without_a_failing_test_is_a_failure(tmp_path: Path) -> None:
    session = testing.Session(tmp_path)
    (tmp_path / "old.xml").write_text("<testsuites><testcase name='old'/></testsuites>")
    session.tests("runner", [sys.executable, "-c", "raise SystemExit(4)"], tmp_path / "old.xml")
    assert (session.passed, session.failures) == (0, 1)


@pytest.mark.parametrize(
    ("sanitizer", "source"), [("address", OVERRUN), ("thread", RACE)], ids=["address", "thread"]
)
def test_a_sanitizers_report_is_a_failure_though_the_test_passes(
    tmp_path: Path, sanitizer: str, source: str
) -> None:
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("clang is not installed")
    program = tmp_path / "program"
    compile_it = [clang, f"-fsanitize={sanitizer}", "-pthread", "-x", "c", "-", "-o", str(program)]
    subprocess.run(compile_it, input=source, text=True, check=True)
    session = testing.Session(tmp_path)
    with testing.reports_fail(session, "clients"):
        run_pytest(session, tmp_path, RUNS.format(program=str(program)))
    assert (session.passed, session.failures) == (1, 1)
    assert any("a sanitizer's report" in step for step in session.steps)
