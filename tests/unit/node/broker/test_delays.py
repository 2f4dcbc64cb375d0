"""Delay levels: what waits in the delay topic, and when it comes (wire.md 4.7b, store.md 12.1)."""

import json
from collections import Counter
from errno import ENOSPC

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.config_file import TableLost
from rocketbed.node.broker.delivered import was_delivered
from rocketbed.node.broker.topics import SCHEDULE_TOPIC
from rocketbed.node.config.node_config import ConfigError
from rocketbed.remoting.client import open_connection
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_admin import TopicRequest
from rocketbed.world.api import World
from tests.support.broker import HOST, PORT, STORE, Scenario, Session, node_run, with_node

TABLE = f"{STORE}/config/delayOffset.json"
COUNT = 60


def test_a_delayed_message_comes_when_it_is_due() -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"now")
        delayed = await session.send("T", b"later", properties={"DELAY": "3", "TAGS": "A"})
        assert (delayed.code, delayed.fields["queueOffset"]) == (0, "0")
        began = trio.current_time()
        await trio.sleep(9.5)
        assert [one.body for one in await session.messages()] == [b"now"]
        await trio.sleep(1)
        assert trio.current_time() - began < 11
        messages = await session.messages()
        assert [one.body for one in messages] == [b"now", b"later"]
        properties = messages[1].properties
        assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["DELAY"]) == (
            "T",
            "0",
            "3",
        )
        assert (messages[1].topic, messages[1].tags) == ("T", "A")
        (waited,) = await session.messages(SCHEDULE_TOPIC, queue_id=2)
        assert waited.store_timestamp + 10_000 <= messages[1].store_timestamp

    with_node(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(("level_text", "level"), [("18", 18), ("99", 18), ("+2000000000", 18)])
def test_a_level_above_the_last_is_the_last(level_text: str, level: int) -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"x", properties={"DELAY": level_text, "TIMER_DELAY_SEC": "1"})
        (waiting,) = await session.messages(SCHEDULE_TOPIC, queue_id=level - 1)
        assert waiting.properties["DELAY"] == str(level)
        assert "TIMER_DELAY_SEC" not in waiting.properties
        await trio.sleep(2 * 3600 - 10)  # our connection is closed, since it is idle
        async with open_connection(session.world, (HOST, PORT)) as session.connection:
            assert await session.messages() == []
            await trio.sleep(12)
            assert [one.body for one in await session.messages()] == [b"x"]

    with_node(scenario, seconds=3 * 3600)


@pytest.mark.parametrize("text", ["0", "-1", "-99"])
def test_level_below_one_is_no_delay(text: str) -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"x", properties={"DELAY": text})
        assert [one.body for one in await session.messages()] == [b"x"]

    with_node(scenario)


@pytest.mark.parametrize("text", ["x", "1.5", "-", "1 ", "²", "9" * 5000])
def test_non_numeric_delay_is_refused(text: str) -> None:
    async def scenario(session: Session) -> None:
        answer = await session.send("T", b"x", properties={"DELAY": text})
        assert answer.code == 13
        assert "DELAY is no number" in (answer.remark or "")

    with_node(scenario)


def test_many_of_one_moment_come_in_their_order() -> None:
    async def scenario(session: Session) -> None:
        for number in range(400):
            await session.send("T", b"%d" % number, properties={"DELAY": "1"})
        await trio.sleep(5)
        bodies = [one.body for one in await session.messages()]
        assert bodies == [b"%d" % number for number in range(400)]

    with_node(scenario)


def test_own_delay_property_does_not_redirect_a_message() -> None:
    async def scenario(session: Session) -> None:
        claims = {"DELAY": "1", "REAL_TOPIC": "Other", "REAL_QID": "99999"}
        await session.send("T", b"x", queue_id=1, properties=claims)
        await trio.sleep(3)
        assert [one.body for one in await session.messages(queue_id=1)] == [b"x"]

    with_node(scenario)


