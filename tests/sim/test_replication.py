"""Classic replication in simulation: catch-up, death and return, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.faults import SimFault
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.replication.confirm import AckBoard
from rocketbed.replication.errors import LogDiverged, MasterBehind, SegmentMismatch
from rocketbed.replication.master import Master
from rocketbed.replication.slave import Slave
from rocketbed.replication.watermark import Watermark
from rocketbed.wire.ha import TransferReader, encode_report, encode_transfer
from rocketbed.world.api import World
from tests.support.segmented_log import SegmentedLog
from tests.support.sim.links import cut, heal
from tests.support.wire_sessions import recorded, recorded_log

SEGMENT = 100_000
PORT = 10912


def text(first: int, end: int) -> bytes:
    """Bytes [first, end) of an endless text whose every part is different."""
    low = first // 8
    whole = b"".join(b"%08d" % number for number in range(low, end // 8 + 1))
    return whole[first - low * 8 : end - low * 8]


class Replica:
    """Facts about a process that the process itself fills in."""

    def __init__(self) -> None:
        self.log: Any = None
        self.master: Any = None
        self.slave: Any = None
        self.confirmed = Watermark()


async def run_master(
    world: World, replica: Replica, prepare: Callable[[SegmentedLog], None], **options: Any
) -> None:
    replica.log = SegmentedLog(world, "/log", options.pop("segment_size", SEGMENT))
    prepare(replica.log)
    replica.confirmed = Watermark()
    board = AckBoard(options.pop("in_sync_replicas", 2), replica.confirmed)
    replica.master = Master(world, replica.log, board, port=PORT, **options)
    await replica.master.run()


async def run_slave(
    world: World, replica: Replica, prepare: Callable[[SegmentedLog], None], **options: Any
) -> None:
    replica.log = SegmentedLog(world, "/log", options.pop("segment_size", SEGMENT))
    prepare(replica.log)
    flushes = options.pop("flushes", False)
    replica.slave = Slave(world, replica.log, report_flushed=flushes)
    replica.slave.set_master(("master", PORT))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replica.slave.run)
        while flushes:
            await replica.log.written.wait_above(replica.log.flushed.value)
            await replica.log.flush()


def nothing(_log: SegmentedLog) -> None:
    return None


def holding(end: int, first: int = 0, last_bytes: bytes = b"") -> Callable[[SegmentedLog], None]:
    """A log with [first, end) of the text; its last bytes are `last_bytes`."""

    def prepare(log: SegmentedLog) -> None:
        if log.written.value:
            return
        content = text(first, end - len(last_bytes)) + last_bytes
        at = first
        while content:
            room = SEGMENT - at % SEGMENT
            log.append_raw(at, content[:room])
            at += len(content[:room])
            content = content[room:]

    return prepare


class Group:
    """A master and its slaves in one simulation."""

    def __init__(self, seed: int = 1) -> None:
        self.simulation = Simulation(seed)
        self.replicas: dict[str, Replica] = {}

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()

    def start(
        self, name: str, prepare: Callable[[SegmentedLog], None] = nothing, **options: Any
    ) -> Replica:
        main = run_master if name == "master" else run_slave
        replica = self.replicas[name] = Replica()

        async def start(world: World) -> None:
            await main(world, replica, prepare, **options)

        self.simulation.start(name, start)
        return replica

    def append(self, data: bytes) -> None:
        """Append at the master, as its producers would."""
        self.simulation.process("master").call(self.replicas["master"].log.append, data)

    def run_until_equal(self, *names: str, seconds: float = 60) -> None:
        master = self.replicas["master"]

        def equal() -> bool:
            return master.log is not None and all(
                replica.log is not None and replica.log.written.value == master.log.written.value
                for replica in (self.replicas[name] for name in names)
            )

        self.simulation.run(seconds, until=equal)
        for name in names:
            replica = self.replicas[name]
            assert replica.log.contents() == master.log.contents()[-len(replica.log.contents()) :]

    def events(self, event: str, node: str = "") -> list[dict[str, object]]:
        return [
            line.fields
            for line in self.simulation.log
            if line.event == event and node in ("", line.node)
        ]


def test_empty_slave_copies_the_whole_log_then_follows() -> None:
    with Group() as group:
        master = group.start("master", holding(550_000))
        slave = group.start("slave")
        group.run_until_equal("slave")
        assert slave.log.min_offset == 0
        for size in (1, 5000, 130_000):
            end = master.log.written.value
            group.append(text(end, end + size))
            group.run_until_equal("slave", seconds=1)
        group.simulation.run(1)
        assert slave.slave.state == "following"
        assert master.confirmed.value == master.log.written.value
        info = master.master.runtime_info()
        assert (info.in_sync_slave_nums, info.ha_connection_info[0].diff) == (1, 0)
        assert slave.slave.runtime_info().is_activated


def test_empty_slave_begins_at_the_first_kept_byte() -> None:
    with Group() as group:
        group.start("master", holding(550_000, first=200_000))
        slave = group.start("slave")
        group.run_until_equal("slave")
        assert slave.log.min_offset == 200_000


def test_upstream_mode_copies_only_the_last_file() -> None:
    with Group() as group:
        group.start("master", holding(550_000), fresh="last_file")
        slave = group.start("slave")
        group.run_until_equal("slave")
        assert slave.log.min_offset == 500_000


def test_an_empty_master_waits_with_its_slave() -> None:
    with Group() as group:
        group.start("master")
        slave = group.start("slave")
        group.simulation.run(30)
        assert slave.slave.state == "following"
        assert len(group.events("replication.slave_joined")) == 1
        group.append(text(0, 100))
        group.run_until_equal("slave", seconds=1)


def test_returning_master_is_found_at_once_and_logged_twice() -> None:
    with Group() as group:
        group.start("master", holding(1000))
        group.start("slave")
        group.run_until_equal("slave")
        group.simulation.kill("master")
        group.simulation.run(60)
        master = group.start("master")
        group.simulation.run(0.2)
        group.append(text(1000, 2000))
        group.run_until_equal("slave", seconds=1)
        group.simulation.run(0.2)
        assert master.confirmed.value == 2000
        warnings = [
            line
            for line in group.simulation.log
            if line.event == "replication.master_lost" and line.level != "debug"
        ]
        assert len(warnings) == 2, "that it closed, and that it cannot be reached"


@pytest.mark.parametrize("end", [1, 7, 99_999, 100_000, 100_001, 250_000])
def test_slave_resumes_from_any_offset(end: int) -> None:
    with Group() as group:
        group.start("master", holding(300_000))
        slave = group.start("slave", holding(end))
        group.run_until_equal("slave")
        assert slave.slave.received == 300_000 - end


def test_acknowledgements_never_pass_what_a_slave_has() -> None:
    with Group(seed=3) as group:
        master = group.start("master", in_sync_replicas=3)
        slaves = [group.start("slave-1"), group.start("slave-2", flushes=True)]
        group.simulation.run(1)
        for _ in range(50):
            end = master.log.written.value
            group.append(text(end, end + 3001))
            group.simulation.run(0.0007)
            assert master.confirmed.value <= slaves[0].log.written.value
            assert master.confirmed.value <= slaves[1].log.flushed.value
        group.simulation.run(1)
        assert master.confirmed.value == master.log.written.value


def test_sync_flush_slave_acknowledges_only_synced_bytes() -> None:
    with Group() as group:
        master = group.start("master")
        slave = group.start("slave", flushes=True)
        group.simulation.run(1)
        disk = group.simulation.process("slave").disk
        disk.faults.append(SimFault(operation="sync", effect="delay", seconds=10))
        group.append(text(0, 5000))
        group.simulation.run(3)
        assert slave.log.written.value == 5000
        assert master.confirmed.value == 0
        group.simulation.run(8)
        assert master.confirmed.value == 5000


@pytest.mark.parametrize("seed", range(10))
def test_killed_masters_and_slaves_come_back(seed: int) -> None:
    with Group(seed) as group:
        master = group.start("master")
        group.start("slave-1")
        group.start("slave-2")
        group.simulation.run(0.5)
        for victim in ("master", "slave-1", "master", "slave-2"):
            for _ in range(10):
                end = group.replicas["master"].log.written.value
                group.append(text(end, end + 17_003))
                group.simulation.run(0.0003)
            group.simulation.kill(victim)
            group.simulation.run(0.05 * seed)
            master = group.start("master") if victim == "master" else master
            if victim != "master":
                group.start(victim)
            group.simulation.run(0.2)
        group.run_until_equal("slave-1", "slave-2", seconds=20)
        assert master.log.contents() == text(0, master.log.written.value)
        assert group.events("replication.refused") == []


def test_slave_behind_a_cut_gives_up_and_follows_again() -> None:
    with Group() as group:
        group.start("master", holding(1000))
        slave = group.start("slave")
        group.run_until_equal("slave")
        cut(group.simulation.network, "master", "slave")
        group.append(text(1000, 2000))
        group.simulation.run(25)
        assert group.events("replication.slave_lost")[0]["reason"] == "no report for 20 s"
        assert slave.slave.state == "connecting"
        heal(group.simulation.network)
        group.run_until_equal("slave", seconds=15)


def test_paused_master_is_given_up_after_twenty_seconds() -> None:
    with Group() as group:
        group.start("master", holding(1000))
        group.start("slave")
        group.run_until_equal("slave")
        group.simulation.pause("master")
        group.simulation.run(26)
        assert group.events("replication.master_lost")[0]["reason"] == "it was silent for 20 s"
        group.simulation.resume("master")
        group.append(text(1000, 2000))
        group.run_until_equal("slave", seconds=20)


def test_a_slave_with_other_bytes_refuses_its_master() -> None:
    with Group() as group:
        group.start("master", holding(300_000))
        slave = group.start("slave", holding(250_000, last_bytes=b"what the master lost"))
        group.simulation.run(12)
        assert slave.slave.state == "refused"
        assert isinstance(slave.slave.refusal, LogDiverged)
        assert slave.slave.refusal.offset == 250_000 - len(b"what the master lost")
        assert slave.log.written.value == 250_000
        assert group.replicas["master"].confirmed.value < 250_000
        assert len(group.events("replication.refused")) >= 2


def test_longer_slave_refuses_and_is_refused() -> None:
    with Group() as group:
        master = group.start("master", holding(1000))
        slave = group.start("slave", holding(200_000))
        group.simulation.run(12)
        assert slave.log.written.value == 200_000
        assert master.confirmed.value == 0
        assert "lost" in str(group.events("replication.slave_refused", "master")[0]["reason"])
        assert "shorter" in str(group.events("replication.not_served", "slave")[0]["reason"])


def test_master_ending_inside_the_compared_piece_is_refused() -> None:
    with Group() as group:
        master = group.start("master", holding(1000))
        slave = group.start("slave", holding(1200))
        group.simulation.run(15)
        assert isinstance(slave.slave.refusal, MasterBehind)
        assert "goes on to 1200" in str(slave.slave.refusal)
        assert master.confirmed.value <= 1000
        group.append(b"!" * 1000)
        group.simulation.run(15)
        assert isinstance(slave.slave.refusal, LogDiverged)
        assert slave.log.contents() == text(0, 1200)


def test_shorter_returning_master_is_not_followed_blindly() -> None:
    with Group() as group:
        group.start("master")
        slave = group.start("slave")
        group.simulation.run(0.5)
        group.append(text(0, 5000))
        group.run_until_equal("slave")
        group.simulation.kill("master")
        group.start("master", lambda log: log.cut(3000))
        group.simulation.run(0.1)
        group.append(b"x" * 10_000)
        group.simulation.run(20)
        assert slave.slave.state == "refused"
        assert slave.log.contents() == text(0, 5000)
        assert group.replicas["master"].confirmed.value <= 3000


def test_diverged_slave_acknowledges_nothing() -> None:
    with Group() as group:
        master = group.start("master", holding(300_000))
        slave = group.start("slave", holding(290_000, last_bytes=b"#" * 200_000))
        group.simulation.run(20)
        assert isinstance(slave.slave.refusal, LogDiverged)
        assert master.confirmed.value == 0


def test_slave_that_needs_expired_data_is_told() -> None:
    with Group() as group:
        group.start("master", holding(500_000, first=300_000))
        slave = group.start("slave", holding(150_000))
        group.simulation.run(10)
        refused = group.events("replication.slave_refused", "master")
        assert "begins at 300000" in str(refused[0]["reason"])
        assert slave.log.written.value == 150_000
        assert group.events("replication.not_served", "slave")


def test_segments_of_another_size_are_refused() -> None:
    with Group() as group:
        group.start("master", holding(300_000))
        slave = group.start("slave", segment_size=40_000)
        group.simulation.run(5)
        assert isinstance(slave.slave.refusal, SegmentMismatch)
        assert slave.log.contents() == text(0, slave.log.written.value)


def test_slave_follows_its_configured_master() -> None:
    with Group() as group:
        group.start("master", holding(10_000))
        slave = group.start("slave")
        group.run_until_equal("slave")
        process = group.simulation.process("slave")
        process.call(slave.slave.set_master, None)
        group.append(text(10_000, 20_000))
        group.simulation.run(10)
        assert (slave.slave.state, slave.log.written.value) == ("idle", 10_000)
        process.call(slave.slave.set_master, ("master", PORT))
        group.run_until_equal("slave", seconds=1)


def test_full_disk_stops_no_other_slave_and_recovers() -> None:
    with Group() as group:
        group.start("master")
        slave = group.start("slave")
        second_slave = group.start("slave-2")
        group.simulation.run(0.5)
        disk = group.simulation.process("slave").disk
        disk.quota = 20_000
        group.append(text(0, 90_000))
        group.run_until_equal("slave-2")
        group.simulation.run(3)
        assert slave.log.written.value < 90_000
        assert group.events("replication.append_failed", "slave")
        disk.quota = None
        group.run_until_equal("slave", "slave-2", seconds=20)
        assert second_slave.slave.state == "following"


async def dial_and_say(world: World, data: bytes) -> bytes:
    """Return the master's answer to some bytes, until it closes or 30 s have passed."""
    stream = await world.network.connect("master", PORT)
    await stream.send_all(data)
    answer = b""
    with trio.move_on_after(30):
        try:
            while part := await stream.receive_some():
                answer += part
        except trio.BrokenResourceError:
            return answer
    return answer


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"RBHA....", "speaks the native protocol"),
        (bytes.fromhex("00000001 0000 0000 0000000000000002"), "speaks the autoswitch protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "holds what this master lost"),
        (encode_report(-5), "no slave speaks here"),
        (b"abc", "said nothing"),
    ],
)
def test_strangers_are_closed_and_acknowledge_nothing(data: bytes, reason: str) -> None:
    with Group() as group:
        master = group.start("master", holding(1000))
        group.simulation.run(0.1)
        answer = group.simulation.run_process(
            group.simulation.start("stranger", dial_and_say, data)
        )
        assert answer == b""
        assert master.confirmed.value == 0
        refusals = group.events("replication.peer_refused") + group.events(
            "replication.slave_refused"
        )
        assert reason in str(refusals[0]["reason"])


