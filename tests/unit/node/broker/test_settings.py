"""Settings of a running broker: changed by 25, shown by 26, kept in the file they are from."""

import errno
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import SoloRun, run_solo
from rocketbed.node.config.changes import CHANGEABLE
from rocketbed.node.config.keys import KEYS
from rocketbed.node.config.node_config import (
    Setting,
    make_config,
    settings_from_options,
    settings_from_text,
)
from rocketbed.node.node import run_node
from rocketbed.remoting.client import dial, open_connection
from rocketbed.wire.bodies import DataVersion
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.properties_text import (
    decode_file,
    encode_file,
    parse_properties,
    with_properties,
)
from rocketbed.world.api import World
from tests.support.broker import HOST, PORT, SMALL, STORE, Scenario, Session, node_run, with_node

CONF = f"{STORE}/broker.conf"
TEXT = "# kept\n" + "".join(f"{line}\n" for line in SMALL) + "fileReservedTime = 48\n"


async def change(session: Session, **values: object) -> Command:
    body = "".join(f"{key}={value}\n" for key, value in values.items())
    return await session.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body.encode())


async def config_of(session: Session) -> dict[str, str]:
    body = (await session.ask(RequestCode.GET_BROKER_CONFIG)).body
    return {key: value for _, key, value in parse_properties(body.decode())}


async def version(session: Session) -> int:
    answer = await session.ask(RequestCode.GET_BROKER_CONFIG)
    return DataVersion.decode(answer.fields["version"].encode()).counter


# --- what takes effect


def test_change_takes_effect_at_once_and_is_shown() -> None:
    async def scenario(session: Session) -> None:
        before = await version(session)
        assert (await session.send("New")).code == 0
        assert (await change(session, autoCreateTopicEnable="false")).code == 0
        assert (await session.send("Newer")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await config_of(session))["autoCreateTopicEnable"] == "false"
        assert await version(session) == before + 1

    with_node(scenario)


def test_sends_create_topics_once_allowed() -> None:
    async def scenario(session: Session) -> None:
        assert (await session.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await change(session, autoCreateTopicEnable="true")).code == 0
        assert (await session.send("New")).code == 0

    with_node(scenario, "autoCreateTopicEnable=false")


def test_new_settings_apply_to_topics_in_use() -> None:
    async def scenario(session: Session) -> None:
        async def send(size: int = 5) -> int:
            key = {"UNIQ_KEY": "A" * 32}
            return (await session.send(body=b"x" * size, properties=key)).code

        assert await send(2000) == 0
        await session.node.tables.topics.save()
        assert await send(2000) == 0
        assert (await change(session, maxMessageSize=1000)).code == 0
        assert await send(2000) == ResponseCode.MESSAGE_ILLEGAL
        assert await send() == 0
        later_ms = session.world.clock.wall_ms() + 5000
        assert (await change(session, startAcceptSendRequestTimeStamp=later_ms)).code == 0
        assert await send() == ResponseCode.SYSTEM_ERROR
        await trio.sleep(6)
        assert await send() == 0

    with_node(scenario)


def test_removed_permission_is_sent_to_nameservers() -> None:
    async def scenario(session: Session) -> None:
        topics = session.node.tables.topics
        changes: list[list[str]] = []
        before = topics.version.counter
        topics.on_change.append(changes.append)
        assert (await change(session, brokerPermission=2)).code == 0
        assert topics.version.counter == before + 1
        assert changes
        assert (await session.pull()).code == ResponseCode.NO_PERMISSION

    with_node(scenario)


def test_flush_interval_follows_a_changed_setting() -> None:
    async def scenario(session: Session) -> None:
        await change(session, flushIntervalCommitLog=50, flushCommitLogLeastPages=0)
        await trio.sleep(1)
        assert (await session.send()).code == 0
        assert session.node.store.flushed.value < session.node.store.max_offset
        await trio.sleep(0.3)
        assert session.node.store.flushed.value == session.node.store.max_offset

    with_node(scenario)


# --- what is refused


