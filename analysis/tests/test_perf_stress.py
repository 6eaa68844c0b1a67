"""Counters under stress, in the guest with a PMU: too many events, another's, CPUs that go away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pmu_guest import Finished, programs, run_in_guest
from tlscost import doctor
from tlscost.probe import read

FEW = "instructions:u,instructions:k,cycles:u,cycles:k"
ALL_COUNTERS = f"{FEW},instructions,cycles"
# QEMU's processor has 6 counters for these and one for cycles alone.
MANY = (
    f"{ALL_COUNTERS},arm_n1::CPU_CYCLES:u,arm_n1::CPU_CYCLES:k,arm_n1::INST_RETIRED:u,"
    "arm_n1::INST_RETIRED:k,arm_n1::INST_RETIRED,arm_n1::CPU_CYCLES"
)
SAMPLE = "tlscost-collect --sample-only"
ONLINE = "/sys/devices/system/cpu/cpu1/online"
SCRIPT = f"""
{SAMPLE} --cpus 0 --duration-s 1 --record /out/many.jsonl --events {MANY} || exit

{SAMPLE} --cpus 0 --duration-s 6 --record /out/other.jsonl --events {ALL_COUNTERS} &
other=$!
sleep 1
{SAMPLE} --cpus 0 --duration-s 2 --record /out/shared.jsonl --events {FEW} || exit
wait $other || exit

for back in no yes; do
    {SAMPLE} --cpus 1 --duration-s 2 --record /out/$back.jsonl --events {FEW} 2>/out/$back &
    taken=$!
    sleep 1
    echo 0 >{ONLINE}
    test $back = no || echo 1 >{ONLINE}
    wait $taken
    echo $? >>/out/$back
    test $back = yes || {{
        {SAMPLE} --cpus 1 --record /out/x.jsonl 2>/out/offline
        echo $? >>/out/offline
        tlscost-collect --probe >/out/probe || exit
        echo 1 >{ONLINE}
    }}
done
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """All of it in one boot, of two CPUs."""
    directory = tmp_path_factory.mktemp("stress")
    done = run_in_guest(directory, SCRIPT, files=programs("tlscost-collect"), cpus=2)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def samples(record: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, record.read_text().splitlines())
    return [line for line in lines if line["type"] == "sample"]


def counts(record: Path) -> list[dict[str, Any]]:
    """All passes' counts by perf."""
    return [
        count for line in samples(record) for count in line["counts"] if count["source"] == "perf"
    ]


def test_more_events_than_counters_become_passes(guest: Finished) -> None:
    record = guest.out / "many.jsonl"
    passes = [{(c["event"], c["mode"]) for c in line["counts"]} for line in samples(record)]
    assert len(passes) > 1
    anchors = {("instructions", mode) for mode in ("u", "k", "uk")}
    assert all(counted & anchors for counted in passes)
    taken = counts(record)
    assert {count["event"] for count in taken} >= {"arm_n1::CPU_CYCLES", "arm_n1::INST_RETIRED"}
    for count in taken:
        assert (count["status"], count["origin"]) == ("ok", "counted")
        assert count["running_ns"] == count["enabled_ns"] > 0
        assert count["raw"] > 0


@pytest.mark.parametrize("name", ["shared", "other"])
def test_counts_beside_anothers_are_scaled_and_say_so(guest: Finished, name: str) -> None:
    taken = counts(guest.out / f"{name}.jsonl")
    assert taken
    for count in taken:
        assert count["running_ns"] < count["enabled_ns"]
        if count["status"] == "ok":
            assert (count["origin"], count["reason"]) == ("scaled", None)
        else:
            assert count["raw"] is None
            assert "another program" in count["reason"]


@pytest.mark.parametrize("back", ["no", "yes"])
def test_a_cpu_that_goes_away_ends_the_measurement(guest: Finished, back: str) -> None:
    *said, code = (guest.out / back).read_text().splitlines()
    assert code == "1"
    assert "CPU 1" in said[-1]
    assert "offline" in said[-1]
    assert not (guest.out / f"{back}.jsonl").exists()
    # What is left holds no count of the window that was cut.
    assert samples(guest.out / f"{back}.jsonl.partial") == []


def test_an_offline_cpu_is_bad_input_and_a_finding(guest: Finished) -> None:
    said, code = (guest.out / "offline").read_text().splitlines()
    assert code == "2"
    assert "CPU 1 is not online" in said
    findings = {
        finding.id: finding for finding in doctor.diagnose(read(guest.out / "probe")).findings
    }
    assert "cpu1/online" in findings["cpus"].remedy
