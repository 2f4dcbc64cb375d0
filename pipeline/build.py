"""Check that a task runs the code that planned it: executors may have another rocketbed."""

import hashlib
import pickle
import socket
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import rocketbed
from rocketbed.pipeline import errors
from rocketbed.pipeline.errors import EXIT_SPARK, Condition, PipelineError, user_errors

KINDS: Final = (".py", ".toml")


class OtherBuild(PipelineError):
    """Driver and executor have different versions of rocketbed."""

    exit_code = EXIT_SPARK
    condition = Condition.OTHER_BUILD


class Planned:
    """Base of objects sent to tasks, which only the same build unpacks: another one may use the
    same field names otherwise."""

    def __reduce__(self) -> tuple[Any, ...]:
        packed = pickle.dumps((type(self), self.__getstate__()))
        return _unpacked, (own_build(), socket.gethostname(), packed)


@user_errors
def _unpacked(planned_by: str, host: str, packed: bytes) -> object:
    if (here := socket.gethostname()) != host:
        errors.elsewhere = here
    check_build(planned_by)
    kind, fields = pickle.loads(packed)
    instance: object = object.__new__(kind)
    instance.__dict__.update(fields)
    return instance


@cache
def own_build() -> str:
    """Return the version, and a digest of the sources in a folder, link or zip."""
    digest = hashlib.sha256()
    for name, file in _sources("", files(rocketbed)):
        digest.update(f"{name}\0".encode() + file.read_bytes())
    return f"{rocketbed.__version__} ({digest.hexdigest()[:12]})"


def check_build(planned_by: str) -> None:
    """Raise `OtherBuild` in a task if the driver has another build."""
    if own_build() != planned_by:
        raise OtherBuild(
            f"{socket.gethostname()} has rocketbed {own_build()}, the driver {planned_by}: install"
            " the same there, or give --archive FILE (docs/guides/spark.md, Deploying)"
        )


def _sources(under: str, folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{under}/{entry.name}"
        if entry.is_dir():
            yield from _sources(name, entry)
        elif name.endswith(KINDS):
            yield name, entry
