"""Subscriptions: reading all queues of a topic, positions, commits (wire.md 5, 6.5)."""

from contextlib import suppress
from typing import Any

import pytest
import trio

from rocketbed.client import connections
from rocketbed.client.errors import (
    BadMessage,
    ClientError,
    MissingLibrary,
    NoBroker,
    RequestRefused,
)
from rocketbed.client.flow import REFUSED_S
from rocketbed.client.subscriptions import SHARE_S
from rocketbed.inspect.bodies import MissingCodec
from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.bodies import HeartbeatData, MessageQueue
from rocketbed.wire.codes import RequestCode as Code
from rocketbed.wire.command import Command, ResponseCode, answer
from tests.support.client import Stage, on_stage, port_of, route
from tests.support.client_shelf import QUEUE, bodies, consumer, read, record, shelf


def test_queues_of_all_brokers_are_read_in_order() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b")
        for name in "ab":
            await shelf(stage, name, messages={0: bodies(5), 1: bodies(3)})
        offsets: dict[MessageQueue, list[int]] = {}
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            count = 0
            while count < 16:
                for message in await reader.poll():
                    offsets.setdefault(message.queue, []).append(message.queue_offset)
                    count += 1
            assert await reader.poll(timeout_s=30) == []
            assert sorted(reader.positions().values()) == [3, 3, 5, 5]
        assert sorted(offsets.values()) == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]

    on_stage(scenario)


@pytest.mark.parametrize(
    ("start", "committed", "position"),
    [
        ("first", {}, 1),
        ("last", {}, 4),
        (2500, {}, 2),
        ("first", {0: 3}, 3),
        ("last", {0: 2}, 2),
    ],
)
def test_start_of_a_subscription(start: Any, committed: dict[int, int], position: int) -> None:
    async def scenario(stage: Stage) -> int:
        stage.routes["T"] = route("a", queues=1)
        await shelf(stage, messages={0: bodies(4)}, minimum=1, committed=dict(committed))
        async with consumer(stage) as reader:
            await reader.subscribe("T", start=start)
            return reader.position(QUEUE)

    assert on_stage(scenario).value == position


def test_new_messages_wake_a_poll() -> None:
    async def scenario(stage: Stage) -> float:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage)
        async with consumer(stage) as reader, trio.open_nursery() as nursery:
            await reader.subscribe("T")

            async def add() -> None:
                await trio.sleep(7)
                content.add(peer, 0, b"new")

            nursery.start_soon(add)
            began = trio.current_time()
            assert await read(reader, 1) == [b"new"]
            return trio.current_time() - began

    assert 6.9 < on_stage(scenario).value < 7.1


def test_brokers_get_a_heartbeat_before_any_query() -> None:
    """Trap 18."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", "b", ids=(0, 1))
        peers = [(await shelf(stage, name, number))[1] for name in "ab" for number in (0, 1)]
        async with consumer(stage) as reader:
            await reader.subscribe("T", tags="A || B")
            await trio.sleep(0.1)  # slaves are not waited for
            for peer in peers:
                (group,) = HeartbeatData.decode(peer.heartbeats[-1].body).consumer_data_set
                assert group.group_name == "cg"
                (subscription,) = group.subscription_data_set
                assert (subscription.topic, subscription.sub_string, subscription.tags_set) == (
                    "T",
                    "A || B",
                    ["A", "B"],
                )

    on_stage(scenario)


def test_a_silent_slave_costs_a_subscription_nothing() -> None:
    """300 topics took as many time-outs of the heartbeat that its slave never answered."""

    async def scenario(stage: Stage) -> float:
        stage.routes |= {f"T{number}": route("a", ids=(0, 1)) for number in range(20)}
        await shelf(stage)
        (await shelf(stage, number=1))[1].is_dead = True
        async with consumer(stage) as reader:
            for topic in stage.routes:
                await reader.subscribe(topic, start="first")
            return trio.current_time()

    assert on_stage(scenario).value < 1


def test_an_offset_that_moved_is_followed() -> None:
    """Trap 16: reading goes on at what the broker says, and the position with it."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, _ = await shelf(stage, messages={0: bodies(6)}, minimum=4, committed={0: 1})
        async with consumer(stage) as reader:
            await reader.subscribe("T")
            assert await read(reader, 2) == [b"4", b"5"]
            await reader.commit()
            assert content.committed == {0: 6}
            reader.seek(QUEUE, 99)
            assert await reader.poll(timeout_s=1) == []
            assert reader.position(QUEUE) == 6

    run = on_stage(scenario)
    assert [line.fields["next"] for line in run.log if line.event == "client.offset_moved"] == [
        4,
        6,
    ]


