"""`import perf-stat`: what perf counted becomes records that metrics and compare take."""

import json
import math
import os
import re
import subprocess
from pathlib import Path

import corpus
import pytest
import serve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import document, refused, tlscost

from tlscost import (
    __version__,
    frame,
    load_log,
    perf_import,
    perf_stat,
    record,
    record_writer,
)
from tlscost.cli import app
from tlscost.compare import compare
from tlscost.errors import BAD_INPUT, DONE, TlscostError
from tlscost.metrics import metrics_of, to_json

READ = corpus.ROOT / "perf-stat" / "read"
CELL = ("--server", "nginx", "--tls", "off", "--size", "36KiB")


def run(out, *arguments):
    """Run the command in this process: a new one takes seconds to start."""
    argv = ["import", "perf-stat", *map(str, arguments), *CELL, "--out", str(out)]
    app(argv, standalone_mode=False)


def imported(out, *arguments):
    run(out, *arguments)
    return [record.read(path) for path in sorted(out.glob("*.jsonl"))]


def refusal(out, *arguments):
    with pytest.raises(TlscostError) as caught:
        run(out, *arguments)
    assert caught.value.exit_code == BAD_INPUT
    assert not out.exists() or not list(out.glob("*.partial"))
    return str(caught.value)


def metrics(out):
    return {row["metric"]: row for row in to_json(metrics_of(frame.load([out])))}


def counts(window):
    return {(one.event, one.mode, one.cpu): one for one in window.counts}


def test_known_counts_per_cpu(tmp_path):
    """Synthetic: 300 M instructions scaled from 75 % of the time, 100 M on the other CPU."""
    out = tmp_path / "out"
    [item] = imported(out, READ / "synthetic-hardware-csv", "--transactions", 1000)
    [window] = item.windows
    assert window.end_ns - window.start_ns == 10**9
    assert item.header.placement.server_cpus == [0, 1]
    of = counts(window)
    scaled = of["instructions", "u", 0]
    assert (scaled.origin, scaled.raw, scaled.corrected) == ("scaled", 2.25e8, 3e8)
    assert (scaled.enabled_ns, scaled.running_ns) == (1_000_000_000, 750_000_000)
    assert of["instructions", "u", 1].origin == "counted"
    lost = of["LLC-load-misses", "uk", 0]
    assert (lost.status, lost.raw, lost.corrected) == ("failed", None, None)
    assert "<not counted> of LLC-load-misses (line 8)" in lost.reason
    assert of["LLC-load-misses", "uk", 1].corrected == 12345
    memory = [one for one in window.counts if one.event == "memory_read_bytes"]
    assert [(one.cpu, one.corrected) for one in memory] == [(None, 2048 * (1 << 20))]
    rows = metrics(out)
    assert rows["throughput"]["value"] == pytest.approx(1000)
    assert rows["throughput"]["quality"] == "exact"
    assert rows["memory_read"]["value"] == 2048 * (1 << 20) / 1000
    assert rows["path_length"]["value"] is None
    assert rows["path_length"]["reason"].startswith("instructions: counted in one mode alone")
    assert rows["utilisation"]["reason"] == "perf stat does not tell it"


def test_both_modes_make_a_path_length_without_idle_correction(tmp_path):
    perf = tmp_path / "perf"
    perf.write_text(
        "2000000,,instructions:u,1000000000,100.00,,\n1000000,,instructions:k,1000000000,50.00,,\n"
        "4000000,,cycles:u,1000000000,100.00,,\n2000000,,cycles:k,1000000000,100.00,,\n"
    )
    out = tmp_path / "out"
    imported(out, perf, "--transactions", 100, "--cpu-list", "0,2", "--seconds", 2)
    rows = metrics(out)
    assert rows["path_length"]["value"] == pytest.approx(30_000)
    assert rows["path_length"]["origin"] == "scaled"
    assert rows["path_length"]["source"] == "perf-stat"
    assert rows["path_length"]["quality"] == "approximate"
    assert "no idle window" in rows["path_length"]["reason"]
    assert rows["cpi"]["value"] == pytest.approx(2)
    assert rows["throughput"]["value"] == pytest.approx(50)


