"""Markers that commit the batches of an exactly-once job, one for each batch, in their own topic.

Each task reports at which queue offsets its messages were stored. When all tasks have reported, the
driver writes these offsets as one marker into the topic `RB_TXN_<job>`. From then on the batch
counts, with exactly the messages that the marker lists. A batch that is run again looks for its
marker first. No marker lists the copies of failed attempts, so a reader with `onlyCommitted` drops
them.

A marker that is too long for one message has several parts with the same attempt name, and counts
once all parts are stored. If two drivers at once wrote two complete markers of a batch, the first
in the queue counts. The topic has one queue on one broker, which defines the first.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.sink.runs import Runs

logger = logging.getLogger("rocketbed.pipeline")

TOPIC_PREFIX: Final = "RB_TXN_"
RUNS_MAX: Final = 20_000
"""Runs in one part: at most about 1 MiB of JSON, a broker takes 4."""
FORMAT: Final = 1


class BadMarker(PipelineError):
    """A message in a marker topic that is no marker of that topic's job."""

    condition = Condition.BAD_MARKER


class Part(NamedTuple):
    job: str
    batch: int
    attempt: str
    """Name of the attempt to mark the batch, different for each attempt."""
    part: int
    parts: int
    runs: Runs


def marker_topic(job: str) -> str:
    """Return the topic of a job's markers."""
    return TOPIC_PREFIX + job


def encode_marker(job: str, batch: int, attempt: str, runs: Runs) -> list[bytes]:
    """Return the bodies of the messages that mark a batch; one body even if nothing was sent."""
    pieces = runs.merged().pieces(RUNS_MAX)
    return [
        json.dumps(
            {
                "v": FORMAT,
                "job": job,
                "batch": batch,
                "attempt": attempt,
                "part": number,
                "parts": len(pieces),
                "runs": piece.as_json(),
            },
            separators=(",", ":"),
        ).encode()
        for number, piece in enumerate(pieces)
    ]


def decode_part(body: bytes, job: str) -> Part:
    """Decode a message of a job's marker topic. Raises `BadMarker`."""
    try:
        value = json.loads(body)
        if value["v"] != FORMAT or value["job"] != job:
            raise ValueError(f"format {value['v']} of job {value['job']!r}")
        part = Part(
            job=job,
            batch=int(value["batch"]),
            attempt=str(value["attempt"]),
            part=int(value["part"]),
            parts=int(value["parts"]),
            runs=Runs.from_json(value["runs"]),
        )
    except (ValueError, KeyError, TypeError) as exc:
        topic = marker_topic(job)
        raise BadMarker(
            f"topic {topic} has a message that is no marker of job {job}: {exc}; something else "
            f"writes there, so what is committed is unknown"
        ) from exc
    if not 0 <= part.part < part.parts:
        raise BadMarker(f"topic {marker_topic(job)}: part {part.part} of {part.parts}")
    return part


@dataclass(slots=True)
class _Attempt:
    parts: int
    runs_by_part: dict[int, Runs] = field(default_factory=dict)


class Committed:
    """Committed batches of one job, from its markers in the order of their queue."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._open: dict[tuple[int, str], _Attempt] = {}
        self._done: dict[int, Runs] = {}

    def add(self, part: Part) -> None:
        """Add the next message of the topic; a repeated message changes nothing."""
        if part.batch in self._done:
            return
        key = part.batch, part.attempt
        attempt = self._open.setdefault(key, _Attempt(part.parts))
        attempt.runs_by_part[part.part] = part.runs
        if len(attempt.runs_by_part) == attempt.parts:
            whole = Runs()
            for runs in attempt.runs_by_part.values():
                whole.update(runs)
            self._done[part.batch] = whole
            self._open = {
                name: attempt for name, attempt in self._open.items() if name[0] != part.batch
            }

    def has(self, batch: int) -> bool:
        return batch in self._done

    def runs_of(self, batch: int) -> Runs | None:
        """Return the committed messages of a batch; None if it is not marked."""
        return self._done.get(batch)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted(self._done))

    def runs(self) -> Runs:
        whole = Runs()
        for runs in self._done.values():
            whole.update(runs)
        return whole.merged()


def committed(job: str, bodies: Iterable[bytes]) -> Committed | None:
    """Decode the messages of a job's marker topic, in the order of the queue.

    Returns None if the first message is not a marker: the topic has another purpose. Raises
    `BadMarker` for a later one.
    """
    state = Committed(job)
    for number, body in enumerate(bodies):
        try:
            state.add(decode_part(body, job))
        except BadMarker:
            if number == 0:
                return None
            raise
    return state


def jobs_of(topics: Iterable[str]) -> Iterator[str]:
    """Yield the jobs that have a marker topic among `topics`."""
    for topic in topics:
        if topic.startswith(TOPIC_PREFIX) and len(topic) > len(TOPIC_PREFIX):
            yield topic.removeprefix(TOPIC_PREFIX)


def warn_expired(topic: str, count: int, where: str) -> None:
    """Warn that the first markers of a topic have expired.

    Their messages may still be stored, on a broker with a longer retention time.
    """
    logger.warning(
        "%s: the first %d markers of %s have expired: rows that they alone count are left out",
        where,
        count,
        topic,
    )