def test_seek_makes_what_is_under_way_worthless() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        await shelf(stage, messages={0: bodies(10)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 2) == [b"0", b"1"]
            await trio.sleep(1)
            reader.seek(QUEUE, 7)
            assert reader.position(QUEUE) == 7
            assert await read(reader, 3) == [b"7", b"8", b"9"]
            reader.seek(QUEUE, 0)
            assert (await read(reader, 10))[:2] == [b"0", b"1"]
            with pytest.raises(BadMessage):
                reader.seek(QUEUE, -1)
            with pytest.raises(ClientError, match="not subscribed"):
                reader.seek(MessageQueue(topic="T", broker_name="a", queue_id=5), 0)

    on_stage(scenario)


def test_commits_are_explicit_and_only_of_what_changed() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=2)
        content, peer = await shelf(stage, messages={0: bodies(2), 1: bodies(1)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            await read(reader, 3)
            assert content.committed == {}
            await reader.commit()
            assert content.committed == {0: 2, 1: 1}
            await reader.commit()
            assert peer.codes().count(Code.UPDATE_CONSUMER_OFFSET) == 2
            await reader.commit({QUEUE: 1})
            assert await reader.committed(QUEUE) == 1

    on_stage(scenario)


@pytest.mark.parametrize("is_automatic", [False, True], ids=["asked for", "automatic"])
def test_a_commit_that_failed_is_tried_again(is_automatic: bool) -> None:
    """With nothing new to be committed meanwhile."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, _ = await shelf(stage, messages={0: bodies(2)})
        async with consumer(stage, auto_commit_s=5 if is_automatic else None) as reader:
            await reader.subscribe("T", start="first")
            reader.finish(*await reader.poll())
            content.fails[Code.UPDATE_CONSUMER_OFFSET] = (1, "not now")
            if is_automatic:
                await trio.sleep(6)
            else:
                with pytest.raises(RequestRefused, match="not now"):
                    await reader.commit()
            content.fails.clear()
            assert content.committed == {}
            if is_automatic:
                await trio.sleep(5)
            else:
                await reader.commit()
            assert content.committed == {0: 2}

    on_stage(scenario)


def test_no_pull_takes_a_commit_back() -> None:
    """The broker has it, its answer is lost, and the next pull returns the group's offset."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage, messages={0: bodies(4)})
        is_lossy = False

        def answering(command: Command) -> Command | None:
            response = content(command)
            fields = command.fields
            if command.code == Code.PULL_MESSAGE and int(fields["sysFlag"]) & 1:
                content.committed[0] = int(fields["commitOffset"])
            is_lost = is_lossy and command.code == Code.UPDATE_CONSUMER_OFFSET
            return None if is_lost else response

        async def commit() -> None:
            with suppress(RemotingError):
                await reader.commit(reader.positions())

        peer.answering = answering
        async with consumer(stage) as reader, trio.open_nursery() as nursery:
            await reader.subscribe("T", start="first")
            await read(reader, 2)
            await reader.commit()
            await read(reader, 2)
            is_lossy = True
            nursery.start_soon(commit)
            await trio.sleep(0.5)
            content.add(peer, 0, b"new")
            assert await read(reader, 1) == [b"new"]
            await trio.sleep(0.5)
            assert content.committed == {0: 4}
            await trio.sleep(5)
            is_lossy = False
            await reader.commit()
            assert content.committed == {0: 5}

    on_stage(scenario)


def test_delayed_pull_carries_the_latest_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def slow_dial(*arguments: Any, **more: Any) -> Connection:
        await trio.sleep(0.5)
        return await dial(*arguments, **more)

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        _, peer = await shelf(stage, messages={0: bodies(4)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            await read(reader, 2)
            await reader.commit()
            await read(reader, 2)
            monkeypatch.setattr(connections, "dial", slow_dial)
            peer.hang_up()
            await trio.sleep(0.4)
            peer.requests.clear()
            await reader.commit()
            await trio.sleep(0.1)
        pulls = [one.fields for one in peer.requests if one.code == Code.PULL_MESSAGE]
        assert {fields["commitOffset"] for fields in pulls} == {"4"}

    on_stage(scenario)


def test_automatic_commits_count_what_the_next_poll_confirms() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, _ = await shelf(stage, messages={0: bodies(4)})
        async with consumer(stage, auto_commit_s=5) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 2) == [b"0", b"1"]
            await trio.sleep(12)
            assert content.committed == {0: 0}
            assert await read(reader, 2) == [b"2", b"3"]
            await trio.sleep(6)
            assert content.committed == {0: 2}
            await reader.poll(timeout_s=0.1)
        assert content.committed == {0: 4}

    on_stage(scenario)


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "failed"])
def test_whatever_ends_a_consumer_what_counts_is_committed(is_cancelled: bool) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage, messages={0: bodies(4)})
        with trio.CancelScope() as scope, suppress(KeyError):
            async with consumer(stage, auto_commit_s=5) as reader:
                await reader.subscribe("T", start="first")
                assert await read(reader, 2) == [b"0", b"1"]
                assert await read(reader, 2) == [b"2", b"3"]
                if is_cancelled:
                    scope.cancel()
                    await trio.sleep_forever()
                raise KeyError("own")
        assert scope.cancelled_caught == is_cancelled
        assert content.committed == {0: 2}
        peer.is_dead = True
        began = trio.current_time()
        with trio.move_on_after(2):
            async with consumer(stage, auto_commit_s=5) as reader:
                await trio.sleep_forever()
        assert trio.current_time() - began < 6  # a broker that does not answer delays no other one

    on_stage(scenario)


