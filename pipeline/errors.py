"""What can go wrong in the pipeline; the exit codes of its commands (design.md 20)."""

from typing import Final

from rocketbed.wire.errors import RocketbedError

EXIT_GOOD: Final = 0
EXIT_FINDING: Final = 1
EXIT_UNREADABLE: Final = 3
EXIT_SPARK: Final = 4


class PipelineError(RocketbedError):
    """The root of the pipeline's own errors."""

    exit_code: int = EXIT_UNREADABLE


class SparkMissing(PipelineError):
    """Spark or its Java is not there or does not start."""

    exit_code = EXIT_SPARK
