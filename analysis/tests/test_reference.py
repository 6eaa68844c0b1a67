"""The reference records: whole, of the study, and what the study makes of them."""

import pytest

from tlscost import claims, frame, kant, kant_report, metrics, paths, record

REFERENCE = paths.root() / "data" / "reference"


@pytest.fixture(scope="module")
def tidy():
    return frame.load([REFERENCE])


@pytest.fixture(scope="module")
def ours(tidy):
    return kant.ours(metrics.metrics_of(tidy))


def test_they_are_of_the_study():
    found = [record.read_header(path) for path in frame.record_paths([REFERENCE])]
    assert kant.is_study([REFERENCE])
    assert {header.program.build for header in found} == {"release"}
    simulated = [header.cell for header in found if header.machine is not None]
    points = {(cell.size_bytes, cell.cpus, cell.tls) for cell in simulated}
    assert points == {
        (size, cpus, tls)
        for size in kant.SIZES
        for cpus in kant.CPUS
        for tls in ("off", kant.PROFILE)
    }


def test_a_study_of_them_is_complete(ours):
    wide = kant.wide(ours)
    names = ["path_length", "cpi", "l1i_miss_ratio", "l1d_miss_ratio", "l2_miss_ratio"]
    columns = [f"{name}_{tls}" for name in names for tls in ("on", "off")]
    assert len(wide) == 27  # sizes, CPUs, L2s
    assert wide[columns].notna().all(axis=None)
    assert (wide["path_length_on"] > wide["path_length_off"]).all()


def test_the_figures_have_their_bars(ours):
    for number in kant_report.FIGURES:
        assert len(kant_report.figure(number, ours)) == 18


def test_claims_that_say_why(ours):
    found = claims.judge(claims.read(), kant.theirs(), ours)
    decided = [one for one in found if one.verdict != "undecided"]
    assert len(decided) >= 40
    assert all(one.ours and one.reason for one in decided)
    assert all(one.reason for one in found)
