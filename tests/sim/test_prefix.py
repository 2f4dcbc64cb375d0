"""Slaves that may cut their log: where two logs part is found, with our master and with RocketMQ's.

Records are 100 bytes each and say who wrote them, so the true common prefix is known.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.replication.api import WholeRecord
from rocketbed.replication.confirm import AckBoard
from rocketbed.replication.errors import CutRefused, NothingInCommon
from rocketbed.replication.fresh import LogBounds, LogStart
from rocketbed.replication.master import Master
from rocketbed.replication.slave import Slave
from rocketbed.wire.ha import ReportReader, encode_transfer
from rocketbed.world.api import Stream, World
from tests.support.segmented_log import SegmentedLog

SEGMENT = 100_000
PORT = 10912
RECORD = 100


def records(writer: str, first: int, end: int) -> bytes:
    """Records number `first` to `end` of a writer: a head of their own, then a body all share."""
    return b"".join(
        f"{number:08d}{writer:>8}".encode().ljust(RECORD, b".") for number in range(first, end)
    )


async def take_reports(
    stream: Stream,
    reports: list[int],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Note what a slave reports, from the first report on."""
    reader = ReportReader()
    while data := await stream.receive_some(4096):
        is_first = not reports
        reports += reader.feed(data)
        if is_first and reports:
            task_status.started()


class Cutter:
    """Cuts a `SegmentedLog`; remembers what it was asked."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log
        self.cut_at, self.promotion = -1, 0
        self.cuts: list[int] = []
        self.refusal = ""

    async def last_record(self, offset: int) -> WholeRecord | None:
        end = offset - offset % RECORD
        return WholeRecord(end - RECORD, end) if end - RECORD >= self._log.min_offset else None

    async def cut(self, offset: int) -> tuple[str, int]:
        if self.refusal:
            raise CutRefused(self.refusal)
        size = self._log.written.value - offset
        self.cuts.append(offset)
        self._log.cut(offset)
        return "kept", size


class Memory:
    """Position that the slave's log followed last."""

    def __init__(self, followed: str, note_s: float) -> None:
        self.followed: str | None = followed
        self._note_s = note_s

    async def note(self, master: str) -> None:
        await trio.sleep(self._note_s)
        self.followed = master


