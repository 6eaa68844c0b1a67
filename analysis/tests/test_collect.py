"""tlscost-collect: whole cells with the real server and load generator, and every fault."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve import pattern

from tlscost.record import SANITIZER_BUILDS, is_whole, read

ROOT = os.geteuid() == 0
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, LOAD_CPU = CPUS[0], CPUS[-1]
ADDRESS = "198.18.0.1" if ROOT else "127.0.0.1"
NETWORK = "veth" if ROOT else "loopback"
PATIENCE_S = 30
BODY_BYTES = 2048
CELL = {
    "machine": "native",
    "server": "tlscost-serve",
    "tls": "off",
    "size_bytes": BODY_BYTES,
    "cpus": 1,
    "load": {"connections": 4},
    "repetition": 0,
}
QUICK = ["--idle-s", "0.2", "--warmup-max-s", "0.6", "--window-s", "0.3", "--completions", "1"]

needs_root = pytest.mark.skipif(not ROOT, reason="needs root")
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def program(name: str) -> str:
    path = Path(os.environ.get("TLSCOST_BIN", "")) / name
    if not path.is_file():
        pytest.skip(f"TLSCOST_BIN does not name a directory with {name}")
    return str(path.resolve())


def free_port() -> int:
    if ROOT:
        return 8443  # the namespace is the cell's own
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def serve(port: int) -> list[str]:
    argv = [program("tlscost-serve"), "--listen", f"{ADDRESS}:{port}", "--size", str(BODY_BYTES)]
    return [*argv, "--cpu-list", str(SERVER_CPU)]


def nginx(directory: Path, port: int) -> list[str]:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    (directory / str(BODY_BYTES)).write_bytes(pattern(BODY_BYTES))
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"{'user root;' if ROOT else ''} worker_processes 2; pid {directory}/pid;\n"
        "error_log stderr; events { }\n"
        f"http {{ access_log off; {temporary}\n"
        f"server {{ listen {ADDRESS}:{port}; root {directory}; }} }}\n"
    )
    return ["nginx", "-c", str(config), "-e", "stderr"]  # daemon on: it goes into the background


def load(port: int, *options: str) -> list[str]:
    argv = [program("tlscost-load"), "--url", f"http://{ADDRESS}:{port}/{BODY_BYTES}"]
    return [*argv, "--connections", "4", *options, "--page", "{page}"]


def command(
    record: Path,
    port: int,
    server: list[str],
    client: list[str] | None = None,
    *options: str,
    cpus: tuple[int, int] = (SERVER_CPU, LOAD_CPU),
    network: str = NETWORK,
) -> list[str]:
    argv = [program("tlscost-collect"), "--record", str(record), "--network", network]
    argv += ["--server-cpus", str(cpus[0]), "--load-cpus", str(cpus[1])]
    argv += ["--connect", f"{ADDRESS}:{port}", *QUICK, *options]
    return [*argv, "--", *server, "--", *(load(port) if client is None else client)]


def run(argv: list[str], code: int, *said: str) -> str:
    """Run to the end; the exit code and words on standard error must be as said."""
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, errors="replace"
    )
    assert done.returncode == code, done.stderr
    for words in said:
        assert words in done.stderr
    return done.stderr


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def partial(record: Path) -> Path:
    return record.with_name(record.name + ".partial")


def processes_below(root: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = stat.read_text().split(" (", 1)
            parents[int(pid)] = int(rest.rpartition(")")[2].split()[1])
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its in parents.items() if its == parent]
        found += children
        todo += children
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def measuring(record: Path, server: list[str], port: int) -> Iterator[subprocess.Popen[str]]:
    """A collector that has measured one window and has many before it."""
    argv = command(record, port, server, None, "--windows", "1000", "--window-max-s", "1")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(
                lambda: (
                    process.poll() is not None
                    or (partial(record).exists() and '"window"' in partial(record).read_text())
                )
            )
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()


def pid_of(root: int, name: str) -> int:
    for pid in processes_below(root):
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            return pid
    raise AssertionError(f"no {name} runs")


def ended(process: subprocess.Popen[str]) -> str:
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, stderr
    return stderr


@needs_two_cpus
@pytest.mark.parametrize("kind", ["tlscost-serve", "nginx"])
def test_measures_a_cell(tmp_path: Path, kind: str) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    header = tmp_path / "header.json"
    header.write_text(json.dumps({"cell": CELL, "openssl": "x"}))
    server = serve(port) if kind == "tlscost-serve" else nginx(tmp_path, port)
    argv = command(record, port, server, None, "--header", str(header), "--windows", "2")
    before = set(Path("/dev/shm").iterdir())
    run(argv, 0)
    assert not partial(record).exists()
    assert set(Path("/dev/shm").iterdir()) == before
    assert is_whole(record)
    head, *measured, footer = lines(record)
    if head["program"]["build"] not in SANITIZER_BUILDS:
        assert read(record).header.placement.server_cpus == [SERVER_CPU]
    assert head["cell"] == CELL
    assert head["provenance"]["openssl"] == "x"
    assert head["commands"]["server"] == server
    assert head["network"]["kind"] == NETWORK
    assert head["placement"]["overlap"] is False
    assert [line["type"] for line in measured] == ["idle", "window", "window"]
    assert footer["windows"] == 2
    for window in measured[1:]:
        check_window(window, head)


def check_window(window: dict[str, Any], head: dict[str, Any]) -> None:
    elapsed = window["end_ns"] - window["start_ns"]
    transactions = window["transactions"]
    assert transactions >= window["load_connections"] == 4
    # Bytes and transactions are counted one after the other.
    assert abs(window["bytes"] - transactions * BODY_BYTES) <= 4 * BODY_BYTES
    assert sum(window["errors"].values()) == 0
    if ROOT:
        assert window["system"]["net_tx_bytes"] > 0.9 * window["bytes"]
    (cpu,) = window["cpus"]
    assert cpu["cpu"] == SERVER_CPU
    assert 0 <= cpu["idle_ns"] <= elapsed
    assert window["server_rss_bytes"] > 1_000_000
    samples = window["samples"]
    assert samples["t_ns"] == sorted(samples["t_ns"])
    assert samples["t_ns"][-1] == elapsed
    assert samples["transactions"][-1] == transactions
    assert window["latency"]["last_byte"]
    assert window["latency"]["handshake"] is None
    counts = {(count["event"], count["mode"]): count for count in window["counts"]}
    cycles = counts["ref_cycles", "uk"]
    assert cycles["origin"] == "derived"
    busy = elapsed - cpu["idle_ns"] - cpu["steal_ns"]
    assert cycles["raw"] == pytest.approx(max(busy, 0) * head["provenance"]["tsc_hz"] / 1e9, 1e-6)
    for count in counts.values():
        if count["status"] == "ok":
            assert count["running_ns"] == count["enabled_ns"] or count["origin"] == "scaled"
            assert count["corrected"] is not None
        else:
            assert count["raw"] is None
            assert count["corrected"] is None
            assert count["reason"]
    if head["sources"][0]["scope"] == "cpu":
        assert (samples["how"] == "ring") == (samples["reason"] is None)
        sampled = samples["counts"][str(SERVER_CPU)]
        check_samples(sampled, elapsed, head["rules"]["sample_ms"])
        switches = counts["context-switches", "uk"]
        assert switches["raw"] == sampled["context-switches:uk"][-1] > 0


def check_samples(sampled: dict[str, list[int]], elapsed_ns: int, sample_ms: int) -> None:
    """One CPU's samples: as many as there are periods, cumulative, up to the window's end."""
    times = sampled["t_ns"]
    assert times == sorted(set(times))
    assert times[-1] == elapsed_ns
    periods = elapsed_ns // (sample_ms * 1_000_000)
    assert periods - 2 <= len(times) <= 2 * periods + 2  # a silent CPU is read, too
    for values in sampled.values():
        assert len(values) == len(times)
        assert values == sorted(values)


def test_shared_cpus_leave_no_counts(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    run(command(record, port, serve(port), cpus=(SERVER_CPU, SERVER_CPU)), 0)
    head, *_, window, _ = lines(record)
    assert head["placement"]["overlap"] is True
    assert head["placement"]["reason"]
    assert window["transactions"] > 0
    own = [count for count in window["counts"] if count["source"] != "uncore"]  # the machine's
    assert {count["status"] for count in own} == {"overlap"}
    assert all(count["raw"] is None and count["reason"] for count in window["counts"])
    assert window["samples"]["counts"] == {}


def test_each_set_of_events_is_a_pass(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    sets = ["--events", "page-faults:u", "--events", "minor-faults,page-faults:k"]
    run(command(record, port, serve(port), None, *sets), 0)
    head, *measured, _ = lines(record)
    assert [[event["event"] for event in events] for events in head["passes"]] == [
        ["page-faults"],
        ["minor-faults", "page-faults"],
    ]
    kinds = [(line["type"], line["pass"]) for line in measured]
    assert kinds == [("idle", 0), ("idle", 1), ("window", 0), ("window", 1)]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (["sh", "-c", "echo last words >&2; exit 3"], ["exited with status 3", "last words"]),
        (["/nonexistent/server"], ["cannot be executed", "/nonexistent/server"]),
        (["sleep", "1000"], ["does not answer within 0.5 s", "refused"]),
    ],
)
def test_a_server_that_does_not_start(tmp_path: Path, server: list[str], said: list[str]) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    argv = command(record, port, server, None, "--ready-timeout-s", "0.5")
    stderr = run(argv, 1, *said)
    assert "server start: the server" in stderr.splitlines()[-1]
    assert not record.exists()


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (["sh", "-c", "echo no luck; exit 4", "{page}"], ["exited with status 4", "no luck"]),
        (["sleep", "1000", "{page}"], ["exited with status 1", "invalid time interval"]),
        (["sh", "-c", "exec sleep 1000", "{page}"], ["within 0.5 s"]),
    ],
)
def test_a_load_that_does_not_start(tmp_path: Path, client: list[str], said: list[str]) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    argv = command(record, port, serve(port), client, "--ready-timeout-s", "0.5")
    assert "load start: the load" in run(argv, 1, *said).splitlines()[-1]
    assert [line["type"] for line in lines(partial(record))] == ["header", "idle"]


@pytest.mark.parametrize("kind", ["tlscost-serve", "tlscost-load"])
def test_a_death_in_a_window(tmp_path: Path, kind: str) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    with measuring(record, serve(port), port) as process:
        pids = processes_below(process.pid)
        os.kill(pid_of(process.pid, kind), signal.SIGKILL)
        who = kind.removeprefix("tlscost-").replace("serve", "server")
        assert f"window: the {who} was killed by signal 9" in ended(process)
    assert all(map(is_gone, pids))
    assert lines(partial(record))[2]["type"] == "window"
    assert not record.exists()


def test_a_window_without_a_transaction(tmp_path: Path) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    with measuring(record, serve(port), port) as process:
        os.kill(pid_of(process.pid, "tlscost-serve"), signal.SIGSTOP)
        assert "window: no transaction completed" in ended(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything(tmp_path: Path, number: int) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    with measuring(record, serve(port), port) as process:
        pids = processes_below(process.pid)
        process.send_signal(number)
        assert f"interrupted by signal {number}" in ended(process)
    assert len(pids) >= 4
    assert all(map(is_gone, pids))
    assert lines(partial(record))[2]["type"] == "window"


@pytest.mark.parametrize("kind", ["tlscost-serve", "nginx"])
def test_sigkill_leaves_nothing(tmp_path: Path, kind: str) -> None:
    record, port = tmp_path / "r.jsonl", free_port()
    server = serve(port) if kind == "tlscost-serve" else nginx(tmp_path, port)
    shared = set(Path("/dev/shm").iterdir())
    with measuring(record, server, port) as process:
        pids = processes_below(process.pid)
        namespaces = {Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
    assert len(pids) >= 4
    wait_for(lambda: all(map(is_gone, pids)))
    assert set(Path("/dev/shm").iterdir()) == shared
    if ROOT:  # a namespace without a process is gone, and its veth end with it
        assert len(namespaces) == 2
        left = set()
        for link in Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):
                left.add(link.readlink())
        assert not namespaces & left
        assert not [name for _, name in socket.if_nameindex() if name in ("server0", "load0")]
    run(command(tmp_path / "again.jsonl", port, serve(port)), 0)  # the port, too, is free


@needs_root
def test_a_full_disk(tmp_path: Path) -> None:
    disk, kept, port = tmp_path / "disk", tmp_path / "kept", free_port()
    disk.mkdir()
    argv = command(disk / "r.jsonl", port, serve(port), None, "--windows", "1000")
    # Mounted where nobody else sees it, so it vanishes with the shell.
    script = 'mount -t tmpfs -o size=32k none "$1"; k=$2; d=$1; shift 2; "$@"; c=$?; cp "$d"/* "$k"'
    shell = ["unshare", "--mount", "sh", "-c", f"{script}; exit $c", "sh", str(disk), str(kept)]
    run([*shell, *argv], 1, "No space left on device", "make room")
    assert [line["type"] for line in lines(kept)][:3] == ["header", "idle", "window"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--server-cpus", "100000"], "--server-cpus '100000'"),
        (["--load-cpus", "x"], "--load-cpus 'x'"),
        (["--window-s", "-1"], "--window-s"),
        (["--completions", "many"], "--completions"),
        (["--events", "a,,b"], "--events"),
        (["--events", "context-switches:u"], "would read 0"),
        (["--connect", "nowhere"], "--connect"),
        (["--network", "token-ring"], "--network"),
        (["--numa", "bind:x"], "--numa"),
        (["--header", "/nonexistent.json"], "--header"),
        (["--record", "/nonexistent/r.jsonl"], "/nonexistent/r.jsonl"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_bad_input_is_refused_at_once(tmp_path: Path, options: list[str], said: str) -> None:
    argv = command(tmp_path / "r.jsonl", 8443, ["true"], ["true", "{page}"], *options)
    run(argv, 2, said)


def test_a_load_without_a_page_is_refused(tmp_path: Path) -> None:
    run(command(tmp_path / "r.jsonl", 8443, ["true"], ["true"]), 2, "{page}")


@needs_root
@needs_two_cpus
def test_an_ordinary_user(
    as_nobody: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, directory = as_nobody
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) != 2:
        pytest.skip("kernel.perf_event_paranoid is not 2")
    monkeypatch.setenv("TLSCOST_BIN", str(directory))
    monkeypatch.setattr("test_collect.ADDRESS", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    record = directory / "r.jsonl"
    run([*words, *command(record, port, serve(port))], 3, "run as root", "--network loopback")
    run([*words, *command(record, port, serve(port), network="loopback")], 0)
    head, *_, window, _ = lines(record)
    assert head["network"]["kind"] == "loopback"
    assert head["network"]["reason"]
    assert head["sources"][0]["scope"] == "process"
    # Without root idle time comes in ticks, and a window is long enough for them.
    assert head["rules"]["idle_resolution_ns"] == window["cpus"][0]["idle_resolution_ns"] > 1
    assert window["end_ns"] - window["start_ns"] >= 5_000_000_000
    counts = {(count["event"], count["mode"]): count for count in window["counts"]}
    faults = counts["page-faults", "u"]
    assert (faults["status"], faults["cpu"]) == ("ok", None)
    switches = counts["context-switches", "uk"]
    assert (switches["status"], switches["raw"]) == ("not_permitted", None)
    assert "perf_event_paranoid" in switches["reason"]
    samples = window["samples"]
    assert samples["how"] == "read"
    assert "process tree" in samples["reason"]
    assert samples["counts"]["all"]["t_ns"] == samples["t_ns"]
    assert samples["counts"]["all"]["page-faults:u"][-1] == faults["raw"]


def test_says_what_it_can_count() -> None:
    done = subprocess.run(
        [program("tlscost-collect"), "--probe"], capture_output=True, text=True, check=True
    )
    probe = json.loads(done.stdout)
    assert [source["name"] for source in probe["sources"]] == ["perf", "proc", "uncore"]
    for source in probe["sources"]:
        for event in source["events"]:
            for mode in event["modes"].values():
                assert (mode["status"] == "ok") == (mode["reason"] is None)
    pmu = probe["pmu"]
    assert pmu["present"] == (pmu["reason"] is None) == bool(pmu["counters"])


def test_papi_counts_or_says_why_not(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    argv = [program("tlscost-collect"), "--sample-only", "--cpus", str(SERVER_CPU)]
    argv += ["--source", "papi", "--duration-s", "0.2", "--record", str(record)]
    run(argv, 0)
    head, *samples, _ = lines(record)
    source = head["sources"][0]
    assert source["name"] == "papi"
    counts = [count for sample in samples for count in sample["counts"]]
    presets = [count for count in counts if count["event"].startswith("PAPI_")]
    assert {count["event"] for count in presets} >= {"PAPI_TOT_INS", "PAPI_TOT_CYC"}
    assert {count["source"] for count in presets} == {"papi"}
    for count in presets:
        if not source["available"]:
            assert (count["status"], count["raw"]) == ("unsupported", None)
            assert count["reason"] == source["reason"]
        elif count["event"] == "PAPI_TOT_INS":
            assert count["status"] == "ok"
    if not source["available"]:
        assert "simulated machine" in source["reason"]


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    argv = [program("tlscost-collect"), "--sample-only", "--cpus", "0", "--source", "oprofile"]
    run([*argv, "--record", str(tmp_path / "r")], 2, "--source: 'oprofile': expected perf or papi")


def test_samples_without_server_and_load(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    argv = [program("tlscost-collect"), "--sample-only", "--cpus", str(SERVER_CPU)]
    run([*argv, "--duration-s", "0.5", "--sample-ms", "50", "--record", str(record)], 0)
    head, sample, _ = lines(record)
    assert head["network"] is None
    assert sample["type"] == "sample"
    samples, elapsed = sample["samples"], sample["end_ns"] - sample["start_ns"]
    assert samples["t_ns"][-1] == elapsed
    if samples["how"] == "ring":
        assert len(samples["t_ns"]) == 1  # /proc/stat is read at the end only
    if head["sources"][0]["scope"] == "cpu":
        sampled = samples["counts"][str(SERVER_CPU)]
        if not sample["notes"]:  # some kernels do not sample a CPU while it idles
            check_samples(sampled, elapsed, 50)
        assert sampled["cpu-clock:uk"] == pytest.approx(sampled["t_ns"], rel=0.05)
