"""A slave's copies of topics, groups and offsets, from a master that is reachable or not."""

import errno
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.replication.metadata import MetadataSync
from rocketbed.wire.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.world.api import World

PORT = 10911


B = TypeVar("B")


class Table(Generic[B]):
    """A slave's table that counts how often it is replaced."""

    def __init__(self, empty: B) -> None:
        self.version = DataVersion()
        self.replaced = 0
        self._body = empty

    def body(self) -> B:
        return self._body

    def replace_all(self, table: B) -> None:
        self._body = table
        self.version = getattr(table, "data_version")  # noqa: B009, no common base says so
        self.replaced += 1


class Target:
    """Destination of copies."""

    def __init__(self) -> None:
        self.topics = Table(TopicConfigTable())
        self.groups = Table(SubscriptionGroupTable())
        self.offsets = Table(ConsumerOffsetTable())
        self.texts: list[tuple[str, bytes]] = []
        self.deletions: list[dict[str, int]] = []
        self.matched = 0
        self.failure: OSError | None = None
        self.gate = trio.Event()
        self.gate.set()

    async def save_text(self, name: str, text: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.texts.append((name, text))

    async def match_types(self) -> None:
        self.matched += 1
        await self.gate.wait()

    async def learn_deletions(self, deletions: dict[str, int], is_due: Callable[[], bool]) -> None:
        assert is_due()
        self.deletions.append(deletions)


class Broker:
    """A master's tables, and the codes it answers."""

    def __init__(self) -> None:
        self.topics = TopicConfigTable(
            data_version=DataVersion(counter=1),
            topic_config_table={"A": TopicConfig(topic_name="A", read_queue_nums=3)},
        )
        self.groups = SubscriptionGroupTable(
            data_version=DataVersion(counter=2),
            subscription_group_table={"g": SubscriptionGroupConfig(group_name="g")},
        )
        self.offsets = ConsumerOffsetTable(offset_table={"A@g": {0: 12}})
        self.codes: list[int] = []

    def answer(self, command: Command, _connection: Connection) -> Command:
        self.codes.append(command.code)
        bodies = {
            21: self.topics.encode(),
            43: self.offsets.encode(),
            45: b'{"offsetTable":{1:5}}',
            201: self.groups.encode(),
        }
        body = bodies.get(command.code)
        if body is None:
            return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not here")
        return answer(command, ResponseCode.SUCCESS, body=body)

    async def run(self, world: World, port: int = PORT) -> None:
        handlers = Handlers(inline=dict.fromkeys((21, 43, 45, 201, 402), self.answer))
        server = Server(world, ("", port), handlers)
        await server.run()


def start(simulation: Simulation, target: Target) -> tuple[Any, MetadataSync]:
    """A slave that copies from `master`."""
    created: list[MetadataSync] = []

    async def main(world: World) -> None:
        sync = MetadataSync(world, target)
        created.append(sync)
        sync.set_master(("master", PORT))
        await sync.run()

    process = simulation.start("slave", main)
    simulation.run(0.001)
    return process, created[0]


def test_everything_is_copied_first_and_then_only_changes() -> None:
    broker, target = Broker(), Target()
    with Simulation() as simulation:
        simulation.start("master", broker.run)
        simulation.run(0.001)
        _, sync = start(simulation, target)
        simulation.run(1)
        assert target.topics.body().topic_config_table == broker.topics.topic_config_table
        assert target.topics.version == DataVersion(counter=1)
        assert target.groups.body().subscription_group_table["g"].group_name == "g"
        assert target.offsets.body().offset_table == {"A@g": {0: 12}}
        assert target.texts == [("delayOffset.json", b'{"offsetTable":{1:5}}')]
        simulation.run(20)
        assert sync.rounds >= 6
        assert (target.topics.replaced, target.offsets.replaced, target.groups.replaced) == (1,) * 3
        assert len(target.texts) == 1
        assert broker.codes[:5] == [21, 43, 45, 201, 402]
        warnings = [line for line in simulation.log if line.event == "replication.metadata_refused"]
        assert [(line.fields["code"], line.fields["answer"]) for line in warnings] == [(402, 3)]


def test_changes_and_deletions_follow() -> None:
    broker, target = Broker(), Target()
    with Simulation() as simulation:
        simulation.start("master", broker.run)
        simulation.run(0.001)
        start(simulation, target)
        simulation.run(1)
        broker.topics = TopicConfigTable(
            data_version=DataVersion(counter=2),
            topic_config_table={"B": TopicConfig(topic_name="B")},
        )
        broker.offsets = ConsumerOffsetTable(offset_table={"B@g": {1: 7}})
        simulation.run(4)
        assert list(target.topics.body().topic_config_table) == ["B"]
        assert target.offsets.body().offset_table == {"B@g": {1: 7}}
        assert target.groups.replaced == 1


def test_each_round_reports_deletions_after_the_tables() -> None:
    broker, target = Broker(), Target()
    broker.topics.rb_deleted = {"B": 4400}
    with Simulation() as simulation:
        simulation.start("master", broker.run)
        simulation.run(0.001)
        _, sync = start(simulation, target)
        simulation.run(4)
        assert target.deletions == [{"B": 4400}] * sync.rounds
        assert sync.rounds >= 2
        assert target.topics.replaced == 1


def test_tables_are_copied_beside_a_slow_disk() -> None:
    """Seeds 858169, 858783."""
    broker, target = Broker(), Target()
    target.gate = trio.Event()
    with Simulation() as simulation:
        simulation.start("master", broker.run)
        simulation.run(0.001)
        process, sync = start(simulation, target)
        simulation.run(1)
        broker.offsets = ConsumerOffsetTable(offset_table={"B@g": {1: 7}})
        simulation.run(8)
        assert target.offsets.body().offset_table == {"B@g": {1: 7}}
        assert (target.matched, sync.rounds) == (1, 0)
        process.call(target.gate.set)
        simulation.run(8)
        assert target.matched == sync.rounds > 2


def test_other_port_is_asked_when_the_first_is_silent() -> None:
    broker, target = Broker(), Target()
    with Simulation() as simulation:
        simulation.start("master", broker.run, PORT - 2)
        simulation.run(0.001)
        _, sync = start(simulation, target)
        simulation.run(1)
        assert sync.rounds == 1
        assert target.topics.replaced == 1


def test_a_master_that_refuses_topics_fails_the_round() -> None:
    async def refusing(world: World) -> None:
        await Server(world, ("", PORT), Handlers()).run()

    target = Target()
    with Simulation() as simulation:
        simulation.start("master", refusing)
        simulation.run(0.001)
        _, sync = start(simulation, target)
        simulation.run(1)
        assert sync.rounds == 0
        assert "cannot connect" in sync.last_error


def test_missing_master_is_reported_once_and_retried() -> None:
    broker, target = Broker(), Target()
    with Simulation() as simulation:
        simulation.host("master")
        process, sync = start(simulation, target)
        simulation.run(20)
        failed = [line for line in simulation.log if line.event == "replication.metadata_failed"]
        assert len(failed) == 1
        assert "cannot connect" in sync.last_error
        simulation.start("master", broker.run)
        simulation.run(4)
        assert (sync.rounds > 0, sync.last_error) == (True, "")
        rounds = sync.rounds
        process.call(sync.poke)
        simulation.run(0.1)
        assert sync.rounds == rounds + 1
        process.call(sync.set_master, None)
        rounds = sync.rounds
        simulation.run(10)
        assert sync.rounds == rounds


def test_unwritable_file_fails_the_round_and_not_the_node() -> None:
    broker, target = Broker(), Target()
    target.failure = OSError(errno.EMFILE, "Too many open files")
    with Simulation() as simulation:
        simulation.start("master", broker.run)
        simulation.run(0.001)
        process, sync = start(simulation, target)
        simulation.run(4)
        assert "Too many open files" in sync.last_error
        target.failure = None
        simulation.run(4)
        assert (process.done, sync.last_error, len(target.texts)) == (False, "", 1)


def test_unreadable_body_leaves_the_tables_alone() -> None:
    async def broken(world: World) -> None:
        def refuse(command: Command, _connection: Connection) -> Command:
            return answer(command, ResponseCode.SUCCESS, body=b"{broken")

        handlers = Handlers(inline=dict.fromkeys((21, 43, 45, 201, 402), refuse))
        await Server(world, ("", PORT), handlers).run()

    target = Target()
    with Simulation() as simulation:
        simulation.start("master", broken)
        simulation.run(0.001)
        _, sync = start(simulation, target)
        simulation.run(1)
        assert "JSON" in sync.last_error
        assert target.topics.replaced == 0
