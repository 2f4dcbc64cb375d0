"""Reset of a group's positions in a topic: 222 (wire.md 6.7).

The group need not be connected. Its commits are ignored until its next pull of a queue, whose
answer sends it to the new position; a long poll is answered at once.
"""

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.long_polling import LongPolls
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.bodies_admin import QueueOffsets
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.headers_admin import ResetOffsetRequest


class Resets:
    """Handles 222."""

    def __init__(
        self,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        polls: LongPolls,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._polls = polls

    async def reset(self, command: Command, connection: Connection) -> Command:
        """222: set a group's positions, durably. Raises `HeaderError`, `ConfigFileError`."""
        settled = self._topics.settling()
        header = ResetOffsetRequest.decode(command.fields)
        topic, group = header.topic, header.group
        if self._config.is_slave:
            remark = "Can not reset offset in slave broker"
            return answer(command, ResponseCode.SYSTEM_ERROR, remark)
        config = self._topics.get(topic)
        if config is None:
            remark = f"Topic {topic} does not exist"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        if self._groups.get(group) is None:
            remark = f"Group {group} does not exist"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        requested = -1 if header.queueId is None else header.queueId
        if requested >= config.read_queue_nums:
            remark = f"queueId[{requested}] is illegal: topic {topic} has {config.read_queue_nums}"
            return answer(command, ResponseCode.INVALID_PARAMETER, remark)
        targets: dict[int, int] = {}
        for queue_id in range(config.read_queue_nums) if requested < 0 else (requested,):
            target = -1 if requested < 0 or header.offset is None else header.offset
            low = self._store.queue_min(topic, queue_id)
            high = self._store.queue_max(topic, queue_id)
            if target < 0:
                target = await self._by_time(topic, queue_id, header.timestamp)
            elif not low <= target <= high:  # beyond the end, messages would never be delivered
                remark = f"Target offset {target} not in consume queue range [{low}-{high}]"
                return answer(command, ResponseCode.SYSTEM_ERROR, remark)
            targets[queue_id] = target
        body = QueueOffsets()
        for queue_id, target in targets.items():
            self._offsets.reset(group, topic, queue_id, target)
            queue = MessageQueue(
                topic=topic, broker_name=self._config.broker_name, queue_id=queue_id
            )
            body.offset_table[queue] = target
        try:
            await self._offsets.save()
            await settled()
        except ConfigFileError:
            for queue_id in targets:
                self._offsets.give_up_reset(group, topic, queue_id)
            raise
        for queue_id in targets:
            self._polls.release(topic, queue_id)
        return answer(command, ResponseCode.SUCCESS, None, {}, body.encode())

    async def _by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        if time_ms < 0:
            return self._store.queue_max(topic, queue_id)
        return await self._store.offset_by_time(topic, queue_id, time_ms, upper=False)
