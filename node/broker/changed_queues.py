"""Queues whose entry in a table has changed since the last call (`node.broker.table_log`)."""


class ChangedQueues:
    """Queues by a key of the table. Nothing is recorded before the first `take`, since there may be
    no reader."""

    def __init__(self) -> None:
        self._places: dict[str, dict[int, None]] | None = None

    def note(self, key: str, *queues: int) -> None:
        """Record these as changed, or as to be sent once more."""
        if self._places is not None:
            self._places.setdefault(key, {}).update(dict.fromkeys(queues))

    def __bool__(self) -> bool:
        return bool(self._places)

    def take(self) -> dict[str, dict[int, None]]:
        """Return the recorded queues, and clear them."""
        places, self._places = self._places or {}, {}
        return places