class Pair:
    """A master and a slave that have `common` records alike, and then their own."""

    def __init__(
        self,
        common: int,
        ours: int,
        theirs: int,
        *,
        seed: int = 0,
        first: int = 0,
        like_rocketmq: bool = False,
        tells: bool = True,
        is_slave: bool = False,
        followed: str = "",
        note_s: float = 0,
        pause_s: float = 0,
        find_start: Callable[["Pair"], Awaitable[LogStart]] | None = None,
    ) -> None:
        """`first`: the first record that the slave has; `tells`: whether bounds are known;
        `followed`: the master that the slave's log followed last; `note_s`: how long it takes to
        put another one on record; `pause_s`: of a master like RocketMQ's behind each transfer."""
        self._pause_s = pause_s
        self.memory = Memory(followed, note_s)
        self.simulation = Simulation(seed)
        self._common, self._ours, self._theirs, self._first = common, ours, theirs, first
        self._tells = tells
        self._find_start = find_start
        self.is_slave = is_slave
        serve = self._serve_like_rocketmq if like_rocketmq else self._serve
        self.reports: list[list[int]] = []
        """What the slave reported, by connection."""
        self.simulation.start("master", serve)
        self.simulation.run(0.1)
        self.simulation.start("slave", self._follow)
        self.run_until(lambda: hasattr(self, "slave"))

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def _make_master_log(self, world: World) -> None:
        self.master_log = SegmentedLog(world, "/log", SEGMENT)
        self.master_log.append(records("both", 0, self._common))
        self.master_log.append(records("them", self._common, self._common + self._theirs))

    async def _serve(self, world: World) -> None:
        self._make_master_log(world)
        self.board = AckBoard(2)
        await Master(world, self.master_log, self.board, port=PORT).run()

    async def _serve_like_rocketmq(self, world: World) -> None:
        """Serves any first report; heartbeats for ever where there is nothing."""
        self._make_master_log(world)
        listener = await world.network.listen("", PORT)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_one, await listener.accept())

    async def _serve_one(self, stream: Stream) -> None:
        reports: list[int] = []
        self.reports.append(reports)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(take_reports, stream, reports)
                position = reports[0]
                while True:
                    room = SEGMENT - position % SEGMENT
                    data = self.master_log.read(position, min(room, 32_768))
                    await stream.send_all(encode_transfer(position, data))
                    position += len(data)
                    await trio.sleep(self._pause_s if data else 5)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(stream)

    async def _follow(self, world: World) -> None:
        self.log = SegmentedLog(world, "/log", SEGMENT)
        parts = records("both", self._first, self._common) + records(
            "us", max(self._common, self._first), self._common + self._ours
        )
        at = self._first * RECORD
        while parts:
            room = SEGMENT - at % SEGMENT
            self.log.append_raw(at, parts[:room])
            at, parts = at + len(parts[:room]), parts[room:]
        self.cutter = Cutter(self.log)
        self.slave = Slave(world, self.log, cutter=self.cutter, memory=self.memory)
        if self._tells:
            self.slave.find_bounds = self._bounds
        if self._find_start is not None:
            self.slave.find_start = partial(self._find_start, self)
        self.slave.set_master(("master", PORT))
        await self.slave.run()

    async def _bounds(self) -> LogBounds:
        log = self.master_log
        return LogBounds(log.min_offset, log.written.value, self.is_slave)

    def run_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        self.simulation.run(seconds, until=condition)

    def is_equal(self) -> bool:
        return (
            self.log.written.value == self.master_log.written.value
            and self.slave.state == "following"
        )

    def check(self) -> None:
        """Followed, cut once and exactly at the common prefix, if it had to be."""
        self.run_until(self.is_equal)
        assert self.log.contents() == self.master_log.contents()[self.log.min_offset :]
        assert self.cutter.cuts == ([self._common * RECORD] if self._ours else [])

    def events(self, event: str) -> list[dict[str, object]]:
        return [line.fields for line in self.simulation.log if line.event == event]


KINDS = [(False, True), (False, False), (True, True), (True, False)]
IDS = ["ours-tells", "ours-silent", "rocketmq-tells", "rocketmq-silent"]


@pytest.mark.parametrize(("like_rocketmq", "tells"), KINDS, ids=IDS)
@pytest.mark.parametrize(
    ("common", "ours", "theirs"),
    [
        (500, 0, 30),
        (500, 10, 0),
        (500, 10, 30),
        (500, 30, 10),
        (500, 3000, 10),
        (500, 3000, 5000),
        (3000, 5000, 1),
        (3000, 1, 9000),
        (1000, 500, 500),
        (1, 3000, 3000),
        (1, 1, 0),
    ],
)
def test_the_log_is_cut_to_the_common_records(
    common: int, ours: int, theirs: int, like_rocketmq: bool, tells: bool
) -> None:
    with Pair(common, ours, theirs, like_rocketmq=like_rocketmq, tells=tells) as pair:
        pair.check()
        if like_rocketmq:
            *searched, followed = pair.reports
            assert all(offset <= common * RECORD for reports in searched for offset in reports[1:])
            assert followed == sorted(followed)


@pytest.mark.parametrize("seed", range(40))
def test_any_two_logs(seed: int) -> None:
    random = Random(seed)
    common, ours, theirs = (int(10 ** random.uniform(0, 3.7)) for _ in range(3))
    kind = random.choice(KINDS)
    with Pair(common, ours, theirs, seed=seed, like_rocketmq=kind[0], tells=kind[1]) as pair:
        pair.check()


def test_slave_that_knows_the_masters_end_is_done_at_once() -> None:
    with Pair(500, 2000, 0) as pair:
        pair.run_until(pair.is_equal, seconds=1)
        assert pair.is_equal()


