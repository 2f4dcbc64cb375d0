"""What the copy on each node's disk is worth: lies and damage, until the node had a new disk."""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from rocketbed.chaos.checks import passes
from rocketbed.chaos.checks.events import step_of, targets_of
from rocketbed.chaos.checks.logs import NodeLog
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.evidence.node_events import MENDED
from rocketbed.chaos.plan.damage import STRAYS

if TYPE_CHECKING:
    from rocketbed.chaos.checks.evidence import Evidence

LYING: Final = "lost-fsync"
"""A fault of a disk that no store can see in time."""
KEYED: Final = ("index/", "commitlog/")
"""Damage there may leave the index without keys."""
_LOG_BYTES: Final = re.compile(
    r"commitlog/(?P<start>[0-9]{20}) bytes? (?P<begin>[0-9]+)(?: to (?P<end>[0-9]+))?$"
)


class Disks:
    """Of one run."""

    def __init__(self, evidence: "Evidence") -> None:
        self._evidence = evidence

    def damaged_by(self, node: str, time_ns: int) -> Excuse | None:
        """Why a node's own copy proved nothing at a time: its disk had lied, or had been damaged
        and the node said so, and it had no new disk since."""
        return _in_force([*self._lies.get(node, ()), *self._told_damages.get(node, ())], time_ns)

    def was_damaged(self, node: str, since_ns: int) -> bool:
        """Whether a node's disk was damaged at a time or later, told or not."""
        hits = self._evidence.events(Function.NODE, "damaged")
        return any(one.node == node and one.time_ns >= since_ns for one in hits)

    def misses_keys(self, node: str, time_ns: int) -> Excuse | None:
        """Why a node's index may lack keys at a time: its disk had lied, or index or log had been
        damaged and the node said so; its next start after that builds the index again."""
        causes = [*self._lies.get(node, ()), *self._keyless.get(node, ())]
        return _in_force(causes, time_ns)

    @cached_property
    def _keyless(self) -> dict[str, list[Excuse]]:
        """By node each damage of index or log that it reported, until its next start after that."""
        found: dict[str, list[Excuse]] = defaultdict(list)
        for damage in self._evidence.events(Function.NODE, "damaged"):
            node, told = damage.node, self._evidence.reports(damage.node, damage.time_ns)
            if told and str(damage.fields.get("hit")).startswith(KEYED):
                starts = (
                    event.time_ns
                    for event in self._evidence.events(Function.NODE, "recovered")
                    if event.node == node and event.time_ns > told[0].time_ns
                )
                cause = f"the index of {node} was damaged, which it reported"
                excuse = self._evidence.excuse(cause, damage.time_ns, min(starts, default=None))
                found[node].append(excuse)
        return dict(found)

    @cached_property
    def _lies(self) -> dict[str, list[Excuse]]:
        """By node each time that its disk began to lie."""
        found: dict[str, list[Excuse]] = defaultdict(list)
        for event in self._evidence.events(Function.NEMESIS):
            if LYING in {event.what, *step_of(event).split()}:
                for node in targets_of(event):
                    cause = f"the disk of {node} lied: {step_of(event) or event.what}"
                    found[node].append(self._until_wiped(node, cause, event.time_ns))
        return dict(found)

    @cached_property
    def _told_damages(self) -> dict[str, list[Excuse]]:
        """By node each damage of its disk that it reported, or that nobody can see.

        Damage that a node never reported excuses nothing: it is found, or it did no harm. That of a
        log goes with the bytes to those that copy them, and counts for them once they report it
        (seed 867449).
        """
        found: dict[str, list[Excuse]] = defaultdict(list)
        for damage in self._evidence.events(Function.NODE, "damaged"):
            node, told = damage.node, self._evidence.reports(damage.node, damage.time_ns)
            if damage.fields.get("untold") or told:
                cause = f"the disk of {node} was damaged ({damage.fields.get('kind')})"
                cause += ", which it reported" if told else ", so that nobody can see it"
                found[node].append(self._until_wiped(node, cause, damage.time_ns))
            if told and str(damage.fields.get("hit")).startswith("commitlog/"):
                group = self._evidence.group_of_name(node)
                for other in self._evidence.events(Function.NODE, "reported"):
                    if self._evidence.group_of_name(other.node) != group:
                        continue
                    if other.time_ns > damage.time_ns and other.fields.get("event") != MENDED:
                        copied = f"{other.node} reported damage of {node} that it copied"
                        excuse = self._until_wiped(other.node, copied, other.time_ns)
                        found[other.node].append(excuse)
        return dict(found)

    @cached_property
    def _hits(self) -> list[tuple[int, int, int, Excuse]]:
        """Group, where in the log from and to, and damage of bytes that were altered at rest, if
        their node told of it or nobody can see it: it goes with the bytes to those that copy them,
        as far as no checksum covers them."""
        return [
            (self._evidence.group_of_name(event.node), begin, end, excuse)
            for event, begin, end, excuse in self._altered_bytes
            if event.fields.get("untold") or self._evidence.reports(event.node, event.time_ns)
        ]

    @cached_property
    def _altered_bytes(self) -> list[tuple[Event, int, int, Excuse]]:
        """Each damage of bytes of a log, from where to where."""
        found = []
        for event in self._evidence.events(Function.NODE, "damaged"):
            if place := _LOG_BYTES.search(str(event.fields.get("hit"))):
                start, first = int(place["start"]), int(place["begin"])
                begin, end = start + first, start + int(place["end"] or first + 1)
                cause = f"bytes {begin} to {end} of the log of {event.node} were damaged"
                found.append((event, begin, end, self._evidence.excuse(cause, event.time_ns)))
        return found

    def hit_unseen(self, node: str, begin: int, end: int, time_ns: int) -> Excuse | None:
        """Damage of any of these bytes in a node's own log before a time at which the node cut them
        off: it had no time to tell of it (seeds 238929, 1321746)."""
        for event, first, behind, excuse in self._altered_bytes:
            is_hit = first < end and begin < behind
            if event.node == node and is_hit and event.time_ns <= time_ns:
                return excuse
        return None

    def hit(self, group: int, begin: int, end: int) -> Excuse | None:
        """Damage of any of these bytes in a group's logs."""
        for of, first, behind, excuse in self._hits:
            if of == group and first < end and begin < behind:
                return excuse
        return None

    def cut_short(self, node: str, end: int, since_ns: int, until_ns: int) -> bool:
        """Whether a node's own log was damaged below an end in a time, and it told of that: above
        its mark a start takes damage for an end that was never written, and cuts the log there
        (seed 2311019)."""
        return any(
            event.node == node
            and begin < end
            and since_ns <= event.time_ns <= until_ns
            and self._evidence.reports(node, event.time_ns, mended=True)
            for event, begin, _, _ in self._altered_bytes
        )

    def altered(self, value: int) -> Excuse | None:
        """Damage of the very record of a value, which may stay in the log as another's."""
        for log in self._evidence.logs if self._hits else ():
            messages = log.messages
            for number in passes.where(passes.column(messages.values), (value,)):
                begin = messages.physicals[number]
                if excuse := self.hit(log.group, begin, begin + messages.sizes[number]):
                    return excuse
        return None

    def _until_wiped(self, node: str, cause: str, begin_ns: int) -> Excuse:
        wipes = (
            event.time_ns
            for event in self._evidence.events(Function.NEMESIS, "wipe")
            if node in targets_of(event) and event.time_ns > begin_ns
        )
        return self._evidence.excuse(cause, begin_ns, min(wipes, default=None))

    def may_differ(self, *logs: NodeLog, file: str = "") -> Excuse | None:
        """Why a copy, or such a file of it, may be wrong: not before its disk was damaged, and
        not once it has a new one."""
        for log in logs:
            stray_ns = self._damages.get(("stray", log.name))
            if file in STRAYS and stray_ns is not None:
                return self._evidence.excuse(
                    f"a stray file was put on the disk of {log.name}", stray_ns
                )
            until_ns = self._evidence.record.end_ns if log.image is None else log.image.time_ns
            emptied_ns = max(
                (time_ns for time_ns in self._emptied.get(log.name, ()) if time_ns < until_ns),
                default=-1,
            )
            # A disk may go on lying when it is emptied; damage goes with what was there.
            causes = [(excuse, -1) for excuse in self._lies.get(log.name, ())]
            causes += [(excuse, emptied_ns) for excuse in self._told_damages.get(log.name, ())]
            for excuse, since_ns in causes:
                if since_ns <= excuse.begin_ns <= until_ns:
                    return excuse
            unread = self._unread(log.name, until_ns, file) if log.image is not None else None
            if unread is not None:
                return unread
        return None

    def _unread(self, node: str, time_ns: int, file: str) -> Excuse | None:
        """Damage of a file before a time at which the node had not recovered since, and so had not
        looked: it may heal the file at its next start, without a word (seed 1306722)."""
        recovered = (
            event.time_ns
            for event in self._evidence.events(Function.NODE, "recovered")
            if event.node == node and event.time_ns <= time_ns
        )
        since_ns = max(recovered, default=0)
        for event in self._evidence.events(Function.NODE, "damaged"):
            hit = str(event.fields.get("hit"))
            is_since = event.node == node and since_ns <= event.time_ns <= time_ns
            if is_since and file and hit.startswith(file):
                cause = f"{file} of {node} was damaged, and {node} had not looked at it yet"
                return self._evidence.excuse(cause, event.time_ns, time_ns)
        return None

    @cached_property
    def _damages(self) -> dict[tuple[str, str], int]:
        """Kind and node -> when that was done to it last."""
        events = self._evidence.events(Function.NODE, "damaged")
        return {(str(event.fields.get("kind")), event.node): event.time_ns for event in events}

    @cached_property
    def _emptied(self) -> dict[str, list[int]]:
        """By node each time that it was given an empty disk."""
        found: dict[str, list[int]] = defaultdict(list)
        for event in self._evidence.history.events:
            if event.what == "wipe":
                for node in targets_of(event):
                    found[node].append(event.time_ns)
        return dict(found)

    def emptied_since(self, node: str, time_ns: int) -> bool:
        """Whether a node was given an empty disk after a time."""
        return any(at > time_ns for at in self._emptied.get(node, ()))


def _in_force(causes: Iterable[Excuse], time_ns: int) -> Excuse | None:
    return next((one for one in causes if one.begin_ns <= time_ns <= one.end_ns), None)
