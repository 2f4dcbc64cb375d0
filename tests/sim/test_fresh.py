"""Asking a master where its log begins: every answer it may give."""

import pytest

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.replication.fresh import LogStart, ask_log_start
from rocketbed.wire.command import Command, ResponseCode, answer
from rocketbed.world.api import World

ADDRESS = ("master", 10911)


def ask(info: bytes | None, first: bytes | None) -> tuple[LogStart | None, str]:
    """The outcome, and what was logged, for a master that answers 28 and 33 so."""

    async def master(world: World) -> None:
        def runtime_info(command: Command, _connection: Connection) -> Command:
            if info is None:
                return answer(command, ResponseCode.SYSTEM_ERROR, remark="busy")
            return answer(command, ResponseCode.SUCCESS, body=info)

        def message(command: Command, _connection: Connection) -> Command:
            assert command.fields["offset"] == "0"
            if first is None:
                return answer(command, ResponseCode.SYSTEM_ERROR, remark="gone")
            return answer(command, ResponseCode.SUCCESS, body=first)

        handlers = Handlers(inline={28: runtime_info, 33: message})
        await Server(world, ("", ADDRESS[1]), handlers).run()

    async def slave(world: World) -> LogStart | None:
        return await ask_log_start(world, ADDRESS)

    with Simulation() as simulation:
        simulation.start("master", master)
        simulation.run(0.01)
        start = simulation.run_process(simulation.start("slave", slave))
        reports = [
            line.fields for line in simulation.log if line.event == "replication.start_unknown"
        ]
        return start, str(reports[0]["reason"]) if reports else ""


def runtime_info(minimum: object, maximum: object) -> bytes:
    text = f'{{"table":{{"commitLogMinOffset":"{minimum}","commitLogMaxOffset":"{maximum}"}}}}'
    return text.encode()


@pytest.mark.parametrize(
    ("info", "first", "expected"),
    [
        (runtime_info(4096, 9000), None, LogStart(4096)),
        (runtime_info(0, 9000), b"record", LogStart(0, b"record")),
        (runtime_info(0, 0), None, None),
        (runtime_info(-1, 0), None, None),
    ],
)
def test_answers_that_tell(info: bytes, first: bytes | None, expected: LogStart | None) -> None:
    assert ask(info, first) == (expected, "")


@pytest.mark.parametrize(
    ("info", "first", "reason"),
    [
        (None, None, "busy"),
        (b'{"table":{}}', None, "no commitLogMinOffset"),
        (runtime_info("x", 1), None, "invalid literal"),
        (runtime_info(0, 9000), None, "does not give its first message"),
        (b"{broken", None, "JSON"),
    ],
)
def test_answers_that_do_not(info: bytes | None, first: bytes | None, reason: str) -> None:
    start, report = ask(info, first)
    assert start is None
    assert reason in report


def test_a_master_that_is_away() -> None:
    async def slave(world: World) -> LogStart | None:
        return await ask_log_start(world, ADDRESS)

    with Simulation() as simulation:
        simulation.host("master")
        assert simulation.run_process(simulation.start("slave", slave)) is None
        assert [line.event for line in simulation.log] == ["replication.start_unknown"]
