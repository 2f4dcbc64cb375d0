"""Messages that listeners never got, never accepted, or got with a wrong position, and the losses
that excuse that."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.delivery.backlog import LATE_NS
from rocketbed.chaos.checks.delivery.listeners import (
    FIRST_LEVEL,
    NOBODY,
    ListenerMessage,
    Records,
    delay_ns,
    listener_messages,
)
from rocketbed.chaos.checks.ends import ENDLESS
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.logs import Place, places_in
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row
from rocketbed.chaos.evidence.record import UNREAD
from rocketbed.inspect.properties import SCHEDULE_TOPIC, delay_levels

NOWHERE = Place("", -1, -1, -1)
PUT_BACK_NS = 5_000_000_000
"""Time for which a client retries to put a message back before it calls the function again."""


@check("listener-never-called", "messages that each group has to be given")
def never_heard(case: Case, findings: Findings) -> int:
    """Each acknowledged message was accepted by a function of each group in the end, or is
    among its dead letters as far as these were read.

    Excused if the promise allows the message to be lost where it was stored first, or on its
    further way.
    """
    examined, excuses = 0, _Excuses(case)
    record = case.evidence.record
    is_unread = any(stall.subject == UNREAD for stall in record.stalls)
    for message in listener_messages(case):
        if message.send.outcome != Outcome.OK:
            continue
        examined += 1
        if message.dead_letters or any(call.outcome == Outcome.OK for call in message.calls):
            continue
        last = max([message.send, *message.calls], key=lambda row: row.returned_ns)
        times = len({call.attempt for call in message.calls})
        if is_unread and times >= record.listener_tries:
            continue  # it may be among the dead letters, which were not all read
        findings.add(
            f"group {message.group} has neither taken {message.name} nor given it up;"
            f" called {times} times, at {last.returned_ns / 1e9:.3f} s last",
            excuse=excuses.of(message),
            value=message.send.value,
            time_ns=last.returned_ns,
        )
    return examined


class _Excuses:
    """Losses of one run that may have kept a message from a group."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._records = Records(case)
        self._calls: dict[tuple[int, int], list[Row]] = defaultdict(list)
        """Calls by node and listener group."""
        for row in case.evidence.rows((Function.HEAR,)).each():
            self._calls[row.node, row.operation].append(row)
        self._ups = case.evidence.events(Function.NODE, "exit", "recovered")
        self._last_places: Callable[[int, int, str], dict[int, Place] | None] = cache(self._places)

    def of(self, message: ListenerMessage) -> Excuse | None:
        group = self._case.evidence.group_of(message.send.node)
        if not message.send.operation and not message.calls:
            end = message.send.physical_offset + 1
            excuse = self._case.losses.may_lose(message.send, group, end)
            return excuse or self._passed_first_place(message)
        topic = self._case.evidence.history.topic(message.send)
        places = self._last_places(group, message.group, topic)
        if places is None:
            return (
                self._passed(message, None, {})
                or self._lost_queue(message)
                or self._lost_later(message)
            )
        place = places.get(message.send.value, NOWHERE)
        if place is NOWHERE:
            return self._lost_queue(message) or self._lost_later(message)
        if place.physical in {call.physical_offset for call in message.calls}:
            return self._lost_later(message)
        return self._passed(message, place, places)

    def _passed_first_place(self, message: ListenerMessage) -> Excuse | None:
        """Return a loss of what the group had got, which left it beyond the message's place before
        the message was stored there.

        Or a second master, whose queue has other messages at the same places. A member of an
        ordered group may handle what it got long after the loss.
        """
        send = message.send
        for call in self._calls[send.node, message.group]:
            is_same = (call.topic, call.queue) == (send.topic, send.queue)
            if is_same and call.queue_offset >= send.queue_offset:
                excuse = self._records.lost(call, send.returned_ns)
                # A second master may have had another message at that place.
                if excuse := excuse or self._records.split(call, call.returned_ns, send):
                    return excuse
        return None

    def _passed(
        self, message: ListenerMessage, place: Place | None, places: dict[int, Place]
    ) -> Excuse | None:
        """Return the same for a delayed or refused message, which is stored again at some later
        time.

        `place` is its last place in the final log; if that is unknown, any place counts.
        """
        for call in self._calls[message.send.node, message.group]:
            reported = place_of(self._case.evidence, call)
            is_beyond = place is None or (
                reported[:2] == place[:2] and reported.offset >= place.offset
            )
            # A call for a message that is still at the place of the call has skipped no other
            # message.
            if is_beyond and places.get(call.value) != reported:
                excuse = self._records.lost(call, ENDLESS)
                if excuse := excuse or self._records.split(call, call.returned_ns, message.send):
                    return excuse
        return None

    def _lost_later(self, message: ListenerMessage) -> Excuse | None:
        """Return a loss of the record that its consumer put back, or of its next record when that
        was due.

        Without failover a broker acknowledges the first although its slave is late, and no row
        shows that. A member that gets the same record again may lose its queue, and then puts
        nothing back: what the previous member had put back counts, unless the later one evidently
        kept the queue.
        """
        last = max([message.send, *message.calls], key=lambda row: row.returned_ns)
        put_back = [
            call
            for call in message.calls
            if call.physical_offset == last.physical_offset
            and call.process != last.process
            and call.outcome == Outcome.FAIL
            and not self._kept_queue(last)
        ]
        return next(
            filter(None, (self._lost_after(message, row) for row in (last, *put_back))), None
        )

    def _lost_queue(self, message: ListenerMessage) -> Excuse | None:
        """Return a loss of the record that a member of an ordered group was handling when it lost
        its queue, so that it put nothing back."""
        if not message.calls or message.group not in self._case.evidence.record.ordered_listeners:
            return None
        last = max(message.calls, key=lambda row: row.returned_ns)
        if self._kept_queue(last):
            return None
        until_ns = last.returned_ns
        return self._records.lost(last, until_ns) or self._records.split(last, until_ns)

    def _kept_queue(self, last: Row) -> bool:
        """True if the member of the last call is called for its queue next, at a later place if the
        group is ordered."""
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

    def _lost_after(self, message: ListenerMessage, last: Row) -> Excuse | None:
        """Return a loss of what followed `last`, the last row about the message."""
        evidence, losses = self._case.evidence, self._case.losses
        group, since_ns, retried_ns = evidence.group_of(last.node), last.returned_ns, 0
        level = message.send.operation
        if message.calls:
            level, retried_ns = FIRST_LEVEL + last.attempt, PUT_BACK_NS
            until_ns = since_ns + retried_ns
            excuse = losses.may_lose_unacknowledged(
                group, since_ns, until_ns, is_safe=evidence.elects
            )
        else:
            excuse = losses.may_lose(message.send, group, message.send.physical_offset + 1)
        since_ns += delay_ns(delay_levels(evidence.record.delay_levels), level)
        until_ns = self._served_ns(group, since_ns + retried_ns) + LATE_NS
        return excuse or losses.may_lose_unacknowledged(
            group, since_ns, until_ns, is_safe=evidence.elects
        )

    def _served_ns(self, group: int, time_ns: int) -> int:
        """Return `time_ns`, or the time of the next recovery if the group's master was down
        then."""
        events = [
            event for event in self._ups if self._case.evidence.group_of_name(event.node) == group
        ]
        master = self._case.losses.lineages[group].era(time_ns).master if group >= 0 else ""
        earlier = [event for event in events if event.node == master and event.time_ns <= time_ns]
        if not earlier or earlier[-1].kind == "recovered":
            return time_ns
        recoveries = (
            event.time_ns
            for event in events
            if event.kind == "recovered" and event.time_ns > time_ns
        )
        return next(recoveries, time_ns)

    def _places(self, group: int, listeners: int, topic: str) -> dict[int, Place] | None:
        """Return the last place of each message in the final log, by value, retry topics included.

        None if that is unknown, as records have expired or were not read.
        """
        log, record = self._case.evidence.final(group), self._case.evidence.record
        if log is None or log.log_min:
            return None
        names = [name for name, number in record.listeners.items() if number == listeners]
        places_by_value = places_in(log.directory, [topic, *(f"%RETRY%{name}" for name in names)])
        return {value: places[-1] for value, places in places_by_value.items()}


