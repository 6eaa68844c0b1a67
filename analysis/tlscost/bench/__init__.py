"""Benchmarks: each compares with the named peers side by side, in one run, as ratios."""
