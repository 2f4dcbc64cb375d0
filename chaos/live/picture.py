"""From what happens to a cluster to what a browser draws: spans, events and points in a feed.

Times are seconds of the run's clock. Keys of the feed:

    machine:NAME   what it is and what its buttons can do      at:NAME   where its log stands
    span:N         a stretch of a machine's row                event:N   a line of the list
    point:N        half a second of the load                   links     links with a fault

Of the numbered ones only the last are kept.
"""

from collections.abc import Iterable
from typing import Any, Final

from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.run.api import Sample

KEPT: Final = {"span": 400, "event": 200, "point": 600}
LASTING: Final = ("partition", "isolate", "link", "disk", "pause", "clock", "cpu")
"""Steps that are in force until something ends them, also without a time of their own."""
MENDED: Final = ("partition", "isolate", "link", "disk")
"""Those that a step `heal` ends."""
EVERYTHING: Final = "everything"
UNSHOWN: Final = ("master", "refused")
"""What a sample says that the page has from elsewhere, or needs not."""


class Picture:
    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._numbers: dict[str, int] = dict.fromkeys(KEPT, 0)
        self._open: dict[int, tuple[str, dict[str, Any]]] = {}
        """Spans without an end by number: the machine's name or the step's text, and the span."""

    # --- what anybody may draw

    def add(self, kind: str, value: dict[str, Any]) -> int:
        self._numbers[kind] += 1
        number = self._numbers[kind]
        self.feed.put(f"{kind}:{number}", value)
        self.feed.drop(f"{kind}:{number - KEPT[kind]}")
        if kind == "span" and (still := self._open.pop(number - KEPT[kind], None)):
            self._open[self.add("span", still[1])] = still  # before it is too old to be kept
        return number

    def tell(self, time_s: float, text: str, kind: str = "", *, by_hand: bool = False) -> None:
        self.add("event", {"t": round(time_s, 3), "text": text, "kind": kind, "hand": by_hand})

    def enter(self, name: str, kind: str, time_s: float) -> None:
        """A machine is something else from now on: `master`, `slave`, `recovering`, ..."""
        before = [number for number, (whose, _) in self._open.items() if whose == name]
        if any(self._open[number][1]["kind"] == kind for number in before):
            return
        self._end(before, time_s)
        span = {"rows": [name], "kind": kind, "begin": round(time_s, 3), "end": None}
        self._open[self.add("span", span)] = name, span

    def has(self, name: str) -> bool:
        """Whether a row has a span that goes on."""
        return any(whose == name for whose, _ in self._open.values())

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
        """A step was carried out; `step` is its text with the time."""
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
        """A step is over, or all of them."""
        faults = [(number, *of) for number, of in self._open.items() if of[1]["kind"] == "fault"]
        over = [
            number
            for number, text, span in faults
            if step in (EVERYTHING, text) or (step == "heal" and span["verb"] in MENDED)
        ]
        self._end(over, time_s)

    def stand(self, name: str, sample: Sample | None) -> None:
        """Where a machine's log stands; None: it does not say."""
        key = f"at:{name}"
        if sample is None:
            known = self.feed.get(key)
            if known is not None:
                self.feed.put(key, {**known, "following": False, "answers": False})
            return
        row = {name: value for name, value in sample.as_row().items() if name not in UNSHOWN}
        self.feed.put(
            key, {**row, "disk": sample.disk_used, "group": sample.group, "answers": True}
        )

    def _end(self, numbers: Iterable[int], time_s: float) -> None:
        for number in numbers:
            _, span = self._open.pop(number)
            self.feed.put(f"span:{number}", {**span, "end": round(time_s, 3)})

    # --- what a run's history tells

    def take(self, event: Event) -> None:
        time_s = event.time_ns / 1e9
        if event.function == Function.NEMESIS:
            self._take_fault(event, time_s)
        elif event.function == Function.NODE:
            text = _sentence(event)
            if text:
                self.tell(time_s, text, event.what)

    def _take_fault(self, event: Event, time_s: float) -> None:
        fields = event.fields
        step, by_hand = str(fields.get("step", "")), bool(fields.get("by_hand"))
        if event.what == "heal" and step == EVERYTHING:
            self.end_faults(time_s)
            self.tell(time_s, "all faults are healed", "heal")
        elif event.what == "heal" and "began_ns" not in fields:
            self.end_faults(time_s, step=step)
            self.tell(time_s, f"over: {action_of(step)}", "heal", by_hand=by_hand)
        elif event.what == "heal":
            self.end_faults(time_s, step="heal")
            self.tell(time_s, "links and disks are healed", "heal", by_hand=by_hand)
        elif event.what in ("struck", "missed"):
            self.tell(time_s, f"{event.what}: {action_of(step)}", event.what)
        else:
            begin_s = int(fields.get("began_ns", event.time_ns)) / 1e9
            lasts = fields.get("for_s") is not None or event.what in LASTING
            names = [*fields.get("targets", []), *fields.get("second", [])]
            self.begin_fault(step, event.what, names, begin_s, lasts=lasts, by_hand=by_hand)
            self.tell(begin_s, action_of(step), event.what, by_hand=by_hand)


def action_of(step: str) -> str:
    """A concrete step's text without its time: `at 3s kill b1` is `kill b1`."""
    words = step.split(" ", 2)
    return words[2] if len(words) == 3 and words[0] == "at" else step


def _sentence(event: Event) -> str:
    """An event of a node in words; empty for what only a chart shows."""
    node, fields = event.node, event.fields
    if event.what == "start":
        part = "master" if fields.get("id") == 0 else "slave"
        return f"{node} starts as {part}"
    if event.what == "recovered":
        return f"{node} has recovered"
    if event.what == "exit":
        reason = fields.get("reason")
        return f"{node} ended: {fields.get('cause', '')}" + (f", {reason}" if reason else "")
    if event.what == "promote":
        return f"{node} becomes the master in place of {fields.get('former', '')}"
    if event.what == "cut":
        return f"{node} truncated its log where it diverged from its master's"
    return ""
