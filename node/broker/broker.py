"""A broker: the tables and activities of one node, and the dispatch of its requests."""

from collections.abc import Callable
from functools import partial

import trio

from rocketbed.node.broker.admin import Admin
from rocketbed.node.broker.assignments import Assignments
from rocketbed.node.broker.clients import Clients
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.broker.delays import DelayOffsets, Delays
from rocketbed.node.broker.groups import Groups
from rocketbed.node.broker.inquiries import Inquiries
from rocketbed.node.broker.locks import QueueLocks
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.pull import Puller
from rocketbed.node.broker.queries import Queries
from rocketbed.node.broker.refusals import FEATURES, refuse
from rocketbed.node.broker.request_modes import RequestModes
from rocketbed.node.broker.resets import Resets
from rocketbed.node.broker.runtime_info import RuntimeInfo
from rocketbed.node.broker.send import Sender
from rocketbed.node.broker.send_back import SendBack
from rocketbed.node.broker.settings import Settings
from rocketbed.node.broker.table_log import TableLog
from rocketbed.node.broker.topics import Topics
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.release import ReleaseQueue
from rocketbed.node.store.store import MessageStore
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers, Inline
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.bodies import HaRuntimeInfo
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.wire.command import RequestCode as Code
from rocketbed.world.api import World


class Tables:
    """Contents of `config/`: needed before the store opens, since recovery asks for topics."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        self.topics = Topics(world, config)
        self.groups = Groups(world, config)
        self.offsets = Offsets(world, config)
        self.delays = DelayOffsets(world, config)
        self.modes = RequestModes(world, config)

    def load(self) -> None:
        """Read the files, in RocketMQ's order. Raises `ConfigFileError`."""
        self.topics.load()
        self.offsets.load()
        self.groups.load()
        self.delays.load()
        self.modes.load()

    async def save(self) -> None:
        """Make every change durable. Raises `ConfigFileError`."""
        await self.topics.save()
        await self.groups.save()
        await self.offsets.save()
        await self.modes.save()


