"""Benchmarks: ratios against a baseline of the same run, printed as JSON. See RESULTS.md."""
