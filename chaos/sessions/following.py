"""A slave that follows a master by hand: what it asks first, what it reports, what it copies."""

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from rocketbed.chaos.sessions.master import HandMaster, a_record_end
from rocketbed.chaos.sessions.model import ensure
from rocketbed.chaos.sessions.stage import AS_SLAVE, SEGMENT, Stage, ends_of
from rocketbed.chaos.sim.clock import SECOND
from rocketbed.chaos.sim.disk_image import DiskImage
from rocketbed.node.store.store import MessageStore
from rocketbed.replication.slave import Slave
from rocketbed.wire.bodies import (
    ConsumerOffsetTable,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rocketbed.wire.bodies_admin import RequestMode, RequestModeTable
from rocketbed.wire.command import RequestCode, ResponseCode
from rocketbed.wire.headers_admin import TopicRequest

SYNC: Final = {"flushDiskType": "SYNC_FLUSH"}
LEAST: Final = 3 * SEGMENT // 2
"""Bytes of a log that tell one file from the next."""
SLOW_SYNC_S: Final = (0.2, 0.4)
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 0.5
REFUSED: Final = ResponseCode.SERVICE_NOT_AVAILABLE


def run_following(seed: int) -> str:
    """Raises `Wrong`."""
    random, digest = Random(f"following/{seed}"), ""
    with Stage(seed) as stage:
        stage.node("source", {})
        stage.fill("source", 1, random)
        _, one = stage.log("source")
        log = one
        while len(log) <= LEAST:
            stage.fill("source", 30, random)
            _, log = stage.log("source")
        stage.fill("source", 30, random)
        _, whole = stage.log("source")
    for settings in ({}, SYNC):
        silent = HandMaster(log, gives_first=False)
        silent.bodies = {33: b""}  # success, and no message
        for master, first in (
            (silent, 0),
            (HandMaster(log), 1),
            (HandMaster(one), 1),
            (HandMaster(log, gives_first=False), 0),
            (HandMaster(b""), 0),
            (HandMaster(log[SEGMENT:], low=SEGMENT), SEGMENT),
        ):
            digest += _begins(seed, settings, master, first, whole, random)
    digest += _pauses(seed, log)
    digest += _copies(seed, log)
    digest += _compares_for_long(seed, random)
    digest += _compares_the_last_byte(seed, random)
    digest += _asks_no_port_0(seed)
    digest += _learns_deletions(seed, random)
    digest += _begins_again(seed, log)
    return digest + _below_all(seed, log)


def _begins(
    seed: int,
    settings: dict[str, str],
    master: HandMaster,
    first: int,
    whole: bytes,
    random: Random,
) -> str:
    """An empty slave, its master's log as it grows, a lost connection inside a record, a kill."""
    with Stage(seed) as stage:
        master.start(stage)
        stage.simulation.host("slave").sync_seconds = SLOW_SYNC_S
        start = {**AS_SLAVE, **settings}
        master.node = stage.node("slave", start)
        stage.until(lambda: bool(master.reports), "a first report")
        ensure(master.reports[0][0] == first, "asked", f"{master.reports[0]} for {first}")
        _catches_up(stage, master)
        end = master.end
        inside = a_record_end(whole, random.randrange(end, len(whole) - 1)) - 3
        master.grow(whole[end:inside])
        stage.until(lambda: _written(stage) == inside, f"the log up to {inside}")
        log = master.node.store.log
        stage.until(lambda: log.flushed.value == inside, "a flush of half a record")
        stage.simulation.run(0.6)
        master.drop()
        _asks_again(stage, master)
        master.grow(whole[inside : inside + 2000])
        _catches_up(stage, master)
        stage.simulation.kill("slave")
        master.grow(whole[master.end :])
        master.node = None
        seen = len(master.reports)
        master.node = stage.node("slave", start)
        stage.until(lambda: len(master.reports) > seen, "a first report after the kill")
        _catches_up(stage, master)
        stage.ready("slave", ResponseCode.SUCCESS, "")
        ensure(not master.wrong, "reported", "; ".join(master.wrong[:3]))
        unknown = [str(one["reason"]) for one in stage.told("slave", "replication.start_unknown")]
        is_told = any("does not give its first message" in one for one in unknown)
        ensure(is_told == (not master.gives_first), "told", f"{unknown}")
        low, held = stage.log("slave")
        ensure((low, held) == (master.low, master.log), "log", f"from {low}: other bytes")
        return stage.simulation.digest()


def _compares_for_long(seed: int, random: Random) -> str:
    """What was a master's log, while it is compared: for several heartbeats, of which none may
    acknowledge anything, since it is not on record whom it follows; and once more when it is, where
    they acknowledge what was compared."""
    with Stage(seed) as stage:
        stage.node("slave", {})
        while stage.nodes["slave"].store.max_offset % SEGMENT < SEGMENT // 2:
            stage.fill("slave", 5, random)
        _, log = stage.log("slave")
        image = stage.stop("slave")
    with Stage(seed) as stage:
        master = HandMaster(log)
        master.pause_s = 1.3
        master.start(stage)
        master.node = stage.node("slave", AS_SLAVE, image=image)
        stage.until(lambda: bool(master.reports), "a first report")
        began = stage.simulation.timeline.now / SECOND
        _catches_up(stage, master)
        took = stage.simulation.timeline.now / SECOND - began
        ensure(took > 2, "load", f"compared within {took} s")
        seen = len(master.reports)
        master.drop()
        stage.until(lambda: len(master.reports) > seen, "another first report")
        _catches_up(stage, master)
        ensure(not master.wrong, "reported", "; ".join(master.wrong[:3]))
        ensure(len(set(master.reports[-1])) > 2, "load", "it reported nothing while it compared")
        return stage.simulation.digest()


def _compares_the_last_byte(seed: int, random: Random) -> str:
    """Another byte at the log's end, which is the first one of a frame."""
    with Stage(seed) as stage:
        stage.node("slave", {})
        stage.fill("slave", 5, random)
        _, log = stage.log("slave")
        image = stage.stop("slave")
    with Stage(seed) as stage:
        master = HandMaster(log[:-1] + bytes((log[-1] ^ 1,)) + bytes(100))
        master.piece = len(log) - 2
        master.start(stage)
        slave = stage.node("slave", AS_SLAVE, image=image).replication.slave
        assert slave is not None
        stage.until(lambda: bool(master.reports), "a first report")
        ensure(master.reports[0][0] == 1, "asked", f"{master.reports[0]}")
        stage.until(lambda: slave.state == "refused", "a master with another last byte is refused")
        ensure(stage.log("slave")[1] == log, "log", "changed for a master that is refused")
        return stage.simulation.digest()


def _is_above(known: list[float], count: int) -> bool:
    return len(known) > count


def _is_in(slave: Slave, state: str) -> bool:
    return slave.state == state


def _written(stage: Stage) -> int:
    return stage.nodes["slave"].store.log.written.value


def _catches_up(stage: Stage, master: HandMaster) -> None:
    """All that the master has is written and, at last, reported; no more ever."""
    stage.until(
        lambda: bool(master.reports) and master.reports[-1][-1] == master.end,
        f"a report of {master.end}",
    )


def _asks_again(stage: Stage, master: HandMaster) -> None:
    """From the beginning of its last file: the slave's own end is to be compared first."""
    seen, node = len(master.reports), stage.nodes["slave"]
    stage.until(lambda: len(master.reports) > seen, "another first report")
    end = node.store.log.written.value
    last_file = (end - 1) - (end - 1) % SEGMENT
    want = max(last_file, node.store.min_offset, 1)
    ensure(master.reports[seen][0] == want, "asked", f"{master.reports[seen]} for {want} of {end}")


def _pauses(seed: int, log: bytes) -> str:
    """Soon after a master that was followed, ever later after one that does not answer."""
    with Stage(seed) as stage:
        master = HandMaster(log)
        master.start(stage)
        stage.node("slave", AS_SLAVE)
        _catches_up(stage, master)
        for _ in range(3):
            seen = len(master.began)
            stage.simulation.run(0.7)
            master.drop()
            stage.until(partial(_is_above, master.began, seen), "dialling again")
            waited = master.began[-1] - master.dropped_s
            ensure(FIRST_PAUSE_S <= waited < 0.19, "pause", f"{waited} s after it followed")
        stage.simulation.run(0.7)
        master.serves = False
        master.drop()
        seen = len(master.began)
        stage.until(lambda: len(master.began) >= seen + 6, "dialling in vain")
        told = [later - one for one, later in pairwise(master.began[seen : seen + 6])]
        wanted = [2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, *[LAST_PAUSE_S] * 3]
        right = all(0 <= one - want < 0.09 for one, want in zip(told, wanted, strict=True))
        ensure(right, "pause", f"{told} for {wanted}")
        stage.ready("slave", REFUSED, "it follows no master: connecting")
        master.serves = master.is_silent = True
        stage.simulation.run(LAST_PAUSE_S + 0.5)
        stage.ready("slave", REFUSED, "it follows no master: comparing")
        return stage.simulation.digest()


def tables_of(number: int, deleted: dict[str, int] | None = None) -> dict[int, bytes]:
    """What a master's tables are in their version `number`; topics that it deleted, and where."""
    version = DataVersion(counter=number)
    topics = TopicConfigTable(
        data_version=version,
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=2 + number)
            for name in ("T", f"only-{number}")
        },
        rb_deleted=deleted,
    )
    groups = SubscriptionGroupTable(
        data_version=version,
        subscription_group_table={f"g-{number}": SubscriptionGroupConfig(group_name=f"g-{number}")},
    )
    return {
        21: topics.encode(),
        43: ConsumerOffsetTable(offset_table=_positions(number)).encode(),
        45: b'{"offsetTable":{1:%d}}' % number,
        201: groups.encode(),
        402: RequestModeTable(message_request_mode_map=_modes(number)).encode(),
    }


