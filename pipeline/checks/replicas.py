"""V4: replicas of a broker hold the same bytes over the range that both have.

Blocks are compared by their checksums, so that 1 MiB of log is a single row. Only the first block
that differs is read again, to find the first different byte and its record.
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
    """End of the last block that differs."""
    blocks: int
    record: int | None = None
    """Start of the record that holds the first byte."""

    @property
    def text(self) -> str:
        where = "" if self.record is None else f", in the record at {self.record}"
        return (
            f"{self.broker}/{self.replica} differs from {self.leader} in {self.blocks} blocks,"
            f" from log {self.first} on{where}"
        )


def unequal_blocks(blocks: "DataFrame", leaders: Mapping[str, str]) -> list[Divergence]:
    """Return the replicas with blocks that differ from the leader's, one entry for each.

    `blocks` has `broker, replica, offset, length, crc32`; `leaders` has a replica by broker.
    """
    from pyspark.sql import functions as f

    is_leader: Column = f.lit(False)
    for broker, replica in leaders.items():
        is_leader = is_leader | ((f.col("broker") == broker) & (f.col("replica") == replica))
    leader_blocks = blocks.where(is_leader).select(
        "broker",
        "offset",
        f.col("replica").alias("leader"),
        f.col("length").alias("their_length"),
        f.col("crc32").alias("their_crc"),
    )
    follower_blocks = blocks.where(~is_leader).join(leader_blocks, ["broker", "offset"])
    same = (f.col("crc32") == f.col("their_crc")) & (f.col("length") == f.col("their_length"))
    unequal = (
        follower_blocks.where(~same)
        .groupBy("broker", "replica", "leader")
        .agg(
            f.min("offset").alias("first"),
            f.max(f.col("offset") + f.col("length")).alias("last"),
            f.count("*").alias("blocks"),
        )
    )
    return [Divergence(*row) for row in sorted(unequal.collect())]


def first_difference(first: Path, second: Path, position: int, size: int) -> int:
    """Return the first position where two files differ, within `size` bytes from `position`.

    Returns `position` if they do not. Raises `OSError`.
    """
    contents = []
    for path in (first, second):
        with open(path, "rb") as file:
            file.seek(position)
            contents.append(file.read(size))
    first_bytes, second_bytes = contents
    pairs = enumerate(zip(first_bytes, second_bytes, strict=False))
    return position + next(
        (at for at, (first_byte, second_byte) in pairs if first_byte != second_byte), 0
    )


def diverged(
    divergences: list[Divergence], agreed: Mapping[str, int], damaged: tuple[str, ...]
) -> Answer:
    """V4: a finding for each replica that differs.

    `agreed` has, by replica, the byte up to which it had to equal its leader (missing: everywhere).
    Differences of replicas that a run damaged deliberately are allowed.
    """
    counted: list[str] = []
    allowed: list[str] = []
    for divergence in divergences:
        excused = divergence.first >= agreed.get(divergence.replica, divergence.first + 1)
        excused |= divergence.replica in damaged or divergence.leader in damaged
        (allowed if excused else counted).append(divergence.text)
    return Answer(
        *DIVERGED,
        "violated" if counted else "ok",
        len(counted),
        len(allowed),
        (counted or allowed)[:EXAMPLES_MAX],
    )
