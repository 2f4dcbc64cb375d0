"""Costs of the pipeline: `python -m bench.spark`, or `make bench-spark`."""
