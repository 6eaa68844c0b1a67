"""Hardware counters end to end, in a guest whose PMU QEMU emulates: nothing else here has one.

There an instruction takes two cycles, always: QEMU's clock goes by instructions (-icount shift=1,
of a processor of 1 GHz).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.pmu_guest import Finished, programs, run_in_guest
from tlscost import cpio, frame, record
from tlscost.metrics import metrics_of
from tlscost.paths import profiles_dir, root

TLS = "tls13-ecdsa-x25519"
CYCLES_PER_INSTRUCTION = 2
COUNTED = "instructions:u,instructions:k,cycles:u,cycles:k"
UNCOUNTED = "cache-misses:u,arm_n1::L1D_CACHE_REFILL:u,arm_n1::STALL_BACKEND:u,arm_n1::STREX_SPEC:u"
CELL = {"machine": "native", "server": "serve", "size_bytes": 36864, "cpus": 1, "load": {}}

PRESETS = "PAPI_TOT_INS:u,PAPI_TOT_INS:k,PAPI_TOT_CYC:u,PAPI_TOT_CYC:k,PAPI_L1_DCM"

# One boot for what asks nothing of another: known loops, then a server under load, which as an
# ordinary user is counted by its processes, so that one CPU is enough for both.
SCRIPT = f"""
export PAPI_CSV_EVENT_FILE=/cell/papi_presets.csv
chmod 777 /out
echo 2 >/proc/sys/kernel/perf_event_paranoid
test_collect_known_loop >/out/loops-root 2>&1 || exit 1
su nobody -c "test_collect_known_loop >/out/loops-user 2>&1" || exit 1
echo 1 >/proc/sys/kernel/perf_event_paranoid
mkdir /tmp/certificate
tlscost-serve --profile /cell/profile.cnf --write-certificate /tmp/certificate || exit 1
chmod -R a+rX /tmp/certificate
cat >/tmp/measure <<'END'
tls=$1 source=$2; shift 2
profile= certificate= url=http://127.0.0.1:8443/36864
if [ $tls != off ]; then
    profile="--profile /cell/profile.cnf" certificate="--certificate /tmp/certificate"
    url=https://127.0.0.1:8443/36864
fi
exec tlscost-collect --record /out/$source-$tls.jsonl --header /cell/$tls.json --source $source \
    --server-cpus 0 --load-cpus 0 --network loopback --connect 127.0.0.1:8443 \
    --idle-s 0.2 --warmup-s 0.2 --window-s 0.5 --completions 5 --sample-ms 50 "$@" \
    -- tlscost-serve --cpu-list 0 --listen 127.0.0.1:8443 --size 36864 $profile $certificate \
    -- tlscost-load --url $url --cpu-list 0 --connections 4 $profile --page {{page}}
END
for tls in off {TLS}; do
    su nobody -c "sh /tmp/measure $tls perf --events {COUNTED} --events {UNCOUNTED}" || exit 1
done
su nobody -c "sh /tmp/measure off papi --events {PRESETS}" || exit 1
"""


def cell_files() -> dict[str, cpio.Entry]:
    """Return what a guest needs to measure a cell."""
    files = programs("test_collect_known_loop", "tlscost-collect", "tlscost-serve", "tlscost-load")
    presets = root() / "data" / "events" / "papi_presets.csv"
    files["cell/papi_presets.csv"] = cpio.file(presets.read_bytes())
    files["cell/profile.cnf"] = cpio.file((profiles_dir() / f"{TLS}.cnf").read_bytes())
    for tls in ("off", TLS):
        files[f"cell/{tls}.json"] = cpio.file(json.dumps({"cell": {**CELL, "tls": tls}}).encode())
    return files


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return what a guest with one CPU left: known loops, records of tlscost-serve under load."""
    done = run_in_guest(tmp_path_factory.mktemp("guest"), SCRIPT, files=cell_files())
    assert done.returncode == 0, done.stdout + done.stderr
    return done


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


# Which of the collector's tests that need a PMU must have run, and not skipped.
LOOPS = {
    "root": [
        "perf_counts_a_process",
        "perf_counts_a_worker",
        "perf_counts_a_cpu",
        "perf_samples_a_cpu",
        "papi_counts_a_process",
        "papi_counts_a_worker",
        "papi_counts_a_cpu",
    ],
    "user": [
        "perf_counts_a_process",
        "papi_counts_a_process",
        "perf_counts_beside_what_it_may_not",
        "papi_counts_beside_what_it_may_not",
    ],
}


@pytest.mark.parametrize(("who", "test"), [(who, it) for who in LOOPS for it in LOOPS[who]])
def test_known_loops_are_counted(measured: Finished, who: str, test: str) -> None:
    said = (measured.out / f"loops-{who}").read_text()
    assert re.search(rf"^\[ +OK \] {test}$", said, re.MULTILINE), said