async def acknowledge_and_read_nothing(world: World, claimed: int) -> None:
    """A peer that asks for the beginning, reads nothing, and then claims to have it all."""
    stream = await world.network.connect("master", PORT)
    await stream.send_all(encode_report(0))
    await trio.sleep(1)
    await stream.send_all(encode_report(claimed))
    await trio.sleep(5)


def test_unsent_offset_is_not_acknowledged() -> None:
    with Group() as group:
        master = group.start("master", holding(8_000_000), in_sync_replicas=2)
        group.simulation.run(0.1)
        peer = group.simulation.start("stranger", acknowledge_and_read_nothing, 7_999_999)
        group.simulation.run_process(peer)
        assert master.confirmed.value == 0
        refusals = group.events("replication.slave_refused")
        assert "it acknowledges 7999999, but only what lies below" in str(refusals[0]["reason"])


async def redial_without_a_goodbye(world: World, first: int, release: trio.Event) -> None:
    """A slave whose first connection hangs: its data is not read any more, and it is not closed."""
    old = await world.network.connect("master", PORT)
    await old.send_all(encode_report(0))
    await read_up_to(old, first)
    await old.send_all(encode_report(first))
    new = await world.network.connect("master", PORT)
    await new.send_all(encode_report(first) * 2)
    at = first
    while not release.is_set():
        with trio.move_on_after(0.1):
            at = await read_up_to(new, at + 1, at)
            await new.send_all(encode_report(at))