def test_processes_need_no_idle_correction(tmp_path):
    perf = tmp_path / "perf"
    perf.write_text("3000000,,instructions,1000000000,100.00,,\n")
    out = tmp_path / "out"
    options = ("--transactions", 100, "--cpus", 1, "--seconds", 2, "--scope", "process")
    options += ("--uarch", "skylake_server")
    [item] = imported(out, perf, *options)
    assert item.header.placement.server_cpus is None
    row = metrics(out)["path_length"]
    assert (row["value"], row["quality"], row["reason"]) == (
        30_000,
        "exact",
        "one run: no interval",
    )


def test_intervals_in_which_processes_did_not_run(tmp_path):
    """`<not counted>` of a clock says that nothing ran; of a counter alone, that it had none."""
    perf = tmp_path / "perf"
    line = "     {}.000000000,{},,{},1000,100.00,,\n"
    perf.write_text(
        "".join(
            line.format(second, value, event)
            for second, values in enumerate(
                [(5, 30, 3), (7, "<not counted>", 4), ("<not counted>",) * 3], 1
            )
            for event, value in zip(("page-faults", "cycles", "instructions"), values, strict=True)
        )
    )
    options = (perf, "--transactions", 1, "--cpus", 1)
    [item] = imported(tmp_path / "process", *options, "--scope", "process")
    of = counts(item.windows[0])
    assert of["page-faults", "uk", None].corrected == 12
    assert of["instructions", "uk", None].corrected == 7
    lost = of["cycles", "uk", None]
    assert (lost.corrected, lost.status) == (None, "failed")
    assert "(line 5) in the interval that ends at 2.0 s" in lost.reason
    assert "did not run in 1 intervals" in item.windows[0].notes[0]
    assert item.windows[0].samples["counts"]["all"]["instructions:uk"] == [3, 7, 7]
    [item] = imported(tmp_path / "cpu", *options)
    assert counts(item.windows[0])["page-faults", "uk", None].status == "failed"


def test_without_transactions_ratios_stay_and_costs_are_null(tmp_path):
    perf = tmp_path / "perf"
    perf.write_text(
        "3000,,instructions,1000000000,100.00,,\n6000,,cycles,1000000000,100.00,,\n"
        "10,,context-switches,1000000000,100.00,,\n"
    )
    out = tmp_path / "out"
    [item] = imported(out, perf, "--cpus", 1, "--seconds", 1)
    assert item.windows[0].transactions is None
    rows = metrics(out)
    assert rows["cpi"]["value"] == 2
    for name in ("path_length", "cycles", "throughput", "context_switches"):
        assert rows[name]["value"] is None
        assert "--transactions" in rows[name]["reason"]


def test_shared_cpus_give_no_costs(tmp_path):
    out = tmp_path / "out"
    file = READ / "perf-6.1-csv-per-cpu"
    [item] = imported(out, file, "--transactions", 10, "--shared")
    assert {count.status for count in item.windows[0].counts} == {"overlap"}
    assert "share the counted CPUs" in metrics(out)["page_faults"]["reason"]
    perf = tmp_path / "perf"
    perf.write_text("3000000,,instructions,1000000000,100.00,,\n")
    options = ("--transactions", 100, "--cpus", 1, "--seconds", 2, "--scope", "process")
    imported(tmp_path / "own", perf, *options, "--shared")
    assert metrics(tmp_path / "own")["path_length"]["value"] == 30_000


@pytest.mark.parametrize("shape", ["csv", "json"])
def test_real_intervals_are_samples_of_one_window(tmp_path, shape):
    file = READ / f"perf-6.1-{shape}-per-cpu-interval"
    [item] = imported(tmp_path / "out", file, "--transactions", 10)
    [window] = item.windows
    of = counts(window)
    for cpu in (0, 1):
        faults = of["page-faults", "uk", cpu]
        assert (faults.origin, faults.status) == ("counted", "ok")
        sampled = window.samples["counts"][str(cpu)]
        assert sampled["t_ns"][-1] == window.end_ns
        assert sampled["page-faults:uk"][-1] == faults.corrected
        assert sampled["page-faults:uk"] == sorted(sampled["page-faults:uk"])
        missing = of["cycles", "uk", cpu]
        assert (missing.status, missing.corrected) == ("unsupported", None)
        assert "<not supported>" in missing.reason


