"""A slave whose clients pull from it, while it follows its master and when that is gone: what it
gives, and to whom it sends them."""

from itertools import product
from random import Random
from typing import Any, Final

from rocketbed.wire.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from rocketbed.wire.command import Command, ResponseCode
from rocketbed.wire.message import decode_messages
from tests.model.broker import Peer
from tests.model.following_tables import tables_of
from tests.model.master import HandMaster
from tests.model.stage import AS_SLAVE, Stage

Answer = ResponseCode
GROUP: Final = "readers"
OWN_ID: Final = 5
"""Broker that the group reads from."""
FAR: Final = 1000
COMMIT: Final = 1
"""The flag of a pull that says where its group stands."""


def run_slave_reads(seed: int) -> str:
    """With each setting of what a slave may do."""
    digest, random = "", Random(f"slave-reads/{seed}")
    with Stage(seed) as stage:
        stage.node("source", {})
        stage.fill("source", 20, random)
        _, log = stage.log("source")
    for reads, checks in product((False, True), repeat=2):
        with Stage(f"slave-reads/{seed}/{reads}/{checks}") as stage:
            _case(stage, log, reads=reads, checks=checks)
            digest += stage.simulation.digest()
    return digest


def _case(stage: Stage, log: bytes, *, reads: bool, checks: bool) -> None:
    master = HandMaster(log)
    own = SubscriptionGroupConfig(group_name=GROUP, broker_id=OWN_ID)
    groups = SubscriptionGroupTable(subscription_group_table={GROUP: own})
    master.bodies = {**tables_of(1), 201: groups.encode()}
    master.start(stage)
    settings = {**AS_SLAVE, "slaveReadEnable": reads, "offsetCheckInSlave": checks}
    node = stage.node("slave", settings)
    slave = node.replication.slave
    assert slave is not None
    stage.until(lambda: slave.state == "following", "it follows")
    stage.until(lambda: node.store.dispatched.value == len(log), "all is in its queues")
    stage.until(lambda: node.tables.groups.get(GROUP) is not None, "it has the tables")
    for is_alive in (True, False):
        if not is_alive:
            master.serves = False
            master.drop()
            stage.until(lambda: slave.state != "following", "it follows nobody")
        end = node.store.queue_max("T", 0)
        for offset, code in (
            (0, Answer.SUCCESS), (end, Answer.PULL_NOT_FOUND),
            (end + FAR, Answer.PULL_OFFSET_MOVED),
        ):  # fmt: skip
            suggested = OWN_ID if reads else 0
            if is_alive:
                suggested = 0
                code = code if code == Answer.SUCCESS else Answer.PULL_RETRY_IMMEDIATELY
            elif code == Answer.PULL_OFFSET_MOVED and not checks:
                code, suggested = Answer.PULL_RETRY_IMMEDIATELY, OWN_ID
            what = f"{offset} of {end}, alive: {is_alive}, {reads}, {checks}"
            _pulls(stage, offset, code, suggested, what)
    told = node.tables.offsets.body().offset_table.get(f"T@{GROUP}")
    assert told is None, f"position: {told}, which only a master keeps"


def _pulls(stage: Stage, offset: int, code: int, suggested: int, what: str) -> None:
    async def ask(peer: Peer) -> Command:
        where: dict[str, Any] = {"consumerGroup": GROUP, "sysFlag": 4 | COMMIT, "commitOffset": 1}
        return await peer.pull(code, queueOffset=offset, **where)

    found = stage.ask("slave", ask)
    told = found.fields["suggestWhichBrokerId"]
    assert told == str(suggested), f"sent to: {told} for {suggested}: {what}"
    after = int(found.fields["nextBeginOffset"])
    if code == Answer.SUCCESS:
        count = len(decode_messages(found.body))
        assert after == offset + count > offset, f"pull: on to {after}: {what}"