def test_message_of_a_deleted_topic_is_dropped_with_a_warning() -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"x", properties={"DELAY": "2"})
        await session.send("U", b"y", properties={"DELAY": "2"})
        await session.ask(215, {"topic": "T"})
        await trio.sleep(8)
        assert [one.body for one in await session.messages("U")] == [b"y"]
        assert session.node.broker.delays.dropped == 1

    run = node_run(scenario)
    (dropped,) = [entry for entry in run.log if entry.event == "delays.dropped"]
    assert "topic 'T' does not exist any more" in str(dropped.fields["reason"])


def test_message_of_a_removed_queue_goes_to_another_one() -> None:
    async def change(session: Session, queues: int) -> None:
        fields = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        assert (await session.ask(17, fields)).code == 0

    async def scenario(session: Session) -> None:
        await change(session, 8)
        await session.send("T", b"x", queue_id=7, properties={"DELAY": "2"})
        await change(session, 4)
        await trio.sleep(8)
        assert [one.body for one in await session.messages(queue_id=3)] == [b"x"]

    with_node(scenario)


def test_large_messages_come_in_pieces() -> None:
    async def scenario(session: Session) -> None:
        for number in range(20):
            await session.send("T", b"%d" % (number % 10) * 200_000, properties={"DELAY": "1"})
        await trio.sleep(5)
        sizes = [len(one.body) for one in await session.messages()]
        assert sizes == [200_000] * 20

    with_node(scenario, "mappedFileSizeCommitLog=8388608")


def test_a_batch_cannot_be_delayed() -> None:
    async def scenario(session: Session) -> None:
        answer = await session.send("T", b"x", code=320, properties={"DELAY": "1"}, m=True)
        assert answer.code == 13

    with_node(scenario)


def load(acknowledged: list[bytes]) -> Scenario:
    """Sixty messages in three seconds, each a second late."""

    async def scenario(session: Session) -> None:
        for number in range(COUNT):
            body = b"%d" % number
            answer = await session.send("T", body, properties={"DELAY": "1"})
            if answer.code == 0:
                acknowledged.append(body)
            await trio.sleep(0.05)
        await trio.sleep(3)

    return scenario


async def what_came(session: Session) -> tuple[list[bytes], list[bytes]]:
    """Return the waiting messages, and those delivered when all are due."""
    await trio.sleep(10)
    waited = await session.messages(SCHEDULE_TOPIC)
    return [one.body for one in waited], [one.body for one in await session.messages()]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_crash_neither_loses_nor_repeats_a_delayed_message(flush: str, kind: str) -> None:
    option = f"flushDiskType={flush}"
    events = node_run(load([]), option).events
    for number in range(12):
        acknowledged: list[bytes] = []
        crashed = node_run(
            load(acknowledged), option, crash_at=events * (number + 4) // 17, kind=kind, seed=number
        )
        assert crashed.outcome != "ended"
        waited, delivered = node_run(what_came, option, image=crashed.image, boots=2).value
        assert delivered == waited, number
        assert max(Counter(delivered).values(), default=1) == 1
        if flush == "SYNC_FLUSH" or kind == "kill":
            assert set(acknowledged) <= set(delivered), number


@pytest.mark.parametrize("table", [{}, {"1": 10}, {"1": 47}, {"1": 10**6}, {"1": -5}, {"9": 3}])
def test_log_decides_which_messages_were_delivered(table: dict[str, int]) -> None:
    """Delivered are some thirty; a table may be old, or from a master that was further."""
    image = node_run(load([]), seconds=3.1).image
    waited, delivered = node_run(what_came, image=with_table(image, table)).value
    assert delivered == waited
    assert len(delivered) > 40


@pytest.mark.parametrize("table", [{}, {"2": 3}])
def test_messages_before_a_deleted_topics_one_survive_a_start(
    table: dict[str, int],
) -> None:
    """That one is never delivered, which does not mean that earlier ones were."""

    async def scenario(session: Session) -> None:
        await session.send("T", b"first", properties={"DELAY": "2"})
        for _ in range(2):
            await session.send("U", b"gone", properties={"DELAY": "2"})
        fields = TopicRequest(topic="U").encode()
        answer = await session.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        assert answer.code == 0

    async def looks(session: Session) -> list[bytes]:
        await trio.sleep(8)
        return [one.body for one in await session.messages()]

    image = node_run(scenario, seconds=2).image
    assert node_run(looks, image=with_table(image, table)).value == [b"first"]