async def read_up_to(stream: Any, offset: int, at: int = 0) -> int:
    reader = TransferReader()
    while at < offset:
        for frame in reader.feed(await stream.receive_some()):
            at = max(at, frame.offset + len(frame.data))
    return at


def test_redialling_slave_counts_once_beside_a_hanging_connection() -> None:
    with Group() as group:
        master = group.start("master", holding(1000), in_sync_replicas=3)
        group.simulation.run(0.1)
        group.simulation.start("stranger", redial_without_a_goodbye, 1000, trio.Event())
        group.simulation.run(1)
        assert len(master.master.slaves) == 2
        group.append(text(1000, 2000))
        group.simulation.run(1)
        assert [link.acknowledged for link in master.master.board.links] == [1000, 2000]
        assert master.confirmed.value == 0
        group.start("slave")
        group.run_until_equal("slave", seconds=1)
        group.simulation.run(0.1)
        assert master.confirmed.value == 2000


async def run_two_slaves(world: World, replicas: list[Replica]) -> None:
    async with trio.open_nursery() as nursery:
        for number, replica in enumerate(replicas):
            replica.log = SegmentedLog(world, f"/log-{number}", SEGMENT)
            replica.slave = Slave(world, replica.log)
            replica.slave.set_master(("master", PORT))
            nursery.start_soon(replica.slave.run)


