"""One cell with the real collector, load generator and servers; and what may go wrong with it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import PATIENCE_S, start, tlscost
from small_disk import small_disk

from tlscost import record
from tlscost.errors import BAD_INPUT, DONE, FAILED, INTERRUPTED

SHORT = ["--idle-s", "0.1", "--warmup-s", "0.1", "--window-s", "0.3", "--completions", "2"]


def run(out: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return tlscost("run", "--tls", "off", "--size", "36KiB", "--out", out, *SHORT, *options)


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition that comes about sooner or later, and return what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return result


def below(process: subprocess.Popen[str], name: str) -> list[psutil.Process]:
    """Processes of a name that descend from a process of ours."""

    def is_it(child: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
            return child.name() == name
        return False

    return list(filter(is_it, psutil.Process(process.pid).children(recursive=True)))


def throughput(document: str) -> float:
    metrics = {row["metric"]: row for row in json.loads(document)["metrics"]}
    return float(metrics["throughput"]["value"])


@pytest.mark.parametrize(
    "options",
    [
        ["--server", "serve"],
        ["--server", "serve", "--tls", "tls12-krsa512-aes128gcm"],
        ["--server", "serve", "--tls", "tls13-ecdsa-x25519", "--resumption", "0.5"],
        ["--server", "serve", "--keepalive"],
        ["--server", "serve", "--rate", "200"],
        ["--server", "nginx"],
        ["--server", "nginx", "--tls", "tls12-krsa512-aes128gcm"],
        ["--server", "nginx", "--tls", "tls13-ecdsa-x25519", "--resumption", "0.5"],
    ],
    ids=" ".join,
)
def test_a_cell_leaves_a_whole_record(tmp_path: Path, options: list[str]) -> None:
    out = tmp_path / "r.jsonl"
    done = run(out, *options, "--json")
    assert done.returncode == DONE, done.stderr
    assert throughput(done.stdout) > 0
    measured = record.read(out)
    assert measured.header.cell.size_bytes == 36864
    assert "OpenSSL" in measured.header.provenance["server_openssl"]
    (window,) = measured.windows
    assert window.transactions > 0
    assert not any(window.errors.values())
    resumed = window.handshakes_resumed or 0
    assert (resumed > 0) == ("--resumption" in options)
    assert list(tmp_path.iterdir()) == [out]


def test_more_cpus_than_are_left_are_shared_and_the_record_says_so(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    cpus = len(os.sched_getaffinity(0))
    done = run(out, "--server", "serve", "--cpus", cpus)
    assert done.returncode == DONE, done.stderr
    placement = record.read(out).header.placement
    assert placement.overlap
    assert placement.reason


def test_any_server_can_be_measured(tmp_path: Path) -> None:
    served = f"{sys.executable} -m http.server --bind {{address}} --directory {{bodies}} {{port}}"
    done = run(
        tmp_path / "r.jsonl",
        *["--server", served, "--url", "http://{address}:{port}/{size}", "--connections", "2"],
    )
    assert done.returncode == DONE, done.stderr


def test_whole_record_is_not_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    assert run(out, "--server", "serve").returncode == DONE
    before = out.read_bytes()
    again = run(out, "--server", "serve")
    assert again.returncode == DONE
    assert "measured already" in again.stderr
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--server", "nginz"], "--server: given 'nginz'; Input should be 'serve' or 'nginx'"),
        (["--server", "serve", "--tls", "tls9"], "--tls: given 'tls9'; no such TLS profile"),
        (["--server", "serve", "--size", "-1"], "--size: given '-1'"),
        (["--server", "serve", "--cpus", "4096"], "--cpus: given 4096; this machine has"),
        (["--server", "serve", "--cpu-list", "a"], "--cpu-list: given 'a'"),
        (["--server", "serve", "--cpus", "1", "--cpu-list", "0"], "expected one of the two"),
        (["--server", "serve", "--rate", "-3"], "--rate: given -3.0"),
        (["--server", "serve", "--machine", "p9"], "--machine: given 'p9'"),
        (["--server", "serve", "--events", "a,,b"], "--events: given 'a,,b'"),
        (["--server", "serve", "--window-s", "0"], "--window-s: given 0.0"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, options: list[str], message: str) -> None:
    refused = run(tmp_path / "r.jsonl", *options)
    assert refused.returncode == BAD_INPUT
    assert message in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "reason"),
    [("false", "exited"), ("/no/such/program", "program"), ("sleep 1000", "10.*s")],
)
def test_server_that_does_not_start_fails_the_cell_with_the_reason(
    tmp_path: Path, command: str, reason: str
) -> None:
    out = tmp_path / "r.jsonl"
    failed = run(out, "--server", command, "--url", "http://{address}:{port}/")
    assert failed.returncode in {FAILED, BAD_INPUT}
    assert not out.exists()
    why = json.loads(out.with_suffix(".failed").read_text())
    assert why["exit_code"] == failed.returncode
    assert why["reason"] in failed.stderr
    assert re.search(reason, why["reason"])


@pytest.mark.parametrize("victim", ["tlscost-serve", "tlscost-load"])
def test_server_or_load_that_dies_fails_the_cell(tmp_path: Path, victim: str) -> None:
    out = tmp_path / "r.jsonl"
    options = ["--server", "serve", "--tls", "off", "--size", "30", "--window-s", "60"]
    process = start("run", *options, "--out", out)
    (killed, *_) = until(lambda: below(process, "tlscost-load") and below(process, victim))
    killed.kill()
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == FAILED
    assert victim.removeprefix("tlscost-").replace("serve", "server") in stderr
    assert not out.exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_program_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "r.jsonl"
    options = ["--server", "nginx", "--tls", "off", "--size", "30", "--window-s", "60"]
    process = start("run", *options, "--out", out)
    until(lambda: below(process, "tlscost-load"))
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (INTERRUPTED if how == signal.SIGINT else -signal.SIGKILL)
    until(lambda: not any(child.is_running() for child in family))
    assert not out.exists()


def test_sweep_goes_on_after_its_collector_was_killed(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(
        '[plan]\nname = "p"\nretries = 1\n[cells]\nserver = "serve"\ntls = "off"\nsize = [1, 2]\n'
        "rules = { idle_s = 0.1, warmup_s = 0.1, window_s = 1, completions_per_connection = 2 }\n"
    )
    process = start("sweep", plan, "--out", tmp_path / "out", "--json")
    (collector, *_) = until(
        lambda: below(process, "tlscost-load") and below(process, "tlscost-collect")
    )
    family = collector.children(recursive=True)
    collector.kill()
    until(lambda: not any(child.is_running() for child in family))
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == DONE, stderr
    assert "killed by signal 9" in stderr
    assert json.loads(stdout)["measured"] == 2


def test_full_disk_fails_the_cell_and_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 10) as disk:
        failed = run(disk / "r.jsonl", "--server", "serve")
        assert failed.returncode == FAILED
        assert "No space left" in failed.stderr
        assert [path.name for path in disk.iterdir()] == ["r.jsonl.partial"]
