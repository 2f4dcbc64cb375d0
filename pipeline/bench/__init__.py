"""What the pipeline costs: `python -m pipeline.bench`, or `make bench-spark`."""
