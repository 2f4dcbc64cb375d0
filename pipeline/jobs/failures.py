"""Explains Spark's errors in a sentence: what happened, where, and what to do.

An error of the pipeline that was raised in an executor reaches the driver as the text of a Python
traceback within a Java stack trace. The last line of that traceback has the message, and the name
of the class determines the exit code.
"""

import errno
import os
import re
from contextlib import suppress
from importlib import import_module
from typing import Final

from rocketbed.host.extras import install_command
from rocketbed.pipeline.errors import EXIT_SPARK, PipelineError, SparkMissing, Unwritable

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that only writing can cause."""
_FULL: Final = re.compile("|".join(map(os.strerror, FULL)))
_WRITTEN: Final = re.compile(r"writing rows to (?:file:)?(\S+)\.")
MEMORY: Final = ("OutOfMemoryError", "GC overhead limit exceeded")
LOST: Final = ("ExecutorLostFailure", "Python worker exited unexpectedly", "lost executor")
GONE: Final = ("Py4JNetworkError", "Connection refused", "Answer from Java side is empty")
_PYTHON_ERROR: Final = re.compile(
    r"^\s*(?!SQLSTATE)((?:[A-Za-z_]\w*\.)*[A-Z]\w*): (.+)$", re.MULTILINE
)
_HOST: Final = re.compile(r"\(TID \d+\) \((\S+) executor (?!driver)")
"""Host of a failed task, unless it is the driver."""
_NO_MODULE: Final = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+.*")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_CAUSE: Final = re.compile(r"^\s*Caused by: [\w.$]+: (.+)$", re.MULTILINE)
TEXT_MAX: Final = 600
EXTRA: Final = ("numpy", "pandas", "pyarrow", "pyspark", "py4j")
"""Packages of the extra `spark`."""


class SparkFailed(PipelineError):
    """Failure of Spark."""

    exit_code = EXIT_SPARK


def explain(error: BaseException) -> PipelineError | None:
    """Return an expected error in a sentence, with its exit code; None for a defect of ours."""
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in EXTRA:
        return SparkMissing(f"{error.name} is not installed: {install_command('spark')}")
    if isinstance(error, OSError) and error.errno in FULL:
        return Unwritable(error.filename or "an unnamed file", error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return PipelineError(f"{error.strerror or error}: {error.filename or 'no file named'}")
    module = type(error).__module__.partition(".")[0]
    if module not in ("pyspark", "py4j", "grpc") and not isinstance(error, ConnectionError):
        return None
    text, cause = str(error), getattr(error, "_cause", None)
    while cause is not None:  # the text of a stream's error lacks its causes
        if _FULL.search(str(cause)):
            text += f"\n{cause}"
        cause = getattr(cause, "_cause", None)
    return explain_text(type(error).__name__, text)


def explain_text(name: str, text: str) -> PipelineError:
    """Explain an error of Spark, from the name of its class and its text."""
    error = _explained(name, text)
    if (place := _HOST.findall(text)) and place[-1] not in str(error):
        error.args = (f"{error} (on {place[-1]})",)
    return error


def _explained(name: str, text: str) -> PipelineError:
    if (own_error := _own_error(text)) is not None:
        return own_error
    if full := _FULL.search(text):
        written = _WRITTEN.search(text)
        place = written[1] if written else "the output, or to Spark's own files (spark.local.dir)"
        return Unwritable(place, OSError(0, full[0]))
    if missing := _NO_MODULE.findall(text):
        return SparkFailed(
            f"the Python that Spark runs has no module {missing[-1]}: install it on all machines,"
            " or give --archive FILE (docs/guides/spark.md, Deploying)"
        )
    if program := _NO_PROGRAM.findall(text):
        return SparkFailed(
            f"no program {program[-1]}: Spark runs Python by one name on all machines, by default"
            " the path of this one; set PYSPARK_PYTHON to what they all have"
        )
    whole = f"{name} {text}"
    if any(word in whole for word in MEMORY):
        return SparkFailed(
            "Spark's memory was not enough: give it more with --conf spark.driver.memory=4g"
            " (or spark.executor.memory on a cluster)"
        )
    if any(word in whole for word in LOST):
        return SparkFailed(
            "an executor ended in the middle of its work: was it killed, or out of memory?"
            " run the job again, with less at once (--conf spark.executor.cores=1)"
        )
    if any(word in whole for word in GONE):
        return SparkFailed("Spark's Java process ended or cannot be reached: run the job again")
    return SparkFailed(f"Spark failed: {first_sentence(text)}")


def first_sentence(text: str) -> str:
    """Return the message in a text of Spark, without stack trace and error class."""
    errors = _PYTHON_ERROR.findall(text)
    if "Traceback (most recent call last)" in text and errors:
        name, message = errors[-1]
        return f"{name.rpartition('.')[2]}: {message}"[:TEXT_MAX]
    for line in text.splitlines():
        line = _STATE.sub("", _CONDITION.sub("", line.strip().removeprefix(": ")))
        if line and not line.startswith(("at ", "An error occurred while calling")):
            causes = [cause for cause in _CAUSE.findall(text) if cause not in line]
            return "; ".join([line[:TEXT_MAX], *causes[-1:]])[: 2 * TEXT_MAX]
    return "it gave no reason"


def _own_error(text: str) -> PipelineError | None:
    """Return an error of the pipeline that was raised in an executor, from its traceback."""
    for name, message in reversed(_PYTHON_ERROR.findall(text)):
        module, _, kind = name.rpartition(".")
        if not module.startswith("rocketbed.pipeline"):
            continue
        error = PipelineError(_CONDITION.sub("", message)[:TEXT_MAX])
        with suppress(ImportError):
            error_class = getattr(import_module(module), kind, PipelineError)
            error.exit_code = getattr(error_class, "exit_code", EXIT_SPARK)
        return error
    return None
