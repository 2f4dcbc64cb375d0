"""Named error conditions of the pipeline, and the exit codes of its commands (design.md 20).

Spark sees only the traceback text of an error in a Python source. So an error that a user can cause
or repair leaves the source (`user_errors`) as one line without a traceback, with its name before
the sentence, like Spark's own errors.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import wraps
from typing import Final, ParamSpec, TypeVar, cast

from rocketbed.wire.errors import RocketbedError

EXIT_GOOD: Final = 0
EXIT_FINDING: Final = 1
EXIT_UNREADABLE: Final = 3
EXIT_SPARK: Final = 4
EXIT_UNWRITABLE: Final = 5

P = ParamSpec("P")
R = TypeVar("R")


elsewhere = ""
"""This machine, if what it does was planned on another one: its errors say so."""


class Condition(Enum):
    """The table of all error conditions; each value says for people what it is."""

    UNKNOWN_OPTION = "there is no such option, or it is of another use; the nearest one is named"
    ILLEGAL_OPTION = "a value that cannot be, options that exclude each other, or one is missing"
    ILLEGAL_SCHEMA = "a column that the view or the writer does not have, or of another type"
    UNKNOWN_TOPIC = "no store of the path, or no name server, knows a topic"
    NOT_A_STORE = "a directory of the path is not there, or is no store"
    UNREADABLE = "a file or a replica that cannot be read; the operating system's reason is given"
    CORRUPT_RECORD = (
        "`mode=FAILFAST` met bytes that are no record, or a broker gives what is not of the queue"
    )
    DATA_LOSS = "what was to be read was deleted meanwhile, or truncated"
    CLUSTER_UNAVAILABLE = "brokers or name servers did not answer in time, or not all of them"
    REFUSED = "a broker does not give what was asked of it, as where a record is damaged"
    ILLEGAL_OFFSET = "a checkpoint, `startingOffsets` or `endingOffsets` does not fit what is read"
    ILLEGAL_ROW = "a row that cannot be a message"
    NOT_WRITTEN = "rows, or the marker of their batch, were not accepted in time"
    OTHER_BUILD = "an executor has another rocketbed than the driver, which planned its task"
    BAD_MARKER = (
        "a marker topic holds something else, or is not one, so what is committed is unknown"
    )

    def __str__(self) -> str:
        return f"ROCKETBED_{self.name}"


class PipelineError(RocketbedError):
    """The root of the pipeline's own errors."""

    exit_code: int = EXIT_UNREADABLE
    condition: Condition = Condition.UNREADABLE

    def __init__(self, text: str, condition: Condition | None = None) -> None:
        super().__init__(text)
        if condition is not None:
            self.condition = condition


class Unwritable(PipelineError):
    """The output of a job cannot be written to the requested place."""

    exit_code = EXIT_UNWRITABLE

    def __init__(self, place: object, error: OSError) -> None:
        super().__init__(f"cannot write to {place}: {error.strerror or error}")


class SparkMissing(PipelineError):
    """Spark or its Java is missing or does not start."""

    exit_code = EXIT_SPARK


def user_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls: errors for the user leave it named, in one line.

    Errors from our own bugs keep their traceback.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = method(*args, **kwargs)
        except (PipelineError, OSError) as exc:
            raise explained(exc) from None
        return cast(R, _guarded(result)) if isinstance(result, Iterator) else result

    return call


def explained(error: PipelineError | OSError) -> PipelineError:
    """Return the error as Spark shows it: `[ROCKETBED_X] sentence`, in one line."""
    if not isinstance(error, PipelineError):
        where = f"{error.filename}: " if error.filename else ""
        error = PipelineError(f"{where}{error.strerror or error}")
    text = " ".join(str(error).splitlines())
    if elsewhere and elsewhere not in text:
        text += f" (on {elsewhere})"
    name = f"[{error.condition}] "
    error.args = (text if text.startswith(name) else name + text,)
    return error.with_traceback(None)


def _guarded(rows: Iterator[R]) -> Iterator[R]:
    try:
        yield from rows
    except (PipelineError, OSError) as exc:
        raise explained(exc) from None


def markdown() -> str:
    """Return the rows of the table for documents."""
    return "\n".join(f"| `{one}` | {one.value} |" for one in Condition)