def counts_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return each event's last count of the server's processes, by "event:mode"."""
    return {
        f"{count.event}:{count.mode}": count.model_dump()
        for window in record.read(path).windows
        for count in window.counts
        if count.source != "proc"
    }


@pytest.mark.parametrize("tls", ["off", TLS])
def test_a_server_is_counted(measured: Finished, tls: str) -> None:
    path = measured.out / f"perf-{tls}.jsonl"
    header = record.read(path).header
    assert header.sources[0]["scope"] == "process"
    assert header.provenance["perf_event_paranoid"] == 1
    counts = counts_of(path)
    for mode in "uk":
        instructions, cycles = counts[f"instructions:{mode}"], counts[f"cycles:{mode}"]
        assert instructions["status"] == "ok"
        assert instructions["origin"] == "counted"
        assert instructions["enabled_ns"] == instructions["running_ns"]
        ratio = cycles["raw"] / instructions["raw"]
        assert ratio == pytest.approx(CYCLES_PER_INSTRUCTION, rel=0.01)


@pytest.mark.parametrize("tls", ["off", TLS])
def test_what_the_pmu_lacks_is_null_with_the_reason(measured: Finished, tls: str) -> None:
    counts = counts_of(measured.out / f"perf-{tls}.jsonl")
    for name, why in {
        "cache-misses:u": "no PMU here counts",
        "arm_n1::L1D_CACHE_REFILL:u": "does not count arm_n1::L1D_CACHE_REFILL",
        "arm_n1::STALL_BACKEND:u": "emulated PMU",
        "arm_n1::STREX_SPEC:u": "emulated PMU",
    }.items():
        assert counts[name]["status"] == "unsupported"
        assert counts[name]["raw"] is counts[name]["corrected"] is None
        assert why in counts[name]["reason"]


def test_records_become_metrics(measured: Finished) -> None:
    paths = measured.out.glob("perf-*.jsonl")
    table = metrics_of(frame.load(paths)).set_index(["tls", "metric"])

    def figure(tls: str, metric: str) -> pd.Series[Any]:
        return table.loc[(tls, metric)]

    for tls in ("off", TLS):
        for metric in ("path_length", "cpi"):
            found = figure(tls, metric)
            assert found["value"] > 0
            assert (found["origin"], found["source"]) == ("counted", "perf")
        assert figure(tls, "cpi")["value"] == pytest.approx(CYCLES_PER_INSTRUCTION, rel=0.01)
        assert pd.isna(figure(tls, "llc_misses")["value"])
        assert figure(tls, "llc_misses")["reason"]
    assert figure(TLS, "path_length")["value"] > 5 * figure("off", "path_length")["value"]


def test_papi_counts_what_perf_counts(measured: Finished) -> None:
    def figures(source: str) -> pd.DataFrame:
        path = measured.out / f"{source}-off.jsonl"
        assert record.read(path).header.sources[0]["name"] == source
        return metrics_of(frame.load([path])).set_index("metric")

    perf, papi = figures("perf"), figures("papi")
    for metric, within in {"path_length": 0.02, "cpi": 0.01, "kernel_share": 0.02}.items():
        assert papi.loc[metric, "origin"] == "counted"
        assert papi.loc[metric, "source"] == "papi"
        value = float(papi["value"][metric])
        assert value == pytest.approx(float(perf["value"][metric]), rel=within), metric
    assert pd.isna(papi.loc["l1d_misses", "value"])
    assert "L1D_CACHE_REFILL" in papi.loc["l1d_misses", "reason"]


CPU_SCRIPT = f"""
tlscost-collect --record /out/r.jsonl --header /cell/off.json \
    --server-cpus 0 --load-cpus 1 --network veth --connect 198.18.0.1:8443 \
    --idle-s 0.2 --warmup-s 0.2 --window-s 0.5 --completions 5 --sample-ms 50 --events {COUNTED} \
    -- tlscost-serve --cpu-list 0 --listen 198.18.0.1:8443 --size 36864 \
    -- tlscost-load --url http://198.18.0.1:8443/36864 --cpu-list 1 --connections 4 --page {{page}}
"""


def test_whole_cpus_are_counted_and_sampled(tmp_path: Path) -> None:
    """As root: the server's CPU, apart from the load's; in kernel mode the guest cannot tell."""
    done = run_in_guest(tmp_path, CPU_SCRIPT, files=cell_files(), cpus=2)
    assert done.returncode == 0, done.stderr
    path = done.out / "r.jsonl"
    whole = record.read(path)
    assert whole.header.sources[0]["scope"] == "cpu"
    (window,) = whole.windows
    counts = counts_of(path)
    user = counts["instructions:u"]
    assert (user["cpu"], user["status"], user["origin"]) == (0, "ok", "counted")
    assert counts["cycles:u"]["raw"] == pytest.approx(2 * user["raw"], rel=0.01)
    assert window.samples is not None
    assert window.samples["how"] == "ring"
    sampled = window.samples["counts"]["0"]
    assert len(sampled["t_ns"]) >= 10
    for name, count in counts.items():
        if name in sampled:
            assert sampled[name] == sorted(sampled[name])
            assert sampled[name][-1] == count["raw"]
    assert set(COUNTED.split(",")) <= set(sampled)
