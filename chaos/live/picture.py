"""Translates events of a cluster to what a browser draws: spans, events and points in a feed.

Times are seconds of the run's clock. Keys of the feed:

    machine:NAME   its kind and its buttons             at:NAME   ends of its log
    span:N         a period in a machine's row          event:N   a line of the list
    point:N        half a second of the load            links     links with a fault

Of the numbered ones only the latest are kept.
"""

from collections.abc import Iterable
from typing import Any, Final

from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.run.api import Sample

KEPT: Final = {"span": 400, "event": 200, "point": 600}
LASTING: Final = ("partition", "isolate", "link", "disk", "pause", "clock", "cpu")
"""Steps that are in force until something ends them, even without a duration."""
HEALED: Final = ("partition", "isolate", "link", "disk")
"""Those that a step `heal` ends."""
EVERYTHING: Final = "everything"
SEEN_AT_MACHINES: Final = ("pause", "isolate", "kill", "crash", "powercut", "stop")
"""Steps that show in the state of a machine."""
UNSHOWN: Final = ("master", "refused")
"""Fields of a sample that the page gets elsewhere, or does not need."""


class Picture:
    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._numbers: dict[str, int] = dict.fromkeys(KEPT, 0)
        self._open: dict[int, tuple[str, dict[str, Any]]] = {}
        """Open spans by number: the machine's name or the step's text, and the span."""

    # --- for any caller

    def add(self, kind: str, value: dict[str, Any]) -> int:
        self._numbers[kind] += 1
        number = self._numbers[kind]
        self.feed.put(f"{kind}:{number}", value)
        self.feed.drop(f"{kind}:{number - KEPT[kind]}")
        if kind == "span" and (open_span := self._open.pop(number - KEPT[kind], None)):
            # Re-added before it is too old to be kept.
            self._open[self.add("span", open_span[1])] = open_span
        return number

    def tell(self, time_s: float, text: str, kind: str = "", *, by_hand: bool = False) -> None:
        self.add("event", {"t": round(time_s, 3), "text": text, "kind": kind, "hand": by_hand})

    def enter(self, name: str, kind: str, time_s: float) -> None:
        """Begin a span of a machine: `master`, `slave`, `recovering`, ..."""
        open_numbers = [number for number, (owner, _) in self._open.items() if owner == name]
        if any(self._open[number][1]["kind"] == kind for number in open_numbers):
            return
        self._end(open_numbers, time_s)
        span = {"rows": [name], "kind": kind, "begin": round(time_s, 3), "end": None}
        self._open[self.add("span", span)] = name, span

    def is_open(self, name: str) -> bool:
        """True if a row has an open span."""
        return any(owner == name for owner, _ in self._open.values())

    def other_faults(self) -> list[str]:
        """Return the faults in force that no machine's state shows, such as `disk b1 full`."""
        spans = [span for _, span in self._open.values() if span["kind"] == "fault"]
        labels = [span["label"] for span in spans if span["verb"] not in SEEN_AT_MACHINES]
        return list(dict.fromkeys(labels))

    def begin_fault(
        self,
        step: str,
        verb: str,
        names: Iterable[str],
        time_s: float,
        *,
        lasts: bool,
        by_hand: bool = False,
    ) -> None:
        """Begin the span of a step that was carried out; `step` is its text with the time."""
        span = {
            "rows": list(dict.fromkeys(names)),
            "kind": "fault",
            "verb": verb,
            "label": action_of(step),
            "begin": round(time_s, 3),
            "end": None if lasts else round(time_s, 3),
            "hand": by_hand,
        }
        number = self.add("span", span)
        if lasts:
            self._open[number] = step, span

    def end_faults(self, time_s: float, *, step: str = EVERYTHING) -> None:
        """End the span of a step, or of all."""
        faults = [(number, *of) for number, of in self._open.items() if of[1]["kind"] == "fault"]
        ended = [
            number
            for number, text, span in faults
            if step in (EVERYTHING, text) or (step == "heal" and span["verb"] in HEALED)
        ]
        self._end(ended, time_s)

    def stand(self, name: str, sample: Sample | None) -> None:
        """Set the ends of a machine's log; None if it does not answer."""
        key = f"at:{name}"
        if sample is None:
            current = self.feed.get(key)
            if current is not None:
                self.feed.put(key, {**current, "following": False, "answers": False})
            return
        row = {name: value for name, value in sample.as_row().items() if name not in UNSHOWN}
        self.feed.put(
            key, {**row, "disk": sample.disk_used, "group": sample.group, "answers": True}
        )

    def _end(self, numbers: Iterable[int], time_s: float) -> None:
        for number in numbers:
            _, span = self._open.pop(number)
            self.feed.put(f"span:{number}", {**span, "end": round(time_s, 3)})

    # --- from a run's history

    def take(self, event: Event) -> None:
        time_s = event.time_ns / 1e9
        if event.function == Function.NEMESIS:
            self._take_fault(event, time_s)
        elif event.function == Function.NODE:
            text = _sentence(event)
            if text:
                self.tell(time_s, text, event.kind)

    def _take_fault(self, event: Event, time_s: float) -> None:
        fields = event.fields
        step, by_hand = str(fields.get("step", "")), bool(fields.get("by_hand"))
        if event.kind == "heal" and step == EVERYTHING:
            self.end_faults(time_s)
            self.tell(time_s, "all faults are healed", "heal")
        elif event.kind == "heal" and "began_ns" not in fields:
            self.end_faults(time_s, step=step)
            self.tell(time_s, f"over: {action_of(step)}", "heal", by_hand=by_hand)
        elif event.kind == "heal":
            self.end_faults(time_s, step="heal")
            self.tell(time_s, "links and disks are healed", "heal", by_hand=by_hand)
        elif event.kind in ("struck", "missed"):
            self.tell(time_s, f"{event.kind}: {action_of(step)}", event.kind)
        else:
            begin_s = int(fields.get("began_ns", event.time_ns)) / 1e9
            lasts = fields.get("for_s") is not None or event.kind in LASTING
            names = [*fields.get("targets", []), *fields.get("second", [])]
            self.begin_fault(step, event.kind, names, begin_s, lasts=lasts, by_hand=by_hand)
            self.tell(begin_s, action_of(step), event.kind, by_hand=by_hand)


def action_of(step: str) -> str:
    """Return a concrete step's text without its time: `at 3s kill b1` is `kill b1`."""
    words = step.split(" ", 2)
    return words[2] if len(words) == 3 and words[0] == "at" else step


def _sentence(event: Event) -> str:
    """Describe an event of a node in words; empty for one that only a chart shows."""
    node, fields = event.node, event.fields
    if event.kind == "start":
        part = "master" if fields.get("id") == 0 else "slave"
        return f"{node} starts as {part}"
    if event.kind == "recovered":
        return f"{node} has recovered"
    if event.kind == "exit":
        reason = fields.get("reason")
        return f"{node} ended: {fields.get('cause', '')}" + (f", {reason}" if reason else "")
    if event.kind == "promote":
        return f"{node} becomes the master in place of {fields.get('former', '')}"
    if event.kind == "cut":
        return f"{node} truncated its log where it diverged from its master's"
    return ""
