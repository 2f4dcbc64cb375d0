"""A slave that follows a master by hand: what it asks first, what it reports."""

from functools import partial
from itertools import pairwise
from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.replication.slave import Slave
from rocketbed.wire.command import ResponseCode
from tests.model.following_tables import copies_tables, learns_deletions
from tests.model.master import HandMaster, a_record_end, catches_up
from tests.model.stage import AS_SLAVE, SEGMENT, Stage, ends_of

SYNC: Final = {"flushDiskType": "SYNC_FLUSH"}
LEAST: Final = 3 * SEGMENT // 2
"""Bytes of a log that tell one file from the next."""
SLOW_SYNC_S: Final = (0.2, 0.4)
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 0.5
REFUSED: Final = ResponseCode.SERVICE_NOT_AVAILABLE


def run_following(seed: int) -> str:
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
    digest += copies_tables(seed, log)
    digest += _compares_for_long(seed, random)
    digest += _compares_the_last_byte(seed, random)
    digest += _asks_no_port_0(seed)
    digest += learns_deletions(seed, random)
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
        assert master.reports[0][0] == first, f"asked: {master.reports[0]} for {first}"
        catches_up(stage, master)
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
        catches_up(stage, master)
        stage.simulation.kill("slave")
        master.grow(whole[master.end :])
        master.node = None
        seen = len(master.reports)
        master.node = stage.node("slave", start)
        stage.until(lambda: len(master.reports) > seen, "a first report after the kill")
        catches_up(stage, master)
        stage.ready("slave", ResponseCode.SUCCESS, "")
        assert not master.wrong, "reported: " + "; ".join(master.wrong[:3])
        unknown = [str(one["reason"]) for one in stage.told("slave", "replication.start_unknown")]
        is_told = any("does not give its first message" in one for one in unknown)
        assert is_told == (not master.gives_first), f"told: {unknown}"
        low, held = stage.log("slave")
        assert (low, held) == (master.low, master.log), f"log: from {low}: other bytes"
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
        catches_up(stage, master)
        took = stage.simulation.timeline.now / SECOND - began
        assert took > 2, f"load: compared within {took} s"
        seen = len(master.reports)
        master.drop()
        stage.until(lambda: len(master.reports) > seen, "another first report")
        catches_up(stage, master)
        assert not master.wrong, "reported: " + "; ".join(master.wrong[:3])
        assert len(set(master.reports[-1])) > 2, "load: it reported nothing while it compared"
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
        assert master.reports[0][0] == 1, f"asked: {master.reports[0]}"
        stage.until(lambda: slave.state == "refused", "a master with another last byte is refused")
        assert stage.log("slave")[1] == log, "log: changed for a master that is refused"
        return stage.simulation.digest()


def _is_above(known: list[float], count: int) -> bool:
    return len(known) > count


def _is_in(slave: Slave, state: str) -> bool:
    return slave.state == state


def _written(stage: Stage) -> int:
    return stage.nodes["slave"].store.log.written.value


def _asks_again(stage: Stage, master: HandMaster) -> None:
    """From the beginning of its last file: the slave's own end is to be compared first."""
    seen, node = len(master.reports), stage.nodes["slave"]
    stage.until(lambda: len(master.reports) > seen, "another first report")
    end = node.store.log.written.value
    last_file = (end - 1) - (end - 1) % SEGMENT
    want = max(last_file, node.store.min_offset, 1)
    assert master.reports[seen][0] == want, f"asked: {master.reports[seen]} for {want} of {end}"


def _pauses(seed: int, log: bytes) -> str:
    """Soon after a master that was followed, ever later after one that does not answer."""
    with Stage(seed) as stage:
        master = HandMaster(log)
        master.start(stage)
        stage.node("slave", AS_SLAVE)
        catches_up(stage, master)
        for _ in range(3):
            seen = len(master.began)
            stage.simulation.run(0.7)
            master.drop()
            stage.until(partial(_is_above, master.began, seen), "dialling again")
            waited = master.began[-1] - master.dropped_s
            assert FIRST_PAUSE_S <= waited < 0.19, f"pause: {waited} s after it followed"
        stage.simulation.run(0.7)
        master.serves = False
        master.drop()
        seen = len(master.began)
        stage.until(lambda: len(master.began) >= seen + 6, "dialling in vain")
        told = [later - one for one, later in pairwise(master.began[seen : seen + 6])]
        wanted = [2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, *[LAST_PAUSE_S] * 3]
        right = all(0 <= one - want < 0.09 for one, want in zip(told, wanted, strict=True))
        assert right, f"pause: {told} for {wanted}"
        stage.ready("slave", REFUSED, "it follows no master: connecting")
        master.serves = master.is_silent = True
        stage.simulation.run(LAST_PAUSE_S + 0.5)
        stage.ready("slave", REFUSED, "it follows no master: comparing")
        return stage.simulation.digest()


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
        catches_up(stage, master)
        held = stage.log("slave")
        assert held == (SEGMENT, log[SEGMENT:]), f"log: from {held[0]}: other bytes"
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
        assert right, f"tables: {told}: not what its only port answers"
        return stage.simulation.digest()


def _below_all(seed: int, log: bytes) -> str:
    """A slave that may cut, and a master whose log ends where the slave's begins, or just above."""
    low, digest = SEGMENT, ""
    image = DiskImage()
    with Stage(seed) as stage:
        master = HandMaster(log[low:], low=low)
        master.start(stage)
        stage.node("slave", AS_SLAVE)
        catches_up(stage, master)
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
            assert reason in str(slave.refusal or ""), f"refused: {slave.refusal}"
            held = stage.log("slave")
            want = (low, log[low:] if reason else log[low:end])
            assert held == want, f"log: {len(held[1])} bytes for {len(want[1])}"
            digest += stage.simulation.digest()
    return digest
