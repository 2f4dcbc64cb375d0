"""Messages that a consumer puts back: retry and dead letter topics (wire.md 4.9)."""

from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.wire.bodies import SubscriptionGroupConfig
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.message import BatchItem, StoredMessage, encode_batch
from rocketbed.wire.properties import PROPERTIES_MAX, encode_properties
from tests.support.broker import Session, node_run, with_node

MOST = 20


async def send_back(
    session: Session, message: StoredMessage, level: int = 0, group: str = "g", **more: Any
) -> Command:
    fields = {"offset": message.physical_offset, "group": group, "delayLevel": level, **more}
    texts = {name: str(value) for name, value in fields.items()}
    return await session.ask(Code.CONSUMER_SEND_MSG_BACK, texts)


async def one_message(session: Session, **more: Any) -> StoredMessage:
    await session.send("T", b"x", **more)
    return (await session.messages())[-1]


async def next_of(session: Session, topic: str, after: int = 0) -> StoredMessage:
    """The message of a topic's first queue at an offset, once it is there."""
    written = session.node.store.written
    while len(messages := await session.messages(topic)) <= after:
        await written.wait_above(written.value)
    return messages[after]


def test_send_back_of_a_replaced_message_is_refused() -> None:
    """It was given by another master, or before a loss (seed 1271510)."""

    async def scenario(session: Session) -> None:
        unrelated = await one_message(session, properties={"UNIQ_KEY": "A1"})
        message = await one_message(session, properties={"UNIQ_KEY": "A2"})
        for wrong in ("A1", unrelated.offset_message_id):
            answer = await send_back(session, message, originMsgId=wrong)
            assert (answer.code, wrong in (answer.remark or "")) == (1, True)
        for right in ("A2", message.offset_message_id, ""):
            assert (await send_back(session, message, originMsgId=right)).code == 0
        second_retry = await next_of(session, "%RETRY%g", 2)
        for right in ("A2", second_retry.offset_message_id, message.offset_message_id):
            assert (await send_back(session, second_retry, originMsgId=right)).code == 0

    with_node(scenario)


def test_message_returns_later_each_time_and_then_dies() -> None:
    async def scenario(session: Session) -> None:
        first = message = await one_message(session, properties={"TAGS": "A", "KEYS": "k"}, h=7)
        levels_s = (10, 30, 60)
        for number, wait_s in enumerate(levels_s):
            began = trio.current_time()
            assert (await send_back(session, message, maxReconsumeTimes=3)).code == 0
            message = await next_of(session, "%RETRY%g", number)
            assert wait_s <= trio.current_time() - began < wait_s + 2
            assert message.reconsume_times == number + 1
            properties = message.properties
            assert (properties["RETRY_TOPIC"], properties["WAIT"], properties["KEYS"]) == (
                "T",
                "false",
                "k",
            )
            assert properties["ORIGIN_MESSAGE_ID"] == first.offset_message_id
            assert (message.tags, message.flag, message.body) == ("A", 7, b"x")
            assert message.born_timestamp == first.born_timestamp
            assert message.born_host == first.born_host
        assert (await send_back(session, message, maxReconsumeTimes=3)).code == 0
        dead = await next_of(session, "%DLQ%g")
        assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (4, "T")
        assert len(await session.messages("%RETRY%g")) == len(levels_s)

    with_node(scenario)


def test_consumer_may_choose_delay_and_give_up() -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session)
        await send_back(session, message, level=1)
        await trio.sleep(2)
        assert len(await session.messages("%RETRY%g")) == 1
        await send_back(session, message, level=-1)
        assert len(await session.messages("%DLQ%g")) == 1

    with_node(scenario)


@pytest.mark.parametrize("times", [0, 16])
def test_group_limit_counts_without_a_consumer_limit(times: int) -> None:
    async def scenario(session: Session) -> None:
        await session.send("%RETRY%g", b"x", j=times)
        (message,) = await session.messages("%RETRY%g")
        await send_back(session, message)
        assert len(await session.messages("%DLQ%g")) == (times == 16)

    with_node(scenario)


def test_unreturnable_message_is_refused() -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session)
        for offset, code in ((10**9, 1), (-1, 1), (message.physical_offset + 1, 1)):
            fields = {"offset": str(offset), "group": "g", "delayLevel": "0"}
            answer = await session.ask(Code.CONSUMER_SEND_MSG_BACK, fields)
            assert answer.code == code, offset
        assert (await send_back(session, message, group="")).code == 26
        assert (await send_back(session, message, level=10**6)).code == 0

    with_node(scenario)


@pytest.mark.parametrize(
    "group", ["a\0b", "../../../../OUTSIDE", "a/b", ".", "a b", "é", "g" * 249]
)
def test_group_unfit_for_a_topic_name_is_refused(group: str) -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session)
        for level in (1, -1):
            assert (await send_back(session, message, level, group)).code in (26, 29)
        await session.heartbeat(group=group)
        await trio.sleep(3)
        assert session.node.store.queues() == [("T", 0)]
        assert group not in "".join(session.node.tables.topics.names())

    with_node(scenario)


def test_a_message_that_waits_cannot_be_put_back() -> None:
    async def scenario(session: Session) -> None:
        await session.send("T", b"x", properties={"DELAY": "5"})
        (waiting,) = await session.messages("SCHEDULE_TOPIC_XXXX", queue_id=4)
        assert (await send_back(session, waiting)).code == 1

    with_node(scenario)


