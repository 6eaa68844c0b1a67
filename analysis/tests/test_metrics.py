import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from synthetic import (
    SECOND,
    count,
    encode,
    histogram,
    idle,
    simulated_header,
    simulated_window,
    window,
    write,
)

from tlscost import dictionary, frame, metrics, paths
from tlscost.errors import TlscostError


def table(tmp_path):
    return metrics.metrics_of(frame.load([tmp_path])).set_index("metric")


# 1000 transactions in 1 s, the CPU idle for 0.25 s; 3e8 instructions, 6e8 cycles.
KNOWN = {
    "throughput": (1000, "transactions/s"),
    "utilisation": (0.75, "1"),
    "scaled_throughput": (1000 / 0.75, "transactions/s"),
    "transaction_time": (0.75, "ms"),
    "cpu_time": (0.75, "ms/op"),
    "kernel_time_share": (0.5 / 0.75, "1"),
    "path_length": (300_000, "instructions/op"),
    "cycles": (600_000, "cycles/op"),
    "cpi": (2, "cycles/instruction"),
    "kernel_share": (1 / 3, "1"),
    "context_switches": (3, "1/op"),
    "interrupts": (5, "1/op"),
    "network_sent": (38_000, "bytes/op"),
    "network_received": (1000, "bytes/op"),
    "retransmits": (0.01, "1/op"),
    "memory_available": (4 << 30, "bytes"),
    "server_memory": (5 << 20, "bytes"),
    "disk_queue": (0, "requests"),
    "errors_timeout": (0.002, "1/op"),
    "errors_reset": (0, "1/op"),
}


@pytest.mark.parametrize("windows", [1, 3])
def test_known_answers_do_not_depend_on_the_number_of_windows(tmp_path, windows):
    write(tmp_path / "a.jsonl", [window(index=index) for index in range(windows)])
    found = table(tmp_path)
    for name, (value, unit) in KNOWN.items():
        assert found.loc[name, "value"] == pytest.approx(value), name
        assert found.loc[name, "unit"] == unit


def test_latencies_merge_the_windows_of_a_run(tmp_path):
    parts = np.array_split(np.arange(1_000_000, 2_000_000, 1000), 2)
    windows = [
        window(latency={"first_byte": histogram(map(int, part)), "handshake": None})
        for part in parts
    ]
    write(tmp_path / "a.jsonl", windows)
    found = table(tmp_path)
    for name, value in {"p50": 1.5, "p90": 1.9, "p99": 1.99, "p99.9": 1.999, "mean": 1.5}.items():
        assert found.loc[f"latency_first_byte_{name}", "value"] == pytest.approx(value, rel=2e-3)
    handshake = found.loc["latency_handshake_p50"]
    assert pd.isna(handshake["value"])
    assert handshake["reason"] == "no handshake was timed"


def test_broken_histogram_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [window(latency={"connect": "HISTFAAAAbroken"})])
    with pytest.raises(TlscostError, match="latency_connect: not a histogram") as caught:
        metrics.metrics_of(frame.load([path]))
    assert str(path) in str(caught.value)


def test_interval_is_scipys_over_runs_not_windows(tmp_path):
    transactions = [900, 1000, 1150]
    for repetition, number in enumerate(transactions):
        windows = [window(transactions=number), window(transactions=number, index=1)]
        write(tmp_path / f"{repetition}.jsonl", windows, repetition=repetition)
    row = table(tmp_path).loc["throughput"]
    expected = stats.t.interval(0.95, 2, loc=np.mean(transactions), scale=stats.sem(transactions))
    assert (row["low"], row["high"]) == pytest.approx(expected)
    assert row["value"] == pytest.approx(np.mean(transactions))
    assert row["n"] == 3
    assert row["reason"] is None or pd.isna(row["reason"])


def test_one_run_has_no_interval_and_says_so(tmp_path):
    write(tmp_path / "a.jsonl")
    row = table(tmp_path).loc["throughput"]
    assert row["value"] == 1000
    assert pd.isna(row["low"])
    assert pd.isna(row["high"])
    assert row["n"] == 1
    assert row["reason"] == "one run: no interval"