@pytest.mark.parametrize(("theirs", "tells"), [(0, True), (2000, True), (2000, False)])
def test_master_back_with_another_log_is_not_copied(theirs: int, tells: bool) -> None:
    """It was restored from an old backup: the slave that followed it may have the only copy."""
    with Pair(0, 3000, theirs, tells=tells, followed=f"master:{PORT}") as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        refusal = str(pair.slave.refusal)
        assert "followed master:" in refusal
        assert "heal that master's log from it" in refusal
        assert "empty this slave" not in refusal
        assert pair.cutter.cuts == []


@pytest.mark.parametrize("tells", [True, False])
def test_logs_with_nothing_in_common_are_refused(tells: bool) -> None:
    with Pair(0, 3000, 2000, tells=tells) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        assert isinstance(pair.slave.refusal, NothingInCommon)
        assert "empty this slave's store" in str(pair.slave.refusal)
        pair.simulation.run(30)
        assert pair.cutter.cuts == []
        assert pair.log.contents() == records("us", 0, 3000)
        assert all(link.acknowledged == 0 for link in pair.board.links)


def test_common_end_may_be_below_the_slaves_beginning() -> None:
    with Pair(900, 3000, 2000, first=1000) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        assert isinstance(pair.slave.refusal, NothingInCommon)
        assert pair.cutter.cuts == []
    with Pair(900, 3000, 10, first=1000) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        assert "the master's log ends at 91000" in str(pair.slave.refusal)


def test_common_end_may_have_expired_on_the_master() -> None:
    with Pair(500, 3000, 5000) as pair:
        pair.simulation.process("master").call(pair.master_log.expire, 2 * SEGMENT)
        pair.run_until(lambda: pair.slave.state == "refused")
        assert isinstance(pair.slave.refusal, NothingInCommon)
        assert "from 200000" in str(pair.slave.refusal)


def test_master_beginning_at_the_slaves_end_is_not_followed() -> None:
    """Nothing of the two can be compared, whatever an earlier search has found."""
    with Pair(2000, 0, 1000) as pair:
        pair.simulation.process("master").call(pair.master_log.expire, 2 * SEGMENT)
        pair.run_until(lambda: pair.slave.state == "refused")
        assert "the master's log begins at 200000, this slave's ends at 200000" in str(
            pair.slave.refusal
        )
        search = pair.slave.search
        assert search is not None
        search.bounds = None
        for _ in range(2):
            search.not_served(SEGMENT)
        search.bounds = LogBounds(2 * SEGMENT, 3 * SEGMENT)
        with pytest.raises(NothingInCommon):
            search.first_report(2 * SEGMENT - 100)


def test_followed_log_is_recorded_before_any_acknowledgement() -> None:
    """However long a slow disk takes for that: a heartbeat said it all after 5 s."""
    with Pair(500, 0, 30, note_s=8) as pair:
        pair.simulation.run(7.5)
        assert pair.is_equal()
        assert pair.memory.followed == ""
        assert [link.acknowledged for link in pair.board.links] == [0]
        pair.simulation.run(1)
        assert pair.memory.followed == f"master:{PORT}"
        assert [link.acknowledged for link in pair.board.links] == [530 * RECORD]


def test_record_slower_than_the_masters_patience_is_written() -> None:
    """It was begun again with each connection, and never done."""
    with Pair(500, 0, 30, note_s=31) as pair:
        pair.run_until(lambda: pair.memory.followed == f"master:{PORT}", seconds=35)
        pair.simulation.run(1)
        assert [link.acknowledged for link in pair.board.links] == [530 * RECORD]


@pytest.mark.parametrize(("followed", "is_acknowledged"), [("", False), (f"master:{PORT}", True)])
def test_long_comparison_acknowledges_only_to_the_followed_master(
    followed: str, *, is_acknowledged: bool
) -> None:
    """Behind an earlier connection that broke before it was on record: the heartbeat said it."""
    with Pair(3000, 100, 0, like_rocketmq=True, tells=False, pause_s=6, followed=followed) as pair:
        pair.run_until(lambda: pair.slave.state in ("following", "refused"), seconds=600)
        assert any(len(reports) > 1 for reports in pair.reports) == is_acknowledged


def test_a_slave_is_not_cut_for_another_slave() -> None:
    with Pair(500, 100, 200, is_slave=True) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        assert isinstance(pair.slave.refusal, CutRefused)
        pair.is_slave = False
        pair.check()


