"""What listeners were never called for, or never took, or elsewhere than it is, and the losses that
explain it."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from rocketbed.chaos.checks.backlog import LATE_NS
from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.listening import (
    FIRST_LEVEL,
    NOBODY,
    Heard,
    Records,
    delay_ns,
    heard,
)
from rocketbed.chaos.checks.logs import Place, places_in
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.chaos.evidence.record import UNREAD
from rocketbed.inspect.properties import SCHEDULE_TOPIC, delay_levels

NOWHERE = Place("", -1, -1, -1)
PUT_BACK_NS = 5_000_000_000
"""A client asks for so long to have a message put back, then it calls the function again."""


@check("A27 never heard", "messages that each group has to be given")
def never_heard(case: Case, found: Findings) -> int:
    """A27: each acknowledged message was taken by a function of each group in the end, or is among
    its dead letters, as far as these were read. Not what the promise allows to be lost, here or
    on its further way."""
    examined, excuses = 0, _Excuses(case)
    record = case.evidence.record
    is_unread = any(stall.subject == UNREAD for stall in record.stalls)
    for one in heard(case):
        if one.told.outcome != Outcome.OK:
            continue
        examined += 1
        if one.dead or any(call.outcome == Outcome.OK for call in one.calls):
            continue
        last = max([one.told, *one.calls], key=lambda row: row.returned_ns)
        times = len({call.attempt for call in one.calls})
        if is_unread and times >= record.listener_tries:
            continue  # it may be among the dead letters, which were not all read
        found.add(
            f"group {one.group} has neither taken {one.name} nor given it up; called {times} times,"
            f" at {last.returned_ns / 1e9:.3f} s last",
            excuse=excuses.of(one),
            value=one.told.value,
            time_ns=last.returned_ns,
        )
    return examined


class _Excuses:
    """Losses of one run that may have kept a message from a group."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._records = Records(case)
        self._calls: dict[tuple[int, int], list[Row]] = defaultdict(list)
        """By node and listeners' group."""
        for row in case.evidence.rows((Function.HEAR,)).each():
            self._calls[row.node, row.operation].append(row)
        self._ups = case.evidence.events(Function.NODE, "exit", "recovered")
        self._last_places: Callable[[int, int, str], dict[int, Place] | None] = cache(self._places)

    def of(self, one: Heard) -> Excuse | None:
        group = self._case.evidence.group_of(one.told.node)
        if not one.told.operation and not one.calls:
            end = one.told.physical_offset + 1
            excuse = self._case.losses.may_lose(one.told, group, end)
            return excuse or self._passed_there(one)
        topic = self._case.evidence.history.topic(one.told)
        places = self._last_places(group, one.group, topic)
        if places is None:
            return self._passed(one, None, {}) or self._left(one) or self._on_the_way(one)
        place = places.get(one.told.value, NOWHERE)
        if place is NOWHERE:
            return self._left(one) or self._on_the_way(one)
        if place.physical in {call.physical_offset for call in one.calls}:
            return self._on_the_way(one)
        return self._passed(one, place, places)

    def _passed_there(self, one: Heard) -> Excuse | None:
        """A loss of what the group had got, so that it was beyond a place before the message came
        to stand there (T20; seed 861039), or a second master's queue, whose places are others. A
        member in order may handle what it got long after the loss (seed 866430)."""
        told = one.told
        for call in self._calls[told.node, one.group]:
            is_same = (call.topic, call.queue) == (told.topic, told.queue)
            if is_same and call.queue_offset >= told.queue_offset:
                excuse = self._records.lost(call, told.returned_ns)
                # It may have stood at a second master's place (seed 868724).
                if excuse := excuse or self._records.split(call, call.returned_ns, told):
                    return excuse
        return None

    def _passed(self, one: Heard, place: Place | None, places: dict[int, Place]) -> Excuse | None:
        """The same of what was delayed or refused, which comes to stand somewhere at any time:
        where the last log has it last counts, any place where that is not known."""
        for call in self._calls[one.told.node, one.group]:
            given = place_of(self._case.evidence, call)
            is_beyond = place is None or (given[:2] == place[:2] and given.offset >= place.offset)
            # What stands where it was given, to the byte, has passed nobody (seed 1281344).
            if is_beyond and places.get(call.value) != given:
                excuse = self._records.lost(call, ENDLESS)
                if excuse := excuse or self._records.split(call, call.returned_ns, one.told):
                    return excuse
        return None

    def _on_the_way(self, one: Heard) -> Excuse | None:
        """A loss of what its consumer put back, or of its next record, when that was due. A broker
        without failover takes the first as success although its slave is late, which no row tells
        (seed 1281344). A member that has the same record once more may leave its queue, and puts
        nothing back then: what the one before had put back counts (seed 1390028), unless it is seen
        to have stayed."""
        last = max([one.told, *one.calls], key=lambda row: row.returned_ns)
        before = [
            call
            for call in one.calls
            if call.physical_offset == last.physical_offset
            and call.process != last.process
            and call.outcome == Outcome.FAIL
            and not self._has_stayed(last)
        ]
        return next(filter(None, (self._lost_behind(one, row) for row in (last, *before))), None)

    def _left(self, one: Heard) -> Excuse | None:
        """A loss of the record that a member in order had in hand, where it left its queue and so
        put nothing back (seed 1510025)."""
        if not one.calls or one.group not in self._case.evidence.record.ordered_listeners:
            return None
        last = max(one.calls, key=lambda row: row.returned_ns)
        if self._has_stayed(last):
            return None
        until_ns = last.returned_ns
        return self._records.lost(last, until_ns) or self._records.split(last, until_ns)

    def _has_stayed(self, last: Row) -> bool:
        """Whether a member is called for its queue next, where that is in order behind the last."""
        later = (
            call
            for call in self._calls[last.node, last.operation]
            if (call.topic, call.queue) == (last.topic, last.queue)
            and call.invoked_ns > last.returned_ns
        )
        following = min(later, key=lambda call: call.invoked_ns, default=None)
        if following is None or following.process != last.process:
            return False
        is_in_order = last.operation in self._case.evidence.record.ordered_listeners
        return following.queue_offset > last.queue_offset or not is_in_order

    def _lost_behind(self, one: Heard, last: Row) -> Excuse | None:
        """The same, where this is the last that was seen of it."""
        evidence, losses = self._case.evidence, self._case.losses
        group, since_ns, retried_ns = evidence.group_of(last.node), last.returned_ns, 0
        level = one.told.operation
        if one.calls:
            level, retried_ns = FIRST_LEVEL + last.attempt, PUT_BACK_NS
            until_ns = since_ns + retried_ns
            excuse = losses.on_the_way(group, since_ns, until_ns, is_safe=evidence.elects)
        else:
            excuse = losses.may_lose(one.told, group, one.told.physical_offset + 1)
        since_ns += delay_ns(delay_levels(evidence.record.delay_levels), level)
        until_ns = self._served_ns(group, since_ns + retried_ns) + LATE_NS
        return excuse or losses.on_the_way(group, since_ns, until_ns, is_safe=evidence.elects)

    def _served_ns(self, group: int, time_ns: int) -> int:
        """A time, or when the group's master that was down then, or a new one, had recovered."""
        ours = [one for one in self._ups if self._case.evidence.group_of_name(one.node) == group]
        master = self._case.losses.lineages[group].era(time_ns).master if group >= 0 else ""
        before = [one for one in ours if one.node == master and one.time_ns <= time_ns]
        if not before or before[-1].what == "recovered":
            return time_ns
        after = (one.time_ns for one in ours if one.what == "recovered" and one.time_ns > time_ns)
        return next(after, time_ns)

    def _places(self, group: int, listeners: int, topic: str) -> dict[int, Place] | None:
        """By value where the last log of a broker group has messages last, those that came back to
        a group of listeners too; None where that cannot be known, as records have expired or were
        not read."""
        log, record = self._case.evidence.final(group), self._case.evidence.record
        if log is None or log.log_min:
            return None
        names = [name for name, number in record.listeners.items() if number == listeners]
        found = places_in(log.directory, [topic, *(f"%RETRY%{one}" for one in names)])
        return {value: places[-1] for value, places in found.items()}