def test_what_was_not_counted_is_null_with_the_records_reason(tmp_path):
    counts = [count("instructions", mode, None) for mode in "uk"]
    write(tmp_path / "a.jsonl", [window(counts=counts)])
    found = table(tmp_path)
    for name in ["path_length", "cpi", "kernel_share"]:
        assert pd.isna(found.loc[name, "value"])
        assert found.loc[name, "n"] == 0
    assert found.loc["path_length", "reason"] == "instructions: this machine shows no PMU"
    assert found.loc["cycles", "reason"] == "cycles: in no pass of the record"
    assert found.loc["throughput", "value"] == 1000


def test_user_alone_is_not_a_total(tmp_path):
    counts = [count("instructions", "u", 1e8), count("instructions", "k", None)]
    write(tmp_path / "a.jsonl", [window(counts=counts)])
    assert pd.isna(table(tmp_path).loc["path_length", "value"])


def test_a_cpu_without_a_count_makes_the_sum_null(tmp_path):
    cpus = [dict(window()["cpus"][0], cpu=cpu) for cpu in (0, 1)]
    counts = [count("instructions", "uk", 1e8), count("instructions", "uk", None, cpu=1)]
    write(tmp_path / "a.jsonl", [window(cpus=cpus, counts=counts)], cpus=2)
    found = table(tmp_path)
    assert pd.isna(found.loc["path_length", "value"])
    assert found.loc["utilisation", "value"] == 0.75
    assert found.loc["cpu_time", "value"] == pytest.approx(1.5)
    assert found.loc["transaction_time", "value"] == pytest.approx(0.75)


def test_passes_take_the_transactions_of_their_own_windows(tmp_path):
    windows = [
        window(counts=[count("instructions", "uk", 1e8)], transactions=1000),
        window(counts=[count("cycles", "uk", 4e8)], transactions=2000, **{"pass": 1}),
    ]
    write(tmp_path / "a.jsonl", windows)
    found = table(tmp_path)
    assert found.loc["path_length", "value"] == pytest.approx(1e5)
    assert found.loc["cycles", "value"] == pytest.approx(2e5)
    assert found.loc["cpi", "value"] == pytest.approx(2)
    assert found.loc["throughput", "value"] == pytest.approx(1500)


def overlapping(head):
    head["placement"] |= {"overlap": True, "reason": "2 CPUs on a machine of 2"}


def test_overlap_leaves_throughput_and_takes_per_op_figures(tmp_path):
    counts = [count("instructions", "u", None, status="overlap", reason="2 CPUs on a machine of 2")]
    write(tmp_path / "a.jsonl", [window(counts=counts)], edit=overlapping)
    found = table(tmp_path)
    for name in ["scaled_throughput", "transaction_time", "cpu_time", "path_length", "interrupts"]:
        assert pd.isna(found.loc[name, "value"]), name
        assert found.loc[name, "reason"] == "2 CPUs on a machine of 2"
    assert found.loc["throughput", "value"] == 1000
    assert found.loc["utilisation", "value"] == 0.75
    assert found.loc["latency_first_byte_p50", "value"] > 0


def test_a_process_trees_counts_are_its_own_on_shared_cpus(tmp_path):
    counts = [count("instructions", "uk", 1e8, cpu=None), count("cycles", "uk", 2e8, cpu=None)]
    write(tmp_path / "a.jsonl", [window(counts=counts)], edit=overlapping)
    found = table(tmp_path)
    assert found.loc["path_length", "value"] == pytest.approx(1e5)
    assert found.loc["cpi", "value"] == pytest.approx(2)
    assert found.loc["path_length", "origin"] == "counted"
    for name in ["cpu_time", "scaled_throughput", "interrupts"]:
        assert pd.isna(found.loc[name, "value"]), name
        assert found.loc[name, "reason"] == "2 CPUs on a machine of 2"


def test_origin_is_the_least_direct_of_the_inputs(tmp_path):
    counts = [
        count("cycles", "uk", 1e8, origin="scaled"),
        count("instructions", "uk", 1e8),
        count("ref_cycles", "uk", 2e8, origin="derived", source="proc"),
    ]
    write(tmp_path / "a.jsonl", [window(counts=counts)])
    found = table(tmp_path)
    assert found.loc["cpi", "origin"] == "scaled"
    assert found.loc["path_length", "origin"] == "counted"
    assert found.loc["ref_cycles", "origin"] == "derived"
    assert found.loc["ref_cycles", "value"] == pytest.approx(2e5)
    assert found.loc["ref_cycles", "source"] == "proc"


