"""Ids of messages that a Spark job sends: the same row of the same batch always has the same one.

Spark runs a task again when it failed, and a whole batch again when the driver died. What is sent
again then carries the id of the first time, so that a reader can tell copies (UNIQ_KEY). That
rests on the rows of a partition coming in the same order each time: sort within partitions, or do
without (pipeline.md 5, "writer").
"""

from dataclasses import dataclass
from typing import Final

TRANSACTION: Final = "RB_TXN"
"""The property of a message that counts once its batch is marked; its value is the job's id."""
ORIGIN: Final = "RB_ORIGIN"
"""The property that keeps the id which a copied message had where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """One task of one batch of one job."""

    job: str
    """The id of the streaming query (it stays over restarts), or of the batch job."""
    batch: int
    """The number of the micro-batch; 0 in a batch job."""
    partition: int

    def message_id(self, row: int) -> str:
        """The id of the row with this number in its partition, counted from 0."""
        return f"{self.job}-{self.batch:x}-{self.partition:x}-{row:x}"


def parse_message_id(text: str) -> tuple[TaskKey, int] | None:
    """Task and row number of such an id; None for any other text."""
    pieces = text.rsplit("-", 3)
    if len(pieces) != 4 or not pieces[0]:
        return None
    try:
        batch, partition, row = (int(piece, 16) for piece in pieces[1:])
    except ValueError:
        return None
    key = TaskKey(job=pieces[0], batch=batch, partition=partition)
    return (key, row) if key.message_id(row) == text else None
