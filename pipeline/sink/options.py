"""What a user can say about writing into topics."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from rocketbed.pipeline.errors import PipelineError

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
NAMES: Final = (
    "endpoints",
    "topic",
    "delivery",
    "jobid",
    "group",
    "maxbytespersecond",
    "tasks",
    "retrytimeoutms",
    "requestbytes",
    "path",
    "checkpointlocation",
)
"""All that is understood, in lower case; `checkpointLocation` is Spark's own and passes through."""
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024 - 64 * 1024
"""A request's body has to stay below the broker's limit for one message, 4 MiB."""


class SinkError(PipelineError):
    """Rows that cannot be written into topics; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of `df.write.format("rocketbed")` and `df.writeStream`, as Spark gives them: texts,
    their names in any case."""

    endpoints: str
    """`endpoints`: addresses of nameservers, `host:port;host:port`. Needed."""
    topic: str = ""
    """`topic`: where rows go when they have no column `topic`."""
    delivery: str = AT_LEAST_ONCE
    """`delivery`: `at-least-once` (default of batch jobs) or `exactly-once` (default of streams):
    see `pipeline.sink.writer`."""
    job: str = ""
    """`jobId`: the name of a batch job. A job that runs again with the same id and `exactly-once`
    writes nothing that is marked already. Default: a new one each time; streams have Spark's."""
    group: str = "rocketbed_pipeline"
    """`group`: the producer group."""
    bytes_per_s: float = 0.0
    """`maxBytesPerSecond`: of all tasks together, bytes of bodies; 0: no limit."""
    tasks: int = 1
    """`tasks`: how many tasks share that rate, that is: how many run at once."""
    retry_timeout_ms: int = 30_000
    """`retryTimeoutMs`: a message that no broker has taken after this long fails the task."""
    request_bytes: int = 1024 * 1024
    """`requestBytes`: messages are sent together, up to this many bytes; 0: one by one."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """From what the user gave. Raises `SinkError` naming the option."""
        texts = {name.lower(): value.strip() for name, value in given.items()}
        unknown = sorted(set(texts) - set(NAMES))
        if unknown:
            raise SinkError(f"unknown option {unknown[0]}; options of writers: {', '.join(NAMES)}")
        if not texts.get("endpoints"):
            raise SinkError("option endpoints is required: nameservers as host:port;host:port")
        if texts.get("path"):
            raise SinkError(
                "a store directory cannot be written to; give the target as option endpoints"
            )
        delivery = texts.get("delivery", EXACTLY_ONCE if streaming else AT_LEAST_ONCE)
        if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
            raise SinkError(f"delivery must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}, not {delivery!r}")
        job = texts.get("jobid", "")
        if job and (streaming or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", job)):
            raise SinkError(
                "jobId is only for batch jobs and may have up to 64 letters, digits, _ and -"
            )
        number = _Numbers(texts)
        return cls(
            endpoints=texts["endpoints"],
            topic=texts.get("topic", ""),
            delivery=delivery,
            job="" if streaming else job or str(uuid.uuid4()),
            group=texts.get("group", "rocketbed_pipeline"),
            bytes_per_s=number("maxbytespersecond", 0, 0, 1 << 40),
            tasks=number("tasks", 1, 1, 1 << 20),
            retry_timeout_ms=number("retrytimeoutms", 30_000, 1, 86_400_000),
            request_bytes=number("requestbytes", 1024 * 1024, 0, REQUEST_BYTES_MAX),
        )

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


class _Numbers:
    """Reads whole numbers with `k`, `m`, `g` for powers of 1024."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __call__(self, name: str, default: int, least: int, most: int) -> int:
        text = self._texts.get(name, "").lower()
        if not text:
            return default
        match = re.fullmatch(r"(\d{1,15})([kmg]?)b?", text)
        value = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else -1
        if not least <= value <= most:
            raise SinkError(f"option {name} must be a number from {least} to {most}, not {text!r}")
        return value