def _positions(number: int) -> dict[str, dict[int, int]]:
    return {"T@g": {0: number, 1: 7}, f"T@g-{number}": {1: 5}}


def _modes(number: int) -> dict[str, dict[str, RequestMode]]:
    mode = RequestMode(topic="T", consumer_group=f"g-{number}", pop_share_queue_num=number)
    return {"T": {f"g-{number}": mode}}


def _copies(seed: int, log: bytes) -> str:
    """Tables are the master's as long as it is followed, and not while it is refused."""
    with Stage(seed) as stage:
        writes: list[str] = []
        stage.simulation.on_disk.append(
            lambda host, kind, path, offset, size: writes.append(path) if kind == "write" else None
        )
        master = HandMaster(log)
        master.bodies = tables_of(1)
        master.start(stage)
        node = stage.node("slave", AS_SLAVE)
        for number in (1, 2):
            master.bodies = tables_of(number)
            stage.simulation.run(1.5)
            before = len(writes)
            _has_tables(node, number)
            stage.simulation.run(2)
            again = [path for path in writes[before:] if "delayOffset" in path]
            ensure(not again, "tables", f"what was copied is written again: {again}")
        sync = node.replication.metadata
        assert sync is not None
        ensure(not sync.last_error, "tables", sync.last_error)
        ensure(sync.rounds >= 8, "tables", f"{sync.rounds} copies in 7 s, one each 0.5 s")
        master.log = b"\0" * 7 + master.log[7:-20] + bytes(20)
        master.drop()
        slave = node.replication.slave
        assert slave is not None
        stage.until(lambda: slave.state == "refused", "a master with other bytes is refused")
        stage.simulation.run(1)
        before = master.asked.count(21)
        master.bodies = tables_of(3)
        stage.simulation.run(3)
        ensure(master.asked.count(21) == before, "tables", "copied from a master that is refused")
        _has_tables(node, 2)
        stage.ready("slave", REFUSED, "refused")
        ensure(stage.log("slave")[1] == log, "log", "changed for a master that is refused")
        return stage.simulation.digest()


