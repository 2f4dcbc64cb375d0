"""What of a table has changed since it was asked for last (`node.broker.table_log`)."""


class Noted:
    """Queues by a key of the table. Nothing is noted before the first `take`: nobody may ask."""

    def __init__(self) -> None:
        self._places: dict[str, dict[int, None]] | None = None

    def note(self, key: str, *queues: int) -> None:
        """These have changed, or are to be told once more."""
        if self._places is not None:
            self._places.setdefault(key, {}).update(dict.fromkeys(queues))

    def __bool__(self) -> bool:
        return bool(self._places)

    def take(self) -> dict[str, dict[int, None]]:
        """What was noted, once."""
        found, self._places = self._places or {}, {}
        return found
