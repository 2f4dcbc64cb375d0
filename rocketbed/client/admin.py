"""Administration: topics, brokers, groups, and look-up of single messages (wire.md 2.3, 2.4).

Changes go to every broker concerned and to every nameserver, as with `mqadmin`.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import orjson
import trio

from rocketbed.client.errors import (
    ClientError,
    NoBroker,
    NoNameserver,
    NotFound,
    RequestRefused,
    reading,
    writing,
)
from rocketbed.client.messages import Received, check_group, check_topic
from rocketbed.client.offsets import QueueOffsets
from rocketbed.client.routes import DEFAULT_TOPIC, MASTER_ID
from rocketbed.client.search import MessageSearch
from rocketbed.client.session import Session
from rocketbed.remoting.client import parse_address
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import (
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    ConsumerIdList,
    KvTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.encoding.fields import Header
from rocketbed.wire.headers import ConsumerGroupRequest
from rocketbed.wire.headers_admin import (
    AddPermissionResponse,
    BrokerNameRequest,
    CreateTopicRequest,
    DeleteGroupRequest,
    DeleteTopicInNameserverRequest,
    TopicRequest,
    WipeResponse,
)
from rocketbed.wire.headers_failover import HandOverRequest, ReplicaRequest
from rocketbed.wire.properties_text import parse_properties, render_properties
from rocketbed.world.api import World

TIMEOUT_S: Final = 5.0
"""Default limit of one request, seconds; creating a topic waits for a disk (mqadmin: 5 s)."""
ROUTED_S: Final = 3.0
"""Longest wait, seconds, until a nameserver routes a new topic."""
ELECTED_S: Final = 2.0
"""Longest wait, seconds, for a broker without a master; then it is left out."""
LOOK_S: Final = 0.02
"""Pause between checks for a route or a master, seconds."""
QUEUES: Final = 4
READ_WRITE: Final = PERM_READ | PERM_WRITE


class Admin:
    """Reads and changes the state of a cluster. `async with Admin(nameservers="host:9876") as
    admin: ...`"""

    def __init__(
        self,
        world: World | None = None,
        *,
        nameservers: str | Sequence[str],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Prepare the client; nothing is connected yet. Raises `BadMessage` for malformed
        addresses.

        `timeout_s` limits each request, in seconds. All methods raise `RequestRefused` for an
        answer other than success, another `ClientError` when no peer can be asked or an answer
        cannot be read, and `RemotingError` when no answer came.
        """
        self._session = Session(world, nameservers)
        self._timeout_s = timeout_s
        self.offsets = QueueOffsets(self._session, timeout_s=timeout_s)
        """First, last and committed offset of a queue; offset at a time."""
        self._search = MessageSearch(self._session, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        await self._session.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.__aexit__(kind, error, traceback)

    # --- topics

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        read_queues: int | None = None,
        perm: int = READ_WRITE,
        brokers: Iterable[str] | None = None,
        order: bool = False,
        attributes: str | None = None,
    ) -> list[str]:
        """Create a topic, or change it, on the masters of all brokers or of those named.

        `queues` and `read_queues` are counts for each broker, `perm` is RocketMQ's permission bits.
        Returns the names of the brokers, once a nameserver routes the topic to them.
        """
        check_topic(topic)
        header = CreateTopicRequest(
            topic=topic,
            defaultTopic=DEFAULT_TOPIC,
            readQueueNums=queues if read_queues is None else read_queues,
            writeQueueNums=queues,
            perm=perm,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order=order,
            attributes=attributes,
        )
        masters = await self.masters(brokers)
        for name, address in masters.items():
            action = f"create topic {topic} at {name}"
            await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, what=action)
        await self._wait_routed(topic, set(masters))
        return sorted(masters)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its messages, at every master and every nameserver."""
        check_topic(topic)
        action = f"delete topic {topic}"
        for address in (await self.masters()).values():
            header = TopicRequest(topic=topic)
            await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header, what=action)
        fields = DeleteTopicInNameserverRequest(topic=topic).encode()
        await self._session.nameservers.request_all(
            request(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields), action
        )

    async def topics(self) -> list[str]:
        """Return the names of all topics that are routed, system topics too, sorted."""
        self._session.check_entered()
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        table = await self._session.nameservers.body(code, "list of topics", TopicList.decode)
        return sorted(table.topic_list)

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers and queues of a topic; None when the nameservers do not know it."""
        self._session.check_entered()
        return await self._session.routes.fetch(topic)

    async def topic_config(self, topic: str, broker: str) -> TopicConfig:
        """Return the settings of a topic at one broker's master."""
        address = (await self.masters([broker]))[broker]
        header, action = TopicRequest(topic=topic), f"topic {topic} at {broker}"
        answer = await self.ask(address, RequestCode.GET_TOPIC_CONFIG, header, what=action)
        with reading(action, address):
            return TopicConfig.decode(answer.body)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return all topics of the broker at an address, by name."""
        answer = await self.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, what="topics")
        with reading("topics", address):
            return TopicConfigTable.decode(answer.body).topic_config_table

    # --- brokers

    async def cluster(self) -> ClusterInfo:
        """Return the clusters, their brokers and the addresses of each."""
        self._session.check_entered()
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return await self._session.nameservers.body(code, "list of brokers", ClusterInfo.decode)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return the runtime information of the broker at an address, by RocketMQ's names."""
        action = "runtime information"
        answer = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, what=action)
        with reading(action, address):
            return KvTable.decode(answer.body).table

    async def failover_groups(self) -> dict[str, Any]:
        """Return the controller's record of each group with failover, by broker name.

        Raises `RequestRefused` if no nameserver runs an active controller, `NoNameserver`.
        """
        answer = await self._ask_controller(request(RequestCode.RB_GROUPS), "groups with failover")
        return _object(answer.body)

    async def hand_over(self, address: str, broker: str, *, to: int, epoch: int) -> dict[str, Any]:
        """Have the leader at an address hand over to a replica that holds all messages; -1: to any.

        Returns the group's new entry. Raises `RequestRefused` if there is no such replica; the
        leader then stays.
        """
        header = HandOverRequest(group=broker, leader=0, epoch=epoch, to=to, op="")
        command = request(RequestCode.RB_HAND_OVER, header.encode())
        return _object((await self._send(address, command, f"handover of {broker}")).body)

    async def force_leader(self, broker: str, replica: int) -> dict[str, Any]:
        """Make a replica the leader whatever it lacks: acknowledged messages may be lost.

        Returns the group's new entry. Raises `RequestRefused`, `NoNameserver`.
        """
        op = f"operator {self._session.unique_key()}"
        header = ReplicaRequest(group=broker, replica=replica, op=op)
        command = request(RequestCode.RB_FORCE_LEADER, header.encode())
        return _object((await self._ask_controller(command, f"forced leader of {broker}")).body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at an address."""
        answer = await self.ask(address, RequestCode.GET_BROKER_CONFIG, what="configuration")
        text = answer.body.decode("utf-8", "replace")
        return {key: value for _, key, value in parse_properties(text)}

    async def change_broker_config(self, address: str, changes: Mapping[str, str]) -> str:
        """Change settings of the running broker at an address, all or none; by RocketMQ's names.

        Returns the reason why the broker will not keep them at its next start; empty if it will.
        Raises `RequestRefused` if a setting cannot be changed, or not to that value.
        """
        with writing():
            body = render_properties(changes).encode()
        command = request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        return (await self._send(address, command, "change of configuration")).remark or ""

    async def wipe_write_permission(self, broker: str) -> int:
        """Forbid clients to write to a broker; return its number of topics at the first
        nameserver."""
        answers = await self._session.nameservers.request_all(
            request(
                RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameRequest(brokerName=broker).encode()
            ),
            f"wipe write permission of {broker}",
        )
        return WipeResponse.decode(answers[0].raw_fields).wipeTopicCount

    async def add_write_permission(self, broker: str) -> int:
        """Let clients write to a broker again; return its number of topics at the first
        nameserver."""
        answers = await self._session.nameservers.request_all(
            request(
                RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameRequest(brokerName=broker).encode()
            ),
            f"add write permission of {broker}",
        )
        return AddPermissionResponse.decode(answers[0].raw_fields).addTopicCount

    # --- groups

    async def groups(self) -> list[str]:
        """Return the names of the consumer groups of all masters, sorted."""
        names: set[str] = set()
        for address in (await self.masters()).values():
            code, action = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "list of groups"
            answer = await self.ask(address, code, what=action)
            with reading(action, address):
                names.update(SubscriptionGroupTable.decode(answer.body).subscription_group_table)
        return sorted(names)

    async def create_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a consumer group, or change it, on every master."""
        check_group(config.group_name)
        with writing():
            body = config.encode()
        for address in (await self.masters()).values():
            command = request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
            await self._send(address, command, f"create group {config.group_name}")

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a consumer group on every master, by default with its committed offsets."""
        header = DeleteGroupRequest(groupName=group, cleanOffset=offsets)
        for address in (await self.masters()).values():
            await self.ask(
                address,
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                header,
                what=f"delete group {group}",
            )

    async def group_members(self, group: str) -> list[str]:
        """Return the ids of the connected members of a consumer group, sorted."""
        ids: set[str] = set()
        for address in (await self.masters()).values():
            command = request(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                ConsumerGroupRequest(consumerGroup=group).encode(),
            )
            answer = await self._ask(address, command)
            if answer.code == ResponseCode.SUCCESS:
                with reading(f"members of group {group}", address):
                    ids.update(ConsumerIdList.decode(answer.body).consumer_id_list)
        return sorted(ids)

    # --- messages

    async def message(self, message_id: str, topic: str | None = None) -> Received:
        """Return a message by the broker's id, or with `topic` by the producer's. Raises
        `NotFound`."""
        try:
            return await self._search.by_offset_id(message_id)
        except (ClientError, RemotingError) as exc:
            if topic is None:
                raise NotFound(
                    f"no message {message_id}: {exc}; for a producer's id give the topic too"
                ) from exc
        messages = await self.messages_by_unique_key(topic, message_id)
        if not messages:
            raise NotFound(f"no message {message_id} in topic {topic}")
        return messages[0]

    async def messages_by_unique_key(self, topic: str, unique_key: str) -> list[Received]:
        """Return all copies of a message, by the producer's id; oldest first."""
        return await self._search.by_key(topic, unique_key, unique=True)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
    ) -> list[Received]:
        """Return at most `count` messages with a key, stored from `begin_ms` to `end_ms` (Unix,
        milliseconds); oldest first."""
        return await self._search.by_key(topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms)

    # --- inside

    async def ask(
        self, address: str, code: RequestCode, header: Header | None = None, *, what: str
    ) -> Command:
        """Send a request to the broker at `host:port`; return its answer if that is success."""
        fields = None if header is None else header.encode()
        return await self._send(address, request(code, fields), what)

    async def _send(self, address: str, command: Command, action: str) -> Command:
        self._session.check_entered()
        answer = await self._ask(address, command)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(action, f"broker {address}", answer.code, answer.remark)
        return answer

    async def _ask(self, address: str, command: Command) -> Command:
        """Return a broker's answer, whatever its code. Raises `NoBroker` for an address that cannot
        be used: a nameserver repeats what brokers register."""
        try:
            broker = parse_address(address)
        except ValueError as exc:
            raise NoBroker(f"a broker cannot be asked: {exc}") from exc
        return await self._session.ask(broker, command, timeout_s=self._timeout_s)

    async def _ask_controller(self, command: Command, action: str) -> Command:
        """Return the answer of the nameserver whose controller is active."""
        self._session.check_entered()
        refused: RequestRefused | None = None
        silent: NoNameserver | None = None
        for address in self._session.nameservers.addresses:
            try:
                answer = await self._session.nameservers.ask(address, command)
            except NoNameserver as exc:
                silent = exc
                continue
            if answer.code == ResponseCode.SUCCESS:
                return answer
            where = f"nameserver {address[0]}:{address[1]}"
            error = RequestRefused(action, where, answer.code, answer.remark)
            is_other = answer.code in (
                ResponseCode.CONTROLLER_NOT_LEADER,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
            refused = error if refused is None or not is_other else refused
        failed = refused or silent
        assert failed is not None, "there is a nameserver at least"
        raise failed

    async def masters(self, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """Return broker name -> address of its master. Wait a short time for a master that is being
        elected; without named brokers, leave out those that still have none."""
        names = None if brokers is None else list(brokers)
        until = trio.current_time() + ELECTED_S
        while True:
            table = (await self.cluster()).broker_addr_table
            selected = sorted(table) if names is None else names
            if unknown := [name for name in selected if name not in table]:
                registered = ", ".join(sorted(table)) or "none"
                raise ClientError(f"unknown broker {unknown[0]}; registered brokers: {registered}")
            addresses = {name: table[name].broker_addrs.get(MASTER_ID) for name in selected}
            without = [name for name, address in addresses.items() if address is None]
            if not without or trio.current_time() >= until:
                break
            await trio.sleep(LOOK_S)
        if without and names is not None:
            raise ClientError(f"broker {without[0]} has no master now")
        masters = {name: address for name, address in addresses.items() if address is not None}
        if not masters:
            raise ClientError("no broker with a master is registered at the nameserver")
        if without:
            self._session.world.log.warning("client.no_master", left_out=", ".join(without))
        return masters

    async def _wait_routed(self, topic: str, expected: set[str]) -> None:
        with trio.move_on_after(ROUTED_S):
            while True:
                data = await self.route(topic)
                if data is not None and expected <= {q.broker_name for q in data.queue_datas}:
                    return
                await trio.sleep(LOOK_S)
        raise ClientError(
            f"topic {topic} was created, but has no route at the nameserver after {ROUTED_S:g} s"
        )


def _object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `ClientError`."""
    try:
        value = orjson.loads(body)
    except ValueError as exc:
        raise ClientError(f"the answer is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ClientError("the answer is no JSON object")
    return value