def test_two_slaves_of_one_host_are_two_replicas() -> None:
    with Group() as group:
        master = group.start("master", holding(1000), in_sync_replicas=3)
        pair = [Replica(), Replica()]
        group.simulation.start("host", run_two_slaves, pair)
        group.simulation.run(1)
        assert {slave.peer[0] for slave in master.master.slaves.values()} == {
            group.simulation.network.addresses["host"]
        }
        for end in (2000, 300_000):
            group.append(text(master.log.written.value, end))
            group.simulation.run(0.2)
            assert master.confirmed.value == end


def test_first_frames_respect_the_readers_limits() -> None:
    with Group() as group:
        group.start("master", holding(450_000))
        group.simulation.run(0.1)
        answer = group.simulation.run_process(
            group.simulation.start("stranger", dial_and_say, encode_report(0))
        )
    frames = TransferReader().feed(answer)
    assert b"".join(frame.data for frame in frames) == text(0, 450_000)
    position = 0
    for frame in frames:
        assert frame.offset == position
        assert len(frame.data) <= 32 * 1024
        if frame.data:
            assert frame.offset // SEGMENT == (frame.offset + len(frame.data) - 1) // SEGMENT
        position += len(frame.data)
    assert [frame.data for frame in frames[-3:]] == [b"", b"", b""]


