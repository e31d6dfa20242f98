"""What our own code costs: `python -m benchmarks NAME` measures, docs/benchmarks.md has the tables.

A module per benchmark has `run(*, quick)`, which yields rows, and notes as plain strings.
"""
