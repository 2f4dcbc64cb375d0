"""Sends: 10, 310 and 320 (wire.md 4). The hot path of a broker.

Sends of one read make one run, written at once at its end; nothing is awaited in between, so there
is never more than one run. A plain message to a known topic is handled here in as few steps as
possible; `send_checks` decides about all others first, which are then added the same way.
"""

from collections.abc import Callable

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.delays import Delays
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.plain_body import choose
from rocketbed.node.broker.plain_run import EndOfLog, is_near
from rocketbed.node.broker.plain_shapes import SLOW_PROPERTIES, Headers, Meanings, Names
from rocketbed.node.broker.put_codes import PUT_CODES, REJECTED, UNCONFIRMED
from rocketbed.node.broker.send_checks import Decision, Refused, SendChecks
from rocketbed.node.broker.send_outcomes import Pending, PlainRun, Sent, number_of, refused, stored
from rocketbed.node.broker.topics import RETRY_PREFIX, SCHEDULE_TOPIC, Topics
from rocketbed.node.broker.waiting import shortened
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.release import ReleaseQueue
from rocketbed.node.store.errors import MessageRejected, PutFailed
from rocketbed.node.store.run import Run
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.properties import (
    KEYS,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    index_keys,
)
from rocketbed.wire.send_headers import FORMS
from rocketbed.wire.sends import SendAnswers, read_send
from rocketbed.world.api import World

_new_tuple = tuple.__new__