def test_new_subscription_begins_after_processed_messages() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, _ = await shelf(stage, messages={0: bodies(4)})
        async with consumer(stage, auto_commit_s=60) as reader:
            await reader.subscribe("T", start="first")
            assert (await anext(reader)).body == b"0"
            assert (await anext(reader)).body == b"1"
            await reader.subscribe("T", tags="*", start="first")
            assert content.committed == {0: 1}
            assert (await anext(reader)).body == b"1"

    on_stage(scenario)


def test_slave_gets_no_commits() -> None:
    """Trap 15: flag 0x1 is cleared for a slave."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1, ids=(0, 1))
        _, master = await shelf(stage, messages={0: bodies(6)}, suggests=0)
        slave_shelf, slave = await shelf(stage, number=1, messages={0: bodies(20)}, suggests=1)
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            await read(reader, 2)
            await reader.commit()
            await read(reader, 4)
            master.answering.suggests = 1  # type: ignore[attr-defined]
            reader.seek(QUEUE, 0)
            await read(reader, 12)
        assert slave_shelf.committed == {}
        flags = [int(c.fields["sysFlag"]) & 1 for c in master.requests if c.code == 11]
        assert 1 in flags
        assert [int(c.fields["sysFlag"]) & 1 for c in slave.requests if c.code == 11].count(1) == 0

    on_stage(scenario)


def test_queue_is_left_although_the_route_changes_later() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=2)
        _, peer = await shelf(stage)
        usual = peer.answering

        def refuse(command: Command) -> Command | None:
            if command.code == Code.PULL_MESSAGE and command.fields["queueId"] == "1":
                return answer(command, ResponseCode.INVALID_PARAMETER, "queueId[1] is illegal")
            return usual(command)

        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            peer.answering = refuse
            peer.hang_up()
            assert await reader.poll(timeout_s=REFUSED_S - 3) == []
            stage.routes["T"] = route("a", queues=1)
            assert await reader.poll(timeout_s=2 * REFUSED_S) == []
            assert list(reader.positions()) == [QUEUE]

    on_stage(scenario)


@pytest.mark.parametrize(("code", "seconds"), [(1, 1.0), (16, 2 * REFUSED_S)])
def test_poll_raises_refusals_and_reading_continues(code: int, seconds: float) -> None:
    """A queue that may have been withdrawn has some time to leave the route."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, _ = await shelf(
            stage, messages={0: bodies(1)}, fails={Code.PULL_MESSAGE: (code, "forbidden")}
        )
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            with pytest.raises(RequestRefused, match="forbidden"):
                await reader.poll(timeout_s=seconds)
            content.fails.clear()
            actual: list[bytes] = []
            while not actual:
                try:
                    actual = await read(reader, 1)
                except RequestRefused:
                    continue
            assert actual == [b"0"]

    on_stage(scenario)