@pytest.mark.parametrize("indexed", ["true", "false"])
def test_lost_table_is_rebuilt_from_the_log(indexed: str) -> None:
    """A disk that lies, and a power loss: both of its files are empty (swarm seed 860051)."""
    option = f"messageIndexEnable={indexed}"
    image = node_run(load([]), option, seconds=3.1).image

    async def empty(world: World) -> None:
        for path in (TABLE, f"{TABLE}.bak"):
            file = world.disk.open(path, create=True)
            file.truncate(0)
            await file.sync()
            file.close()

    image = run_solo(empty, image=image).image
    if indexed == "false":
        with pytest.raises(ExceptionGroup) as refused:
            node_run(what_came, option, image=image)
        assert refused.group_contains(TableLost, match="restore either of them")
    else:
        waited, delivered = node_run(what_came, option, image=image).value
        assert delivered == waited
        assert len(delivered) > 40


def with_table(image: DiskImage, table: dict[str, int]) -> DiskImage:
    async def write(world: World) -> None:
        file = world.disk.open(TABLE, create=True)
        data = json.dumps({"dataVersion": {}, "offsetTable": table}).encode()
        file.truncate(0)
        file.write_at(0, data)
        await file.sync()
        file.close()

    return run_solo(write, image=image).image


def test_a_stop_leaves_rocketmq_the_offsets() -> None:
    """Its brokers use only these."""
    image = node_run(load([])).image
    table: dict[str, object] = {}

    async def look(world: World) -> None:
        file = world.disk.open(TABLE)
        table.update(json.loads(file.read_at(0, file.size())))

    run_solo(look, image=image)
    assert table["offsetTable"] == {"1": COUNT}


def test_failing_read_delays_only_due_messages() -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"x", properties={"DELAY": "1"})
        await session.send("T", b"y", properties={"DELAY": "2"})
        disk = session.world.disk
        assert isinstance(disk, SimDisk)
        disk.faults.append(SimFault(operation="read", path="*/SCHEDULE_TOPIC*", times=3))
        await trio.sleep(12)
        assert [one.body for one in await session.messages()] == [b"x", b"y"]

    with_node(scenario)


async def delayed(session: Session, body: bytes, topic: str = "T", **properties: str) -> None:
    answer = await session.send(topic, body, properties={"DELAY": "1", **properties})
    assert answer.code == 0


@pytest.mark.parametrize("table", [{}, {"1": 1}, {"1": 2}])
def test_dropped_message_hides_no_later_one(table: dict[str, int]) -> None:
    async def scenario(session: Session) -> None:
        await delayed(session, b"first")
        await delayed(session, b"lost", "U")
        for number in range(30):
            await delayed(session, b"%d" % number)
        await session.ask(215, {"topic": "U"})
        await trio.sleep(5)
        assert len(await session.messages()) == 31

    image = node_run(scenario).image
    _, delivered = node_run(what_came, image=with_table(image, table)).value
    assert len(delivered) == 31


def test_many_with_one_key_come_once() -> None:
    async def scenario(session: Session) -> None:
        for number in range(100):
            await delayed(session, b"%d" % number, UNIQ_KEY="one")
        await trio.sleep(5)
        for _ in range(150):
            await session.send("T", b"plain", properties={"UNIQ_KEY": "one"})

    image = node_run(scenario).image
    _, delivered = node_run(what_came, image=with_table(image, {"1": 40})).value
    assert len(delivered) == 250