def test_chosen_intervals_and_cpus(tmp_path):
    file = READ / "perf-6.1-json-per-cpu-interval"
    options = ("--transactions", 10, "--from", 0.05, "--to", 0.21, "--cpu-list", 1)
    [item] = imported(tmp_path / "out", file, *options)
    [window] = item.windows
    lines = [json.loads(text) for text in file.read_text().splitlines() if text.startswith("{")]
    [own] = [
        float(line["counter-value"])
        for line in lines
        if (line["event"], line["cpu"]) == ("page-faults", "1") and 0.2 < line["interval"] < 0.21
    ]
    assert item.header.cell.cpus == 1
    assert counts(window)["page-faults", "uk", 1].corrected == own
    assert window.end_ns - window.start_ns == pytest.approx(101e6, rel=0.05)


def test_an_ordinary_users_zeros_are_null(tmp_path):
    file = READ / "perf-6.1-csv-user"
    [item] = imported(tmp_path / "out", file, "--transactions", 1, "--cpus", 1, "--seconds", 1)
    switches = counts(item.windows[0])["context-switches", "u", None]
    assert (switches.status, switches.corrected) == ("not_permitted", None)
    assert "perf_event_paranoid" in switches.reason


def test_raw_codes_and_vendors_names(tmp_path):
    """Synthetic: the raw code of instructions, named by the user."""
    file = READ / "synthetic-codes-csv"
    out = tmp_path / "out"
    options = ("--transactions", 10, "--cpus", 1, "--seconds", 1, "--event", "r00c0=instructions")
    [item] = imported(out, file, *options)
    assert {one.event for one in item.windows[0].counts} >= {"instructions", "r01c4"}
    assert metrics(out)["path_length"]["value"] == 300


def test_channels_of_memory_are_added_up(tmp_path):
    """Synthetic: --no-merge names each channel's PMU."""
    perf = tmp_path / "perf"
    perf.write_text(
        "".join(
            f"CPU{cpu},{value}.00,MiB,uncore_imc_{channel}/cas_count_read/,1000000000,100.00,,\n"
            for channel, cpu, value in [(0, 0, 1), (0, 28, 2), (1, 0, 4), (1, 28, 8)]
        )
        + "CPU0,5,,page-faults,1000000000,100.00,,\nCPU1,6,,page-faults,1000000000,100.00,,\n"
    )
    [item] = imported(tmp_path / "out", perf, "--transactions", 3, "--cpu-list", "0,1")
    of = counts(item.windows[0])
    assert of["memory_read_bytes", "uk", None].corrected == 15 * (1 << 20)
    assert of["page-faults", "uk", 1].corrected == 6


def test_raw_codes_by_the_microarchitecture(tmp_path):
    perf = tmp_path / "perf"
    perf.write_text("600,,r0008,1000,100.00,,\n1200,,r0011,1000,100.00,,\n7,,r0042,1000,100.00,,\n")
    options = (perf, "--transactions", 10, "--cpus", 1, "--seconds", 1, "--scope", "process")
    [item] = imported(tmp_path / "out", *options, "--uarch", "neoverse_n1")
    assert item.header.provenance["microarchitecture"] == "neoverse_n1"
    rows = metrics(tmp_path / "out")
    assert (rows["path_length"]["value"], rows["cpi"]["value"]) == (60, 2)
    assert ("r0042", "uk", None) in counts(item.windows[0])
    message = refusal(tmp_path / "none", *options, "--uarch", "neoverse_n9")
    assert "--uarch: given 'neoverse_n9'; known: " in message


