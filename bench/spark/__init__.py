"""What the pipeline costs: `python -m bench.spark`, or `make bench-spark`."""
