"""Reader of nested tables, key by key, that reports every mistake with its place.

An unknown key is an error with the nearest known one; for a value of the wrong type the error says
what it should look like.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from rocketbed.chaos.plan.check_names import check_id
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.units import parse_duration, parse_size, show_duration

T = TypeVar("T")


class Table:
    """Table of a file, with its place and the keys that were read."""

    def __init__(self, values: object, place: str) -> None:
        self.place = place
        """File and key path, for messages."""
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ScenarioError(f"{place}: must be a table of keys and values")
        self.values: dict[str, Any] = values
        self._read_keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, problem: str) -> ScenarioError:
        """Return an error about a key's value."""
        return ScenarioError(f"{self.place}{key}: {problem}")

    def take(self, key: str, parse: Callable[[Any], Any], default: Any) -> Any:
        """Return the parsed value of a key, or the default if it is absent."""
        self._read_keys[key] = None
        if key not in self.values:
            return default
        try:
            return parse(self.values[key])
        except (ValueError, TypeError) as error:
            raise self.error(key, str(error)) from None

    def table(self, key: str) -> "Table":
        """Return the table below a key, empty if it is absent."""
        self._read_keys[key] = None
        place = f"{self.place}{key}"
        try:
            table = Table(self.values.get(key, {}), place)
        except ScenarioError as error:
            raise ScenarioError(f"{error}: [{key}]") from None
        table.place = f"{place}."
        return table

    def fields(self, keys: "Mapping[str, Kind]", defaults: object) -> dict[str, Any]:
        """Return the values of these keys by field, and allow no other keys; `defaults` has absent
        ones."""
        values = {}
        for key, kind in keys.items():
            field = FIELDS.get(key, key)
            values[field] = self.take(key, kind.read, getattr(defaults, field))
        self.done()
        return values

    def one_table(self, key: str) -> "Table":
        """Return the table below a key, also if it is a list of one table (`[[key]]`)."""
        value = self.values.get(key)
        if isinstance(value, list):
            if len(value) != 1:
                raise self.error(key, f"there are {len(value)} of them; one kind is possible")
            self.values = {**self.values, key: value[0]}
        return self.table(key)

    def done(self) -> None:
        """Raise `ScenarioError` for a key that was not read."""
        for key in self.values:
            if key not in self._read_keys:
                near = difflib.get_close_matches(key, list(self._read_keys), n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self._read_keys)}"
                )
                raise ScenarioError(f"{self.place}{key}: unknown key; {hint}")


def whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an integer")
    return value


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not a quoted string such as "leader"')
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def duration(value: object) -> float:
    """Return the seconds of a text with a unit, not below 0."""
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not a duration; write "{value}s" or "{value}ms"')
    seconds = parse_duration(value)
    if seconds < 0:
        raise ValueError(f"must not be negative, not {value!r}")
    return seconds


def size(value: object) -> int:
    """Return bytes, from a whole number or a text such as `64KiB`."""
    return parse_size(value) if isinstance(value, str) else whole(value)


def one_of(*words: str) -> Callable[[object], Any]:
    def parse(value: object) -> str:
        if value in words:
            return str(value)
        near = difflib.get_close_matches(str(value), words, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"must be one of {', '.join(words)}, not {value!r}{hint}")

    return parse


def list_of(parse: Callable[[Any], T], count: int | None = None) -> Callable[[object], list[T]]:
    """Return a parser of lists of such values, of this length if one is given."""

    def parse_list(value: object) -> list[T]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"{value!r} is not a list")
        if count is not None and len(value) != count:
            raise ValueError(f"{value!r} has {len(value)} entries, not {count}")
        return [parse(entry) for entry in value]

    return parse_list


