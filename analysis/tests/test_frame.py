import pandas as pd
import pytest
from synthetic import count, window, write

from tlscost import frame
from tlscost.errors import TlscostError


@pytest.fixture
def loaded(tmp_path):
    write(tmp_path / "a.jsonl", [window(), window(index=1)], repetition=0)
    write(tmp_path / "b.jsonl", repetition=1)
    return frame.load([tmp_path])


def rows(loaded, event, **where):
    picked = loaded[loaded["event"] == event]
    for name, value in where.items():
        picked = picked[picked[name] == value]
    return picked


def test_a_row_per_record_window_cpu_event(loaded):
    picked = rows(loaded, "instructions", mode="u")
    assert len(picked) == 3
    assert not loaded.duplicated(["record", "window", "cpu", "event", "mode"]).any()
    assert picked["raw"].eq(2e8 + 1000).all()
    assert picked["corrected"].eq(2e8).all()
    assert picked["value"].eq(2e8).all()
    assert picked["idle_ns"].eq(250_000_000).all()
    assert picked["elapsed_ns"].eq(1_000_000_000).all()
    assert picked["transactions"].eq(1000).all()


def test_repetitions_share_a_cell(loaded):
    assert len(loaded["cell"].unique()) == 1
    assert sorted(loaded["repetition"].unique()) == [0, 1]


def test_load_and_system_counters_are_events(loaded):
    assert rows(loaded, "load_transactions")["value"].eq(1000).all()
    assert rows(loaded, "load_error_timeout")["value"].eq(2).all()
    switches = rows(loaded, "system_context_switches")
    assert switches["value"].eq(3000).all()
    assert switches["cpu"].isna().all()
    assert rows(loaded, "latency_first_byte")["histogram"].notna().all()


def test_what_was_not_counted_is_null_with_status_and_reason(tmp_path):
    write(
        tmp_path / "a.jsonl", [window(counts=[count("cycles", "u", None)], server_rss_bytes=None)]
    )
    loaded = frame.load([tmp_path])
    cycles = rows(loaded, "cycles").iloc[0]
    assert pd.isna(cycles["value"])
    assert cycles["status"] == "unsupported"
    assert cycles["reason"] == "cycles: this machine shows no PMU"
    assert rows(loaded, "server_rss_bytes")["value"].isna().all()
    assert rows(loaded, "latency_handshake")["reason"].eq("no handshake was timed").all()


def test_check_names_the_columns(loaded):
    broken = loaded.assign(elapsed_ns=0, raw="many").drop(columns="source")
    with pytest.raises(TlscostError) as caught:
        frame.check(broken)
    for name in ("elapsed_ns", "raw", "source"):
        assert name in str(caught.value)


def test_nothing_found_and_not_there(tmp_path):
    with pytest.raises(TlscostError, match="no record"):
        frame.load([tmp_path])
    with pytest.raises(TlscostError, match="no such file or directory"):
        frame.load([tmp_path / "gone.jsonl"])


def test_a_file_given_twice_counts_once(tmp_path):
    path = write(tmp_path / "a.jsonl")
    assert len(frame.load([path, tmp_path])["record"].unique()) == 1
