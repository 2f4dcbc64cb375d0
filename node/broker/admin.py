"""Administration of topics and groups, and the tables that slaves copy (wire.md 2.3, 7.2).

17, 18, 215, 21, 351; 200, 225, 207, 201, 352; 43, 45. Changes are answered once they are on disk.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.delays import DelayOffsets
from rocketbed.node.broker.groups import SYSTEM_GROUPS, Groups
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.topics import (
    Topics,
    topic_name_problem,
    with_attributes,
)
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.errors import StoreError
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.wire.bodies import (
    QUEUES_MAX,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
)
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.headers_admin import (
    AllGroupConfigRequest,
    AllGroupConfigResponse,
    AllTopicConfigRequest,
    AllTopicConfigResponse,
    CreateTopicRequest,
    DeleteGroupRequest,
    GroupRequest,
    TopicRequest,
)
from rocketbed.world.api import World

PAGE_MAX: Final = 2000
"""Rows of one page of a paged 21 or 201."""
Fits = Callable[[str, str, dict[str, Any]], None]
RemovalOf = Callable[[str], Callable[[], Awaitable[object]]]


DELETIONS_MAX: Final = 1000
"""Most topics that may be in deletion at the same time."""


class _Deletion:
    """State of the deletion of one topic."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.failure: Exception | None = ConfigFileError(
            "the node stopped before the deletion was done: ask again"
        )