def test_two_kinds_of_core_are_not_added_up(tmp_path):
    file = READ / "synthetic-hybrid-csv"
    out = tmp_path / "out"
    options = (file, "--transactions", 10, "--cpus", 1, "--seconds", 1)
    message = refusal(out, *options)
    assert "synthetic-hybrid-csv:1: counts of cpu_atom and cpu_core" in message
    [item] = imported(out, *options, "--pmu", "cpu_core")
    assert metrics(out)["cpi"]["value"] == 2
    assert any("cpu_atom/instructions/: left out" in note for note in item.windows[0].notes)


def test_files_are_re_runs_or_passes(tmp_path):
    for number, event in enumerate(("instructions", "cycles"), 1):
        (tmp_path / event).write_text(f"{number}000,,{event},1000000000,100.00,,\n")
    files = (tmp_path / "instructions", tmp_path / "cycles")
    options = ("--cpus", 1, "--seconds", 1)
    runs = imported(tmp_path / "runs", *files, *options, "--transactions", 10)
    assert [item.header.cell.repetition for item in runs] == [2, 1]
    number = ("--transactions", 10, "--transactions", 40)
    [item] = imported(tmp_path / "passes", *files, *options, *number, "--passes")
    assert [window.pass_ for window in item.windows] == [0, 1]
    rows = metrics(tmp_path / "passes")
    assert (rows["path_length"]["value"], rows["cycles"]["value"]) == (100, 50)
    assert "per transaction" in refusal(tmp_path / "none", *files, *options, "--passes")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--cpus"),
        (("--cpus", 1), "--seconds"),
        (("--cpus", 1, "--seconds", 0), "--seconds"),
        (("--cpus", 1, "--seconds", 1, "--from", 1), "no intervals (-I)"),
        (("--cpu-list", "0,0"), "twice"),
        (("--cpu-list", "0-1"), "expected numbers such as 0,2"),
        (("--transactions", 1, "--load-log", "x"), "expected one of the two"),
        (("--transactions", 1, "--transactions", 2), "expected one, or one a file"),
        (("--load-log", "nowhere"), "nowhere: cannot be read"),
        (("--event", "r00c0"), "expected perf's name=name"),
        (("--cpus", 1, "--seconds", 1, "--pmu", "cpu_core"), "not there"),
    ],
)
def test_what_is_not_told_is_asked_for(tmp_path, options, said):
    assert said in refusal(tmp_path / "out", READ / "perf-6.1-csv-aggregate", *options)


def test_a_cpu_that_is_not_there_and_a_record_that_is(tmp_path):
    file, out = READ / "perf-6.1-csv-per-cpu", tmp_path / "out"
    assert "CPU 7" in refusal(out, file, "--cpu-list", "0,7")
    imported(out, file)
    message = refusal(out, file)
    assert "perf-6.1-csv-per-cpu-r1.jsonl: is there already" in message


WRK = """Running 1s test @ http://127.0.0.1:8099/
  1 threads and 2 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.92ms    1.42ms  12.11ms   83.19%
    Req/Sec     1.10k   159.23     1.45k    72.73%
  1209 requests in 1.10s, 1.39MB read
  Socket errors: connect 0, read 3, write 0, timeout 1
  Non-2xx or 3xx responses: 9
Requests/sec:   1098.50
Transfer/sec:      1.27MB
"""


@corpus.replayed("load-log")
def test_load_logs_corpus(path, expected):
    assert is_read(path) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=corpus.mutated("load-log"))
def test_fuzz_load_logs(tmp_path, content):
    path = tmp_path / "load"
    path.write_bytes(content)
    is_read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=corpus.mutated("perf-stat"),
    scope=st.sampled_from(["cpu", "process"]),
    seconds=st.sampled_from([None, 1.0]),
)
def test_fuzz_what_is_read_becomes_a_record_or_is_refused(tmp_path, content, scope, seconds):
    path, out = tmp_path / "perf", tmp_path / "record.jsonl"
    path.write_bytes(content)
    out.unlink(missing_ok=True)
    cell = {"machine": "native", "server": "x", "tls": "off", "size_bytes": 1, "load": {}}
    request = perf_import.Request(cell=cell, cpus=1, scope=scope, seconds=seconds)
    try:
        header, windows = perf_import.build([(perf_stat.read(path), 10)], request, 1)
    except TlscostError as refusal:
        assert refusal.exit_code == BAD_INPUT  # noqa: PT017  # either outcome is right
        return
    record_writer.write(out, header, windows)
    frame.load([out])