def _has_tables(node: Any, number: int) -> None:
    topics = node.tables.topics.body().topic_config_table
    queues = {name: topic.read_queue_nums for name, topic in topics.items()}
    want = {"T": 2 + number, f"only-{number}": 2 + number}
    ensure(queues == want, "tables", f"topics {queues} for {want}")
    offsets = node.tables.offsets.body().offset_table
    ensure(offsets == _positions(number), "tables", f"positions {offsets}")
    groups = set(node.tables.groups.body().subscription_group_table)
    ensure(groups == {f"g-{number}"}, "tables", f"groups {groups}")
    modes = node.tables.modes.body().message_request_mode_map
    ensure(modes == _modes(number), "tables", f"modes {modes}")


def _learns_deletions(seed: int, random: Random) -> str:
    """A topic that the master deleted and made again has what was sent since, and only that, as
    soon as this log goes so far; after a kill too."""
    with Stage(seed) as stage:
        node = stage.node("source", {})
        stage.fill("source", 30, random)
        fields = TopicRequest(topic="T").encode()
        stage.ask("source", lambda peer: peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields, 0))
        (deleted_at,) = node.store.removal.deletions().values()
        stage.fill("source", 30, random)
        _, log = stage.log("source")
        stage.until(lambda: node.store.dispatched.value == len(log), "queues up to the end")
        want = stage.simulation.process("source").call(_ranges, node.store)
        ensure(bool(want), "load", "nothing was sent since")
    with Stage(seed) as stage:
        master = HandMaster(log[: ends_of(log)[3]])
        master.bodies = tables_of(1, {"T": deleted_at})
        master.start(stage)
        for end in (master.end, len(log), len(log)):
            node = stage.node("slave", AS_SLAVE)
            master.grow(log[master.end : end])
            _catches_up(stage, master)
            stage.simulation.run(1.5)
            told = node.store.removal.deletions()
            ensure(told == {"T": min(deleted_at, end)}, "deleted", f"{told}, the log to {end}")
            held = stage.simulation.process("slave").call(_ranges, node.store)
            right = [] if end < len(log) else want
            ensure(held == right, "deleted", f"{held[:5]}... for {right[:5]}...")
            stage.simulation.kill("slave")
        digest = stage.simulation.digest()
    with Stage(seed) as stage:
        # It has all of the log in its queues, when it hears of the deletion.
        master = HandMaster(log)
        master.bodies = tables_of(1)
        master.start(stage)
        for deleted in (None, {"T": deleted_at}, {"T": deleted_at}):
            node = stage.node("slave", AS_SLAVE)
            _catches_up(stage, master)
            stage.simulation.run(1.5)
            master.bodies = tables_of(2, {"T": deleted_at})
            stage.simulation.run(1.5)
            told = node.store.removal.deletions()
            ensure(told == {"T": deleted_at}, "deleted", f"{told}, heard late ({deleted})")
            held = stage.simulation.process("slave").call(_ranges, node.store)
            ensure(held == want, "deleted", f"late: {held[:5]}... for {want[:5]}...")
            odd = sum(count for _, count, _ in node.store.unqueued().values())
            ensure(not odd, "deleted", f"{odd} records stand in no queue")
            stage.simulation.kill("slave")
        return digest + stage.simulation.digest()


