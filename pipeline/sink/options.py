"""Options for writing into topics."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from rocketbed.pipeline.errors import Condition, PipelineError
from rocketbed.pipeline.option_table import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    RETRY_TIMEOUT_MS,
    OptionError,
    Use,
    read_options,
)


class SinkError(PipelineError):
    """Rows that cannot be written into topics; the text says which and why."""

    condition = Condition.NOT_WRITTEN


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of `df.write.format("rocketbed")` and `df.writeStream`, as the option table has them.

    `pipeline.sink.writer` explains the kinds of delivery.
    """

    endpoints: str
    topic: str = ""
    delivery: str = AT_LEAST_ONCE
    job: str = ""
    """Id of a batch job; streams use Spark's query id."""
    group: str = "rocketbed_pipeline"
    bytes_per_s: float = 0.0
    tasks: int = 1
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    request_bytes: int = 1024 * 1024

    @classmethod
    def parse(cls, settings: Mapping[str, str], *, streaming: bool) -> Self:
        """Parse the user's options. Raises `OptionError` naming the option."""
        if any(name.lower() == "path" and text for name, text in settings.items()):
            raise OptionError(
                "a store directory cannot be written to; give the target as option endpoints"
            )
        texts = {name: text for name, text in settings.items() if name.lower() != "path"}
        values = read_options(texts, Use.STREAM_WRITE if streaming else Use.WRITE)
        if not values.get("endpoints"):
            raise OptionError("option endpoints is required: nameservers as host:port;host:port")
        values.setdefault("delivery", EXACTLY_ONCE if streaming else AT_LEAST_ONCE)
        values.setdefault("jobId", "" if streaming else str(uuid.uuid4()))
        return cls(**{_ATTRIBUTES[name]: value for name, value in values.items()})

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


_ATTRIBUTES: Final = {
    "endpoints": "endpoints",
    "topic": "topic",
    "delivery": "delivery",
    "jobId": "job",
    "group": "group",
    "maxBytesPerSecond": "bytes_per_s",
    "tasks": "tasks",
    "retryTimeoutMs": "retry_timeout_ms",
    "requestBytes": "request_bytes",
}
