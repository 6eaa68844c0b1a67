"""The metric dictionary: detection, formulas with answers worked out by hand, passes, the check."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pandas as pd
import pytest

from tests.dictionary_answers import ANSWERS, COUNTS, METRICS
from tests.test_doctor import quiet_machine
from tlscost import dictionary, dictionary_check, passes
from tlscost.dictionary_table import BEGIN, END, markdown
from tlscost.errors import TlscostError
from tlscost.paths import program, root
from tlscost.probe import Probe
from tlscost.uarch import Counters

UARCHES = dictionary.microarchitectures()
QEMU = {"i386": "qemu-i386", "arm64": "qemu-aarch64"}


def test_the_microarchitectures_are_those_promised():
    assert set(UARCHES) == set(COUNTS)
    assert len(UARCHES) >= 24


@pytest.mark.parametrize("name", UARCHES)
def test_formulas_give_the_answers_worked_out_by_hand(name):
    anchor = next(iter(COUNTS[name]))  # the instructions
    counts = {**COUNTS[name], f"{anchor}:u": 600_000, f"{anchor}:k": 400_000}
    expected = {**METRICS, **ANSWERS.get(name, {})}
    seen = set()
    for formula in dictionary.load(name):
        if formula.formula is None:
            assert formula.name not in ANSWERS.get(name, {}), formula.name
            continue
        missing = set(formula.events) - set(counts)
        assert not missing, f"{formula.name}: no count of {missing}"
        value = formula.evaluate(pd.DataFrame([counts])).iloc[0]
        assert value == pytest.approx(expected[formula.name], rel=1e-12), formula.name
        seen |= set(formula.events)
    assert {event for event in counts if not event.endswith((":u", ":k"))} <= seen


@pytest.mark.parametrize("name", UARCHES)
def test_every_event_is_encoded_by_libpfm4(name):
    uarch = dictionary.microarchitecture(name)
    if uarch.tables in QEMU and shutil.which(QEMU[uarch.tables]) is None:
        pytest.skip(f"{QEMU[uarch.tables]} is not installed")
    if uarch.tables == "arm64" and shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    found = dictionary_check.encodings(name)
    assert {pmu for pmu, _ in found} == set(uarch.pmu)
    assert {key: one.error for key, one in found.items() if one.error} == {}
    assert all(one.config is not None for one in found.values())


@pytest.mark.parametrize(
    ("name", "pmu", "event", "config"),
    [  # event and unit mask by the vendors' manuals
        ("p6", "p6", "DCU_LINES_IN", 0x45),
        ("p6", "ppro", "IFU_IFETCH_MISS", 0x81),
        ("nehalem", "nhm", "L2_RQSTS:LD_MISS", 0x0224),
        ("skylake_server", "skx", "L1D:REPLACEMENT", 0x0151),
        ("skylake_server", "skx", "LONGEST_LAT_CACHE:MISS", 0x412E),
        ("zen3", "amd64_fam19h_zen3", "RETIRED_BRANCH_INSTRUCTIONS_MISPREDICTED", 0xC3),
        ("neoverse_n1", "arm_n1", "L2D_CACHE_REFILL", 0x17),
    ],
)
def test_encodings_are_those_of_the_manuals(name, pmu, event, config):
    tables = dictionary.microarchitecture(name).tables
    if tables == "arm64" and shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    found = dictionary_check.encodings(name)[pmu, event].config
    assert found is not None
    assert found & 0xFFFF == config


def test_the_check_finds_nothing_wrong(capsys):
    report = dictionary_check.check(UARCHES)
    with capsys.disabled():
        print(f"\ndictionary: {report.summary}")
    assert report.failures == []
    assert report.formulas == report.evaluations >= 20 * len(UARCHES)


@pytest.mark.parametrize(
    ("quantity", "problem"),
    [
        ('events = "`L1D:NO_SUCH_MASK`"\nquality = "exact"', "NO_SUCH_MASK"),
        ('events = "cycles * cycles"\nquality = "exact"', "not linear"),
        ('events = "cycles + 1000"\nquality = "exact"', "not linear"),
    ],
)
def test_the_check_finds_what_is_wrong(broken, quantity, problem):
    text = (broken / "skylake_server.toml").read_text()
    text += f'\n[quantity.l1d_misses]\n{quantity}\nwhy = "test"\n'
    (broken / "skylake_server.toml").write_text(text)
    report = dictionary_check.check(["skylake_server"])
    assert any(problem in failure for failure in report.failures), report.failures


@pytest.mark.parametrize(
    ("name", "unit"),
    [("cpi", "cycles/op"), ("llc_misses", "1"), ("core_memory_traffic", "misses/op")],
)
def test_the_check_finds_a_wrong_unit(broken, name, unit):
    path = broken / "common.toml"
    given = re.compile(rf'(name = "{name}"\nformula = .*\nunit = )".*"')
    path.write_text(given.sub(rf'\1"{unit}"', path.read_text()))
    failures = dictionary_check.check([]).failures
    assert [name in failure for failure in failures] == [True]


def test_the_check_finds_too_much_undefined(broken):
    text = (broken / "cascade_lake.toml").read_text()
    for quantity in ["l1i_misses", "l1d_misses", "llc_misses"]:
        text += f'\n[quantity.{quantity}]\nquality = "undefined"\nwhy = "test"\n'
    (broken / "cascade_lake.toml").write_text(text)
    assert any("undefined" in one for one in dictionary_check.check(["cascade_lake"]).failures)


def test_an_unknown_quantity_is_an_error(broken):
    with (broken / "zen1.toml").open("a") as file:
        file.write('\n[quantity.l9_misses]\nevents = "cycles"\nquality = "exact"\nwhy = "test"\n')
    with pytest.raises(TlscostError, match=r"zen1\.toml: \[quantity\.l9_misses\]: expected one of"):
        dictionary.load("zen1")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Give a copy of the files that may be broken."""
    shutil.copytree(root() / "data" / "events", tmp_path / "data" / "events")
    monkeypatch.setattr(dictionary.paths, "root", lambda: tmp_path)
    caches = [dictionary.load, dictionary.quantities, dictionary.common]
    caches += [dictionary.microarchitectures, dictionary._file]
    for one in caches:
        one.cache_clear()
    yield tmp_path / "data" / "events"
    for one in caches:
        one.cache_clear()


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        (("GenuineIntel", "6", "8", "3"), "p6"),
        (("GenuineIntel", "6", "13", "8"), "pentium_m"),
        (("GenuineIntel", "15", "4", "3"), "netburst"),
        (("GenuineIntel", "6", "23", "10"), "core"),
        (("GenuineIntel", "6", "26", "5"), "nehalem"),
        (("GenuineIntel", "6", "44", "2"), "westmere"),
        (("GenuineIntel", "6", "63", "2"), "haswell"),
        (("GenuineIntel", "6", "85", "4"), "skylake_server"),
        (("GenuineIntel", "6", "85", "7"), "cascade_lake"),
        (("GenuineIntel", "6", "106", "6"), "ice_lake_server"),
        (("GenuineIntel", "6", "143", "8"), "sapphire_rapids"),
        (("GenuineIntel", "6", "94", "3"), None),
        (("AuthenticAMD", "15", "65", "2"), "k8"),
        (("AuthenticAMD", "16", "4", "2"), "family_10h"),
        (("AuthenticAMD", "23", "1", "2"), "zen1"),
        (("AuthenticAMD", "23", "49", "0"), "zen2"),
        (("AuthenticAMD", "25", "1", "1"), "zen3"),
        (("AuthenticAMD", "25", "17", "1"), "zen4"),
        (("AuthenticAMD", "26", "2", "1"), None),
        (("HygonGenuine", "24", "0", "1"), None),
    ],
)
def test_x86_is_recognised_by_family_model_and_stepping(identity, name):
    keys = ("vendor_id", "cpu family", "model", "stepping")
    assert dictionary.recognise(dict(zip(keys, identity, strict=True))) == name


