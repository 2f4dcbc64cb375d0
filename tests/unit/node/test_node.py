"""A whole node: start, stop, restart, and the ways in which it cannot start."""

import tarfile
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.config_file import ConfigFileError
from rocketbed.node.config.node_config import make_config, settings_from_options
from rocketbed.node.node import NodeError, check_node, run_node
from rocketbed.node.store.errors import StoreFailed, StoreLocked
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.errors import ConnectionLost
from rocketbed.wire.command import request
from rocketbed.world.api import World
from tests.support.broker import HOST, PORT, SMALL, STORE, Session, node_run, send_fields, with_node
from tests.support.paths import FIXTURES


async def send_some(session: Session) -> None:
    await session.heartbeat()
    for number in range(5):
        assert (await session.send(body=b"%d" % number, properties={"KEYS": "k"})).code == 0
    await session.commit("g", "T", 3)


async def read_back(session: Session) -> dict[str, Any]:
    return {
        "clean": session.node.store.recovery.was_clean,
        "bodies": [message.body for message in await session.messages()],
        "offset": session.node.tables.offsets.get("g", "T", 0),
        "group": session.node.tables.groups.get("g") is not None,
        "next": (await session.send()).fields["queueOffset"],
    }


@pytest.mark.parametrize(
    "name",
    ["config", "config/topics.json", "config/topics.json.tmp", "config/consumerOffset.json.bak"],
)
def test_start_and_check_name_the_obstacle_of_a_table(name: str) -> None:
    """A check said that all was well, and the start failed."""
    image = node_run(send_some).image
    disk = SimDisk(image)
    path = f"{STORE}/{name}"
    for file in disk.paths():
        if file == path or file.startswith(f"{path}/"):
            disk.remove_name(file)
    if name == "config":
        disk.rmdir(path)
        disk.replace_contents(path, b"x")
    else:
        disk.makedirs(path)

    config = make_config(settings_from_options(SMALL))[0]
    for look in (run_node, check_node):
        with pytest.raises(ConfigFileError, match=f"{path} is no"):
            run_solo(look, config, image=disk.image())


def test_records_hold_the_address_of_a_host_name() -> None:
    """Clients get the name itself, and resolve it on their own."""

    async def scenario(session: Session) -> None:
        await session.send()
        (message,) = await session.messages()
        assert message.store_host == (HOST, PORT)
        assert session.node.config.address == f"localhost:{PORT}"

    with_node(scenario, "brokerIP1=localhost")


def test_host_name_without_an_address_is_named() -> None:
    config = make_config(settings_from_options([*SMALL, "brokerIP1=nobody"]))[0]
    for start in (run_node, check_node):
        with pytest.raises(NodeError, match="brokerIP1=nobody: this name has no address"):
            run_solo(start, config)


def test_clean_stop_keeps_everything_and_removes_abort() -> None:
    stopped = node_run(send_some)

    async def look(world: World) -> bool:
        return world.disk.exists(f"{STORE}/abort")

    assert run_solo(look, image=stopped.image).value is False
    assert node_run(read_back, image=stopped.image).value == {
        "clean": True,
        "bodies": [b"0", b"1", b"2", b"3", b"4"],
        "offset": 3,
        "group": True,
        "next": "5",
    }


def test_acknowledged_messages_survive_a_kill() -> None:
    async def send_and_mark(session: Session) -> None:
        await send_some(session)
        session.world.mark("acknowledged")
        await trio.sleep(1)

    killed = node_run(send_and_mark, crash_at_mark="acknowledged", kind="kill")
    assert killed.outcome == "killed"
    state = node_run(read_back, image=killed.image).value
    assert not state["clean"]
    assert state["bodies"] == [b"0", b"1", b"2", b"3", b"4"]
    assert state["next"] == "5"


def test_two_nodes_on_one_directory() -> None:
    async def scenario(session: Session) -> None:
        config, _ = make_config(settings_from_options([*SMALL, "listenPort=20911"]))
        with pytest.raises(StoreLocked, match="held by another process"):
            await run_node(session.world, config)
        assert (await session.send()).code == 0

    with_node(scenario)


def test_taken_port_is_reported_and_the_store_closed() -> None:
    async def main(world: World) -> None:
        config, _ = make_config(settings_from_options(SMALL))
        listener = await world.network.listen(HOST, PORT - 2)
        with pytest.raises(NodeError, match=r"cannot listen on .*10909"):
            await run_node(world, config)
        assert not world.disk.exists(f"{STORE}/abort")
        await listener.aclose()

    assert run_solo(main).outcome == "ended"


def test_failed_fsync_ends_the_node_and_leaves_abort() -> None:
    async def main(world: World) -> None:
        config, _ = make_config(settings_from_options([*SMALL, "flushDiskType=SYNC_FLUSH"]))
        ended = trio.Event()
        async with trio.open_nursery() as nursery:

            async def run_until_it_fails(
                task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
            ) -> None:
                with pytest.raises(StoreFailed, match="fsync"):
                    await run_node(world, config, task_status=task_status)
                ended.set()

            await nursery.start(run_until_it_fails)
            async with open_connection(world, (HOST, PORT)) as connection:
                first = await connection.request(request(310, send_fields(), b"kept"))
                assert first.code == 0
                disk = world.disk
                assert isinstance(disk, SimDisk)
                disk.faults.append(SimFault(operation="sync", path="*commitlog*", times=None))
                with pytest.raises(ConnectionLost):
                    await connection.request(request(310, send_fields(), b"doubtful"))
                await ended.wait()
        assert world.disk.exists(f"{STORE}/abort")

    assert run_solo(main).outcome == "ended"


def test_stop_is_quick_while_pulls_are_held() -> None:
    async def scenario(session: Session) -> None:
        await session.send()
        await session.node.store.dispatched.wait_for(session.node.store.max_offset)

        async def pull() -> None:
            with pytest.raises(ConnectionLost):
                await session.pull(offset=1, flags=4 | 2, hold_ms=60_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(1)
            session.world.process.stop_requested.set()

    run = node_run(scenario)
    assert run.outcome == "ended"
    assert run.seconds < 3


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_directory_of_rocketmq_is_served(name: str, tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / f"rocketmq-store-{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    files = {
        path.relative_to(tmp_path / "store").as_posix(): path.read_bytes()
        for path in sorted((tmp_path / "store").rglob("*"))
        if path.is_file()
    }

    async def copy(world: World) -> None:
        for path, data in files.items():
            target = f"{STORE}/{path}"
            world.disk.makedirs(target.rpartition("/")[0])
            file = world.disk.open(target, create=True)
            file.write_at(0, data)
            await file.sync()
            await world.disk.sync_dir(target.rpartition("/")[0])

    async def scenario(session: Session) -> None:
        topics = session.node.tables.topics
        plain = topics.get("FxPlain")
        assert plain is not None
        assert plain.read_queue_nums == 4
        assert session.node.tables.offsets.get("FxGroup", "FxTags", 0) > 0
        assert session.node.tables.groups.get("FxRetryGroup") is not None
        messages = await session.messages("FxPlain")
        assert messages
        answer = await session.send("FxPlain", b"goes on")
        assert answer.fields["queueOffset"] == str(len(messages))
        assert (await session.messages("FxPlain"))[-1].body == b"goes on"

    options = (
        "brokerName=fx-broker",
        "mappedFileSizeConsumeQueue=1280",
        "mapperFileSizeBatchConsumeQueue=2944",
    )
    with_node(scenario, *options, image=run_solo(copy).image)