def test_the_better_alternative_is_taken_where_it_was_counted(tmp_path):
    write(tmp_path / "a.jsonl", [window(counts=[count("context-switches", "uk", 2000)])])
    row = table(tmp_path).loc["context_switches"]
    assert (row["value"], row["quality"], row["source"]) == (2, "exact", "perf")


def test_nothing_completed(tmp_path):
    write(tmp_path / "a.jsonl", [window(transactions=0, latency={})])
    found = table(tmp_path)
    assert found.loc["throughput", "value"] == 0
    assert pd.isna(found.loc["path_length", "value"])
    assert "no transaction completed" in found.loc["path_length", "reason"]
    assert "no transaction completed" in found.loc["errors_timeout", "reason"]


def test_memory_variation(tmp_path):
    system = window()["system"]
    windows = [window(system=system | {"mem_available_bytes": value}) for value in (90, 110)]
    write(tmp_path / "a.jsonl", windows)
    found = table(tmp_path)
    assert found.loc["memory_available", "value"] == 100
    assert found.loc["memory_variation", "value"] == pytest.approx(np.std([90, 110], ddof=1) / 100)


def test_cells_are_apart_and_json_has_nulls(tmp_path):
    write(tmp_path / "a.jsonl", tls="off")
    write(tmp_path / "b.jsonl", tls="on")
    rows = metrics.to_json(metrics.metrics_of(frame.load([tmp_path])))
    tls = [row["cell"]["tls"] for row in rows]
    assert tls == sorted(tls)
    assert set(tls) == {"off", "on"}
    assert set(rows[0]) == {
        *("cell", "variant", "metric", "value", "low", "high", "n", "unit"),
        *("quality", "origin", "source", "reason"),
    }
    document = json.loads(json.dumps(rows, allow_nan=False))
    assert next(row for row in document if row["metric"] == "cpi")["low"] is None


@settings(max_examples=10)
@given(
    idle=st.integers(0, SECOND - 1),
    transactions=st.integers(1, 10**6),
    instructions=st.floats(1, 1e12),
)
def test_identities(tmp_path_factory, idle, transactions, instructions):
    path = tmp_path_factory.mktemp("identities")
    cpu = window()["cpus"][0] | {"idle_ns": idle}
    counts = [count("instructions", "uk", instructions), count("cycles", "uk", 3e9)]
    write(path / "a.jsonl", [window(cpus=[cpu], transactions=transactions, counts=counts)])
    value = table(path)["value"]
    assert value["scaled_throughput"] * value["transaction_time"] == pytest.approx(1000)
    assert value["path_length"] * value["cpi"] == pytest.approx(value["cycles"])
    assert value["scaled_throughput"] * value["utilisation"] == pytest.approx(value["throughput"])


@pytest.mark.parametrize(
    "formula",
    ["__import__('os')", "cycles.sum()", "cycles[0]", "a = b", "1 + 2", "a b", "@x", "a;b"],
)
def test_formulas_can_only_do_arithmetic(formula):
    with pytest.raises(ValueError, match="formula"):
        dictionary.Formula(name="x", formula=formula, unit="1", quality="exact", why="test")


def test_every_formula_of_the_dictionary_evaluates():
    for formula in dictionary.formulas([dictionary.KERNEL, dictionary.GENERIC]):
        if formula.formula is None:
            continue
        counts = pd.DataFrame([range(2, 2 + len(formula.events))], columns=formula.events)
        assert np.isfinite(formula.evaluate(counts).iloc[0]), formula.name


def simulated(path, **cell):
    quiet = [
        count("INST_RETIRED", mode, None, raw=raw, status="ok", reason=None, source="softpmu")
        for mode, raw in {"u": 1e5, "k": 2e5}.items()
    ]
    lines = [{**idle(), "counts": quiet}, simulated_window()]
    path.write_bytes(encode(simulated_header(**cell), lines))


