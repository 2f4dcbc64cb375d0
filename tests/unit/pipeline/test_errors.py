"""Errors by name: every one has a row in the documentation and something that raises it."""

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from rocketbed.pipeline.build import check_build
from rocketbed.pipeline.errors import Condition, PipelineError, explained, markdown, user_errors
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.replicas import log_files
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import view_ddl
from rocketbed.pipeline.sink.keys import TaskKey
from rocketbed.pipeline.sink.markers import decode_part
from rocketbed.pipeline.sink.options import SinkOptions
from rocketbed.pipeline.sink.rows import outgoing
from rocketbed.pipeline.sink.sending import TaskSender
from rocketbed.pipeline.streams.offsets import StreamOffset
from rocketbed.pipeline.wire.log import WireError, WireLog
from rocketbed.pipeline.wire.plan import WirePlan
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers
from rocketbed.remoting.server import Server
from rocketbed.wire.codes import RequestCode, ResponseCode
from rocketbed.wire.command import Command, answer
from rocketbed.world.real import real_world
from tests.support.logs import Log, Message, rows
from tests.support.paths import ROOT

PAGE = ROOT / "docs/reference/spark.md"
NOBODY = {"endpoints": "127.0.0.1:1", "retryTimeoutMs": "50"}
KEY = TaskKey(job="job", batch=0, partition=0)


def write(body: bytes) -> None:
    options = SinkOptions.parse(NOBODY | {"topic": "T"}, streaming=False)

    async def send() -> None:
        async with TaskSender(options, KEY) as sender:
            await sender.send(outgoing({"body": [body]}, first_row=0, key=KEY, options=options))

    trio.run(send)


def without_a_file(log: Log) -> None:
    log.append([Message(body=bytes(3000))] * 3)
    log.path(4096).unlink()
    rows(log.root)


def damaged(log: Log) -> None:
    log.flip(90)
    rows(log.root, mode="FAILFAST")


def unreadable(log: Log) -> None:
    (log.root / "index").mkdir()
    (log.root / "index" / "20261120031712000").write_bytes(bytes(100))
    rows(log.root, view="index")


def refuse(command: Command, _connection: Connection) -> Command:
    return answer(command, ResponseCode.NO_PERMISSION, "not you")


def refused(_log: Log) -> None:
    """A name server that says no to everything."""

    async def look() -> None:
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        server = Server(real_world("test"), ("127.0.0.1", 0), Handlers(inline={code: refuse}))
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(server.run)
            async with WireLog(f"{host}:{port}") as log:
                await log.topics()
            nursery.cancel_scope.cancel()

    try:
        trio.run(look)
    except* WireError as group:
        raise group.exceptions[0] from None


RAISED: dict[Condition, Callable[[Log], object]] = {
    Condition.UNKNOWN_OPTION: lambda _: Options.parse({"pathh": "/x"}),
    Condition.ILLEGAL_OPTION: lambda _: Options.parse({"mode": "DROP"}),
    Condition.ILLEGAL_SCHEMA: lambda _: view_ddl("records", ["nope"]),
    Condition.UNKNOWN_TOPIC: lambda log: rows(log.root, topics="Nope"),
    Condition.NOT_A_STORE: lambda log: log_files(*parse_paths(f"{log.root}/commitlog")),
    Condition.UNREADABLE: unreadable,
    Condition.CORRUPT_RECORD: damaged,
    Condition.DATA_LOSS: without_a_file,
    Condition.CLUSTER_UNAVAILABLE: lambda _: WirePlan.of(
        Options.parse(NOBODY | {"topics": "T"})
    ).splits(),
    Condition.REFUSED: refused,
    Condition.ILLEGAL_OFFSET: lambda _: StreamOffset.parse({"v": 9}, "physical"),
    Condition.ILLEGAL_ROW: lambda _: write(b""),
    Condition.NOT_WRITTEN: lambda _: write(b"x"),
    Condition.OTHER_BUILD: lambda _: check_build("0.0.9 (abc)"),
    Condition.BAD_MARKER: lambda _: decode_part(b"{}", "job"),
}


@pytest.mark.parametrize("condition", Condition)
def test_every_condition_is_raised(condition: Condition, tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(), Message()])
    with pytest.raises(PipelineError) as caught:
        RAISED[condition](log)
    assert caught.value.condition is condition
    assert str(explained(caught.value)).startswith(f"[{condition}] ")


def test_every_condition_is_documented() -> None:
    assert markdown() in PAGE.read_text(encoding="utf-8")


def error_lines(method: Callable[[], object]) -> list[str]:
    try:
        method()
    except Exception as exc:
        return "".join(traceback.format_exception(exc)).splitlines()
    raise AssertionError


def deeply(number: int = 9) -> None:
    if number:
        deeply(number - 1)
    try:
        raise ValueError("inside")
    except ValueError as exc:
        raise OptionError("give\nanother") from exc


@user_errors
def called() -> None:
    deeply()


@user_errors
def numbers_then_error() -> Iterator[int]:
    yield 1
    deeply()


def test_error_is_one_line_without_a_traceback() -> None:
    line = "rocketbed.pipeline.option_table.OptionError: [ROCKETBED_ILLEGAL_OPTION] give another"
    for method in (called, lambda: list(numbers_then_error())):
        lines = error_lines(method)
        assert lines[-1] == line
        assert not any("deeply" in one or "ValueError" in one for one in lines)


def test_system_error_is_named_and_a_defect_keeps_its_traceback(tmp_path: Path) -> None:
    place = tmp_path / "x"
    lines = error_lines(user_errors(lambda: place.read_bytes()))
    assert lines[-1].endswith(f"[ROCKETBED_UNREADABLE] {place}: No such file or directory")
    assert len(error_lines(user_errors(lambda: [][1]))) > 4
