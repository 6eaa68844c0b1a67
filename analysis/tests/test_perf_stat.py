"""Reading perf stat's output. Files `perf-6.1-*` of the corpus are what Debian 12's perf wrote on a
machine without a PMU, and `perf-6.1-emulated-pmu-*` in an arm64 guest with QEMU's (docs/guest.md);
`synthetic-*` are what perf would write of hardware that it lacked."""

import json
import re

import corpus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tlscost import perf_events, perf_stat
from tlscost.errors import TlscostError

READ = corpus.ROOT / "perf-stat" / "read"
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
EVENTS = [
    *["cpu-clock", "context-switches", "page-faults", "cycles", "instructions:u"],
    *["LLC-load-misses", "r00c0", "msr/tsc/"],
]


def is_read(path):
    """Whether the file is read; a refusal must be ours and name file and line."""
    try:
        perf_stat.read(path)
    except TlscostError as refusal:
        named = rf"{re.escape(str(path))}:\d+: .*Remedy: "
        assert re.match(named, str(refusal), re.DOTALL)  # noqa: PT017  # either outcome is right
        assert refusal.exit_code == 2  # noqa: PT017  # as above
        return False
    return True


@corpus.replayed("perf-stat")
def test_corpus(path, expected):
    assert is_read(path) == expected


@FUZZ
@given(content=corpus.mutated("perf-stat") | st.binary(max_size=200))
def test_fuzz_mutated_bytes(tmp_path, content):
    path = tmp_path / "perf"
    path.write_bytes(content)
    is_read(path)


FIELD = st.sampled_from(
    [
        *["", "CPU0", "S0", "1", "0.59", "<not counted>", "<not supported>", "msec", "cycles"],
        *[
            "cpu/event=1",
            "umask=2/",
            "100.00",
            "100",
            "5.28%",
            "     0.100165005",
            "summary",
            "x-1",
        ],
    ]
)


@FUZZ
@given(lines=st.lists(st.lists(FIELD, max_size=9), max_size=4), separator=st.sampled_from(",;\t"))
def test_fuzz_fields_in_any_order(tmp_path, lines, separator):
    path = tmp_path / "perf"
    path.write_text("".join(separator.join(fields) + "\n" for fields in lines))
    is_read(path)


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([])
KEYS = ["interval", "cpu", "counter-value", "unit", "event", "event-runtime", "pcnt-running"]


@FUZZ
@given(documents=st.lists(st.dictionaries(st.sampled_from(KEYS), JSON), min_size=1, max_size=3))
def test_fuzz_any_json_value(tmp_path, documents):
    path = tmp_path / "perf"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    is_read(path)


@pytest.mark.parametrize("shape", ["csv", "json"])
@pytest.mark.parametrize(
    ("name", "grouped_by", "intervals"),
    [
        ("aggregate", {None}, 0),
        ("interval", {None}, 3),
        ("per-cpu", {"cpu"}, 0),
        ("per-cpu-interval", {"cpu"}, 2),
        ("socket", {"aggregate", "socket"}, 0),
        ("core-interval", {"aggregate", "core"}, 2),
        ("summary", {None}, 2),
    ],
)
def test_real_files_of_every_shape(shape, name, grouped_by, intervals):
    output = perf_stat.read(READ / f"perf-6.1-{shape}-{name}")
    assert output.shape == shape
    assert output.started is not None
    assert output.grouped_by in grouped_by
    assert intervals <= len(output.intervals) <= intervals + 1
    assert list(dict.fromkeys(line.event for line in output.lines)) == EVENTS
    for line in output.lines:
        missing = line.event in ("cycles", "instructions:u", "LLC-load-misses", "r00c0")
        assert line.missing == ("not supported" if missing else None)
        assert (line.value is None) == missing
        assert line.share == 1
        assert (line.running_ns == 0) == missing


def test_the_same_event_in_csv_and_json_has_the_same_unit():
    units = [
        {line.event: line.unit for line in perf_stat.read(READ / f"perf-6.1-{shape}-user").lines}
        for shape in ("csv", "json")
    ]
    assert units[0] == units[1]
    assert units[0]["task-clock:u"] == "msec"


@pytest.mark.parametrize(
    ("name", "separator"),
    [("semicolon", ";"), ("tab", "\t"), ("bar", "|"), ("semicolon-comma", ";"), ("cgroup", ",")],
)
def test_separators(name, separator):
    output = perf_stat.read(READ / f"perf-6.1-{name}")
    assert output.separator == separator
    assert output.lines[0].value > 0


def test_a_separator_of_ones_own(tmp_path):
    path = tmp_path / "perf"
    path.write_text((READ / "perf-6.1-csv-aggregate").read_text().replace(",", "::"))
    with pytest.raises(TlscostError, match=r"perf:3: .*--separator"):
        perf_stat.read(path)
    assert len(perf_stat.read(path, "::").lines) == len(EVENTS)


