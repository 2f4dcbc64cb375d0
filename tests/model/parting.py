"""A master and a slave whose logs part: everywhere, nowhere, far below, behind one of the ends."""

from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.wire.command import ResponseCode
from tests.model.master import HandMaster
from tests.model.stage import AS_SLAVE, SEGMENT, Stage, ends_of

CASES: Final = (
    (30, 0, 0),
    (30, 0, 5),
    (30, 5, 0),
    (30, 60, 0),
    (30, 1, 1),
    (30, 3, 60),
    (30, 60, 3),
    (30, 80, 80),
    (1, 20, 20),
    (0, 20, 20),
    (0, 1, 60),
    (60, 300, 100),
    (60, 100, 300),
)
"""Messages that both have, that only the slave has, that only the master has; with the last two
one comparison does not reach down to what is common."""
PROMOTED: Final = {"rbDiverged": "cut:7"}
REFUSED_S: Final = 6.0
Disk = tuple[DiskImage, bytes]
"""With the log that it has."""


def run_parting(seed: int) -> str:
    """Each, of a slave that may not be cut, may be, or may in one place only."""
    random, digest = Random(f"parting/{seed}"), ""
    for common, ours, theirs in CASES:
        both, _ = _filled(seed, None, common, random)
        master = _filled(f"{seed}/m", both, theirs, random)
        slave = _filled(f"{seed}/s", both, ours, random)
        for diverged in ("refuse", "cut:7", "0", "common"):
            with Stage(f"{seed}/{common}/{ours}/{theirs}") as stage:
                _part(stage, master, slave, diverged, random)
                digest += stage.simulation.digest()
    for before, after in (("cut", "cut"), ("cut:7", "cut:7"), ("cut:7", "cut:8")):
        digest += _came_back(seed, before, after, random)
    return digest + _expired_meanwhile(seed, random)


def _filled(seed: int | str, image: DiskImage | None, count: int, random: Random) -> Disk:
    with Stage(seed) as stage:
        stage.node("master", {}, image=image)
        stage.fill("master", count, random)
        _, log = stage.log("master")
        return stage.stop("master"), log


def _part(stage: Stage, has_master: Disk, has_slave: Disk, diverged: str, random: Random) -> None:
    (image, theirs), (slave_image, ours) = has_master, has_slave
    stage.node("master", {}, image=image)
    common = max([0, *(end for end in ends_of(ours) if ours[:end] == theirs[:end])])
    text = str(common) if diverged == "common" else diverged
    node = stage.node("slave", {**AS_SLAVE, "rbDiverged": text}, image=slave_image)
    slave = node.replication.slave
    assert slave is not None
    end, case = len(ours), f"{common} of {len(ours)} and {len(theirs)}, rbDiverged={text}"
    may_cut = text not in ("refuse", "0") and common > 0
    if common < end and not may_cut:
        stage.simulation.run(REFUSED_S)
        assert slave.state != "following", f"refused: {case}: it follows"
        assert stage.log("slave") == (0, ours), f"log: {case}: changed for another log"
        assert not stage.told("slave", "replication.cut"), f"cut: {case}: it is cut"
        stage.ready("slave", ResponseCode.SERVICE_NOT_AVAILABLE, "it follows no master")
        acks = [link.acknowledged for link in stage.nodes["master"].replication.master.slaves]
        assert not any(acks), f"acknowledged: {case}: {acks}"
        return
    stage.until(lambda: slave.state == "following", f"{case}: it follows")
    stage.fill("master", 3, random)
    log = stage.nodes["slave"].store.log
    goal = stage.nodes["master"].store.max_offset
    stage.until(lambda: log.written.value == goal, f"{case}: the log up to {goal}")
    assert stage.log("slave") == stage.log("master"), f"log: {case}: other bytes"
    stage.ready("slave", ResponseCode.SUCCESS, "")
    told = [(one["start"], one["end"], one["bytes"]) for one in
            stage.told("slave", "replication.cut")]  # fmt: skip
    want = [(common, end, end - common)] if common < end else []
    assert told == want, f"cut: {case}: {told} for {want}"
    disk = stage.simulation.process("slave").disk
    for one in stage.told("slave", "replication.cut"):
        kept = disk.contents(str(one["kept"]))
        assert ours[common:] in kept, f"cut: {case}: {len(kept)} bytes kept"


def _came_back(seed: int, before: str, after: str, random: Random) -> str:
    """The master that it followed has lost its end and gone on: what the slave has may be all that
    is left, so it is not cut, unless there was a promotion since."""
    both, _ = _filled(seed, None, 20, random)
    (_, ours), (_, theirs) = [_filled(f"{seed}/{one}", both, 10, random) for one in "sm"]
    with Stage(seed) as stage:
        HandMaster(ours).start(stage)
        node = stage.node("slave", {**AS_SLAVE, "rbDiverged": before})
        stage.until(lambda: node.store.log.flushed.value == len(ours), "a copy")
        stage.until(lambda: bool(node.store.followed), "whom it follows is on record")
        image = stage.stop("slave")
    with Stage(seed) as stage:
        HandMaster(theirs).start(stage)
        slave = stage.node(
            "slave", {**AS_SLAVE, "rbDiverged": after}, image=image
        ).replication.slave
        assert slave is not None
        case = f"{before}, {after} later"
        if after == before:
            stage.until(lambda: slave.state == "refused", f"{case}: it is refused")
            stage.simulation.run(REFUSED_S)
            assert stage.log("slave") == (0, ours), f"log: {case}: changed"
            why = str(stage.told("slave", "replication.refused")[-1]["reason"])
            assert "this slave followed master:" in why, f"refused: {case}: {why}"
        else:
            stage.until(
                lambda: stage.log("slave") == (0, theirs), f"{case}: it is cut, and follows"
            )
        return stage.simulation.digest()


def _expired_meanwhile(seed: int, random: Random) -> str:
    """The master's log begins where the slave's ends, once its files have expired: nothing is
    common, whatever was compared before."""
    with Stage(seed) as stage:
        stage.node("source", {})
        stage.fill("source", 90, random)
        _, log = stage.log("source")
    ends = [end for end in ends_of(log) if end % SEGMENT == 0]
    own_end = ends[1]
    with Stage(seed) as stage:
        master = HandMaster(log[:own_end])
        master.start(stage)
        node = stage.node("slave", AS_SLAVE)
        stage.until(lambda: node.store.log.flushed.value == own_end, "a copy of two files")
        image = stage.stop("slave")
    with Stage(seed) as stage:
        master = HandMaster(log)
        master.serves = False
        master.start(stage)
        node = stage.node("slave", {**AS_SLAVE, **PROMOTED}, image=image)
        slave = node.replication.slave
        assert slave is not None
        stage.until(lambda: len(master.began) >= 4, "a search for what is common")
        master.low, master.log, master.serves = own_end, log[own_end:], True
        stage.simulation.run(REFUSED_S)
        assert slave.state != "following", "refused: it follows a log that begins at its end"
        assert stage.log("slave") == (0, log[:own_end]), "log: changed where nothing is common"
        return stage.simulation.digest()