@check("A44 told elsewhere", "calls and acknowledgements", final=True)
def told_elsewhere(case: Case, found: Findings) -> int:
    """A44: a function is called for a message where that stands, as its sender was told too. Of
    what waits until it is due that is the queue that it comes to. Not where that was lost and it
    came once more, or a second master had it."""
    evidence, examined, records = case.evidence, 0, Records(case)
    if not evidence.record.listeners:
        raise NotApplicable(NOBODY)
    rows = [
        *evidence.rows((Function.TELL,), Outcome.OK).each(),
        *evidence.rows((Function.HEAR,)).each(),
    ]
    topics = {evidence.history.topic(row) for row in rows}
    topics |= {SCHEDULE_TOPIC, *(f"%RETRY%{name}" for name in evidence.record.listeners)}
    logs = {log.group: log for log in evidence.finals()}
    stand = {group: places_in(log.directory, sorted(topics)) for group, log in logs.items()}
    for row in rows:
        group, said = evidence.group_of(row.node), place_of(evidence, row)
        places = stand.get(group, {}).get(row.value)
        if not places or said.physical < logs[group].log_min:
            continue  # gone, or not to be known
        examined += 1
        is_waiting = row.function == Function.TELL and row.operation > 0
        is_there = said in places
        if is_waiting:
            came = [one.queue for one in places if one.topic == said.topic]
            is_there = any(one.physical == said.physical for one in places)
            is_there = is_there and (not came or said.queue in came)
        if not is_there:
            until_ns = row.returned_ns if row.returned_ns >= 0 else row.invoked_ns
            excuse = records.lost(row, ENDLESS) or records.split(row, until_ns)
            verb = "acknowledged" if row.function == Function.TELL else "called for"
            found.add(
                f"value {row.value} was {verb} at {said}, and is at {', '.join(map(str, places))}",
                excuse=excuse or evidence.disks.altered(row.value),
                value=row.value,
                time_ns=row.returned_ns,
            )
    return examined


def place_of(evidence: Evidence, row: Row) -> Place:
    """Where a call, or an acknowledgement, says that its message stands."""
    topic = evidence.history.topic(row)
    return Place(topic, row.queue, row.queue_offset, row.physical_offset)
