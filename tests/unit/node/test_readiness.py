"""Readiness that a node reports, and its reasons."""

import trio

from rocketbed.remoting.client import open_connection
from rocketbed.wire.bodies import KvTable
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.world.api import World
from tests.support.broker import Session, send_fields, with_node
from tests.support.sim.replicated import PORT, Cluster

READY = (ResponseCode.SUCCESS, None)


def code_and_remark(command: Command) -> tuple[int, str | None]:
    return command.code, command.remark


async def ask(session: Session) -> tuple[int, str | None]:
    """The same is in the runtime information."""
    answer = code_and_remark(await session.ask(RequestCode.RB_READINESS))
    info = KvTable.decode((await session.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert info["rbNotReady"] == ("" if answer[0] == ResponseCode.SUCCESS else answer[1])
    return answer


def not_ready(reason: str) -> tuple[int, str]:
    return ResponseCode.SERVICE_NOT_AVAILABLE, reason


def test_standalone_node_is_ready() -> None:
    assert with_node(ask) == READY
    assert with_node(ask, "brokerRole=SYNC_MASTER") == READY
    assert with_node(ask, "brokerRole=ASYNC_MASTER", "inSyncReplicas=2") == READY


def test_a_disk_that_cannot_be_written_is_named() -> None:
    async def scenario(session: Session) -> list[tuple[int, str | None]]:
        disk = session.world.disk
        disk.read_only = True  # type: ignore[attr-defined]
        answers = [await ask(session)]
        disk.read_only = False  # type: ignore[attr-defined]
        return [*answers, await ask(session)]

    assert with_node(scenario) == [not_ready("the disk of /store is read-only"), READY]


def test_a_full_disk_is_named() -> None:
    async def scenario(session: Session) -> tuple[int, str | None]:
        disk = session.world.disk
        disk.quota = disk.allocated() * 21 // 20  # type: ignore[attr-defined]
        while not session.node.store.trouble():  # noqa: ASYNC110
            await trio.sleep(1)  # virtual
        return await ask(session)

    code, remark = with_node(scenario)
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert remark
    assert "diskSpaceWarningLevelRatio" in remark


def test_full_disk_is_named_until_a_segment_fits() -> None:
    async def scenario(session: Session) -> list[tuple[int, str | None]]:
        disk, store = session.world.disk, session.node.store
        body, code = bytes(store.config.segment_size // 3), 0
        answers = [await ask(session)]
        while code == 0:
            command = request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), body)
            code = (await session.connection.request(command)).code
            disk.quota = disk.allocated() + 100_000  # type: ignore[attr-defined]
        answers.append(await ask(session))
        disk.quota = None  # type: ignore[attr-defined]
        return [*answers, await ask(session)]

    settings = ("mappedFileSizeCommitLog=262144", "diskSpaceWarningLevelRatio=90")
    before, full, after = with_node(scenario, *settings)
    assert (before, after) == (READY, READY)
    assert full[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert full[1]
    assert full[1].startswith("no new segment of 262144 bytes in /store/commitlog:")


def test_broker_without_registration_is_not_ready() -> None:
    answer = with_node(ask, "namesrvAddr=10.0.0.8:9876;10.0.0.9:9876")
    assert answer == not_ready("registered at no nameserver: 10.0.0.8:9876;10.0.0.9:9876")


def test_single_nameserver_suffices() -> None:
    async def scenario(session: Session) -> tuple[int, str | None]:
        registered = session.node.registration.registered
        registered[("10.0.0.9", 9876)] = True
        return await ask(session)

    assert with_node(scenario, "namesrvAddr=10.0.0.8:9876;10.0.0.9:9876") == READY


def test_found_damage_is_reported_and_stays_ready() -> None:
    async def scenario(session: Session) -> tuple[int, str | None]:
        session.node.store.scrubber.index_damage = "entry 7 names another record"
        return await ask(session)

    assert with_node(scenario) == (
        ResponseCode.SUCCESS,
        "the index is damaged: entry 7 names another record; start the node again",
    )


def ask_in(cluster: Cluster, name: str) -> tuple[int, str | None]:
    answers: list[Command] = []

    async def main(world: World) -> None:
        async with open_connection(world, (name, PORT)) as connection:
            answers.append(await connection.request(request(RequestCode.RB_READINESS)))

    process = cluster.simulation.start("asker", main)
    cluster.simulation.run(10, until=lambda: process.done)
    return code_and_remark(answers[0])


def test_master_and_slave_are_ready_together() -> None:
    with Cluster(seed=1) as cluster:
        cluster.start("master")
        cluster.run(1)
        assert ask_in(cluster, "master") == not_ready("1 of 2 copies in sync (inSyncReplicas)")
        cluster.start("slave-1")
        cluster.run(5)
        assert ask_in(cluster, "slave-1") == READY
        assert ask_in(cluster, "master") == READY
        cluster.simulation.kill("master")
        cluster.run(5)
        code, remark = ask_in(cluster, "slave-1")
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert remark
        assert remark.startswith("it follows no master: connecting, master:10912: ")
