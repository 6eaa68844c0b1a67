"""Hardware counters end to end, in a guest whose PMU QEMU emulates."""

from __future__ import annotations

from pathlib import Path

from tests.pmu_guest import run_in_guest


def test_a_script_runs_and_what_it_leaves_comes_back(tmp_path: Path) -> None:
    done = run_in_guest(
        tmp_path,
        "cat /sys/bus/event_source/devices/armv8_pmuv3/events/inst_retired\n"
        "echo 1 >/proc/sys/kernel/perf_event_paranoid\n"
        "su nobody -c 'cat /proc/sys/kernel/perf_event_paranoid; id -u; echo no >&2; exit 7'\n"
        "code=$?; echo left >/out/behind; exit $code\n",
    )
    assert done.stdout == "event=0x0008\n1\n65534\n"
    assert done.stderr == "no\n"
    assert done.returncode == 7
    assert (done.out / "behind").read_text() == "left\n"
