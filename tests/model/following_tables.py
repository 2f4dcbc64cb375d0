"""What a slave copies beside the log of a master by hand: tables, and which topics are gone."""

from random import Random
from typing import Any

from rocketbed.node.store.store import MessageStore
from rocketbed.wire.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rocketbed.wire.bodies_admin import RequestMode, RequestModeTable
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import TopicRequest
from tests.model.master import HandMaster, catches_up
from tests.model.stage import AS_SLAVE, Stage, ends_of


def tables_of(number: int, deleted: dict[str, int] | None = None) -> dict[int, bytes]:
    """What a master's tables are in their version `number`; topics that it deleted, and where."""
    version = DataVersion(counter=number)
    topics = TopicConfigTable(
        data_version=version,
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=2 + number)
            for name in ("T", f"only-{number}")
        },
        rb_deleted=deleted,
    )
    groups = SubscriptionGroupTable(
        data_version=version,
        subscription_group_table={f"g-{number}": SubscriptionGroupConfig(group_name=f"g-{number}")},
    )
    return {
        21: topics.encode(),
        43: ConsumerOffsetTable(offset_table=_positions(number)).encode(),
        45: b'{"offsetTable":{1:%d}}' % number,
        201: groups.encode(),
        402: RequestModeTable(message_request_mode_map=_modes(number)).encode(),
    }


def _positions(number: int) -> dict[str, dict[int, int]]:
    return {"T@g": {0: number, 1: 7}, f"T@g-{number}": {1: 5}}


def _modes(number: int) -> dict[str, dict[str, RequestMode]]:
    mode = RequestMode(topic="T", consumer_group=f"g-{number}", pop_share_queue_num=number)
    return {"T": {f"g-{number}": mode}}


def copies_tables(seed: int, log: bytes) -> str:
    """Tables are the master's as long as it is followed, and not while it is refused."""
    with Stage(seed) as stage:
        writes: list[str] = []
        stage.simulation.on_disk.append(
            lambda host, kind, path, offset, size: writes.append(path) if kind == "write" else None
        )
        master = HandMaster(log)
        master.bodies = tables_of(1)
        master.start(stage)
        node = stage.node("slave", AS_SLAVE)
        for number in (1, 2):
            master.bodies = tables_of(number)
            stage.simulation.run(1.5)
            before = len(writes)
            _has_tables(node, number)
            stage.simulation.run(2)
            again = [path for path in writes[before:] if "delayOffset" in path]
            assert not again, f"tables: what was copied is written again: {again}"
        sync = node.replication.metadata
        assert sync is not None
        assert not sync.last_error, f"tables: {sync.last_error}"
        assert sync.rounds >= 8, f"tables: {sync.rounds} copies in 7 s, one each 0.5 s"
        master.log = b"\0" * 7 + master.log[7:-20] + bytes(20)
        master.drop()
        slave = node.replication.slave
        assert slave is not None
        stage.until(lambda: slave.state == "refused", "a master with other bytes is refused")
        stage.simulation.run(1)
        before = master.asked.count(21)
        master.bodies = tables_of(3)
        stage.simulation.run(3)
        assert master.asked.count(21) == before, "tables: copied from a master that is refused"
        _has_tables(node, 2)
        stage.ready("slave", ResponseCode.SERVICE_NOT_AVAILABLE, "refused")
        assert stage.log("slave")[1] == log, "log: changed for a master that is refused"
        return stage.simulation.digest()


def _has_tables(node: Any, number: int) -> None:
    topics = node.tables.topics.body().topic_config_table
    queues = {name: topic.read_queue_nums for name, topic in topics.items()}
    want = {"T": 2 + number, f"only-{number}": 2 + number}
    assert queues == want, f"tables: topics {queues} for {want}"
    offsets = node.tables.offsets.body().offset_table
    assert offsets == _positions(number), f"tables: positions {offsets}"
    groups = set(node.tables.groups.body().subscription_group_table)
    assert groups == {f"g-{number}"}, f"tables: groups {groups}"
    modes = node.tables.modes.body().message_request_mode_map
    assert modes == _modes(number), f"tables: modes {modes}"


def learns_deletions(seed: int, random: Random) -> str:
    """A topic that the master deleted and made again has what was sent since, and only that, as
    soon as this log goes so far; after a kill too."""
    with Stage(seed) as stage:
        node = stage.node("source", {})
        stage.fill("source", 30, random)
        fields = TopicRequest(topic="T").encode()
        stage.ask("source", lambda peer: peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields, 0))
        (deleted_at,) = node.store.removal.deletions().values()
        stage.fill("source", 30, random)
        _, log = stage.log("source")
        stage.until(lambda: node.store.dispatched.value == len(log), "queues up to the end")
        want = stage.simulation.process("source").call(_ranges, node.store)
        assert bool(want), "load: nothing was sent since"
    with Stage(seed) as stage:
        master = HandMaster(log[: ends_of(log)[3]])
        master.bodies = tables_of(1, {"T": deleted_at})
        master.start(stage)
        for end in (master.end, len(log), len(log)):
            node = stage.node("slave", AS_SLAVE)
            master.grow(log[master.end : end])
            catches_up(stage, master)
            stage.simulation.run(1.5)
            told = node.store.removal.deletions()
            assert told == {"T": min(deleted_at, end)}, f"deleted: {told}, the log to {end}"
            held = stage.simulation.process("slave").call(_ranges, node.store)
            right = [] if end < len(log) else want
            assert held == right, f"deleted: {held[:5]}... for {right[:5]}..."
            stage.simulation.kill("slave")
        digest = stage.simulation.digest()
    with Stage(seed) as stage:
        # It has all of the log in its queues, when it hears of the deletion.
        master = HandMaster(log)
        master.bodies = tables_of(1)
        master.start(stage)
        for deleted in (None, {"T": deleted_at}, {"T": deleted_at}):
            node = stage.node("slave", AS_SLAVE)
            catches_up(stage, master)
            stage.simulation.run(1.5)
            master.bodies = tables_of(2, {"T": deleted_at})
            stage.simulation.run(1.5)
            told = node.store.removal.deletions()
            assert told == {"T": deleted_at}, f"deleted: {told}, heard late ({deleted})"
            held = stage.simulation.process("slave").call(_ranges, node.store)
            assert held == want, f"deleted: late: {held[:5]}... for {want[:5]}..."
            odd = sum(count for _, count, _ in node.store.unqueued().values())
            assert not odd, f"deleted: {odd} records stand in no queue"
            stage.simulation.kill("slave")
        return digest + stage.simulation.digest()


def _ranges(store: MessageStore) -> list[tuple[int, int]]:
    """Where the records are that the queues of T give."""
    found: list[tuple[int, int]] = []
    for queue in (0, 1):
        offset = store.queue_min("T", queue)
        while (some := store.get_messages("T", queue, offset, 32)).ranges:
            found += some.ranges
            offset = some.next_offset
    return found
