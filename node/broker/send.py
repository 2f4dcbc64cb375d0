"""Sends: 10, 310 and 320 (wire.md 4). The hot path of a broker.

Sends of one read make one run, written at once at its end; nothing is awaited in between, so
there is never more than one run. A plain message to a known topic is handled here with as few
steps as we know; everything else is decided in `send_checks` first and then added the same way.
"""

from collections.abc import Sequence

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.put_codes import PUT_CODES, REJECTED
from rocketbed.node.broker.send_checks import Decision, Refused, SendChecks
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.release import ReleaseQueue
from rocketbed.node.store.errors import MessageRejected, PutFailed
from rocketbed.node.store.run import Run
from rocketbed.node.store.status import PutStatus
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.command import (
    LANGUAGE,
    ONEWAY_BIT,
    RESPONSE_BIT,
    VERSION,
    Command,
    Encoding,
    RequestCode,
    ResponseCode,
    answer,
)
from rocketbed.wire.encoding.positional import pack_header, shape_of
from rocketbed.wire.frame import encode
from rocketbed.wire.properties import (
    KEYS,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    index_keys,
)
from rocketbed.world.api import World

SLOW_SYS_FLAGS = 0xFC
"""Transaction, host family and inner batch bits: none is set in a plain message."""
KNOWN_MAX = 65_536
SLOW_PROPERTIES = frozenset(
    {
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TRAN_MSG",
        "POP_CK",
        "INNER_NUM",
    }
)
"""Properties that may change how a message is taken."""

_ANSWER = (
    b'{"code":0,"extFields":{"msgId":"%%b%%016X","queueId":"%%d","queueOffset":"%%d",'
    b'"transactionId":"%%b","MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,'
    b'"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
) % (LANGUAGE.encode(), VERSION)
"""JSON header of the answer to a message: host, offset, queue, queue offset, key, opaque."""

Sent = tuple[Connection, Command, int, int, Sequence[int], str, bool, str | None]
"""One message of a run, as its answer needs it: connection, request, queue id, queue offset,
physical offsets (several for a batch), unique key, whether it waits for disk and slaves
(`WAIT=false` does not), unique key of an inner batch. A bare tuple: one a message."""


_V2_NAMES = shape_of(RequestCode.SEND_MESSAGE_V2, False)
_MSGPACK_WORD = Encoding.MSGPACK << 24
_ROW_END = (None, None, "DefaultRegion", "true")
"""Rest of a `SendMessageResponse` by position: no batch, no recall handle, region, trace."""


def _by_position(command: Command) -> tuple[object, object, Sequence[object], bool]:
    """Topic, properties, (queue id, system flag, born time, flag), and whether it is no batch and
    no retry, of a send whose msgpack header has `SendMessageV2Request`'s shape.

    Raises `KeyError` for another shape, which the slow way reads by name.
    """
    row = command.row
    if command.names is not _V2_NAMES or row is None or len(row) < 9:
        raise KeyError("b")
    rest = row[9:13]
    is_plain = rest[3:4] in ([], [None], ["false"]) and rest[:1] in ([], [None], ["0"])
    return row[1], row[8], row[4:8], is_plain


