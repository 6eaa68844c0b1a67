"""The plugin counts what cachegrind counts: two small programs, one of each linking."""

from pathlib import Path

from tlscost.bench.fidelity import compare
from tlscost.bench.programs import quick_programs


def test_counts_are_those_of_cachegrind(tmp_path: Path) -> None:
    comparison = compare(quick_programs(tmp_path)).set_index(["program", "quantity"])
    outside = comparison[~comparison["holds"]]
    # Hundreds of misses or thousands: there the few that start-up alone makes differ weigh more.
    few = outside["cachegrind"] < 5_000
    assert outside[~few].empty, outside
    assert ((outside["ours"] - outside["cachegrind"]).abs() <= 50).all(), outside
    assert len(comparison) == 10
    for name in ("gzip", "busybox sort"):
        assert comparison.loc[(name, "instructions"), "cachegrind"] > 1_000_000