def test_a_simulated_machines_variants_have_their_own_values(tmp_path):
    simulated(tmp_path / "a.jsonl", machine="p3-xeon")
    found = metrics.metrics_of(frame.load([tmp_path])).set_index(["metric", "variant"])
    known = {
        "l2_misses": (900, 300),
        "l2_miss_ratio": (0.1, 1 / 30),
        "cycles": (900_000, 600_000),
        "cpi": (3, 2),
        "scaled_throughput": (5e8 / 9e5, 5e8 / 6e5),
        "transaction_time": (1.8, 1.2),
        "data_bus_utilisation": (12_000 / 1e8 / 1.8e-3, 6000 / 1e8 / 1.2e-3),
    }
    for name, values in known.items():
        for variant, value in zip(["512k", "2m"], values, strict=True):
            assert found.loc[(name, variant), "value"] == pytest.approx(value), name
        assert (name, np.nan) not in found.index
    assert found.loc[("cpi", "2m"), "origin"] == "modelled"
    assert found.loc[("l2_misses", "2m"), "origin"] == "simulated"
    assert found.loc[("l2_misses", "2m"), "source"] == "softpmu"


def test_what_all_variants_share_stands_once(tmp_path):
    simulated(tmp_path / "a.jsonl", cpus=2)
    found = metrics.metrics_of(frame.load([tmp_path]))
    shared = found[found["variant"].isna()].set_index("metric")
    assert shared.loc["path_length", "value"] == pytest.approx(300_000)
    assert shared.loc["path_length", "origin"] == "counted"
    assert shared.loc["l1i_miss_ratio", "value"] == pytest.approx(0.02)
    assert shared.loc["l1d_miss_ratio", "value"] == pytest.approx(0.05)
    assert shared.loc["l1d_miss_ratio", "origin"] == "simulated"
    assert shared.loc["utilisation", "value"] == pytest.approx(0.75)
    assert shared.loc["background_share", "value"] == pytest.approx(2000 / (3e8 + 2000))
    assert set(found.loc[found["metric"] == "path_length", "variant"].isna()) == {True}
    # Of two CPUs, each of which takes half of the cycles.
    scaled = found[found["metric"] == "scaled_throughput"].set_index("variant")["value"]
    assert scaled["2m"] == pytest.approx(2 * 5e8 / 6e5)


def test_a_simulated_machines_real_time_means_nothing(tmp_path):
    simulated(tmp_path / "a.jsonl")
    found = metrics.metrics_of(frame.load([tmp_path])).set_index("metric")
    for name in ["throughput", "latency_first_byte_p50", "latency_connect_mean"]:
        assert pd.isna(found.loc[name, "value"])
        assert found.loc[name, "quality"] == "undefined"
        assert "time is not real" in found.loc[name, "reason"]
    tidy = frame.load([tmp_path]).set_index("event")
    for event in ["cpu_user_ns", "system_net_tx_bytes", "server_rss_bytes"]:
        assert pd.isna(tidy.loc[event, "value"])
        assert "simulated" in tidy.loc[event, "reason"]
        assert tidy.loc[event, "status"] == "unsupported"


def test_this_machine_and_simulated_ones_stand_beside_each_other(tmp_path):
    write(tmp_path / "a.jsonl")
    simulated(tmp_path / "b.jsonl")
    simulated(tmp_path / "c.jsonl", machine="p3-xeon-2m")
    found = metrics.metrics_of(frame.load([tmp_path]))
    names = found.groupby("machine", observed=True)["metric"].agg(set)
    assert "ref_cycles" in names["native"]
    assert "hit_modified" not in names["native"]
    assert "hit_modified" in names["p3-xeon"] & names["p3-xeon-2m"]
    assert found.loc[found["machine"] == "native", "variant"].isna().all()
    throughput = found[(found["machine"] == "native") & (found["metric"] == "throughput")]
    assert throughput["value"].item() == pytest.approx(1000)
    json.dumps(metrics.to_json(found), allow_nan=False)


def test_every_dictionary_can_be_read():
    for path in (paths.root() / "data" / "events").glob("*.toml"):
        assert path.stem == dictionary.COMMON or dictionary.load(path.stem)
