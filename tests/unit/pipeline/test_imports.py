"""Imports of the pipeline are few, so that a worker starts fast."""

import subprocess
import sys

import pytest

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "trio"}


@pytest.mark.parametrize(
    ("module", "brings"),
    [
        ("pipeline", set()),
        ("rocketbed.pipeline.files.decode", {"pyarrow", "numpy"}),
        ("rocketbed.pipeline.files.reading", {"pyarrow", "numpy"}),
        ("pyspark_rocketbed", {"pyspark", "pyarrow", "numpy"}),
    ],
)
def test_imports_of_a_module(module: str, brings: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert HEAVY & set(run.stdout.split()) == brings