def test_a_decimal_comma_is_read_where_it_is_no_separator():
    clock = perf_stat.read(READ / "perf-6.1-semicolon-comma").lines[0]
    assert clock.event == "cpu-clock"
    assert clock.value == pytest.approx(clock.running_ns * 1e-6, rel=0.05)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("perf-6.1-csv-decimal-comma", 3, "LC_ALL=C"),
        ("perf-6.1-json-decimal-comma", 3, "LC_ALL=C"),
        ("cut-in-line-csv", 10, "cut short"),
        ("cut-in-interval-csv", 31, "differ in event"),
        ("two-runs-appended", 11, "--append"),
        ("csv-then-json", 11, "expected"),
        ("programs-output-between", 4, "Running 10s test"),
        ("slash-open", 1, "slash"),
    ],
)
def test_refusals_say_what_is_wrong(name, line, said):
    path = READ.parent / "refused" / name
    with pytest.raises(TlscostError) as caught:
        perf_stat.read(path)
    assert f"{name}:{line}: " in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file():
    with pytest.raises(TlscostError, match="nowhere: cannot be read: No such file"):
        perf_stat.read("nowhere")


KNOWN = perf_events.known_names(
    ["instructions", "instructions:k", "LLC-load-misses", "INST_RETIRED:ANY_P", "context-switches"]
)


@pytest.mark.parametrize(
    ("perf", "name", "mode"),
    [
        ("instructions", "instructions", "uk"),
        ("instructions:u", "instructions", "u"),
        ("instructions:k", "instructions", "k"),
        ("instructions:uk", "instructions", "uk"),
        ("instructions:pp", "instructions", "uk"),
        ("instructions:G", "instructions:G", "uk"),
        ("cpu_core/instructions/", "instructions", "uk"),
        ("cpu_atom/instructions/u", "instructions", "u"),
        ("armv8_pmuv3_0/INSTRUCTIONS/k", "instructions", "k"),
        ("cpu-cycles:u", "cycles", "u"),
        ("branch-instructions", "branches", "uk"),
        ("cs", "context-switches", "uk"),
        ("faults:u", "page-faults", "u"),
        ("llc-load-misses", "LLC-load-misses", "uk"),
        ("inst_retired.any_p:k", "INST_RETIRED:ANY_P", "k"),
        ("INST_RETIRED.ANY", "instructions", "uk"),
        ("armv8_pmuv3/cpu_cycles/k", "cycles", "k"),
        ("r00c0", "r00c0", "uk"),
        ("rC0:u", "r00c0", "u"),
        ("cpu/event=0xc0/", "r00c0", "uk"),
        ("cpu/event=0xc4,umask=0x01/k", "r01c4", "k"),
        ("cpu/event=0xc4,cmask=1/", "event=0xc4,cmask=1", "uk"),
        ("sched:sched_switch", "sched:sched_switch", "uk"),
        ("uncore_imc/cas_count_read/", "uncore_imc/cas_count_read/", "uk"),
        ("task-clock:u", "task-clock", "uk"),
    ],
)
def test_names_and_modes(perf, name, mode):
    event = perf_events.parse(perf, "", KNOWN, {})
    assert (event.name, event.mode, event.void) == (name, mode, None)


@pytest.mark.parametrize(
    ("uarch", "vendor", "code", "name"),
    [
        ("skylake_server", "GenuineIntel", "r00c4", "branches"),
        ("zen3", "AuthenticAMD", "r0076", "cycles"),
        ("neoverse_n1", "ARM", "r0008", "instructions"),
        ("netburst", "GenuineIntel", "r00c0", None),
        ("zen3", "AuthenticAMD", "r003c", None),
    ],
)
def test_raw_codes_of_a_vendor(uarch, vendor, code, name):
    assert perf_events.codes(uarch, vendor).get(code) == name


def test_names_that_the_user_gives_go_first():
    names = {"r00c0": "INST_RETIRED:ANY_P"}
    assert perf_events.parse("r00c0:u", "", KNOWN, names).name == "INST_RETIRED:ANY_P"


def test_kernel_events_without_permission_are_no_zeros():
    """Perf adds `:u` for an ordinary user, and counts none of what happens in the kernel."""
    lines = perf_stat.read(READ / "perf-6.1-csv-user").lines
    [switches] = [line for line in lines if line.event == "context-switches:u"]
    assert switches.value == 0
    assert "always prints 0" in perf_events.parse(switches.event, "", {}, {}).void


def test_units():
    clock = perf_events.parse("task-clock", "msec", {}, {})
    assert (clock.factor, clock.unit) == (1e6, "ns")
    memory = perf_events.parse("uncore_imc/cas_count_read/", "MiB", {}, {})
    assert (memory.factor, memory.unit, memory.of_machine) == (1 << 20, "bytes", True)
    assert memory.name == "memory_read_bytes"
    assert (
        perf_events.parse("uncore_imc_3/data_writes/", "MiB", {}, {}).name == "memory_write_bytes"
    )
    assert perf_events.parse("uncore_imc_0/cas_count_read/", "", {}, {}).unit is None
    energy = perf_events.parse("power/energy-pkg/", "Joules", {}, {})
    assert (energy.factor, energy.unit) == (1, "Joules")