def test_poll_raises_for_a_body_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(body: bytes, sys_flag: int) -> bytes:
        raise MissingCodec("pip install 'rocketbed[zstd]'")

    monkeypatch.setattr("rocketbed.client.messages.unpack_body", unpack)

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        await shelf(stage, messages={0: bodies(1)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            with pytest.raises(MissingLibrary, match=r"T at 0: pip install 'rocketbed\[zstd\]'"):
                await reader.poll()

    on_stage(scenario)


@pytest.mark.parametrize("code", [2, 24, 25, 215])
def test_refusals_that_pass_are_waited_out(code: int) -> None:
    """Trap 17."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(
            stage, messages={0: bodies(1)}, fails={Code.PULL_MESSAGE: (code, "not now")}
        )
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            assert await reader.poll(timeout_s=3) == []
            assert 2 < peer.codes().count(Code.PULL_MESSAGE) < 20
            content.fails.clear()
            assert await read(reader, 1) == [b"0"]

    on_stage(scenario)


def test_returning_broker_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage, messages={0: bodies(2)})
        async with consumer(stage) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 2) == [b"0", b"1"]
            peer.stop()
            assert await reader.poll(timeout_s=5) == []
            content.held.clear()
            content.messages[0].append((b"2", None))
            await stage.peer(port_of("a"), content)
            assert await read(reader, 1) == [b"2"]

    on_stage(scenario)


def test_immediate_empty_answer_does_not_spin() -> None:
    async def scenario(stage: Stage) -> int:
        stage.routes["T"] = route("a", queues=1)
        content, broker = await shelf(stage, messages={0: bodies(1)})

        def never_holds(command: Command) -> Command | None:
            if command.code == Code.PULL_MESSAGE:
                command.raw_fields["sysFlag"] = "4"
            return content(command)

        broker.answering = never_holds
        async with consumer(stage) as reader:
            await reader.subscribe("T")
            await reader.poll(timeout_s=2)
        return broker.codes().count(Code.PULL_MESSAGE)

    assert 10 < on_stage(scenario).value < 60


def test_new_queues_are_read_from_their_beginning() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        await shelf(stage, messages={0: bodies(1), 1: bodies(2)})
        async with consumer(stage) as reader:
            await reader.subscribe("T")
            assert await reader.poll(timeout_s=1) == []
            stage.routes["T"] = route("a", queues=2)
            actual: list[bytes] = []
            with trio.fail_after(120):
                while len(actual) < 2:
                    actual += [message.body for message in await reader.poll(timeout_s=10)]
            assert actual == [b"0", b"1"]

    on_stage(scenario)


def test_only_some_queues() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=3)
        await shelf(stage, messages={number: bodies(1) for number in range(3)})
        async with consumer(stage) as reader:
            second = (await reader.queues("T"))[1]
            await reader.assign([second], start="first")
            (message,) = await reader.poll()
            assert message.queue == second
            assert await reader.poll(timeout_s=60) == []
            stray = MessageQueue(topic="U", broker_name="a", queue_id=0)
            with pytest.raises(BadMessage, match="not a queue of topic T"):
                await reader.assign([second, stray])

    on_stage(scenario)


def test_a_subscription_that_fails_half_way_changes_nothing() -> None:
    """Else the watcher would take up the rest, and from their first messages."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=2)
        content, peer = await shelf(stage, messages={0: bodies(4), 1: bodies(4)})
        usual = peer.answering

        def refuse(command: Command) -> Command | None:
            is_second = command.raw_fields.get("queueId") == "1"
            if command.code == Code.QUERY_CONSUMER_OFFSET and is_second:
                return answer(command, ResponseCode.SYSTEM_ERROR, "no")
            return usual(command)

        peer.answering = refuse
        async with consumer(stage) as reader:
            with pytest.raises(RequestRefused):
                await reader.subscribe("T", start="last")
            await trio.sleep(2.5 * SHARE_S)
            assert reader.positions() == {}
            peer.answering = usual
            await reader.subscribe("T", start="last")
            with pytest.raises(BadMessage, match="'frist'"):
                await reader.subscribe("T", start="frist")  # type: ignore[arg-type]
            assert list(reader.positions().values()) == [4, 4]
            content.add(peer, 1, b"new")
            assert await read(reader, 1) == [b"new"]
            await trio.sleep(2.5 * SHARE_S)
            assert await reader.poll() == []

    on_stage(scenario)


def test_subscribing_again_changes_the_tags() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content = [(b"%d" % number, "AB"[number % 2]) for number in range(8)]
        await shelf(stage, messages={0: content}, committed={0: 0})
        async with consumer(stage) as reader:
            await reader.subscribe("T", tags="A")
            assert await read(reader, 1) == [b"0"]
            await reader.subscribe("T", tags="B")
            assert await read(reader, 4) == [b"1", b"3", b"5", b"7"]

    on_stage(scenario)


def test_poll_without_a_subscription_is_an_error() -> None:
    async def scenario(stage: Stage) -> None:
        async with consumer(stage) as reader:
            with pytest.raises(ClientError, match="call subscribe first"):
                await reader.poll()

    on_stage(scenario)


def test_a_commit_needs_a_master() -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", ids=(1,))
        content, _ = await shelf(stage, number=1, committed={0: 5})
        async with consumer(stage) as reader:
            assert await reader.committed(QUEUE) == 5
            with pytest.raises(NoBroker, match="no master"):
                await reader.commit({QUEUE: 6})
        assert content.committed == {0: 5}

    on_stage(scenario)


@pytest.mark.parametrize(
    "code",
    [Code.GET_CONSUMER_LIST_BY_GROUP, Code.UPDATE_CONSUMER_OFFSET, Code.QUERY_CONSUMER_OFFSET],
)
def test_damaged_answers_end_nothing(code: int) -> None:
    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage, messages={0: bodies(2), 1: bodies(2)})
        usual = peer.answering

        def damaged(command: Command) -> Command | None:
            if command.code != code:
                return usual(command)
            return answer(command, fields={"offset": "x"}, body=b"\xff{")

        async with consumer(stage, auto_commit_s=1) as reader:
            await reader.subscribe("T", start="first")
            assert await read(reader, 2) == [b"0", b"1"]
            peer.answering = damaged
            stage.routes["T"] = route("a", queues=2)
            await trio.sleep(2 * SHARE_S)
            content.add(peer, 0, b"new")
            actual: list[bytes] = []
            while b"new" not in actual:
                actual += await read(reader, 1)

    on_stage(scenario)


def test_records_with_wrong_places_are_read_and_none_skipped() -> None:
    """A real broker that had lost its power gave the record of offset 28 in the place of 0, and 22
    as the next one."""

    async def scenario(stage: Stage) -> None:
        stage.routes["T"] = route("a", queues=1)
        content, peer = await shelf(stage, messages={0: bodies(4)})
        usual = peer.answering

        def wrong(command: Command) -> Command | None:
            reply = usual(command)
            if command.code == Code.PULL_MESSAGE and reply is not None and reply.body:
                begin = int(command.fields["queueOffset"])
                reply.body = b"".join(
                    record(0, 28 - number, b"%d" % number) for number in (begin, begin + 1)
                )
            return reply

        peer.answering = wrong
        async with consumer(stage, auto_commit_s=60) as reader:
            await reader.subscribe("T", start="first")
            (queue,) = reader.positions()
            assert (await anext(reader)).body == b"0"
            await reader.commit()
            assert (content.committed, reader.position(queue)) == ({0: 0}, 0)
            assert (await anext(reader)).body == b"1"
            await reader.commit()
            assert (content.committed, reader.position(queue)) == ({0: 2}, 2)
            assert [(await anext(reader)).body for _ in range(2)] == [b"2", b"3"]

    on_stage(scenario)