class Sender:
    """Puts messages into the log and answers when they are as safe as the settings ask."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        releases: ReleaseQueue,
        delays: Delays,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._releases = releases
        self._delays = delays
        self._checks = SendChecks(world, config, topics, groups, delays)
        self._meanings = Meanings(topics.sendable)
        self._suffix = encode_properties(
            {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": config.cluster_name}
        )
        tail = store.log.tail
        self._headers: dict[int, Headers] = {
            kind: Headers(form, tail, self._meanings) for kind, form in FORMS.items()
        }
        self._names = Names(self._suffix.encode())
        self._take, _ = choose(native=config.store.native)
        topics.on_change.append(self._forget)
        self._run: Run | None = None
        self._sent: list[Pending | PlainRun] = []
        """Messages of the run, all of one connection, as nothing awaits before it ends."""
        self._answers = SendAnswers(store.store_host_bytes)
        self.gate: Callable[[], tuple[ResponseCode, str] | None] = lambda: None
        """Returns code and remark if no message may be accepted now; for a group with failover."""
        self._not_stored = {"rbNotStored": "1"} if config.replica else {}
        """Fields of a refusal, which say that another leader may be asked at once."""
        self.accepted = 0
        """Messages accepted since the start."""
        self.accepted_bytes = 0
        """Bytes of the log that they use."""
        self.failed = 0
        """Messages refused by the store since the start."""

    def handle(self, command: Command, connection: Connection) -> Command | None:
        """Add a message to the run; the answer comes from `end_of_run` unless it is refused."""
        run = self._run
        if run is None:
            refusal = self.refusal(command) or self._too_early(command)
            if refusal is not None:
                return refusal
            run = self._run = self._store.begin()
        try:
            topic, properties, queue_text, sys_flag_text, born_text, flag_text = read_send(command)
            key = topic, queue_text, sys_flag_text, flag_text
            queue_id, sys_flag, flag = self._meanings[key]
            born_ms = int(born_text)
            fields = decode_properties(properties)
            unique_key = fields[UNIQUE_KEY]
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
            return self._slow(run, command, connection)
        if (
            not 0 <= born_ms <= 0x7FFFFFFFFFFFFFFF
            or not SLOW_PROPERTIES.isdisjoint(fields)
            or fields.get(WAIT, "true") != "true"
            or not command.body
        ):
            return self._slow(run, command, connection)
        if properties[-1] != "\x02":
            properties += "\x02"
        try:
            offset, queue_offset = run.add(
                topic,
                queue_id,
                command.body,
                (properties + self._suffix).encode(),
                flag=flag,
                sys_flag=sys_flag,
                born_ms=born_ms,
                born_host=connection.remote_bytes,
                tag=fields.get(TAGS),
                keys=index_keys(unique_key, fields.get(KEYS)),
            )
        except MessageRejected as exc:
            return answer(command, PUT_CODES[exc.status], str(exc))
        row = command, queue_id, queue_offset, [offset], unique_key, True, None
        self._sent.append(_new_tuple(Pending, row))
        return None

    def _forget(self, _topics: list[str]) -> None:
        self._meanings.clear()
        for headers in self._headers.values():
            headers.clear()

    def take(self, data: bytes, at: int, connection: Connection) -> int:
        """Take the plain sends among the whole frames of `data` from `at` on. Return the position
        of the first frame that it did not take. See `plain_run`."""
        run = self._run
        if not is_near(data, at) or (run is None and self._is_closed()):
            return at
        if run is None:
            run = self._store.begin()
        tail = self._store.log.tail
        if tail.append_property_crc:
            return at
        offsets = dict(run.queue_offsets)
        end_of_log = EndOfLog(
            position=run.position,
            limit=run.room_end,
            now_ms=run.now_ms,
            store_host=tail.store_host_bytes,
            host_text=self._answers.host_text,
            body_max=tail.body_max,
            record_max=tail.record_max,
            index_tags=tail.index_tags,
        )
        queues = tail.next_queue_offsets
        at, records, entries, answers = self._take(
            *(data, at, self._headers, self._names, offsets, queues),
            *(connection.remote_bytes, end_of_log),
        )
        if entries:
            run.extend(records, entries, offsets)
            self._run = run
            self._sent.append(PlainRun(answers, len(entries)))
        return at

    def end_of_run(self, connection: Connection) -> None:
        """Write the run; answer its messages, now or when they are safe enough."""
        run, self._run = self._run, None
        sent, self._sent = self._sent, []
        if run is None or not sent:
            return
        # Commit before any answer: queue offsets are provisional until the write.
        try:
            self._store.commit(run)
        except PutFailed as exc:
            self.failed += number_of(sent)
            # Any other failure may have left bytes that a power loss brings back.
            no_room = exc.status is PutStatus.CREATE_MAPPED_FILE_FAILED
            fields = self._not_stored if no_room else {}
            _send(connection, refused(sent, PUT_CODES[exc.status], str(exc), fields))
            return
        self.accepted += number_of(sent)
        self.accepted_bytes += run.end - run.start
        waiting: Sent = ()
        if self._releases.waits:
            waiting = [item for item in sent if isinstance(item, PlainRun) or item.waits]
            sent = [item for item in sent if isinstance(item, Pending) and not item.waits]
        _send(connection, stored(sent, PutStatus.PUT_OK, self._answers))
        if waiting:
            self._wait(run.end, waiting, connection)

    # --- refusing up front

    def refusal(self, command: Command) -> Command | None:
        """Return an answer that refuses any message now, else None."""
        if (gated := self.gate()) is not None:
            self.failed += 1
            return answer(command, *gated, self._not_stored)
        if self._config.is_slave:
            return answer(command, ResponseCode.SYSTEM_BUSY, f"{REJECTED} (this is a slave)")
        refusal = self._store.refusal()
        if refusal is None:
            return None
        self.failed += 1
        status, remark = refusal
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            remark = f"{REJECTED} ({remark})"
        return answer(command, PUT_CODES[status], remark, self._not_stored)

    def _is_early(self) -> bool:
        start_ms = self._config.start_accept_sends_ms
        return bool(start_ms) and self._world.clock.wall_ms() < start_ms

    def _is_closed(self) -> bool:
        """True if the next message will be refused up front."""
        return (
            self.gate() is not None
            or self._config.is_slave
            or self._store.obstacle() is not None
            or self._is_early()
        )

    def _too_early(self, command: Command) -> Command | None:
        if not self._is_early():
            return None
        start_ms = self._config.start_accept_sends_ms
        remark = f"broker unable to service, until {start_ms} (startAcceptSendRequestTimeStamp, ms)"
        return answer(command, ResponseCode.SYSTEM_ERROR, remark)

    # --- all but plain sends

    def _slow(self, run: Run, command: Command, connection: Connection) -> Command | None:
        try:
            decision = self._checks.decide(command)
        except Refused as exc:
            return answer(command, exc.code, str(exc))
        topic = decision.topic
        # A new topic has to be on disk before a record of it, or the recovery of a directory from
        # another broker would drop the record (T14).
        if not self._topics.is_durable(topic):
            self._wait_for_topic(topic, command, connection)
            return None
        try:
            self._add(run, decision, command, connection)
        except MessageRejected as exc:
            return answer(command, PUT_CODES[exc.status], str(exc))
        return None

    def _add(self, run: Run, decision: Decision, command: Command, connection: Connection) -> None:
        header = decision.header
        suffix = self._suffix.encode()
        batch_key = None
        if decision.inner_batch:
            batch_key = decision.unique_key
            positions = [
                run.add_inner_batch(
                    decision.topic,
                    decision.queue_id,
                    command.body,
                    decision.properties + suffix,
                    count=decision.inner_batch,
                    flag=header.flag,
                    sys_flag=decision.sys_flag,
                    born_ms=header.bornTimestamp,
                    born_host=connection.remote_bytes,
                    unique_key=batch_key,
                )
            ]
        elif decision.items is not None:
            positions = run.add_batch(
                decision.topic,
                decision.queue_id,
                decision.items,
                sys_flag=decision.sys_flag,
                born_ms=header.bornTimestamp,
                born_host=connection.remote_bytes,
                reconsume_times=header.reconsumeTimes or 0,
            )
        else:
            level, properties = decision.level, decision.properties + suffix
            # A consumer's copy of a message that was accepted once, and cannot be made shorter.
            is_copy = header.topic.startswith(RETRY_PREFIX) and bool(header.reconsumeTimes)
            if is_copy:
                properties = shortened(properties.decode(), run.properties_max).encode()
            positions = [
                run.add(
                    SCHEDULE_TOPIC if level else decision.topic,
                    level - 1 if level else decision.queue_id,
                    command.body,
                    properties,
                    flag=header.flag,
                    sys_flag=decision.sys_flag,
                    born_ms=header.bornTimestamp,
                    born_host=connection.remote_bytes,
                    reconsume_times=header.reconsumeTimes or 0,
                    tag=decision.tag,
                    keys=index_keys(decision.unique_key, decision.keys),
                    delay_ms=self._delays.delay_ms(level) if level else None,
                    is_limited=not is_copy,
                )
            ]
        self._sent.append(
            Pending(
                command,
                decision.queue_id,
                positions[0][1],
                [offset for offset, _ in positions],
                decision.unique_key,
                decision.waits,
                batch_key,
            )
        )

    def _wait_for_topic(self, topic: str, command: Command, connection: Connection) -> None:
        """Handle the message again once its new topic is in the file (see `topics`)."""
        connection.open_wait()

        def go_on(failure: ConfigFileError | None) -> None:
            connection.close_wait()
            if failure is not None:
                refused = answer(command, ResponseCode.SYSTEM_ERROR, str(failure))
                connection.reply(command, refused)
                return
            connection.reply(command, self.handle(command, connection))
            self.end_of_run(connection)

        self._topics.when_durable(topic, go_on)

    # --- answering

    def _wait(self, end: int, waiting: Sent, connection: Connection) -> None:
        number = number_of(waiting)
        connection.open_wait(number)

        def release(status: PutStatus) -> None:
            connection.close_wait(number)
            if status is PutStatus.SERVICE_NOT_AVAILABLE:
                _send(connection, refused(waiting, PUT_CODES[status], UNCONFIRMED, {}))
            else:
                _send(connection, stored(waiting, status, self._answers))

        self._releases.add(end, release)


def _send(connection: Connection, answers: bytes) -> None:
    if answers:
        connection.send(answers)
