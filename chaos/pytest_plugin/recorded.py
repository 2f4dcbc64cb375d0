"""A real producer whose sends go into the history, whatever bodies it sends.

Each message gets a property that names its row, as the bodies of `TopicProducer` name theirs.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketbed.chaos.evidence.history import OWN_ATTEMPTS, Attempt
from rocketbed.chaos.evidence.history import Outcome as Said
from rocketbed.chaos.evidence.workload import Writer, signature
from rocketbed.chaos.run.load import begin_send, finish_sends
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Outcome
from rocketbed.client.producer import Producer

if TYPE_CHECKING:
    from rocketbed.chaos.pytest_plugin.stage import Stage


class RecordedProducer(Producer):
    """`rocketbed.Producer` with one row for each message, not for each attempt, so that a message
    may be stored more than once."""

    def __init__(self, stage: "Stage", **options: Any) -> None:
        """`options` as `rocketbed.Producer` has them."""
        super().__init__(stage.backend.world, nameservers=stage.backend.nameservers(), **options)
        self._stage = stage
        self._process = next(stage.control.processes)

    async def send(self, message: Message, **options: Any) -> Outcome:
        """Send as `Producer.send`. A delayed message has no row: it may come after the end."""
        if message.delay_level:
            self._stage.judge_topic(message.topic)
            return await super().send(message, **options)
        (signed,), rows = self._begin([message])
        return self._finish(await super().send(signed, **options), rows)

    async def send_batch(self, messages: Sequence[Message], **options: Any) -> Outcome:
        """Send as `Producer.send_batch`."""
        signed, rows = self._begin(messages)
        return self._finish(await super().send_batch(signed, **options), rows)

    async def send_oneway(self, message: Message, **options: Any) -> str:
        """Send as `Producer.send_oneway`."""
        (signed,), (row,) = self._begin([message], oneway=True)
        message_id = await super().send_oneway(signed, **options)
        row.finish(Said.INFO)
        return message_id

    def _begin(
        self, messages: Sequence[Message], *, oneway: bool = False
    ) -> tuple[list[Message], list[Attempt]]:
        """Return the messages with their names, and their rows, which say unknown until they are
        finished, and also if a send is cancelled."""
        control, history = self._stage.control, self._stage.backend.history
        operation = next(control.operations)
        signed: list[Message] = []
        rows: list[Attempt] = []
        for place, message in enumerate(messages):
            message.check()
            writer = Writer(next(control.values), operation, self._process, place)
            named = {**message.properties, **signature(writer, message.body)}
            signed.append(replace(message, properties=named))
            rows.append(begin_send(history, writer, message, OWN_ATTEMPTS, oneway=oneway))
            self._stage.judge_topic(message.topic)
        return signed, rows

    def _finish(self, outcome: Outcome, rows: list[Attempt]) -> Outcome:
        result = finish_sends(outcome, rows)
        self._stage.control.counts[result.name.lower()] += len(rows)
        return outcome