@pytest.mark.parametrize("seconds", [1.6, 2.1, 2.6])
def test_messages_that_are_all_the_same_come_each(seconds: float) -> None:
    async def scenario(session: Session) -> None:
        for _ in range(COUNT):
            await delayed(session, b"same", UNIQ_KEY="one")
            await trio.sleep(0.05)
        await trio.sleep(3)

    image = node_run(scenario, seconds=seconds).image
    waited, delivered = node_run(what_came, image=image).value
    assert len(delivered) == len(waited) > 20


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 60], ids=["all the same", "some the same"])
def test_hundreds_of_equal_messages_in_a_second_all_come(kinds: int) -> None:
    """A program that sends one message object again and again; an index knows whole seconds."""
    count = 240

    async def scenario(session: Session) -> None:
        for number in range(count):
            await delayed(session, b"%d" % (number // (count // kinds)), UNIQ_KEY="one")
        await trio.sleep(5)

    events = node_run(scenario).events
    partly = 0
    for number in range(10):
        at = events * (20 - number) // 20
        crashed = node_run(scenario, crash_at=at, kind="kill", seed=number)
        before = node_run(look_at_once, image=crashed.image, boots=2).value
        waited, delivered = node_run(what_came, image=crashed.image, boots=2).value
        partly += 0 < before < len(waited)
        assert Counter(delivered) == Counter(waited), number
    assert partly


async def look_at_once(session: Session) -> int:
    return len(await session.messages())


def test_slow_clock_delivers_nothing_early() -> None:
    """After a step of the clock, or a failover to a machine whose clock is behind."""

    async def before(session: Session) -> None:
        await trio.sleep(3)
        await session.send("T", b"plain")

    async def after(session: Session) -> None:
        began = trio.current_time()
        for number in range(3):
            await session.send("T", b"%d" % number, properties={"DELAY": "3"})
            await trio.sleep(0.4)
        await trio.sleep(8)
        delays_s: dict[bytes, float] = {}
        for _ in range(80):
            for message in await session.messages():
                delays_s.setdefault(message.body, trio.current_time() - began)
            await trio.sleep(0.05)
        for number in range(3):
            assert 9.9 < delays_s[b"%d" % number] - 0.4 * number < 11.5

    node_run(after, image=node_run(before).image)


def test_message_of_a_deleted_topic_skips_its_successor() -> None:
    async def scenario(session: Session) -> None:
        await session.send("U", b"u", properties={"DELAY": "1"})
        for number in range(200):
            await session.send("T", b"%d" % number, properties={"DELAY": "1"})
        assert (await session.ask(215, {"topic": "T"})).code == 0
        await session.send("T", b"new")
        for number in range(20):
            await session.send("U", b"%d" % number, properties={"DELAY": "1"})
        await trio.sleep(4)

    async def look(session: Session) -> tuple[list[bytes], int]:
        await trio.sleep(5)
        return [one.body for one in await session.messages()], len(await session.messages("U"))

    image = node_run(scenario).image
    assert node_run(look, image=image).value == ([b"new"], 21)

    async def lose_table(world: World) -> None:
        world.disk.unlink(TABLE)

    image = run_solo(lose_table, image=image).image
    assert node_run(look, image=image).value == ([b"new"], 21)


def test_a_deletion_that_fails_drops_nothing() -> None:
    async def before(session: Session) -> None:
        await session.send("U", b"u")
        await session.send("T", b"plain")

    async def scenario(session: Session) -> None:
        await session.send("T", b"delayed", properties={"DELAY": "2"})
        await trio.sleep(4.5)
        disk = session.world.disk
        assert isinstance(disk, SimDisk)
        slow = SimFault(operation="sync", path="*topics.json*", effect="delay", seconds=1.5)
        full = SimFault(operation="write", path="*rocketbed.tmp*", error=ENOSPC, times=None)
        disk.faults += [slow, full]
        assert (await session.ask(215, {"topic": "T"})).code == 1
        disk.faults.remove(full)
        await trio.sleep(5)
        assert [one.body for one in await session.messages()] == [b"plain", b"delayed"]
        assert session.node.broker.delays.dropped == 0

    node_run(scenario, image=node_run(before).image)


def test_a_damaged_message_comes_once_it_is_mended() -> None:
    async def before(session: Session) -> None:
        for body in (b"AAAAAAAA", b"BBBBBBBB", b"CCCCCCCC"):
            await session.send("T", body, properties={"DELAY": "4"})
        await session.send("T", b"plain")
        await trio.sleep(3)

    def altered(image: DiskImage, old: bytes, new: bytes) -> DiskImage:
        async def alter(world: World) -> None:
            file = world.disk.open(f"{STORE}/commitlog/{0:020}")
            file.write_at(file.read_at(0, 4096).index(old), new)
            await file.sync()
            file.close()

        return run_solo(alter, image=image).image

    async def look(session: Session) -> list[bytes]:
        await trio.sleep(40)
        return sorted(one.body for one in await session.messages())

    image = altered(node_run(before).image, b"BBBBBBBB", b"BBBBBBBX")
    for _ in range(2):
        run = node_run(look, image=image)
        assert run.value == [b"AAAAAAAA", b"CCCCCCCC", b"plain"]
        image = run.image
    image = altered(image, b"BBBBBBBX", b"BBBBBBBB")
    whole = [b"AAAAAAAA", b"BBBBBBBB", b"CCCCCCCC", b"plain"]
    events = node_run(look, image=image).events
    for at in range(1, events, max(events // 12, 1)):  # what is delivered is noted once it is safe
        crashed = node_run(look, image=image, crash_at=at, kind="power")
        assert node_run(look, image=crashed.image, boots=2).value == whole, at
    for _ in range(2):
        run = node_run(look, image=image)
        assert run.value == whole
        image = run.image


@pytest.mark.slow
def test_expired_messages_are_reported() -> None:
    settings = (
        "mappedFileSizeCommitLog=65536",
        "maxMessageSize=16384",
        "fileReservedTime=1",
        "deleteWhen=" + ";".join(f"{hour:02}" for hour in range(24)),
    )

    async def scenario(session: Session) -> None:
        async def beat() -> None:
            while True:
                await session.heartbeat(group=None)
                await trio.sleep(60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            for number in range(3):
                await session.send("T", b"%d" % number, properties={"DELAY": "18"})
            for _ in range(60):
                await session.send("U", b"x" * 1500)
            await trio.sleep(3 * 3600)
            await session.send("T", b"late", properties={"DELAY": "1"})
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        assert session.node.broker.delays.dropped == 3

    run = node_run(scenario, *settings, seconds=20_000)
    (expired,) = [entry for entry in run.log if entry.event == "delays.expired"]
    assert (expired.fields["messages"], expired.fields["delay_level"]) == (3, 18)


@pytest.mark.parametrize("levels", ["1x", "1s,5s", "-5s 1s", "s"])
def test_invalid_levels_are_refused_at_the_start(levels: str) -> None:
    async def scenario(session: Session) -> None:
        raise AssertionError(session)

    with pytest.raises(ConfigError, match="is no delay: levels are like"):
        node_run(scenario, f"messageDelayLevel={levels}")


@pytest.mark.parametrize(
    ("waiting", "delivered", "expected"),
    [
        ([10], [], []),
        ([10], [11], [10]),
        ([10, 20], [11], [10]),
        ([10, 20], [21], [10]),
        ([10, 20], [11, 21], [10, 20]),
        ([10, 20], [21, 22], [10, 20]),
        ([10, 20], [11, 12], [10]),  # one that came twice is no sign of a later one
        ([10, 20, 30], [11, 12, 31], [10, 20]),
        ([], [11], [10]),
        ([], [9], []),
    ],
)
def test_copy_belongs_to_an_earlier_waiting_message(
    waiting: list[int], delivered: list[int], expected: list[int]
) -> None:
    """An index that was damaged for a while made some come twice; when they were sent back these
    counted as delivered, and one between them never came (swarm seed 1465018)."""
    positions = waiting or [10]
    assert [at for at in positions if was_delivered(at, waiting, delivered)] == expected