def is_read(path):
    """Whether the file is read; a refusal must be ours and name file and line."""
    try:
        log = load_log.read(path)
    except TlscostError as refusal:
        named = rf"{re.escape(str(path))}:\d+: .*Remedy: "
        assert re.match(named, str(refusal), re.DOTALL)  # noqa: PT017  # either outcome is right
        return False
    assert log.transactions >= 0
    assert 0 < log.elapsed_s < math.inf
    return True


@pytest.mark.parametrize("shape", ["csv", "json"])
def test_a_server_on_an_emulated_pmu(tmp_path, shape):
    """Of tlscost-serve's process on QEMU's arm64 PMU, where a cycle is half an instruction."""
    file = READ / f"perf-6.1-emulated-pmu-{shape}-server"
    out = tmp_path / "out"
    transactions = 6644
    options = ("--transactions", transactions, "--scope", "process", "--cpus", 1)
    [item] = imported(out, file, *options, "--uarch", "neoverse_n1")
    total = sum(
        float(line.split(",")[1] if shape == "csv" else json.loads(line)["counter-value"])
        for line in file.read_text().splitlines()
        if "instructions:" in line
    )
    rows = metrics(out)
    assert rows["path_length"]["value"] == pytest.approx(total / transactions)
    assert 80_000 < rows["path_length"]["value"] < 90_000
    assert (rows["path_length"]["quality"], rows["path_length"]["origin"]) == ("exact", "counted")
    assert rows["cpi"]["value"] == pytest.approx(2, rel=1e-6)
    assert rows["context_switches"]["value"] == pytest.approx(1, rel=0.01)
    assert item.windows[0].samples["t_ns"][0] == pytest.approx(500e6, rel=0.01)


@pytest.mark.parametrize("shape", ["csv", "json"])
def test_real_multiplexing(tmp_path, shape):
    """Eleven hardware events on six counters; what counts the same scales to the same."""
    file = READ / f"perf-6.1-emulated-pmu-{shape}-multiplexed"
    options = ("--transactions", 1, "--scope", "process", "--cpus", 1, "--seconds", 1.2)
    [item] = imported(tmp_path / "out", file, *options)
    of = counts(item.windows[0])
    clock = of["task-clock", "uk", None]
    assert (clock.origin, clock.running_ns) == ("counted", clock.enabled_ns)
    for one in item.windows[0].counts:
        if one is not clock:
            assert one.origin == "scaled"
            assert one.enabled_ns == pytest.approx(clock.enabled_ns, rel=0.02)
            assert one.raw == pytest.approx(
                one.corrected * one.running_ns / one.enabled_ns, rel=0.01
            )
    instructions = of["instructions", "uk", None].corrected
    parts = sum(of["instructions", mode, None].corrected for mode in "uk")
    assert of["r0008", "uk", None].corrected == pytest.approx(instructions, rel=0.01)
    assert any(
        note.startswith("armv8_pmuv3/inst_retired/u: left out") for note in item.windows[0].notes
    )
    assert parts == pytest.approx(instructions, rel=0.01)
    assert of["cycles", "uk", None].corrected == pytest.approx(2 * instructions, rel=0.01)


def test_load_logs(tmp_path):
    file = tmp_path / "wrk"
    file.write_text(WRK)
    log = load_log.read(file)
    assert (log.transactions, log.elapsed_s, log.load) == (1200, 1.10, {"connections": 2})
    assert log.errors == {"connect": 0, "read": 3, "write": 0, "timeout": 1, "status": 9}
    for content in ("", "{", "[]", '{"counts": {}}', WRK + WRK, '{"elapsed_ns": true}', "\udcff"):
        file.write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(TlscostError, match=r"wrk:\d+: .*--transactions"):
            load_log.read(file)


