"""Requests of brokers to a running consumer: members of its group have changed (40), continue at
other offsets (220), report positions (221), report its state (307).

A broker of 5.x resets groups itself and sends 220 only if configured to; one of 4.x has no other
way (wire.md 6.7). RocketMQ's tools send the other two through the broker.
"""

from dataclasses import dataclass

import trio

from rocketbed.client.commits import Commits
from rocketbed.client.flow import Flow
from rocketbed.client.session import Session
from rocketbed.client.subscriptions import LET_GO_S, Subscriptions
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.wire.bodies_admin import ConsumerRunningInfo, ConsumerStatus, QueueInfo, QueueOffsets
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.headers_admin import ClientStatusRequest


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Answers requests of brokers for one consumer."""

    session: Session
    group: str
    subscriptions: Subscriptions
    commits: Commits
    is_ordered: bool

    def add_to(self, handlers: Handlers) -> None:
        """Answer on every connection that uses these handlers."""
        handlers.inline |= {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
        }
        handlers.spawned[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self.reset

    def members_changed(self, _command: Command, _connection: Connection) -> None:
        """Handle 40, members have changed. It has no answer."""
        self.subscriptions.share_soon()

    async def reset(self, command: Command, _connection: Connection) -> None:
        """Handle 220: continue at these offsets, and commit them at the broker. It has no answer.

        Offsets for another group or topic are ignored, with a warning.
        """
        log = self.session.world.log
        try:
            header = ClientStatusRequest.decode(command.fields)
            table = QueueOffsets.decode(command.body).offset_table
        except RocketbedError as exc:
            log.warning("client.reset_refused", error=str(exc))
            return
        if header.group != self.group:
            log.warning("client.reset_refused", error=f"it is for group {header.group}")
            return
        for queue, offset in table.items():
            flow = self.subscriptions.flows.get(queue)
            if flow is None or offset < 0 or queue.topic != header.topic:
                continue
            if self.is_ordered:
                await self._empty_hands(flow)
            if self.subscriptions.flows.get(queue) is not flow:
                continue  # another member has taken it over
            flow.seek(offset)
            log.warning(
                "client.position_reset",
                topic=queue.topic,
                queue=queue.queue_id,
                offset=offset,
                advice="an operator reset the group's offsets",
            )
            try:
                await self.commits.store(queue, offset)
            except RocketbedError as exc:
                log.warning("client.not_committed", error=str(exc))

    async def _empty_hands(self, flow: Flow) -> None:
        """Drop the messages in hand, since two messages of one queue must not be in hand at
        once."""
        was_paused = flow.is_paused
        flow.pause()
        with trio.move_on_after(LET_GO_S):
            await flow.progress.idle()
        if not was_paused:
            flow.resume()

    def status(self, command: Command, _connection: Connection) -> Command:
        """Answer 221: for each queue of a topic, the offset of the first message that is not
        finished. Raises `HeaderError`."""
        topic = ClientStatusRequest.decode(command.fields).topic
        flows = self.subscriptions.flows
        table = {queue: flow.progress.done for queue, flow in flows.items() if queue.topic == topic}
        body = ConsumerStatus(message_queue_table=table).encode()
        return answer(command, ResponseCode.SUCCESS, None, {}, body)

    def running_info(self, command: Command, _connection: Connection) -> Command:
        """Answer 307: settings, subscriptions, and the position in each queue. The names of
        properties are those that RocketMQ's tools look for."""
        queues = {
            queue: QueueInfo(
                commit_offset=flow.progress.done,
                cached_msg_min_offset=flow.progress.done,
                cached_msg_max_offset=flow.position,
                cached_msg_count=flow.position - flow.progress.done,
                locked=self.is_ordered,
            )
            for queue, flow in self.subscriptions.flows.items()
        }
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(
                map("%s:%d".__mod__, self.session.nameservers.addresses)
            ),
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CLIENT_VERSION": "rocketbed",
            "PROP_CONSUMEORDERLY": str(self.is_ordered).lower(),
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "PROP_CONSUMER_START_TIMESTAMP": str(self.session.began_ms),
        }
        subscriptions = list(self.subscriptions.reported.values())
        info = ConsumerRunningInfo(
            properties=properties, subscription_set=subscriptions, mq_table=queues
        )
        return answer(command, ResponseCode.SUCCESS, None, {}, info.encode())
