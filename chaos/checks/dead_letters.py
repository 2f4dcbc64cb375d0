"""How often listeners were called for a message, and what became a dead letter."""

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.listening import NOBODY, listener_messages
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row


@check("A28 retry and dead letters", "messages that were called for")
def retries(case: Case, found: Findings) -> int:
    """A28: a message comes again as it was told, and only after each call before it, as often as it
    may. It is a dead letter when all repetitions were refused, once for each last one; what is one
    was never taken. What was refused to its sender comes to nobody."""
    examined = again = 0
    tries = case.evidence.record.listener_tries
    told = {int(value) for value in case.evidence.rows((Function.TELL,)).column("value")}
    for row in case.evidence.rows((Function.HEAR, Function.DEAD)).each():
        if row.value not in told:
            found.add(f"{case.evidence.place(row)} has value {row.value}, which nobody told")
    for one in listener_messages(case):
        if not one.calls and not one.dead_letters:
            continue
        examined += 1
        for row in (*one.calls, *one.dead_letters):
            if (row.body_crc, row.label_crc) != (one.send.body_crc, one.send.label_crc):
                text = f"{one.name} came to group {one.group} with another body, tag, key or topic"
                found.add(text, value=row.value, time_ns=row.invoked_ns)
        seen = {call.attempt for call in one.calls}
        most = max(seen, default=-1)
        refused = [call for call in one.calls if call.outcome == Outcome.FAIL]
        is_ordered = one.group in case.evidence.record.ordered_listeners
        # Who has it in hand in order tries until it is put back, which a fault may hinder.
        calm_ns = case.evidence.record.calm_ns + HALF_OPEN_NS
        is_calm = one.send.invoked_ns > calm_ns > HALF_OPEN_NS
        if most >= tries and (is_calm or not is_ordered):
            text = f"{one.name} came to group {one.group} for the {most + 1}th time, and is to come"
            excuse = _not_put_back(case, one.calls, most) if is_ordered else None
            found.add(f"{text} {tries} times", value=one.send.value, excuse=excuse)
        if one.send.outcome == Outcome.FAIL:
            text = f"{one.name}, refused to its sender, came to group {one.group}"
            found.add(text, value=one.send.value)
        at_last = sum(call.attempt >= tries - 1 for call in refused)
        if len(one.dead_letters) > at_last:
            places = len(one.dead_letters)
            text = f"{one.name} is a dead letter of group {one.group} at {places} places,"
            found.add(f"{text} and was refused at last {at_last} times", value=one.send.value)
        missing = sorted(set(range(most)) - seen)
        if missing:
            found.add(
                f"{one.name} came to group {one.group} for the {most + 1}th time, and nobody was"
                f" called for the {missing[0] + 1}th",
                value=one.send.value,
            )
        for dead in one.dead_letters:
            attempts = {call.attempt for call in refused}
            if not attempts >= set(range(tries)):
                found.add(
                    f"{one.name} is a dead letter of group {one.group} after {len(attempts)}"
                    f" refusals, not {tries}",
                    value=one.send.value,
                    offset=dead.queue_offset,
                )
        taken = [call for call in one.calls if call.outcome == Outcome.OK]
        if taken and one.dead_letters:
            found.add(
                f"{one.name} was taken by group {one.group} and is a dead letter",
                value=one.send.value,
                time_ns=taken[0].returned_ns,
            )
        again += max(len(taken) - 1, 0)
    if not examined:
        raise NotApplicable(NOBODY)
    found.figures = {"taken_again": again}
    found.note = f"{again} messages were taken once more"
    return examined


def _not_put_back(case: Case, calls: list[Row], most: int) -> Excuse | None:
    """Why who listens in order may have called once more: what it puts back is answered as sends
    are, and since the call before some were told that they are not safe."""
    ended_ns = max((one.returned_ns for one in calls if one.attempt == most - 1), default=0)
    again_ns = min(one.invoked_ns for one in calls if one.attempt == most)
    for row in case.evidence.rows((Function.SEND, Function.TELL), Outcome.WEAK).each():
        if row.invoked_ns <= again_ns and ended_ns <= row.returned_ns:
            cause = "the master answered that messages are not safe"
            return case.evidence.excuse(cause, row.invoked_ns, row.returned_ns)
    return None
