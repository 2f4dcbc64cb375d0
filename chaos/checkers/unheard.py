"""What listeners were never called for, or never took, and the losses that explain it."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from rocketbed.chaos.checkers.check import Case, Findings, check
from rocketbed.chaos.checkers.ends import ENDLESS
from rocketbed.chaos.checkers.listening import Heard, heard
from rocketbed.chaos.checkers.logs import values_in
from rocketbed.chaos.checkers.result import Excuse
from rocketbed.chaos.history import Function, Outcome, Row

Place = tuple[str, int, int, int]
"""Topic, queue, queue offset and log offset of a message."""

NOWHERE: Place = "", -1, ENDLESS, ENDLESS
"""Of a message: nothing is beyond it."""


@check("A27 never heard", "messages that each group has to be given")
def never_heard(case: Case, found: Findings) -> int:
    """A27: each acknowledged message was taken by a function of each group in the end, or is among
    its dead letters. Not what the promise allows to be lost, here or on its further way."""
    examined, excuses = 0, _Excuses(case)
    for one in heard(case):
        if one.told.outcome != Outcome.OK:
            continue
        examined += 1
        if one.dead or any(call.outcome == Outcome.OK for call in one.calls):
            continue
        last = max([one.told, *one.calls], key=lambda row: row.returned_ns)
        times = len({call.attempt for call in one.calls})
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
        self._told_ns: dict[int, int] = {}
        """By value when it was told."""
        self._calls: dict[tuple[int, int], list[Row]] = defaultdict(list)
        """By node and listeners' group."""
        for row in case.evidence.rows((Function.TELL,)).each():
            self._told_ns[row.value] = row.invoked_ns
        for row in case.evidence.rows((Function.HEAR,)).each():
            self._calls[row.node, row.operation].append(row)
        self._last_places: Callable[[int, int, str], dict[int, Place] | None] = cache(self._places)

    def of(self, one: Heard) -> Excuse | None:
        # What was delayed or refused stands in the log once more, nobody was told where.
        is_there = not one.told.operation and not one.calls
        end = one.told.physical_offset + 1 if is_there else None
        group = self._case.evidence.group_of(one.told.node)
        excuse = self._case.losses.may_lose(one.told, group, end)
        return excuse or self._passed(one, is_there=is_there) or self._put_back(one)

    def _passed(self, one: Heard, *, is_there: bool) -> Excuse | None:
        """A loss of what the group had got, so that it was beyond a place before the message came
        to stand there, as far as that is known (T20; seed 861039), or a second master's queue,
        whose places are others. A member in order may handle what it got long after the loss (seed
        866430).

        What was delayed or refused comes to stand somewhere at any time: where the last log has it
        last counts, and nowhere is no place to be passed.
        """
        losses, group = self._case.losses, self._case.evidence.group_of(one.told.node)
        topic = self._case.evidence.history.topic(one.told)
        places = None if is_there else self._last_places(group, one.group, topic)
        place = None if places is None else places.get(one.told.value, NOWHERE)
        for call in self._calls[one.told.node, one.group]:
            if is_there:
                is_same = (call.topic, call.queue) == (one.told.topic, one.told.queue)
                is_beyond = is_same and call.queue_offset >= one.told.queue_offset
            else:
                given = self._place_of(call)
                is_same = place is None or given[:2] == place[:2]
                is_beyond = is_same and (place is None or call.queue_offset >= place[2])
                # What stands where it was given, to the byte, has passed nobody (seed 1281344).
                is_beyond &= places is None or places.get(call.value) != given
            if is_beyond:
                until_ns = one.told.returned_ns if is_there else ENDLESS
                behind = call.physical_offset + 1
                since_ns = self._told_ns.get(call.value, call.invoked_ns)
                if excuse := losses.loss_between(group, since_ns, until_ns, behind=behind):
                    return excuse
            # It may have stood at a second master's place (seed 868724).
            if (is_beyond or not is_there) and (
                excuse := losses.split_between(group, one.told.invoked_ns, call.returned_ns)
            ):
                return excuse
        return None

    def _put_back(self, one: Heard) -> Excuse | None:
        """A promotion without all that was written after a refusal, what its consumer put back too.
        A broker without failover takes that as success although its slave is late, which no row
        tells (seed 1281344)."""
        refused = [call for call in one.calls if call.outcome == Outcome.FAIL]
        if not refused or self._case.evidence.elects:
            return None
        last = max(refused, key=lambda call: call.returned_ns)
        losses, group = self._case.losses, self._case.evidence.group_of(last.node)
        since_ns = losses.lineages[group].era(last.returned_ns).start_ns
        stood = max(
            call.physical_offset
            for call in self._calls[last.node, one.group]
            if since_ns <= call.invoked_ns <= last.returned_ns or call is last
        )
        return losses.promoted_without(group, last.returned_ns, stood)

    def _places(self, group: int, listeners: int, topic: str) -> dict[int, Place] | None:
        """By value where the last log of a broker group has messages last, those that came back to
        a group of listeners too; None where that cannot be known, as records have expired or were
        not read."""
        log, record = self._case.evidence.final(group), self._case.evidence.record
        if log is None or log.log_min:
            return None
        names = [name for name, number in record.listeners.items() if number == listeners]
        places: dict[int, Place] = {}
        for entry, writer in values_in(log.directory, [topic, *(f"%RETRY%{one}" for one in names)]):
            place = entry.topic.decode(), entry.queue_id, entry.queue_offset, entry.offset
            places[writer.value] = place
        return places

    def _place_of(self, call: Row) -> Place:
        topic = self._case.evidence.history.topic(call)
        return topic, call.queue, call.queue_offset, call.physical_offset
