"""Number of calls of listeners for a message, and dead letters."""

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.context import HALF_OPEN_NS
from rocketbed.chaos.checks.delivery.listeners import NOBODY, listener_messages
from rocketbed.chaos.checks.result import Excuse
from rocketbed.chaos.evidence.history import Function, Outcome, Row


@check("retries-and-dead-letters", "messages that were called for")
def retries(case: Case, findings: Findings) -> int:
    """A message is delivered unchanged, again only after each previous call, and at most as
    often as allowed.

    It becomes a dead letter when all calls were refused, once for each last one. A dead letter was
    never accepted. A message that was refused to its sender is delivered to no listener.
    """
    examined = repeated = 0
    tries = case.evidence.record.listener_tries
    sent_values = {int(value) for value in case.evidence.rows((Function.TELL,)).column("value")}
    for row in case.evidence.rows((Function.HEAR, Function.DEAD)).each():
        if row.value not in sent_values:
            findings.add(f"{case.evidence.place(row)} has value {row.value}, which nobody told")
    for message in listener_messages(case):
        if not message.calls and not message.dead_letters:
            continue
        examined += 1
        for row in (*message.calls, *message.dead_letters):
            if (row.body_crc, row.label_crc) != (message.send.body_crc, message.send.label_crc):
                text = f"{message.name} came to group {message.group} with another"
                text += " body, tag, key or topic"
                findings.add(text, value=row.value, time_ns=row.invoked_ns)
        attempts_seen = {call.attempt for call in message.calls}
        most = max(attempts_seen, default=-1)
        refused = [call for call in message.calls if call.outcome == Outcome.FAIL]
        is_ordered = message.group in case.evidence.record.ordered_listeners
        # An ordered member retries until the message is put back, which a fault may prevent.
        recovery_ns = case.evidence.record.recovery_ns + HALF_OPEN_NS
        is_in_recovery = message.send.invoked_ns > recovery_ns > HALF_OPEN_NS
        if most >= tries and (is_in_recovery or not is_ordered):
            text = f"{message.name} came to group {message.group} for the {most + 1}th time,"
            text += " and is to come"
            excuse = _not_put_back(case, message.calls, most) if is_ordered else None
            findings.add(f"{text} {tries} times", value=message.send.value, excuse=excuse)
        if message.send.outcome == Outcome.FAIL:
            text = f"{message.name}, refused to its sender, came to group {message.group}"
            findings.add(text, value=message.send.value)
        at_last = sum(call.attempt >= tries - 1 for call in refused)
        if len(message.dead_letters) > at_last:
            places = len(message.dead_letters)
            text = f"{message.name} is a dead letter of group {message.group} at {places} places,"
            findings.add(
                f"{text} and was refused at last {at_last} times", value=message.send.value
            )
        missing = sorted(set(range(most)) - attempts_seen)
        if missing:
            findings.add(
                f"{message.name} came to group {message.group} for the {most + 1}th time, and"
                f" nobody was called for the {missing[0] + 1}th",
                value=message.send.value,
            )
        for dead in message.dead_letters:
            attempts = {call.attempt for call in refused}
            if not attempts >= set(range(tries)):
                findings.add(
                    f"{message.name} is a dead letter of group {message.group} after"
                    f" {len(attempts)} refusals, not {tries}",
                    value=message.send.value,
                    offset=dead.queue_offset,
                )
        accepted = [call for call in message.calls if call.outcome == Outcome.OK]
        if accepted and message.dead_letters:
            findings.add(
                f"{message.name} was taken by group {message.group} and is a dead letter",
                value=message.send.value,
                time_ns=accepted[0].returned_ns,
            )
        repeated += max(len(accepted) - 1, 0)
    if not examined:
        raise NotApplicable(NOBODY)
    findings.figures = {"taken_again": repeated}
    findings.note = f"{repeated} messages were taken once more"
    return examined


def _not_put_back(case: Case, calls: list[Row], most: int) -> Excuse | None:
    """Return why an ordered listener may have been called once more: what it puts back is answered
    like a send, and since the previous call some sends were answered as not safe."""
    ended_ns = max((call.returned_ns for call in calls if call.attempt == most - 1), default=0)
    repeated_ns = min(call.invoked_ns for call in calls if call.attempt == most)
    for row in case.evidence.rows((Function.SEND, Function.TELL), Outcome.WEAK).each():
        if row.invoked_ns <= repeated_ns and ended_ns <= row.returned_ns:
            cause = "the master answered that messages are not safe"
            return case.evidence.excuse(cause, row.invoked_ns, row.returned_ns)
    return None