class Sender:
    """Takes messages into the log and answers when they are as safe as the settings say."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        releases: ReleaseQueue,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._releases = releases
        self._checks = SendChecks(world, config, topics, groups)
        self._sendable = topics.sendable
        self._known: dict[tuple[object, ...], tuple[int, int, int]] = {}
        """Plain sends seen before: texts of topic, queue, flags -> their values."""
        topics.on_change.append(lambda _: self._known.clear())
        self._run: Run | None = None
        self._sent: list[Sent] = []
        self._host_text = store.store_host_bytes.hex().upper()
        self._host_hex = self._host_text.encode()
        self._suffix = encode_properties(
            {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": config.cluster_name}
        )
        self.accepted = 0
        """Messages taken since the start."""
        self.accepted_bytes = 0
        """Bytes of the log they took."""
        self.failed = 0
        """Messages refused by the store since the start."""

    def handle(self, command: Command, connection: Connection) -> Command | None:
        """Add a message to the run; the answer comes from `end_of_run` unless it is refused."""
        run = self._run
        if run is None:
            refusal = self._refusal(command)
            if refusal is not None:
                return refusal
            run = self._run = self._store.begin()
        numbers: Sequence[object]
        try:
            if command.row is None:
                raw = command.raw_fields
                topic, properties = raw["b"], raw["i"]
                numbers = raw["e"], raw["f"], raw["g"], raw["h"]
                is_plain = raw.get("m", "false") == "false" and raw.get("j", "0") == "0"
            else:
                topic, properties, numbers, is_plain = _by_position(command)
            queue_text, sys_flag_text, born_text, flag_text = numbers
            known = self._known.get((topic, queue_text, sys_flag_text, flag_text))
            if known is None:
                known = self._learn(topic, queue_text, sys_flag_text, flag_text)
            queue_id, sys_flag, flag = known
            born_ms = int(born_text)  # type: ignore[call-overload]
            found = decode_properties(properties)  # type: ignore[arg-type]
            unique_key = found[UNIQUE_KEY]
        except (KeyError, ValueError, TypeError, AttributeError):
            return self._slow(run, command, connection)
        if (
            not is_plain
            or not 0 <= born_ms <= 0x7FFFFFFFFFFFFFFF
            or not SLOW_PROPERTIES.isdisjoint(found)
            or found.get(WAIT, "true") != "true"
            or not command.body
        ):
            return self._slow(run, command, connection)
        if properties[-1] != "\x02":  # type: ignore[index]
            properties += "\x02"  # type: ignore[operator]
        try:
            offset, queue_offset = run.add(
                topic,  # type: ignore[arg-type]
                queue_id,
                command.body,
                (properties + self._suffix).encode(),  # type: ignore[operator]
                flag=flag,
                sys_flag=sys_flag,
                born_ms=born_ms,
                born_host=connection.remote_bytes,
                tag=found.get(TAGS),
                keys=index_keys(unique_key, found.get(KEYS)),
            )
        except MessageRejected as exc:
            return answer(command, PUT_CODES[exc.status], str(exc))
        self._sent.append(
            (connection, command, queue_id, queue_offset, (offset,), unique_key, True, None)
        )
        return None

    def _learn(
        self, topic: object, queue_text: object, sys_flag_text: object, flag_text: object
    ) -> tuple[int, int, int]:
        """Queue id, system flag and flag of plain sends to a topic, remembered by their texts.

        Raises `KeyError` or `ValueError` for what is not plain.
        """
        queues = self._sendable[topic]  # type: ignore[index]
        queue_id, sys_flag, flag = map(int, (queue_text, sys_flag_text, flag_text))  # type: ignore[arg-type]
        if (
            not 0 <= queue_id < queues
            or sys_flag & SLOW_SYS_FLAGS
            or not 0 <= sys_flag <= 0x7FFFFFFF
            or not -0x80000000 <= flag <= 0x7FFFFFFF
        ):
            raise ValueError("not plain")
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[topic, queue_text, sys_flag_text, flag_text] = queue_id, sys_flag, flag
        return queue_id, sys_flag, flag

    def end_of_run(self, connection: Connection) -> None:
        """Write the run; answer its messages, now or when they are safe enough."""
        run, self._run = self._run, None
        sent, self._sent = self._sent, []
        if run is None or not sent:
            return
        try:
            self._store.commit(run)
        except PutFailed as exc:
            self.failed += len(sent)
            for item in sent:
                item[0].reply(item[1], answer(item[1], PUT_CODES[exc.status], str(exc)))
            return
        self.accepted += len(sent)
        self.accepted_bytes += run.end - run.start
        if self._releases.waits:
            waiting = [item for item in sent if item[6]]
            self._answer([item for item in sent if not item[6]], PutStatus.PUT_OK)
            if waiting:
                self._wait(run.end, waiting)
        else:
            self._answer(sent, PutStatus.PUT_OK)

    # --- refusing at the door

    def _refusal(self, command: Command) -> Command | None:
        """Why no message at all is taken now."""
        if self._config.is_slave:
            return answer(command, ResponseCode.SYSTEM_BUSY, f"{REJECTED} (this is a slave)")
        refusal = self._store.refusal()
        if refusal is None:
            return None
        self.failed += 1
        status, remark = refusal
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            remark = f"{REJECTED} ({remark})"
        return answer(command, PUT_CODES[status], remark)

    # --- everything that is not the plain case

    def _slow(self, run: Run, command: Command, connection: Connection) -> Command | None:
        try:
            decision = self._checks.decide(command)
        except Refused as exc:
            return answer(command, exc.code, str(exc))
        topic = decision.topic
        if not self._topics.is_durable(topic):
            self._hold(topic, command, connection)
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
            added = [
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
            added = run.add_batch(
                decision.topic,
                decision.queue_id,
                decision.items,
                sys_flag=decision.sys_flag,
                born_ms=header.bornTimestamp,
                born_host=connection.remote_bytes,
                reconsume_times=header.reconsumeTimes or 0,
            )
        else:
            added = [
                run.add(
                    decision.topic,
                    decision.queue_id,
                    command.body,
                    decision.properties + suffix,
                    flag=header.flag,
                    sys_flag=decision.sys_flag,
                    born_ms=header.bornTimestamp,
                    born_host=connection.remote_bytes,
                    reconsume_times=header.reconsumeTimes or 0,
                    tag=decision.tag,
                    keys=index_keys(decision.unique_key, decision.keys),
                )
            ]
        self._sent.append(
            (
                connection,
                command,
                decision.queue_id,
                added[0][1],
                [offset for offset, _ in added],
                decision.unique_key,
                decision.waits,
                batch_key,
            )
        )

    def _hold(self, topic: str, command: Command, connection: Connection) -> None:
        """Take the message again once its new topic is in the file (see `topics`)."""
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

    def _wait(self, end: int, waiting: list[Sent]) -> None:
        for item in waiting:
            item[0].open_wait()

        def release(status: PutStatus) -> None:
            for item in waiting:
                item[0].close_wait()
            self._answer(waiting, status)

        self._releases.add(end, release)

    def _answer(self, sent: list[Sent], status: PutStatus) -> None:
        """Send the answers of messages that are in the log, one outbox entry a connection."""
        parts: list[bytes] = []
        current: Connection | None = None
        is_good = status is PutStatus.PUT_OK
        host = self._host_hex
        for item in sent:
            connection, command, queue_id, queue_offset, offsets, key, _, batch_key = item
            if command.flag & ONEWAY_BIT:
                continue
            if connection is not current:
                if current is not None:
                    current.send(b"".join(parts))
                    parts = []
                current = connection
            if not is_good or len(offsets) > 1 or batch_key is not None:
                parts.append(encode(self._response(item, status)))
            elif command.encoding is Encoding.JSON and key.isalnum() and key.isascii():
                header = _ANSWER % (
                    host,
                    offsets[0],
                    queue_id,
                    queue_offset,
                    key.encode(),
                    command.opaque,
                )
                length = len(header)
                parts.append((length + 4 << 32 | length).to_bytes(8, "big"))
                parts.append(header)
            elif command.encoding is Encoding.MSGPACK:
                message_id = f"{self._host_text}{offsets[0]:016X}"
                row = [message_id, str(queue_id), str(queue_offset), key, *_ROW_END]
                header = pack_header(
                    (0, command.opaque, RESPONSE_BIT, VERSION, None, [command.code, *row])
                )
                length = len(header)
                parts.append((length + 4 << 32 | _MSGPACK_WORD | length).to_bytes(8, "big"))
                parts.append(header)
            else:
                parts.append(encode(self._response(item, status)))
        if current is not None:
            current.send(b"".join(parts))

    def _response(self, item: Sent, status: PutStatus) -> Command:
        _, command, queue_id, queue_offset, offsets, key, _, batch_key = item
        host = self._host_text
        fields = {
            "msgId": ",".join(f"{host}{offset:016X}" for offset in offsets),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "transactionId": key,
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if batch_key is not None:
            fields["batchUniqId"] = batch_key
        return answer(command, PUT_CODES[status], None, fields)
