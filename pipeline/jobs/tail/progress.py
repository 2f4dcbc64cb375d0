"""Totals of a tail into files, from Spark's progress reports."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

RECENT_MAX: Final = 200
"""Batches that Spark may report again."""
COUNTED: Final = "tail"
"""Name of the observation that counts a batch's bad ranges."""
UNREADABLE: Final = "unreadable"


class BatchTotals:
    """Rows by batch; Spark reports the last hundred batches again. Older ones are summed up."""

    def __init__(self) -> None:
        self.recent: dict[int, tuple[int, int]] = {}
        """All rows, and the bad ranges among them, by batch."""
        self._older = (0, 0, 0)
        self._last = -1
        """The last batch in the sums."""

    def note(self, progress: Sequence[Any]) -> None:
        """Enter progress reports, from `StreamingQuery.recentProgress`."""
        new = (batch for batch in progress if batch.batchId > self._last)
        self.recent |= {batch.batchId: (batch.numInputRows, _unreadable(batch)) for batch in new}
        while len(self.recent) > RECENT_MAX:
            self._last = min(self.recent)
            self._older = self._with_older([self.recent.pop(self._last)])

    @property
    def counts(self) -> tuple[int, int, int]:
        """Messages of all batches, number of batches with rows, and bad ranges."""
        return self._with_older(self.recent.values())

    def _with_older(self, batches: Iterable[tuple[int, int]]) -> tuple[int, int, int]:
        messages, count, unreadable = self._older
        for rows, bad in batches:
            messages, count, unreadable = (
                messages + rows - bad,
                count + bool(rows),
                unreadable + bad,
            )
        return messages, count, unreadable


def _unreadable(batch: Any) -> int:
    counted = batch.observedMetrics.get(COUNTED)
    if not counted:
        return 0
    # Over Connect, PySpark 4.3 returns a row of the JSON's own fields, `values` and `schema`.
    return int(counted["values"][0] if "values" in counted else counted[UNREADABLE])
