"""Spark looks for data sources in modules called pyspark_*; this names ours."""

from rocketbed.pipeline.source import RocketbedSource as DefaultSource

__all__ = ["DefaultSource"]