def test_slave_listed_as_master_is_not_followed() -> None:
    """Seed 853416: a former master was restarted as a slave, and fed another slave its old end
    before it was cut itself; that one then had what no promotion allowed it to give up."""
    with Pair(500, 100, 200, is_slave=True) as pair:
        pair.slave.only_masters = True
        calls: list[None] = []
        pair.slave.on_mistaken = lambda: calls.append(None)
        pair.run_until(lambda: len(calls) > 1)
        assert "it is a slave itself" in pair.slave.last_loss
        assert pair.slave.received == 0
        assert pair.log.contents() == records("both", 0, 500) + records("us", 500, 600)
        pair.is_slave = False
        pair.check()


def test_new_slave_restarts_when_its_first_message_expired() -> None:
    """Seed 853691: retention took it between the question for it and the first report."""

    async def find_start(pair: Pair) -> LogStart:
        log = pair.master_log
        start = LogStart(log.min_offset, b"" if log.min_offset else log.read(0, RECORD))
        log.expire(2 * SEGMENT)
        return start

    with Pair(9000, 0, 0, first=9000, find_start=find_start) as pair:
        pair.run_until(pair.is_equal)
        assert pair.log.contents() == pair.master_log.contents()
        assert pair.log.min_offset == 2 * SEGMENT
        assert pair.cutter.cuts == [0]
        assert len(pair.events("replication.begun_again")) == 1


def test_new_slave_that_cannot_restart_keeps_trying() -> None:
    async def find_start(pair: Pair) -> LogStart:
        pair.cutter.refusal = "no room"
        data = pair.master_log.read(0, RECORD)
        pair.master_log.expire(2 * SEGMENT)
        return LogStart(0, data)

    with Pair(9000, 0, 0, first=9000, find_start=find_start) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        assert str(pair.slave.refusal) == "no room"
        pair.cutter.refusal = ""
        pair.run_until(pair.is_equal)


def test_a_cut_that_is_refused_is_tried_again() -> None:
    with Pair(500, 100, 200) as pair:
        pair.cutter.refusal = "no room"
        pair.run_until(lambda: pair.slave.state == "refused")
        assert str(pair.slave.refusal) == "no room"
        assert pair.log.contents() == records("both", 0, 500) + records("us", 500, 600)
        pair.cutter.refusal = ""
        pair.check()


def test_new_master_is_compared_from_the_end_again() -> None:
    with Pair(0, 3000, 2000) as pair:
        pair.run_until(lambda: pair.slave.state == "refused")
        process = pair.simulation.process("slave")
        process.call(pair.slave.set_master, None)
        assert pair.slave.search is not None
        assert pair.slave.search.first_report(299_000) < 200_000
        pair.slave.search.bounds = None
        pair.slave.search.reset()
        assert pair.slave.search.first_report(299_000) == 299_000


def test_nothing_is_reported_before_it_was_compared() -> None:
    """A master that is slow to answer hears the question, and nothing that it could count."""
    reports: list[int] = []

    async def slow_master(world: World, log: bytes) -> None:
        listener = await world.network.listen("", PORT)
        stream = await listener.accept()

        async with trio.open_nursery() as nursery:
            await nursery.start(take_reports, stream, reports)
            await trio.sleep(12)
            first = reports[0]
            await stream.send_all(encode_transfer(first, log[first : first + 1000]))
            await trio.sleep(12)
            await stream.send_all(encode_transfer(first + 1000, log[first + 1000 :]))
            await trio.sleep(3)
            nursery.cancel_scope.cancel()

    log = records("both", 0, 500)

    async def slave(world: World) -> None:
        own = SegmentedLog(world, "/log", SEGMENT)
        own.append(log)
        follower = Slave(world, own)
        follower.set_master(("master", PORT))
        await follower.run()

    with Simulation(1) as simulation:
        master = simulation.start("master", partial(slow_master, log=log))
        simulation.run(0.1)
        simulation.start("slave", slave)
        simulation.run_process(master, 60)
    first = reports[0]
    assert reports == [first, first + 1000, first + 1000, len(log)]
