"""The topics of a broker: `topics.json`, the built-in ones, creation on first use (wire.md 4.7).

A topic takes sends only once it is in the file: in a directory from another broker, recovery drops
records of topics that neither a cleanly loaded table nor a queue has (trap T14), so a message
acknowledged before its topic was durable could be lost to its readers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import trio

from rocketbed.node.broker.config_file import (
    AfterSave,
    ConfigFile,
    ConfigFileError,
    SavedTable,
    Settling,
)
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.epochs import EPOCH_TOPIC, META_TOPIC
from rocketbed.wire.bodies import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
)
from rocketbed.world.api import World

DEFAULT_TOPIC = "TBW102"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
"""Prefix of RocketMQ's queues that have no topic of their own in any table (store.md 3.6)."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"

NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,
    }
)
"""Topics that clients may not send to: RocketMQ's list and the timer's own topic."""

TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_COPIED = "rbCopied"
"""Member of our `topics.json` on a slave: the table may lag behind the log (see `exists`)."""

QUEUE_TYPE = "queue.type"
BATCH_QUEUE = "BatchCQ"


def topic_name_problem(topic: str) -> str | None:
    """Return why a topic cannot have this name, or None (RocketMQ: `TopicValidator`)."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    long = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = RETRY_TOPIC_LENGTH_MAX if long else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        return f"The specified topic is longer than topic max length {limit}."
    return None


class Topics:
    """The table. Reading it is a dictionary look-up; every change is written to the file."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self._world = world
        self._config = config
        self._file = ConfigFile(world, config.config_dir, "topics.json")
        self._saved = SavedTable(world, self._file, self._render)
        self._table: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        self.sendable: dict[str, int] = {}
        """Topics whose sends need no more checks: durable, open to clients, of plain queues; with
        the number of their queues."""
        self.leaving: set[str] = set()
        """Topics that are being deleted: no send recreates them before that is done."""
        self.on_change: list[Callable[[list[str]], None]] = []
        """Called with the names of topics that were created, changed or deleted."""
        self._callbacks: dict[str, list[AfterSave]] = {}
        self.before_use: Callable[[], None] = _nothing
        """Called when changes are in the file, before messages of new topics are accepted."""
        self.settling: Settling = lambda: trio.lowlevel.checkpoint
        """Called before a change; the function that it returns waits until the change is also in
        the log of tables, and may raise `ConfigFileError`."""
        self._durable: set[str] = set()
        self._being_saved: list[str] = []
        self._is_complete = False
        self.system_topics = self._built_in()

    # --- start and stop

    def load(self) -> None:
        """Read the file and add the built-in topics. Raises `ConfigFileError`."""
        stored = self._file.load(
            lambda value: (TopicConfigTable.from_json(value), bool(value.get(_COPIED)))
        )
        table, copied = stored or (TopicConfigTable(), False)
        self._table = table.topic_config_table
        self.version = table.data_version
        self.sendable.clear()
        is_whole = self._file.is_clean and not copied and not self._config.is_slave
        # A table without any user's topic may have been lost as well.
        self._is_complete = is_whole and not self._table.keys() <= self.system_topics.keys()
        missing = {
            name: item for name, item in self.system_topics.items() if name not in self._table
        }
        if missing:
            self._table.update(missing)
            self._bump()
        elif copied and not self._config.is_slave:
            self._saved.touch()
        for name in self._table:
            self._refresh(name)

    def missing(self, queues: Iterable[tuple[str, int, bool]]) -> dict[str, tuple[int, bool]]:
        """Return topics that the table lacks though the store has their queues, with the number of
        these and whether they are batch queues. A deletion removes the queues, so these topics were
        lost, with a damaged or missing table. A slave's table only lags behind."""
        counts: dict[str, tuple[int, bool]] = {}
        for topic, queue_id, is_batch in () if self._config.is_slave else queues:
            if topic not in self._table and not topic.startswith(LMQ_PREFIX):
                counts[topic] = max(counts.get(topic, (0, False))[0], queue_id + 1), is_batch
        return counts

    def adopt(self, queues: Iterable[tuple[str, int, bool]]) -> None:
        """Recreate topics that the table has lost from the queues of the store.

        `queues`: topic, queue id, True for a batch queue.
        """
        for topic, (count, is_batch) in self.missing(queues).items():
            self._world.log.warning("topics.made_again", topic=topic, queues=count)
            attributes = {QUEUE_TYPE: BATCH_QUEUE} if is_batch else {}
            self.put(
                TopicConfig(
                    topic_name=topic,
                    read_queue_nums=count,
                    write_queue_nums=count,
                    attributes=attributes,
                )
            )

    def become_own(self) -> None:
        """Save a copy of another broker's table as our own."""
        self._saved.touch()

    def remarks(self, queues: Iterable[tuple[str, int, bool]]) -> list[str]:
        """Return, as sentences, what hides messages of these queues (topic, queue id, True for a
        batch queue), or will be recreated: one wrong bit of the table is enough."""
        if self._config.is_slave:
            return []
        keys = list(queues)
        remarks = [
            f"{topic} has messages and is not in topics.json, though nobody deleted it here: it is"
            f" made again, with {count} queues and default settings"
            for topic, (count, _) in self.missing(keys).items()
        ]
        counts: dict[str, int] = {}
        for topic, queue_id, _ in keys:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, row in self._table.items():
            read, number = row.read_queue_nums, counts.get(topic, 0)
            if number > read:
                remarks.append(
                    f"{topic} has messages in queue {number - 1}, and readQueueNums={read} hides"
                    " queues from there on from consumers: raise it, unless that is wanted"
                )
            if number and not row.perm & PERM_READ and topic not in self.system_topics:
                remarks.append(
                    f"{topic} has messages, and perm={row.perm} lets nobody read them: give it read"
                    " permission, unless that is wanted"
                )
            if max(read, row.write_queue_nums) > QUEUES_MAX:
                remarks.append(
                    f"{topic} has readQueueNums={read} and writeQueueNums={row.write_queue_nums}:"
                    " clients go through all of them; set what it was, if that is a wrong number"
                )
        return remarks

    async def save(self) -> None:
        """Make every change durable. Raises `ConfigFileError`."""
        settled = self.settling()
        await self._saved.save()
        self._after_save(None)
        await settled()

    async def run(self) -> None:
        """Write changes as they come, until cancelled."""
        await self._saved.run(self._after_save)

    # --- reading

    def get(self, topic: str) -> TopicConfig | None:
        return self._table.get(topic)

    def exists(self, topic: str) -> bool | None:
        """True if records of a topic belong into queues, for recovery and dispatch.

        None if that is not known for sure: the table was not loaded whole, or is a slave's copy,
        which may lag behind the log.
        """
        if topic in self._table:
            return True
        return False if self._is_complete else None

    def is_batch_queue(self, topic: str) -> bool:
        """True if a topic's queues are batch consume queues (store.md 3.5)."""
        config = self._table.get(topic)
        return config is not None and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE

    def system_names(self) -> list[str]:
        """Return RocketMQ's own topics, including those that this broker lacks."""
        return sorted({*self._built_in(), *NOT_SENDABLE})

    def names(self) -> list[str]:
        return list(self._table)

    def body(self, names: list[str] | None = None) -> TopicConfigTable:
        """Return the table as 21 and 103 carry it: all of it, or some topics."""
        chosen = (
            self._table
            if names is None
            else {name: self._table[name] for name in names if name in self._table}
        )
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(chosen))

    # --- changing

    def put(self, config: TopicConfig) -> None:
        """Add or change a topic; durable after `save`. No change if it is equal."""
        if self._table.get(config.topic_name) == config:
            return
        self._table[config.topic_name] = config
        self._changed([config.topic_name])

    def delete(self, topic: str) -> bool:
        """Delete a topic; durable after `save`. False if it does not exist."""
        if self._table.pop(topic, None) is None:
            return False
        self._changed([topic])
        return True

    def apply(self, rows: Mapping[str, TopicConfig | None]) -> None:
        """Apply changes of another broker's table; None is a topic that it deleted."""
        for name, row in rows.items():
            if row is None:
                self._table.pop(name, None)
            else:
                self._table[name] = row
        self._changed(list(rows))

    def replace_all(self, table: TopicConfigTable) -> None:
        """Replace the whole table with a master's (a slave's metadata sync)."""
        self._table = dict(table.topic_config_table)
        self.version = table.data_version
        self.sendable.clear()
        self._durable.intersection_update(self._table)
        self._saved.touch()
        for callback in self.on_change:
            callback(list(self._table))

    def create_for_send(self, topic: str, default_topic: str, queues: int) -> TopicConfig | None:
        """Create an unknown topic on the pattern of the default one; None if that is not allowed
        (RocketMQ: `createTopicInSendMessageMethod`)."""
        pattern = self._table.get(default_topic)
        if pattern is None or not pattern.perm & PERM_INHERIT or topic in self.leaving:
            return None
        if default_topic == DEFAULT_TOPIC and not self._config.auto_create_topic:
            return None
        count = max(min(queues, pattern.write_queue_nums), 0)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=pattern.perm & ~PERM_INHERIT,
            topic_sys_flag=pattern.topic_sys_flag,
            topic_filter_type=pattern.topic_filter_type,
        )
        self.put(config)
        return config

    def follow_settings(self) -> None:
        """Apply changed settings: create the topics that they ask for, and send nameservers the
        broker's permission."""
        self.system_topics = {**self.system_topics, **self._built_in()}
        self._table = {**self.system_topics, **self._table}
        self._changed(list(self._table))

    def create_retry(self, group: str, queues: int) -> None:
        """Create `%RETRY%group` if it is absent and the group wants retries."""
        if queues > 0:
            self.create_absent(RETRY_PREFIX + group, queues)

    def create_absent(self, name: str, queues: int) -> None:
        """Create a topic of the broker's own, unless it exists or its name is invalid; with at most
        as many queues as a topic may have."""
        queues = min(queues, QUEUES_MAX)
        if name not in self._table and topic_name_problem(name) is None:
            self.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))

    def is_durable(self, topic: str) -> bool:
        """True if a topic is in the file."""
        return topic in self._durable

    def when_durable(self, topic: str, callback: AfterSave) -> None:
        """Call back once a new topic is in the file, could not be written there, or was deleted
        meanwhile.

        Callbacks of one topic come in the order in which they were registered.
        """
        self._callbacks.setdefault(topic, []).append(callback)
        self._saved.touch()

    # --- inside

    def _changed(self, names: list[str]) -> None:
        self._bump()
        for name in names:
            self.sendable.pop(name, None)
            if name not in self._table:
                self._durable.discard(name)
        for callback in self.on_change:
            callback(names)

    def _bump(self) -> None:
        self.version = self.version.next(self._world.clock.wall_ms())
        self._saved.touch()

    def _after_save(self, failure: ConfigFileError | None) -> None:
        if failure is None:
            self.before_use()
            for name in self._being_saved:
                if name in self._table:
                    self._durable.add(name)
                    if name not in self.sendable:  # one of a thousand topics may have changed
                        self._refresh(name)
        settled = [
            name
            for name in self._callbacks
            if failure or name in self._durable or name not in self._table
        ]
        for name in settled:
            for callback in self._callbacks.pop(name):
                callback(failure)

    def _refresh(self, name: str) -> None:
        if name in NOT_SENDABLE or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        config = self._table[name]
        if (
            config.attributes.get(QUEUE_TYPE) != BATCH_QUEUE
            and config.topic_filter_type == "SINGLE_TAG"
            and not (config.order and not self._config.broker_permission & PERM_WRITE)
            and topic_name_problem(name) is None
        ):
            self.sendable[name] = config.queue_nums

    def _render(self) -> dict[str, Any]:
        self._being_saved = list(self._table)
        value = self.body().to_json()
        for member in list(value):
            if member not in ("dataVersion", "topicConfigTable"):
                del value[member]
        if self._config.is_slave:
            value[_COPIED] = True
        return value

    def _built_in(self) -> dict[str, TopicConfig]:
        """Return the topics that every broker has from the start (wire.md 4.7)."""
        config = self._config
        cluster, broker = config.cluster_name, config.broker_name
        template = PERM_READ | PERM_WRITE | PERM_INHERIT
        rows: list[tuple[str, int, int]] = [
            ("SELF_TEST_TOPIC", 1, PERM_READ | PERM_WRITE),
            ("BenchmarkTest", 1024, PERM_READ | PERM_WRITE),
            (cluster, 16, template),
            (broker, 1, template),
            ("OFFSET_MOVED_EVENT", 1, PERM_READ | PERM_WRITE),
            (SCHEDULE_TOPIC, 18, PERM_READ | PERM_WRITE),
            (f"{cluster}_REPLY_TOPIC", 1, PERM_READ | PERM_WRITE),
            (f"rmq_sys_REVIVE_LOG_{cluster}", 8, PERM_READ | PERM_WRITE),
            (f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT),
            (HALF_TOPIC, 1, PERM_READ | PERM_WRITE),
            (OP_HALF_TOPIC, 1, PERM_READ | PERM_WRITE),
            (TIMER_TOPIC, 1, PERM_READ | PERM_WRITE),
        ]
        if config.replica:
            rows += [(EPOCH_TOPIC, 1, PERM_READ), (META_TOPIC, 1, PERM_READ)]
        if config.auto_create_topic:
            rows.append((DEFAULT_TOPIC, config.default_topic_queues, template))
        if config.trace_topic:
            rows.append(("RMQ_SYS_TRACE_TOPIC", 1, PERM_READ | PERM_WRITE))
        return {
            name: TopicConfig(
                topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
            for name, queues, perm in rows
        }


def _nothing() -> None:
    """Do nothing: the default of `before_use`."""


def with_attributes(config: TopicConfig, changes: str | None) -> TopicConfig:
    """Apply a request's `+key=value,-key` to a topic's attributes. Raises `ValueError`."""
    attributes = dict(config.attributes)
    for change in (changes or "").split(","):
        if not change.strip():
            continue
        key, equals, value = change.strip()[1:].partition("=")
        if change.strip()[0] == "+" and key and equals:
            attributes[key] = value
        elif change.strip()[0] == "-" and key and not equals:
            attributes.pop(key, None)
        else:
            raise ValueError(f"attribute {change!r} is neither +key=value nor -key")
    return replace(config, attributes=attributes)