class Broker:
    """Serves clients from an open store."""

    def __init__(
        self,
        world: World,
        config: NodeConfig,
        store: MessageStore,
        tables: Tables,
        *,
        confirmed: Watermark | None = None,
    ) -> None:
        """`confirmed` rises as enough slaves hold the log; None waits for no slave."""
        self._world = world
        self.config = config
        self.store = store
        self.tables = tables
        self.locks = QueueLocks(config.broker_name, tables.topics)
        self.table_log: TableLog | None = None
        """Only in a group with failover."""
        if config.replica and confirmed is not None:
            self.table_log = TableLog(
                world,
                config,
                store,
                tables.topics,
                tables.groups,
                tables.offsets,
                self.locks,
                tables.modes,
                acknowledged=confirmed,
            )
        self.releases = ReleaseQueue(
            flushed=store.flushed if config.store.sync_flush else None,
            confirmed=confirmed,
            flush_timeout_s=config.store.sync_flush_timeout_ms / 1000,
            slave_timeout_s=config.slave_timeout_ms / 1000,
            elects=bool(config.replica),
        )
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        self.clients = Clients(world, topics, groups)
        self.clients.on_scan.append(self._forget_locks)
        self.delays = Delays(world, config, store, topics, tables.delays, confirmed=confirmed)
        self.sender = Sender(world, config, store, topics, groups, self.releases, self.delays)
        self.send_back = SendBack(
            world, config, store, topics, groups, self.sender, self.delays, self.releases
        )
        self.puller = Puller(config, store, topics, groups, self.clients, offsets)
        self.resets = Resets(config, store, topics, groups, offsets, self.puller.polls)
        self.queries = Queries(config, store, topics, groups, offsets)
        self.admin = Admin(world, config, store, topics, groups, offsets, tables.delays)
        self.admin.on_topic_kept = self.puller.polls.topic_kept
        self.inquiries = Inquiries(world, config, store, topics, offsets, self.clients)
        self.assignments = Assignments(world, config, topics, groups, self.clients, tables.modes)
        self.settings = Settings(world, config, store, topics)
        self.info = RuntimeInfo(world, config, store, self.sender, self.puller)
        self.handlers = self._make_handlers()
        """Handlers of the main port."""
        if self.table_log is not None:
            self.admin.fits = self.assignments.fits = self.table_log.fits
            self.admin.removal = self.table_log.removal
            self.admin.give_up_removal = self.table_log.give_up_removal
            for code in (Code.LOCK_BATCH_MQ, Code.CLONE_GROUP_OFFSET):
                handler = self.handlers.inline.pop(code)
                self.handlers.spawned[code] = partial(self._settled, handler)

    def _make_handlers(self) -> Handlers:
        sender, puller, queries = self.sender, self.puller, self.queries
        admin, clients, info = self.admin, self.clients, self.info
        inquiries, assignments = self.inquiries, self.assignments
        return Handlers(
            run=dict.fromkeys(
                (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE), sender.handle
            ),
            plain_run=sender.take,
            end_of_run=sender.end_of_run,
            inline={
                Code.PULL_MESSAGE: puller.handle,
                Code.LITE_PULL_MESSAGE: puller.handle,
                Code.QUERY_CONSUMER_OFFSET: queries.consumer_offset,
                Code.UPDATE_CONSUMER_OFFSET: queries.commit_offset,
                Code.GET_MAX_OFFSET: queries.max_offset,
                Code.GET_MIN_OFFSET: queries.min_offset,
                Code.HEART_BEAT: clients.heartbeat,
                Code.UNREGISTER_CLIENT: clients.unregister,
                Code.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
                Code.CHECK_CLIENT_CONFIG: clients.check_client,
                Code.LOCK_BATCH_MQ: self.locks.lock,
                Code.UNLOCK_BATCH_MQ: self.locks.unlock,
                Code.GET_TOPIC_CONFIG: admin.topic,
                Code.GET_ALL_TOPIC_CONFIG: admin.all_topics,
                Code.GET_SUBSCRIPTIONGROUP_CONFIG: admin.group,
                Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
                Code.GET_ALL_CONSUMER_OFFSET: admin.all_offsets,
                Code.GET_ALL_DELAY_OFFSET: admin.all_delay_offsets,
                Code.GET_ALL_MESSAGE_REQUEST_MODE: assignments.all_modes,
                Code.GET_BROKER_CONFIG: self.settings.show,
                Code.QUERY_TOPIC_CONSUME_BY_WHO: inquiries.groups_of_topic,
                Code.QUERY_TOPICS_BY_CONSUMER: inquiries.topics_of_group,
                Code.GET_TIMER_CHECK_POINT: inquiries.timer_checkpoint,
                Code.GET_TIMER_METRICS: inquiries.timer_metrics,
                Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: inquiries.system_topics,
                Code.GET_CONSUMER_CONNECTION_LIST: inquiries.consumers,
                Code.GET_PRODUCER_CONNECTION_LIST: inquiries.producers,
                Code.CLONE_GROUP_OFFSET: inquiries.clone_offsets,
                **dict.fromkeys(FEATURES, refuse),
            },
            spawned={
                Code.CONSUMER_SEND_MSG_BACK: self.send_back.handle,
                Code.SEARCH_OFFSET_BY_TIMESTAMP: queries.offset_by_time,
                Code.GET_EARLIEST_MSG_STORETIME: queries.earliest_time,
                Code.VIEW_MESSAGE_BY_ID: queries.message_by_id,
                Code.QUERY_MESSAGE: queries.by_key,
                Code.UPDATE_AND_CREATE_TOPIC: admin.create_topic,
                Code.UPDATE_AND_CREATE_TOPIC_LIST: admin.create_topics,
                Code.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.create_group,
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: admin.create_groups,
                Code.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
                Code.GET_BROKER_RUNTIME_INFO: info.runtime,
                Code.INVOKE_BROKER_TO_RESET_OFFSET: self.resets.reset,
                Code.UPDATE_BROKER_CONFIG: self.settings.update,
                Code.QUERY_ASSIGNMENT: assignments.query,
                Code.SET_MESSAGE_REQUEST_MODE: assignments.set_mode,
                Code.GET_TOPIC_STATS_INFO: inquiries.topic_stats,
                Code.GET_CONSUME_STATS: inquiries.consume_stats,
                Code.GET_CONSUMER_RUNNING_INFO: inquiries.running_info,
            },
        )

    async def _settled(
        self, handler: Inline, command: Command, connection: Connection
    ) -> Command | None:
        """Return the answer once the change is confirmed. Raises `ConfigFileError`."""
        settled = self.tables.topics.settling()
        response = handler(command, connection)
        await settled()
        return response

    def attach_replication(
        self, runtime_info: Callable[[], HaRuntimeInfo], is_following: Callable[[], bool]
    ) -> None:
        """Answer 907 from replication, and let a slave send readers to a master that it follows.

        Before the ports open.
        """

        def ha_status(command: Command, connection: Connection) -> Command:
            body = runtime_info().encode()
            return answer(command, ResponseCode.SUCCESS, None, None, body)

        self.handlers.inline[Code.GET_BROKER_HA_STATUS] = ha_status
        self.puller.is_master_alive = is_following

    @property
    def fast_handlers(self) -> Handlers:
        """Handlers of the port two below: everything but pulls (wire.md 1.10)."""
        return self.handlers.without(Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)

    def after_cut(self) -> None:
        """Adapt to a log that became shorter: answer the long polls for lost messages, and lower
        offsets beyond the end of their queues.

        The clients of answered polls ask again from the queue's present end.
        """
        self.tables.offsets.bring_down(self.store.queue_max)
        self.puller.polls.release_all()

    def role_changed(self) -> None:
        """Adapt to the start or end of this replica's lead."""
        self.releases.give_up()
        self.puller.polls.release_all()
        assert self.table_log is not None, "in a group with failover"
        self.table_log.begin_role()
        if self.config.is_slave:
            return
        tables, store = self.tables, self.store
        for physical, size in store.epochs.changes:
            self.table_log.take_over(physical, size)
        queues = [*store.queue_keys(), *store.new_queues()]
        deleted = self.table_log.deleted
        tables.topics.adopt([queue for queue in queues if queue[0] not in deleted])
        # The deleting leader may have lost the lead before it deleted these.
        tables.offsets.delete_topics(deleted)
        tables.topics.become_own()
        tables.offsets.bring_down(partial(store.queue_max, committed=False))
        self.delays.begin_anew()
        self.locks.renew()

    def _forget_locks(self) -> None:
        # A follower learns the holders of locks, not when they expire.
        if self.table_log is None or not self.config.is_slave:
            self.locks.forget_expired()

    def connection_closed(self, connection: Connection) -> None:
        """Forget the clients of a connection."""
        self.clients.connection_closed(connection)

    async def run(self) -> None:
        """Run the broker's own tasks, until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in (
                self.tables.topics.run,
                self.tables.groups.run,
                self.tables.offsets.run,
                self.tables.modes.run,
                self.admin.run,
                self.assignments.run,
                self.clients.run,
                self.inquiries.run,
                self.puller.polls.run,
                self.delays.run,
                self.releases.run,
            ):
                nursery.start_soon(task)
            if self.table_log is not None:
                nursery.start_soon(self.table_log.run)
                nursery.start_soon(self.table_log.learn)

    async def stop(self) -> None:
        """Answer all long polls and save the tables; the ports are closed by then."""
        self.puller.polls.release_all()
        try:
            await self.tables.save()
            await self.delays.stop()
        except ConfigFileError as exc:
            self._world.log.error("config.save_failed", error=str(exc))