class Admin:
    """Handlers for topics, groups and their tables."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        delays: DelayOffsets,
    ) -> None:
        self._world = world
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self.removal: RemovalOf = lambda topic: partial(store.removal.delete_topic, topic)
        """Begins to destroy a topic's queues; the function that it returns finishes that."""
        self.give_up_removal: Callable[[str], bool] = lambda _: True
        """Called after an error; returns True if the topic's queues stay."""
        self.fits: Fits = lambda *_: None
        """Refuses a row, by its table and name, that would not reach all replicas. Raises
        `ConfigFileError`."""
        self.on_topic_kept: Callable[[str], None] = lambda _: None
        """Called for a topic whose queues stay after all, before it is put back."""
        self._deletions: dict[str, _Deletion] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Run the deletions, which outlive their requests, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    # --- topics

    async def create_topic(self, command: Command, connection: Connection) -> Command:
        """17: create or change a topic. Raises `HeaderError`, `ConfigFileError`."""
        header = CreateTopicRequest.decode(command.fields)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.readQueueNums,
            write_queue_nums=header.writeQueueNums,
            perm=header.perm,
            topic_filter_type=header.topicFilterType,
            topic_sys_flag=header.topicSysFlag or 0,
            order=header.order,
            attributes=self._attributes_of(header.topic),
        )
        try:
            config = with_attributes(config, header.attributes)
        except ValueError as exc:
            return answer(command, ResponseCode.INVALID_PARAMETER, str(exc))
        problem = self._topic_problem(config)
        if problem is not None:
            return answer(command, ResponseCode.INVALID_PARAMETER, problem)
        self.fits("topics", config.topic_name, config.to_json())
        self._topics.put(config)
        await self._topics.save()
        return answer(command)

    async def create_topics(self, command: Command, connection: Connection) -> Command:
        """18: the same for a list, all or none. Raises `BodyError`, `ConfigFileError`."""
        configs = TopicConfigList.decode(command.body).topic_config_list
        for config in configs:
            problem = self._topic_problem(config)
            if problem is not None:
                return answer(command, ResponseCode.INVALID_PARAMETER, problem)
            self.fits("topics", config.topic_name, config.to_json())
        for config in configs:
            self._topics.put(config)
        await self._topics.save()
        return answer(command)

    def _attributes_of(self, topic: str) -> dict[str, str]:
        old = self._topics.get(topic)
        return dict(old.attributes) if old is not None else {}

    def _topic_problem(self, config: TopicConfig) -> str | None:
        name = config.topic_name
        problem = topic_name_problem(name)
        if problem is not None:
            return problem
        if name in self._topics.system_topics:
            return f"The topic[{name}] is conflict with system topic."
        if name in self._topics.leaving:
            return f"the topic {name} is being deleted: make it again once that is done"
        for queues in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= queues <= QUEUES_MAX:
                return f"a topic has 0 to {QUEUES_MAX} queues, not {queues}"
        if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            return f"topicFilterType is SINGLE_TAG or MULTI_TAG, not {config.topic_filter_type}"
        return None

    async def delete_topic(self, command: Command, connection: Connection) -> Command:
        """215: delete a topic, its queues and its consumers' offsets.

        Raises `HeaderError`, `ConfigFileError`, `StoreError`.
        """
        topic = TopicRequest.decode(command.fields).topic
        problem = topic_name_problem(topic)
        if problem is None and topic in self._topics.system_topics:
            problem = f"The topic[{topic}] is conflict with system topic."
        if problem is not None:
            return answer(command, ResponseCode.INVALID_PARAMETER, problem)
        # No message has been accepted since the first request. A second deletion would go on after
        # the first one's answer and destroy messages sent then.
        under_way = self._deletions.get(topic)
        if under_way is None:
            if len(self._deletions) >= DELETIONS_MAX:
                remark = f"{DELETIONS_MAX} topics are being deleted: ask again later"
                return answer(command, ResponseCode.SYSTEM_BUSY, remark)
            assert self._nursery is not None, "`run` is running"
            self._deletions[topic] = under_way = _Deletion()
            self._topics.leaving.add(topic)
            self._nursery.start_soon(self._delete_behind, topic, under_way)
        await under_way.over.wait()
        if under_way.failure is not None:
            raise under_way.failure
        return answer(command)

    async def _delete_behind(self, topic: str, deletion: _Deletion) -> None:
        """Finish the deletion even if no request waits for it any more: a half deleted topic would
        be recreated with the messages that remain."""
        try:
            await self._delete(topic)
            deletion.failure = None
        except Exception as exc:  # such as a full disk: every waiting request gets it
            deletion.failure = exc
            self._world.log.error("tables.topic_not_deleted", topic=topic, error=str(exc))
        finally:
            self._topics.leaving.discard(topic)
            del self._deletions[topic]
            deletion.over.set()

    async def _delete(self, topic: str) -> None:
        # A deletion that a crash or a full disk interrupted has left queues without a topic.
        has_queues = any(name == topic for name, _ in self._store.queues())
        config, settled = self._topics.get(topic), self._topics.settling()
        try:
            if config is not None or has_queues:
                remove = self.removal(topic)
                self._topics.delete(topic)
                await self._topics.save()
                await remove()
            config = None
            # On disk, even after an interrupted deletion: positions that come back would lead
            # groups past messages sent once the topic is recreated.
            self._offsets.delete_topics({topic})
            await self._offsets.save()
            await settled()
        except (ConfigFileError, StoreError):
            if config is not None and self.give_up_removal(topic):
                self.on_topic_kept(topic)
                self._topics.put(config)  # or a send would recreate it, with all of its messages
            raise

    def topic(self, command: Command, connection: Connection) -> Command:
        """351: one topic's configuration. Raises `HeaderError`."""
        name = TopicRequest.decode(command.fields).topic
        config = self._topics.get(name)
        if config is None:
            remark = f"No topic in this broker. topic: {name}"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        return answer(command, ResponseCode.SUCCESS, None, None, config.encode())

    def all_topics(self, command: Command, connection: Connection) -> Command:
        """21: all topics, or a page of them. Raises `HeaderError`."""
        header = AllTopicConfigRequest.decode(command.fields)
        table = self._topics.body()
        table.rb_deleted = self._store.removal.deletions() or None
        fields: dict[str, str] | None = None
        if header.topicSeq is not None:
            names = list(table.topic_config_table)
            first = _first_row(header.topicSeq, header.dataVersion, table.data_version)
            page = names[first : first + _page(header.maxTopicNum)]
            table = TopicConfigTable(
                data_version=table.data_version,
                topic_config_table={name: table.topic_config_table[name] for name in page},
            )
            fields = AllTopicConfigResponse(totalTopicNum=len(names)).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields, table.encode())

    # --- groups

    async def create_group(self, command: Command, connection: Connection) -> Command:
        """200: create or change a consumer group. Raises `BodyError`, `ConfigFileError`."""
        await self._put_groups([SubscriptionGroupConfig.decode(command.body)])
        return answer(command)

    async def create_groups(self, command: Command, connection: Connection) -> Command:
        """225: the same for a list. Raises `BodyError`, `ConfigFileError`."""
        await self._put_groups(SubscriptionGroupList.decode(command.body).group_config_list)
        return answer(command)

    async def _put_groups(self, configs: list[SubscriptionGroupConfig]) -> None:
        for config in configs:
            if not config.group_name:
                raise ConfigFileError("a consumer group needs a name (groupName)")
            if config.retry_queue_nums > QUEUES_MAX:
                raise ConfigFileError(
                    f"retryQueueNums of the consumer group {config.group_name} is"
                    f" {config.retry_queue_nums}; a topic has {QUEUES_MAX} queues at most"
                )
            self.fits("groups", config.group_name, config.to_json())
        for config in configs:
            self._groups.put(config)
        await self._groups.save()

    async def delete_group(self, command: Command, connection: Connection) -> Command:
        """207: delete a consumer group. Raises `HeaderError`, `ConfigFileError`."""
        header = DeleteGroupRequest.decode(command.fields)
        if header.groupName in SYSTEM_GROUPS:
            remark = f"the group {header.groupName} belongs to the system"
            return answer(command, ResponseCode.INVALID_PARAMETER, remark)
        self._groups.delete(header.groupName)
        if header.cleanOffset:
            self._offsets.delete_group(header.groupName)
        await self._groups.save()
        return answer(command)

    def group(self, command: Command, connection: Connection) -> Command:
        """352: one group's configuration. Raises `HeaderError`."""
        name = GroupRequest.decode(command.fields).group
        config = self._groups.get(name)
        if config is None:
            remark = f"No group in this broker. group: {name}"
            return answer(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return answer(command, ResponseCode.SUCCESS, None, None, config.encode())

    def all_groups(self, command: Command, connection: Connection) -> Command:
        """201: all groups, or a page of them. Raises `HeaderError`."""
        header = AllGroupConfigRequest.decode(command.fields)
        table = self._groups.body()
        fields: dict[str, str] | None = None
        if header.groupSeq is not None:
            groups = table.subscription_group_table
            first = _first_row(header.groupSeq, header.dataVersion, table.data_version)
            page = list(groups)[first : first + _page(header.maxGroupNum)]
            table = SubscriptionGroupTable(
                data_version=table.data_version,
                forbidden_table={
                    name: table.forbidden_table[name]
                    for name in page
                    if name in table.forbidden_table
                },
                subscription_group_table={name: groups[name] for name in page},
            )
            fields = AllGroupConfigResponse(totalGroupNum=len(groups)).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields, table.encode())

    # --- further tables that slaves copy

    def all_offsets(self, command: Command, connection: Connection) -> Command:
        """43: the consumer offsets."""
        return answer(command, ResponseCode.SUCCESS, None, None, self._offsets.body().encode())

    def all_delay_offsets(self, command: Command, connection: Connection) -> Command:
        """45: the delay offsets of the file, which is never ahead of what is on disk."""
        try:
            table = self._delays.stored()
        except ConfigFileError as exc:
            return answer(command, ResponseCode.SYSTEM_ERROR, str(exc))
        return answer(command, ResponseCode.SUCCESS, None, None, table.encode())


def _page(rows: int | None) -> int:
    return min(rows, PAGE_MAX) if rows is not None and rows > 0 else PAGE_MAX


def _first_row(row: int, version_text: str | None, version: DataVersion) -> int:
    """Return the first row of a page: 0 again if the table changed between two pages."""
    if version_text:
        former = DataVersion.decode(version_text.encode())
        if former != version:
            return 0
    return max(row, 0)