def test_a_disk_that_takes_long_is_no_error() -> None:
    """Java's consumer would send another copy each time."""

    async def scenario(session: Session) -> None:
        message = await one_message(session)
        disk = session.world.disk
        assert isinstance(disk, SimDisk)
        slow = SimFault(operation="sync", effect="delay", path="*commitlog*", seconds=7, times=None)
        disk.faults.append(slow)
        answer = await send_back(session, message, 1)
        assert (answer.code, answer.remark) == (0, "FLUSH_DISK_TIMEOUT")
        disk.faults.remove(slow)
        await trio.sleep(10)
        assert len(await session.messages("%RETRY%g")) == 1

    with_node(scenario, "flushDiskType=SYNC_FLUSH")


def test_the_last_number_of_times_is_not_passed() -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session, j=2**31 - 1)
        assert (await send_back(session, message, -1)).code == 0
        (dead,) = await session.messages("%DLQ%g")
        assert dead.reconsume_times == 2**31 - 1

    with_node(scenario)


def test_a_slave_takes_nothing_back() -> None:
    async def scenario(session: Session) -> None:
        fields = {"offset": "0", "group": "g", "delayLevel": "0"}
        assert (await session.ask(Code.CONSUMER_SEND_MSG_BACK, fields)).code == 2

    with_node(scenario, "brokerRole=SLAVE", "brokerId=1")


def test_returned_message_survives_a_power_cut() -> None:
    """Its consumer continues as soon as it is answered, so it waits for the disk whatever `WAIT`
    says.
    """
    codes: list[int] = []

    async def scenario(session: Session) -> None:
        message = await one_message(session)
        while len(codes) < MOST:
            codes.append((await send_back(session, message, level=1)).code)

    async def look(session: Session) -> int:
        await trio.sleep(5)
        return len(await session.messages("%RETRY%g"))

    option = "flushDiskType=SYNC_FLUSH"
    events = node_run(scenario, option).events
    for number in range(10):
        codes.clear()
        crash_at = events * (number + 8) // 19
        crashed = node_run(scenario, option, crash_at=crash_at, kind="power", mode="strict")
        count = node_run(look, option, image=crashed.image, boots=2).value
        assert codes.count(0) <= count <= codes.count(0) + 1


def test_a_batch_in_one_record_is_refused() -> None:
    """Master and slaves took it for queues of two kinds. Java's consumer, when it is refused, sends
    the very message that it could not handle."""

    async def scenario(session: Session) -> None:
        fields = {
            "topic": "B", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "attributes": "+queue.type=BatchCQ",
        }  # fmt: skip
        assert (await session.ask(17, fields)).code == 0
        items = [BatchItem(b"%d" % n, 0, b"") for n in range(3)]
        assert (await session.send("B", encode_batch(items), code=320, m=True)).code == 0
        await session.heartbeat()
        for level in ("-1", "0", "1"):
            answer = await session.ask(36, {"offset": "0", "group": "g", "delayLevel": level})
            assert answer.code == 1
            assert "is a batch of messages" in (answer.remark or "")

    with_node(scenario)


def test_nothing_is_put_back_without_permission_or_a_retry_topic() -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session)
        change = Code.UPDATE_BROKER_CONFIG
        await session.ask(change, {}, b"brokerPermission=4\n")
        assert (await send_back(session, message, -1)).code == ResponseCode.NO_PERMISSION
        await session.ask(change, {}, b"brokerPermission=6\n")
        group = SubscriptionGroupConfig(group_name="none", retry_queue_nums=0).encode()
        await session.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        assert (await send_back(session, message, 1, group="none")).code == 0
        await trio.sleep(2)
        assert (await session.pull("%RETRY%none")).code == ResponseCode.TOPIC_NOT_EXIST

    with_node(scenario)


def long_properties(size: int) -> dict[str, str]:
    """Return properties whose string takes `size` bytes."""
    fixed = {"TAGS": "A", "UNIQ_KEY": "A1", "note": ""}
    return fixed | {"note": "x" * (size - len(encode_properties(fixed)))}


LONG_NAME = "g" * 60


@pytest.mark.parametrize(("group", "topic"), [("g", "%RETRY%g"), (LONG_NAME, f"%DLQ%{LONG_NAME}")])
def test_message_with_long_properties_comes_back_or_dies(group: str, topic: str) -> None:
    """The copy names its topic and waits under properties of its own."""

    async def scenario(session: Session) -> None:
        message = await one_message(session, properties=long_properties(PROPERTIES_MAX - 64))
        assert (await send_back(session, message, group=group)).code == 0
        copy = await next_of(session, topic)
        assert (copy.reconsume_times, copy.tags, copy.unique_key) == (1, "A", "A1")
        assert copy.properties["note"] == message.properties["note"]

    with_node(scenario)


def test_dead_letter_with_long_properties_is_kept() -> None:
    async def scenario(session: Session) -> None:
        message = await one_message(session, properties=long_properties(PROPERTIES_MAX - 64))
        assert (await send_back(session, message, level=-1)).code == 0
        assert (await next_of(session, "%DLQ%g")).unique_key == "A1"

    with_node(scenario)


def test_lower_message_size_applies_to_producers_only() -> None:
    """What is acknowledged is delivered, and comes back if it has to."""
    body = bytes(3000)

    async def before(session: Session) -> None:
        assert (await session.send("T", body)).code == 0
        assert (await session.send("T", body, properties={"DELAY": "1"})).code == 0

    async def after(session: Session) -> None:
        assert (await session.send("T", body)).code == ResponseCode.MESSAGE_ILLEGAL
        delayed = await next_of(session, "T", 1)
        assert delayed.body == body
        assert (await send_back(session, delayed)).code == 0
        assert (await next_of(session, "%RETRY%g")).body == body
        copy = await session.send("%RETRY%g", body, j=1, properties={"DELAY": "1"})
        assert copy.code == 0  # from a consumer, in its own words

    image = node_run(before).image
    assert node_run(after, "maxMessageSize=1000", image=image).outcome == "ended"