@pytest.mark.parametrize(
    ("body", "code", "expected_text"),
    [
        (b"fileReservedTime=1\nlistenPort=1\n", ResponseCode.NO_PERMISSION, "listenPort"),
        (b"storePathRootDir=/other\n", ResponseCode.NO_PERMISSION, "needs a restart"),
        (b"storeType=defaultRocksDB\n", ResponseCode.NO_PERMISSION, "storeType"),
        (b"rocketmqHome=/\n", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        (b"fileReservedTime=1\ndeleteWhen=25\n", ResponseCode.INVALID_PARAMETER, "deleteWhen=25"),
        (b"fileReservedTime=a\n", ResponseCode.INVALID_PARAMETER, "must be an integer"),
        (b"\xff=1", ResponseCode.SYSTEM_ERROR, "string2Properties error"),
        (b"a=\\uZ\n", ResponseCode.SYSTEM_ERROR, "string2Properties error"),
    ],
)
def test_changes_apply_all_or_none(body: bytes, code: int, expected_text: str) -> None:
    async def scenario(session: Session) -> None:
        before = await config_of(session)
        answer = await session.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
        assert answer.code == code
        assert expected_text in (answer.remark or "")
        assert (await config_of(session), await version(session)) == (before, 0)

    with_node(scenario)


def test_keys_without_effect_are_skipped_with_a_warning() -> None:
    async def scenario(session: Session) -> None:
        answer = await change(session, noSuchKey=1, popPollingSize=2)
        assert (answer.code, answer.remark) == (0, None)
        assert await version(session) == 0

    run = node_run(scenario)
    keys = [line.fields["key"] for line in run.log if line.event == "config.key_without_effect"]
    assert keys == ["noSuchKey", "popPollingSize"]


def test_a_node_changes_nothing_but_its_own_settings() -> None:
    config, _ = make_config([Setting("fileReservedTime", "48", "test")])
    before = config.store.reserved_ms, dict(config.values)

    async def main(world: World) -> object:
        async with trio.open_nursery() as nursery:
            node = await nursery.start(run_node, world, config)
            session = await connected(world, node, nursery)
            assert (await change(session, fileReservedTime=1)).code == 0
            changed = node.config.store.reserved_ms
            world.process.stop_requested.set()
            return changed

    assert run_solo(main).value == 3_600_000
    assert (config.store.reserved_ms, config.values) == before


def test_every_changeable_key_is_one() -> None:
    assert KEYS.keys() >= CHANGEABLE


# --- what is kept


async def connected(world: World, node: Any, nursery: trio.Nursery) -> Session:
    connection = await dial(world, (HOST, PORT))
    nursery.start_soon(connection.run)
    return Session(world, node, connection, [])


def with_file(scenario: Scenario, *options: str, text: str = TEXT, **solo: Any) -> SoloRun:
    """Run a node of a file, on its disk."""

    async def main(world: World) -> Any:
        rows = settings_from_text(text, CONF)
        rows += settings_from_options(options)
        config, _ = make_config(rows, path=CONF)
        async with trio.open_nursery() as nursery:
            node = await nursery.start(run_node, world, config)
            async with open_connection(world, (HOST, PORT)) as connection:
                value = await scenario(Session(world, node, connection, []))
            world.process.stop_requested.set()
        return value

    disk = SimDisk()
    disk.makedirs(STORE)
    disk.replace_contents(CONF, encode_file(text))
    return run_solo(main, image=disk.image(), **solo)


def file_of(run: SoloRun) -> str:
    return decode_file(SimDisk(run.image).contents(CONF))


def test_answered_change_is_in_the_file_with_the_rest() -> None:
    async def scenario(session: Session) -> None:
        answer = await change(session, fileReservedTime=12, longPollingEnable="false")
        assert (answer.code, answer.remark) == (0, None)
        session.world.mark("answered")
        await session.ask(RequestCode.GET_BROKER_CONFIG)

    run = with_file(scenario, crash_at_mark="answered", kind="power", mode="strict")
    assert run.outcome == "power cut"
    expected = TEXT.replace("fileReservedTime = 48", "fileReservedTime=12")
    assert file_of(run) == expected + "longPollingEnable=false\n"


def test_changed_file_keeps_a_comment_of_any_bytes() -> None:
    async def scenario(session: Session) -> str | None:
        return (await change(session, longPollingEnable="false")).remark

    text = TEXT + decode_file(b"# caf\xe9\n")
    run = with_file(scenario, text=text)
    assert run.value is None
    assert file_of(run) == text + "longPollingEnable=false\n"


def test_change_lost_at_the_next_start_is_reported() -> None:
    async def scenario(session: Session) -> str | None:
        answer = await change(session, fileReservedTime=12)
        assert answer.code == 0
        assert (await config_of(session))["fileReservedTime"] == "12"
        return answer.remark

    assert node_run(scenario).value == (
        "in effect until the next start: the broker was started without a configuration file"
    )
    pinned = with_file(scenario, "fileReservedTime=24")
    assert pinned.value == "in effect until the next start: --set gives fileReservedTime"

    def deny(disk: SimDisk) -> None:
        disk.faults.append(SimFault(operation="write", path=f"{CONF}*", error=errno.EROFS))

    denied = with_file(scenario, prepare=deny)
    assert f"{CONF} cannot be written" in denied.value
    assert file_of(denied) == TEXT
    (warning,) = [line for line in denied.log if line.event == "config.change_not_kept"]
    assert CONF in str(warning.fields["reason"])


def test_edited_file_keeps_its_form() -> None:
    text = "! one\na = 1\n\n  b:2 \\\n  3\n#c=4\nc 5\nb=6\n"
    assert with_properties(text, {"b": "7", "d": "8"}) == "! one\na = 1\n\nb=7\n#c=4\nc 5\nd=8\n"