def _ranges(store: MessageStore) -> list[tuple[int, int]]:
    """Where the records are that the queues of T give."""
    found: list[tuple[int, int]] = []
    for queue in (0, 1):
        offset = store.queue_min("T", queue)
        while (some := store.get_messages("T", queue, offset, 32)).ranges:
            found += some.ranges
            offset = some.next_offset
    return found


def _begins_again(seed: int, log: bytes) -> str:
    """The first message was taken over, and the master has deleted it before it sent the rest: a
    slave that may cut begins where the master's log does."""
    with Stage(seed) as stage:
        master = HandMaster(log)
        master.serves = False
        master.start(stage)
        node = stage.node("slave", {**AS_SLAVE, "rbDiverged": "cut"})
        first = int.from_bytes(log[:4], "big")
        stage.until(lambda: node.store.log.written.value == first, "a first message")
        master.low, master.log, master.serves = SEGMENT, log[SEGMENT:], True
        _catches_up(stage, master)
        held = stage.log("slave")
        ensure(held == (SEGMENT, log[SEGMENT:]), "log", f"from {held[0]}: other bytes")
        return stage.simulation.digest()


def _asks_no_port_0(seed: int) -> str:
    """Two below a master's port is asked too, if there is such a port."""
    with Stage(seed) as stage:
        master = HandMaster(b"", port=2)
        master.start(stage)
        stage.node("slave", {**AS_SLAVE, "haMasterAddress": "master:3"})
        stage.simulation.run(3)
        told = [str(one["reason"]) for one in stage.told("slave", "replication.metadata_failed")]
        right = len(told) == 1 and "does not hand out its topics" in told[0]
        ensure(right, "tables", f"{told}: not what its only port answers")
        return stage.simulation.digest()


def _below_all(seed: int, log: bytes) -> str:
    """A slave that may cut, and a master whose log ends where the slave's begins, or just above."""
    low, digest = SEGMENT, ""
    image = DiskImage()
    with Stage(seed) as stage:
        master = HandMaster(log[low:], low=low)
        master.start(stage)
        stage.node("slave", AS_SLAVE)
        _catches_up(stage, master)
        image = stage.stop("slave")
    above = next(end for end in ends_of(log) if end > low)
    for end, reason in ((low, f"the master's log ends at {low}"), (above, "")):
        with Stage(seed) as stage:
            master = HandMaster(log[:end])
            master.start(stage)
            node = stage.node("slave", {**AS_SLAVE, "rbDiverged": "cut:2"}, image=image)
            slave = node.replication.slave
            assert slave is not None
            wanted = "refused" if reason else "following"
            stage.until(partial(_is_in, slave, wanted), wanted)
            ensure(reason in str(slave.refusal or ""), "refused", f"{slave.refusal}")
            held = stage.log("slave")
            want = (low, log[low:] if reason else log[low:end])
            ensure(held == want, "log", f"{len(held[1])} bytes for {len(want[1])}")
            digest += stage.simulation.digest()
    return digest