def test_the_recorded_stream_replays_to_the_recorded_log() -> None:
    stream = recorded("ha-classic-c00-s2c.bin")
    files = recorded_log("ha-classic-s.commitlog.tar.gz")
    segment_size = len(files[min(files)])
    end = sum(len(frame.data) for frame in TransferReader().feed(stream))
    reports: list[int] = []

    async def recorded_master(world: World) -> None:
        listener = await world.network.listen("", PORT)
        connection = await listener.accept()
        reports.append(int.from_bytes(await connection.receive_some(8), "big"))
        await connection.send_all(stream)
        while part := await connection.receive_some(8):
            reports.append(int.from_bytes(part, "big"))
            if reports[-1] == end:
                return

    with Group() as group:
        master = group.simulation.start("master", recorded_master)
        slave = group.start("slave", segment_size=segment_size)
        group.simulation.run_process(master)
        assert slave.log.written.value == end
        whole = b"".join(files[start] for start in sorted(files))
        assert slave.log.contents() == whole[:end]
        assert whole[end:].strip(b"\0") == b""
    assert reports[0] == 0
    assert reports == sorted(reports)


def test_a_frame_out_of_place_ends_the_connection() -> None:
    async def confused_master(world: World) -> None:
        listener = await world.network.listen("", PORT)
        connection = await listener.accept()
        await connection.send_all(encode_transfer(0, b"abc") + encode_transfer(4, b"e"))
        await connection.receive_some()
        await trio.sleep(1)

    with Group() as group:
        group.simulation.start("master", confused_master)
        slave = group.start("slave")
        group.simulation.run(0.5)
        assert slave.log.contents() == b"abc"
        assert "sent offset 4, 3" in str(group.events("replication.offset_mismatch")[0]["reason"])
