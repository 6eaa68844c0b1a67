"""doctor on a machine with a PMU, whose kernel.perf_event_paranoid is ours to set: the arm64 guest.

There is no Python in it: the collector tells the facts there, and they are judged here.
"""

from __future__ import annotations

import pytest

from tests.pmu_guest import programs, run_in_guest
from tlscost import doctor
from tlscost.probe import read

LEVELS = ("3", "2", "1", "0", "-1")
USERS = ("root", "nobody")
NEOVERSE_N1 = {"CPU implementer": "0x41", "CPU part": "0xd0c"}

Diagnoses = dict[tuple[str, str], doctor.Diagnosis]


@pytest.fixture(scope="module")
def diagnoses(tmp_path_factory: pytest.TempPathFactory) -> Diagnoses:
    """One boot: by user and level."""
    sets = ",".join(doctor.events(doctor.formulas(NEOVERSE_N1)))
    probe = f"/bin/tlscost-collect --probe --events '{sets}'"
    script = "".join(
        f"echo {level} >/proc/sys/kernel/perf_event_paranoid\n"
        f"{probe} >/out/root{level} || exit\n"
        f'su nobody -c "{probe}" >/out/nobody{level} || exit\n'
        for level in LEVELS
    )
    directory = tmp_path_factory.mktemp("doctor")
    done = run_in_guest(directory, script, files=programs("tlscost-collect"))
    assert (done.returncode, done.stderr) == (0, "")
    return {
        (user, level): doctor.diagnose(read(done.out / f"{user}{level}"))
        for user in USERS
        for level in LEVELS
    }


def found(diagnosis: doctor.Diagnosis) -> dict[str, str]:
    return {finding.id: finding.severity for finding in diagnosis.findings}


def qualities(diagnosis: doctor.Diagnosis) -> dict[str, str]:
    return {metric.metric: metric.quality for metric in diagnosis.metrics}


@pytest.mark.parametrize("level", LEVELS)
def test_root_counts_whole_cpus_at_every_level(diagnoses: Diagnoses, level: str) -> None:
    said = diagnoses["root", level]
    assert (said.pmu_present, said.pmu_reason, said.hypervisor) == (True, None, "QEMU")
    assert said.counters
    assert "perf-permission" not in found(said)
    assert ("perf-open-to-all" in found(said)) == (level == "-1")
    assert {qualities(said)[name] for name in ("path_length", "cpi", "kernel_share")} == {"exact"}
    # QEMU's PMU has no such event: not 0.
    assert qualities(said)["llc_misses"] == "undefined"


@pytest.mark.parametrize(
    ("level", "permission", "path_length", "faults"),
    [
        ("3", "error", "not permitted", "not permitted"),
        ("2", "warning", "not permitted", "not permitted"),
        ("1", "warning", "exact", "exact"),
        ("0", None, "exact", "exact"),
        ("-1", None, "exact", "exact"),
    ],
)
def test_what_an_ordinary_user_may_depends_on_the_level(
    diagnoses: Diagnoses, level: str, permission: str | None, path_length: str, faults: str
) -> None:
    said = diagnoses["nobody", level]
    assert said.pmu_present
    assert found(said).get("perf-permission") == permission
    assert (qualities(said)["path_length"], qualities(said)["page_faults"]) == (path_length, faults)
    assert qualities(said)["throughput"] == "exact"
    assert "network-namespaces" in found(said)
    (remedy,) = {
        finding.remedy for finding in said.findings if finding.id == "perf-permission"
    } or {None}
    assert remedy == (permission and "sudo sysctl kernel.perf_event_paranoid=0")
    assert ("perf-open-to-all" in found(said)) == (level == "-1")