def map_of(parse: Callable[[Any], T]) -> Callable[[object], dict[str, T]]:
    """Return a parser of tables of such values, whatever their keys."""

    def parse_map(value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a table")
        return {text(key): parse(entry) for key, entry in value.items()}

    return parse_map


# --- how the keys of a plan's parts are read from TOML and written to it


class Kind(NamedTuple):
    read: Callable[[Any], Any]
    show: Callable[[Any], str]


def show_text(value: str) -> str:
    """Return a basic string: for the texts of a plan TOML's escapes are JSON's."""
    return json.dumps(value, ensure_ascii=False)


def show_number(value: float) -> str:
    return repr(float(value))


def show_time(seconds: float) -> str:
    return show_text(show_duration(seconds))


def milliseconds(value: object) -> float:
    return round(duration(value) * 1000, 3)


def _sizes(value: object) -> tuple[int, int]:
    low, high = list_of(size, 2)(value)
    return low, high


def _progress(value: object) -> tuple[int, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f'{value!r} is not a number and a time such as [50, "5s"]')
    return whole(value[0]), duration(value[1])


def _ids(value: object) -> tuple[str, ...]:
    return tuple(map(check_id, list_of(text)(value)))


def _words(*words: str) -> Kind:
    return Kind(one_of(*words), show_text)


WHOLE: Final = Kind(whole, str)
NUMBER: Final = Kind(number, show_number)
TIME: Final = Kind(duration, show_time)
MILLISECONDS: Final = Kind(milliseconds, lambda ms: show_time(ms / 1000))
CLUSTER: Final[Mapping[str, Kind]] = {
    "brokers": WHOLE,
    "groups": WHOLE,
    "nameservers": WHOLE,
    "flush": _words("sync", "async"),
    "repl": _words("sync", "async"),
    "min_isr": WHOLE,
    "failover": Kind(flag, lambda value: str(value).lower()),
    "segment": Kind(size, str),
}
PRODUCER: Final[Mapping[str, Kind]] = {
    "count": WHOLE,
    "rate": NUMBER,
    "in_flight": WHOLE,
    "topics": WHOLE,
    "queues": WHOLE,
    "body": Kind(_sizes, lambda sizes: f"[{sizes[0]}, {sizes[1]}]"),
    "keys": WHOLE,
    "batch": NUMBER,
    "prefix": Kind(text, show_text),
    "ordered": Kind(flag, lambda value: str(value).lower()),
    "timeout": TIME,
    "oneway": NUMBER,
    "properties": NUMBER,
    "burst": WHOLE,
    "large": Kind(size, str),
    "late": WHOLE,
    "deleted": WHOLE,
    "changes": WHOLE,
    "settings": WHOLE,
    "batch_queues": WHOLE,
    "stay": TIME,
}
CONSUMER: Final[Mapping[str, Kind]] = {
    "count": WHOLE,
    "mode": _words("group", "pull", "mixed"),
    "members": WHOLE,
    "filtered": NUMBER,
    "rewinds": NUMBER,
}
LISTENER: Final[Mapping[str, Kind]] = {
    "count": WHOLE,
    "rate": NUMBER,
    "delayed": NUMBER,
    "refused": NUMBER,
    "greedy": NUMBER,
    "queues": WHOLE,
}
BACKGROUND: Final[Mapping[str, Kind]] = {
    "cut": _words("random", "strict", "prefix", "reorder"),
    "link": MILLISECONDS,
    "link_jitter": MILLISECONDS,
    "cold_share": NUMBER,
    "wall_rate": WHOLE,
}
RECOVERY: Final[Mapping[str, Kind]] = {
    "at": TIME,
    "drain": TIME,
    "broken": Kind(text, show_text),
}
EXPECT: Final[Mapping[str, Kind]] = {
    "loss": _words("bound", "none"),
    "rto": TIME,
    "progress": Kind(_progress, lambda least: f"[{least[0]}, {show_time(least[1])}]"),
    "turn": TIME,
    "checks": Kind(_ids, lambda ids: f"[{', '.join(map(show_text, ids))}]"),
}
FIELDS: Final[Mapping[str, str]] = {
    "timeout": "timeout_s",
    "stay": "stay_s",
    "cut": "cut_mode",
    "link": "link_ms",
    "link_jitter": "link_jitter_ms",
    "at": "faults_s",
    "drain": "recovery_s",
    "rto": "rto_s",
    "turn": "turn_s",
}
"""Key -> field of a part, if their names differ."""
