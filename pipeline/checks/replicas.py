"""V4: replicas of a broker hold the same bytes over the range that both have.

Blocks are compared by their checksums, so no byte becomes a row: 1 MiB of log is one row here. Only
the first block that differs is then read again, for the byte and the record where it begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketbed.pipeline.checks.findings import EXAMPLES_MAX, Answer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DIVERGED: Final = "V4", "replicas differ"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A replica that differs from its leader. Offsets in bytes from the start of the log."""

    broker: str
    replica: str
    leader: str
    first: int
    """The first byte that differs, or the start of its block."""
    last: int
    """Behind the last block that does."""
    blocks: int
    record: int | None = None
    """Where the record begins that holds the first byte."""

    @property
    def text(self) -> str:
        where = "" if self.record is None else f", in the record at {self.record}"
        return (
            f"{self.broker}/{self.replica} differs from {self.leader} in {self.blocks} blocks,"
            f" from log {self.first} on{where}"
        )


def unequal_blocks(blocks: "DataFrame", leaders: Mapping[str, str]) -> list[Divergence]:
    """Replicas with blocks that differ from the leader's, at most one entry for each.

    `blocks` has `broker, replica, offset, length, crc32`; `leaders` names a replica by broker.
    """
    from pyspark.sql import functions as f

    is_leader: Column = f.lit(False)
    for broker, replica in leaders.items():
        is_leader = is_leader | ((f.col("broker") == broker) & (f.col("replica") == replica))
    theirs = blocks.where(is_leader).select(
        "broker",
        "offset",
        f.col("replica").alias("leader"),
        f.col("length").alias("their_length"),
        f.col("crc32").alias("their_crc"),
    )
    others = blocks.where(~is_leader).join(theirs, ["broker", "offset"])
    same = (f.col("crc32") == f.col("their_crc")) & (f.col("length") == f.col("their_length"))
    found = (
        others.where(~same)
        .groupBy("broker", "replica", "leader")
        .agg(
            f.min("offset").alias("first"),
            f.max(f.col("offset") + f.col("length")).alias("last"),
            f.count("*").alias("blocks"),
        )
    )
    return [Divergence(*row) for row in sorted(found.collect())]


def first_difference(one: Path, other: Path, position: int, size: int) -> int:
    """Where in a stretch of two files the bytes begin to differ; `position` if they do not.

    Raises `OSError`.
    """
    contents = []
    for path in (one, other):
        with open(path, "rb") as file:
            file.seek(position)
            contents.append(file.read(size))
    here, there = contents
    pairs = enumerate(zip(here, there, strict=False))
    return position + next((at for at, (left, right) in pairs if left != right), 0)


def diverged(
    found: list[Divergence], agreed: Mapping[str, int], damaged: tuple[str, ...]
) -> Answer:
    """V4: a finding for each replica that differs.

    `agreed` says by replica up to which byte it had to be like its leader (missing: everywhere);
    what a run damaged on purpose proves nothing.
    """
    counted: list[str] = []
    allowed: list[str] = []
    for one in found:
        excused = one.first >= agreed.get(one.replica, one.first + 1)
        excused |= one.replica in damaged or one.leader in damaged
        (allowed if excused else counted).append(one.text)
    return Answer(
        *DIVERGED,
        "violated" if counted else "ok",
        len(counted),
        len(allowed),
        (counted or allowed)[:EXAMPLES_MAX],
    )