@pytest.mark.parametrize(
    ("implementer", "part", "name"),
    [
        ("0x41", "0xd0c", "neoverse_n1"),
        ("0x41", "0xd40", "neoverse_v1"),
        ("0x41", "0xd49", "neoverse_n2"),
        ("0x41", "0xd08", "cortex_a72"),
        ("0x41", "0xd03", None),
        ("0x48", "0xd0c", None),
    ],
)
def test_arm_is_recognised_by_part(implementer, part, name):
    assert dictionary.recognise({"CPU implementer": implementer, "CPU part": part}) == name


def test_what_is_not_known_is_the_kernels_and_approximate():
    assert dictionary.recognise({}) is None
    assert dictionary.files_for("native", None)[-1] == dictionary.KERNEL
    qualities = {one.quality for one in dictionary.load(dictionary.KERNEL)}
    assert qualities == {"approximate", "undefined"}


def test_what_a_file_calls_undefined_has_no_alternative():
    formulas = dictionary.formulas(dictionary.files_for("native", "sapphire_rapids"))
    assert [one.quality for one in formulas if one.name == "l1i_miss_ratio"] == ["undefined"]
    assert [one.quality for one in formulas if one.name == "cpi"] == ["exact", "approximate"]


def test_counters_that_fit():
    p6 = Counters(general=2, watchdog="cycles")
    assert passes.fits(["a", "b"], p6, smt=False, watchdog=False)
    assert not passes.fits(["a", "b"], p6, smt=False, watchdog=True)
    assert not passes.fits(["a", "b:u", "b:k"], p6, smt=False, watchdog=False)
    intel = Counters(
        general=4, general_without_smt=8, fixed=("instructions", "cycles"), watchdog="cycles"
    )
    four = ["a", "b", "c", "d"]
    assert passes.fits(["instructions", "cycles", *four], intel, smt=True, watchdog=False)
    assert not passes.fits(["instructions", "cycles", *four], intel, smt=True, watchdog=True)
    assert passes.fits(["instructions", *four], intel, smt=True, watchdog=True)
    assert passes.fits(["instructions", "cycles", *four], intel, smt=False, watchdog=True)
    apart = ["instructions:u", "instructions:k", "cycles:u", "cycles:k"]
    assert passes.fits([*apart, "a", "b"], intel, smt=True, watchdog=False)
    assert not passes.fits([*apart, "a", "b", "c"], intel, smt=True, watchdog=False)


