"""Ids of messages that a Spark job sends: the same row of the same batch always has the same one.

Spark repeats a failed task, and a whole batch after the driver died. A message that is sent again
carries the id of the first time, so that a reader can recognise copies (UNIQ_KEY). This requires
that the rows of a partition come in the same order each time: sort within partitions, or accept
copies with other ids (pipeline.md 5, "writer").
"""

from dataclasses import dataclass
from typing import Final

TRANSACTION: Final = "RB_TXN"
"""Property of a message that counts only once its batch is marked; its value is the job's id."""
ORIGIN: Final = "RB_ORIGIN"
"""Property with the id that a copied message had in its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """Identity of a task: its job, batch and partition."""

    job: str
    """Id of the streaming query (the same after restarts), or of the batch job."""
    batch: int
    """The number of the micro-batch; 0 in a batch job."""
    partition: int

    def message_id(self, row: int) -> str:
        """Return the id of the row with this number in its partition, counted from 0."""
        return f"{self.job}-{self.batch:x}-{self.partition:x}-{row:x}"


def parse_message_id(text: str) -> tuple[TaskKey, int] | None:
    """Return the task and row number of such an id; None for any other text."""
    pieces = text.rsplit("-", 3)
    if len(pieces) != 4 or not pieces[0]:
        return None
    try:
        batch, partition, row = (int(piece, 16) for piece in pieces[1:])
    except ValueError:
        return None
    key = TaskKey(job=pieces[0], batch=batch, partition=partition)
    return (key, row) if key.message_id(row) == text else None