@check("listener-wrong-position", "calls and acknowledgements", final=True)
def wrong_places(case: Case, findings: Findings) -> int:
    """A function is called for a message with the message's true position, and its sender was
    told that position too.

    For a delayed message only the queue that it goes to is compared. Excused if the message was
    lost and stored again, or a second master had it.
    """
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
    places_by_group = {
        group: places_in(log.directory, sorted(topics)) for group, log in logs.items()
    }
    for row in rows:
        group, reported = evidence.group_of(row.node), place_of(evidence, row)
        places = places_by_group.get(group, {}).get(row.value)
        if not places or reported.physical < logs[group].log_min:
            continue  # the message was lost, or its place is unknown
        examined += 1
        is_waiting = row.function == Function.TELL and row.operation > 0
        is_right = reported in places
        if is_waiting:
            queues = [place.queue for place in places if place.topic == reported.topic]
            is_right = any(place.physical == reported.physical for place in places)
            is_right = is_right and (not queues or reported.queue in queues)
        if not is_right:
            until_ns = row.returned_ns if row.returned_ns >= 0 else row.invoked_ns
            excuse = records.lost(row, ENDLESS) or records.split(row, until_ns)
            verb = "acknowledged" if row.function == Function.TELL else "called for"
            locations = ", ".join(map(str, places))
            findings.add(
                f"value {row.value} was {verb} at {reported}, and is at {locations}",
                excuse=excuse or evidence.disks.altered(row.value),
                value=row.value,
                time_ns=row.returned_ns,
            )
    return examined


def place_of(evidence: Evidence, row: Row) -> Place:
    """Return the place of a message as a call or an acknowledgement reports it."""
    topic = evidence.history.topic(row)
    return Place(topic, row.queue, row.queue_offset, row.physical_offset)