@pytest.mark.parametrize("name", UARCHES)
def test_passes_have_the_anchor_and_keep_metrics_together(name):
    counters = dictionary.microarchitecture(name).counters
    planned = passes.of_microarchitecture(name, smt=True, watchdog=False)
    for one in planned:
        names = {dictionary.split_mode(event)[0] for event in one}
        room = passes.fits([*one, "instructions"], counters, smt=True, watchdog=False)
        assert "instructions" in names or not room, one
    for formula in dictionary.load(name):
        if passes.fits(["instructions", *formula.events], counters, smt=True, watchdog=False):
            apart = [event for event in formula.events if event.endswith((":u", ":k"))]
            holding = [one for one in planned if set(apart) <= set(one)]
            assert holding, formula.name


@pytest.mark.parametrize("name", ["p6", "netburst", "skylake_server", "zen1", "neoverse_n2"])
def test_the_collector_takes_every_set(name):
    argv = [str(program("tlscost-collect")), "--probe"]
    for one in passes.of_microarchitecture(name, smt=True, watchdog=True):
        argv += ["--events", ",".join(one)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    tried = json.loads(done.stdout)["sources"][0]["events"]
    assert {event["event"] for event in tried} >= set(COUNTS[name]) - {"BUS_DRDY_CLOCKS"}


def test_run_takes_the_passes_of_this_machine_where_a_pmu_counts(monkeypatch):
    found = quiet_machine()
    monkeypatch.setattr(passes.probe, "run", lambda _events: Probe.model_validate(found))
    passes.here.cache_clear()
    first, *others = passes.here()
    assert "L1D:REPLACEMENT" in ",".join([first, *others])
    assert first.endswith("minor-faults,major-faults")
    assert all(len(one.split(",")) <= 2 + 8 for one in others)  # SMT is off there
    found["pmu"] |= {"present": False, "reason": "test"}
    passes.here.cache_clear()
    assert passes.here() == ()
    passes.here.cache_clear()


def test_the_table_of_the_documentation_is_made_from_the_files():
    text = (root() / "docs" / "metrics.md").read_text(encoding="utf-8")
    shown = text.partition(f"{BEGIN}\n")[2].partition(END)[0]
    assert shown == markdown(), "make it again: ./tlscost events --table"