def test_counts_and_load_of_different_intervals(tmp_path):
    file = tmp_path / "wrk"
    file.write_text(WRK)
    perf = (READ / "perf-6.1-csv-aggregate", "--cpus", 1, "--load-log", file, "--seconds")
    assert "different intervals" in refusal(tmp_path / "out", *perf, 2)
    [item] = imported(tmp_path / "out", *perf, 1.13)
    assert any("off by as much" in note for note in item.windows[0].notes)
    assert item.windows[0].errors["status"] == 9


LOADS = {
    "tlscost-load": ("--duration", "1", "--json", "--connections", "4"),
    "wrk": ("-t1", "-c4", "-d1"),
    "h2load": ("--h1", "-D", "1", "-c", "4"),
}


@pytest.mark.parametrize("tool", LOADS)
@pytest.mark.parametrize("shape", ["-x,", "-j"])
def test_perf_counts_a_server_under_load(tmp_path, tool, shape):
    """The real perf on the real server's process, with each load generator's own words."""
    perf = serve.need("perf")
    program = serve.program(tool) if tool == "tlscost-load" else serve.need(tool)
    counts_file, log = tmp_path / "perf", tmp_path / "load"
    with serve.serving(tmp_path, None, sizes=[30]) as server:
        url = ["--url", f"{server.url}/30"] if tool == "tlscost-load" else [f"{server.url}/30"]
        argv = [perf, "stat", shape, "-o", str(counts_file), "-I", "200"]
        argv += ["-e", "task-clock,page-faults,instructions", "-p", str(server.process.pid), "--"]
        with log.open("w") as file:
            done = subprocess.run(
                [*argv, program, *LOADS[tool], *url],
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=60,
                env={**os.environ, "LC_ALL": "C"},
            )
    if "No permission" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"perf may not count another process here: {done.stderr.strip()[:80]}")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    options = ("--load-log", log, "--cpus", 1, "--scope", "process")
    [item] = imported(out, counts_file, *options)
    [window] = item.windows
    assert item.header.cell.load["tool"] == tool
    assert window.transactions > 100
    clock = counts(window)["task-clock", "uk", None]
    assert clock.status == "ok"
    assert 0 < clock.corrected < 2 * (window.end_ns - window.start_ns)
    rows = metrics(out)
    assert rows["throughput"]["value"] == pytest.approx(
        window.transactions / (window.end_ns - window.start_ns) * 1e9
    )
    assert rows["cpu_time"]["value"] is None


def test_compare_takes_imported_records(tmp_path):
    for side, value in (("a", 1000), ("b", 2000)):
        for run in (1, 2, 3):
            file = tmp_path / f"{side}{run}"
            file.write_text(f"{value + run},,instructions,1000000000,100.00,,\n")
        files = [tmp_path / f"{side}{run}" for run in (1, 2, 3)]
        imported(tmp_path / side, *files, "--cpus", 1, "--seconds", 1, "--transactions", 10)
    table = compare(tmp_path / "a", tmp_path / "b").set_index("metric")
    assert table.loc["path_length", "ratio"] == pytest.approx(2, rel=0.01)
    assert table.loc["path_length", "significant"]


def test_the_command_line(tmp_path):
    out = tmp_path / "out"
    arguments = ("import", "perf-stat", READ / "perf-6.1-csv-per-cpu", *CELL, "--out", out)
    done = tlscost(*arguments, "--transactions", 10)
    assert done.returncode == DONE, done.stderr
    assert f"record: {out}/perf-6.1-csv-per-cpu-r1.jsonl" in done.stderr
    [row] = [one for one in document("metrics", out, "--format", "json") if one["metric"] == "cpi"]
    assert row["value"] is None
    assert "<not supported>" in row["reason"]
    assert "is there already" in refused(*arguments)


def test_the_version_is_that_of_the_programs():

    listed = (Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert f"project(tlscost VERSION {__version__} " in listed
