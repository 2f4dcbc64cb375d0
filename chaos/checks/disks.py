"""Reliability of each node's disk: lies and damage, until the node got a new disk."""

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
from rocketbed.chaos.evidence.node_events import REPAIRED
from rocketbed.chaos.plan.damage import STRAYS

if TYPE_CHECKING:
    from rocketbed.chaos.checks.evidence import Evidence

LYING: Final = "lost-fsync"
"""Fault of a disk that no store can detect in time."""
KEYED: Final = ("index/", "commitlog/")
"""Damage of these files may leave the index without keys."""
_LOG_BYTES: Final = re.compile(
    r"commitlog/(?P<start>[0-9]{20}) bytes? (?P<begin>[0-9]+)(?: to (?P<end>[0-9]+))?$"
)


class Disks:
    """The disks of one run."""

    def __init__(self, evidence: "Evidence") -> None:
        self._evidence = evidence

    def damaged_by(self, node: str, time_ns: int) -> Excuse | None:
        """Return why a node's own copy proved nothing at a time: its disk had lied, or had been
        damaged and the node reported it, and it has not had a new disk since."""
        return _in_force(
            [*self._lies.get(node, ()), *self._reported_damages.get(node, ())], time_ns
        )

    def was_damaged(self, node: str, since_ns: int) -> bool:
        """True if a node's disk was damaged at a time or later, reported or not."""
        hits = self._evidence.events(Function.NODE, "damaged")
        return any(event.node == node and event.time_ns >= since_ns for event in hits)

    def misses_keys(self, node: str, time_ns: int) -> Excuse | None:
        """Return why a node's index may lack keys at a time: its disk had lied, or index or log had
        been damaged and the node reported it. Its next start after that rebuilds the index."""
        causes = [*self._lies.get(node, ()), *self._lost_keys.get(node, ())]
        return _in_force(causes, time_ns)

    @cached_property
    def _lost_keys(self) -> dict[str, list[Excuse]]:
        """Damage of index or log that each node reported, until its next start after that."""
        excuses: dict[str, list[Excuse]] = defaultdict(list)
        for damage in self._evidence.events(Function.NODE, "damaged"):
            node, reports = damage.node, self._evidence.reports(damage.node, damage.time_ns)
            if reports and str(damage.fields.get("hit")).startswith(KEYED):
                starts = (
                    event.time_ns
                    for event in self._evidence.events(Function.NODE, "recovered")
                    if event.node == node and event.time_ns > reports[0].time_ns
                )
                cause = f"the index of {node} was damaged, which it reported"
                excuse = self._evidence.excuse(cause, damage.time_ns, min(starts, default=None))
                excuses[node].append(excuse)
        return dict(excuses)

    @cached_property
    def _lies(self) -> dict[str, list[Excuse]]:
        """Each time that a node's disk began to lie, by node."""
        excuses: dict[str, list[Excuse]] = defaultdict(list)
        for event in self._evidence.events(Function.NEMESIS):
            if LYING in {event.kind, *step_of(event).split()}:
                for node in targets_of(event):
                    cause = f"the disk of {node} lied: {step_of(event) or event.kind}"
                    excuses[node].append(self._until_wiped(node, cause, event.time_ns))
        return dict(excuses)

    @cached_property
    def _reported_damages(self) -> dict[str, list[Excuse]]:
        """Damage of each node's disk that it reported, or that nothing can detect.

        Damage that a node never reported excuses nothing: either it is found, or it did no harm.
        A log's damage is copied with the bytes; for the copy it counts once its node reports it.
        """
        excuses: dict[str, list[Excuse]] = defaultdict(list)
        for damage in self._evidence.events(Function.NODE, "damaged"):
            node, reports = damage.node, self._evidence.reports(damage.node, damage.time_ns)
            if damage.fields.get("untold") or reports:
                cause = f"the disk of {node} was damaged ({damage.fields.get('kind')})"
                cause += ", which it reported" if reports else ", so that nobody can see it"
                excuses[node].append(self._until_wiped(node, cause, damage.time_ns))
            if reports and str(damage.fields.get("hit")).startswith("commitlog/"):
                group = self._evidence.group_of_name(node)
                for report in self._evidence.events(Function.NODE, "reported"):
                    if self._evidence.group_of_name(report.node) != group:
                        continue
                    if report.time_ns > damage.time_ns and report.fields.get("event") != REPAIRED:
                        copied = f"{report.node} reported damage of {node} that it copied"
                        excuse = self._until_wiped(report.node, copied, report.time_ns)
                        excuses[report.node].append(excuse)
        return dict(excuses)

    @cached_property
    def _hits(self) -> list[tuple[int, int, int, Excuse]]:
        """Group, begin and end in the log, and excuse of bytes that were altered at rest, if their
        node reported it or nothing can detect it.

        Bytes that no checksum covers are copied with the alteration.
        """
        return [
            (self._evidence.group_of_name(event.node), begin, end, excuse)
            for event, begin, end, excuse in self._altered_bytes
            if event.fields.get("untold") or self._evidence.reports(event.node, event.time_ns)
        ]

    @cached_property
    def _altered_bytes(self) -> list[tuple[Event, int, int, Excuse]]:
        """Damaged bytes of logs: event, begin, end, excuse."""
        altered = []
        for event in self._evidence.events(Function.NODE, "damaged"):
            if place := _LOG_BYTES.search(str(event.fields.get("hit"))):
                start, first = int(place["start"]), int(place["begin"])
                begin, end = start + first, start + int(place["end"] or first + 1)
                cause = f"bytes {begin} to {end} of the log of {event.node} were damaged"
                altered.append((event, begin, end, self._evidence.excuse(cause, event.time_ns)))
        return altered

    def undetected_damage_of(self, node: str, begin: int, end: int, time_ns: int) -> Excuse | None:
        """Return damage of any of these bytes in a node's own log, before the node cut them off at
        a time: it had no time to report it."""
        for event, first, last, excuse in self._altered_bytes:
            is_hit = first < end and begin < last
            if event.node == node and is_hit and event.time_ns <= time_ns:
                return excuse
        return None

    def damage_of(self, group: int, begin: int, end: int) -> Excuse | None:
        """Return damage of any of these bytes in a group's logs."""
        for hit_group, first, last, excuse in self._hits:
            if hit_group == group and first < end and begin < last:
                return excuse
        return None

    def cut_short(self, node: str, end: int, since_ns: int, until_ns: int) -> bool:
        """True if a node's own log was damaged below `end` in a period, and the node reported it.

        Above its mark a start takes damage for a torn end, and cuts the log there.
        """
        return any(
            event.node == node
            and begin < end
            and since_ns <= event.time_ns <= until_ns
            and self._evidence.reports(node, event.time_ns, repairs=True)
            for event, begin, _, _ in self._altered_bytes
        )

    def altered(self, value: int) -> Excuse | None:
        """Return damage of the very record of a value, which may remain in the log as another
        value's."""
        for log in self._evidence.logs if self._hits else ():
            messages = log.messages
            for number in passes.matching(passes.column(messages.values), (value,)):
                begin = messages.physicals[number]
                if excuse := self.damage_of(log.group, begin, begin + messages.sizes[number]):
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
        """Return why a copy, or one of its files, may be wrong: from the damage of its disk until
        it got a new one."""
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
            # A disk may continue to lie after it was emptied; damage goes with the old content.
            causes = [(excuse, -1) for excuse in self._lies.get(log.name, ())]
            causes += [(excuse, emptied_ns) for excuse in self._reported_damages.get(log.name, ())]
            for excuse, since_ns in causes:
                if since_ns <= excuse.begin_ns <= until_ns:
                    return excuse
            unread = self._undetected(log.name, until_ns, file) if log.image is not None else None
            if unread is not None:
                return unread
        return None

    def _undetected(self, node: str, time_ns: int, file: str) -> Excuse | None:
        """Return damage of a file that the node had not read since, as it had not recovered yet.

        Its next start may repair the file without a report.
        """
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
        """Time of the last damage, by kind and node."""
        events = self._evidence.events(Function.NODE, "damaged")
        return {(str(event.fields.get("kind")), event.node): event.time_ns for event in events}

    @cached_property
    def _emptied(self) -> dict[str, list[int]]:
        """Times at which each node got an empty disk."""
        times: dict[str, list[int]] = defaultdict(list)
        for event in self._evidence.history.events:
            if event.kind == "wipe":
                for node in targets_of(event):
                    times[node].append(event.time_ns)
        return dict(times)

    def emptied_since(self, node: str, time_ns: int) -> bool:
        """True if a node got an empty disk after a time."""
        return any(at > time_ns for at in self._emptied.get(node, ()))


def _in_force(causes: Iterable[Excuse], time_ns: int) -> Excuse | None:
    return next((cause for cause in causes if cause.begin_ns <= time_ns <= cause.end_ns), None)
