"""Who may register at a controller, and what becomes of groups whose register is lost, spoilt or
an old one: each request at the edge of what is taken, and just beyond it."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import orjson
import trio

from rocketbed.replication.entry import EPOCH_MAX
from rocketbed.wire.command import Command, RequestCode, ResponseCode
from rocketbed.wire.headers_failover import (
    AlterInSyncRequest,
    BeatRequest,
    HandOverRequest,
    ReplicaRequest,
)
from tests.model.hand_replica import GROUP, HandReplica
from tests.model.register_model import (
    DONE,
    NO,
    REFOUNDED,
    TAKEN,
    UNKNOWN,
)

WAITING_S: Final = 5.0
SPOILT: Final = 10
"""Ways, besides the first."""
"""For so long a replica of a lost group is one that is waited for."""
NOT_ACTIVE: Final = int(ResponseCode.CONTROLLER_NOT_LEADER)
LONG: Final = "x" * 255
Code = RequestCode
Edit = dict[str, Any]
REFUSED: Final[tuple[Edit, ...]] = (
    *({name: text} for name in ("group", "uuid", "address", "haAddress", "op")
      for text in ("", LONG + "x", "a\nb")),
    *({"groupUid": text} for text in (LONG + "x", "a\nb")),
    {"replica": -1}, {"replica": 64}, {"replicas": 0}, {"replicas": 65},
    {"incarnation": 0}, {"end": -1}, {"epoch": -1}, {"promised": -1},
    {"epoch": EPOCH_MAX + 1}, {"promised": EPOCH_MAX + 1}, {"policy": "none"},
    {"policy": "fsync"}, {"replicas": 2}, {"replicas": 1},
)  # fmt: skip
"""Of one that nobody knows yet."""


async def words(hands: list[HandReplica]) -> None:
    """What a replica says of itself, of a group of three that acknowledges in memory."""
    first, second, third, _ = hands
    for hand in (first, second):
        hand.life = 2
        _is(await hand.register(), DONE, "the first two")
    uid = first.uid
    assert uid == f"{first.uuid}.2", f"uid: {uid!r}"
    for refused in REFUSED:
        third.life = 1
        _is(await _asks(third, refused), NO, refused)
    for other in ({"groupUid": "another"}, {"group": "h", "founds": False}):
        _is(await _asks(third, other), UNKNOWN, other)
    for taken in (
        {"uuid": LONG, "replica": 63, "replicas": 64, "op": LONG, "address": LONG,
         "haAddress": LONG, "groupUid": "", "promised": EPOCH_MAX, "epoch": EPOCH_MAX},
        {"group": LONG, "policy": "fsync", "replicas": 2},
        {"group": "founded", "founds": True, "replicas": 1},
        {"founds": False},
    ):  # fmt: skip
        _is(await _asks(third, taken), DONE, taken)
    for code, asked in (
        (Code.RB_ALTER_IN_SYNC, AlterInSyncRequest(
            group="h", leader=0, epoch=1, version=1, inSync="0:1", op="x")),
        (Code.RB_HAND_OVER, HandOverRequest(group="h", leader=0, epoch=1, to=1, op="x")),
        (Code.RB_LEAVE, ReplicaRequest(group="h", replica=0, incarnation=1, op="x")),
        (Code.RB_FORCE_LEADER, ReplicaRequest(group="h", replica=0, op="x")),
        (Code.RB_BEAT, BeatRequest(
            group="h", replica=0, incarnation=1, epoch=0, end=0, version=0)),
    ):  # fmt: skip
        _is(await first.ask(code, asked), UNKNOWN, f"{code.name} of no group")
    for text in ("", "0", "0:1,x", "0:1:2"):
        members = AlterInSyncRequest(
            group=GROUP, leader=0, epoch=0, version=2, inSync=text, op="text"
        )
        _is(await first.ask(Code.RB_ALTER_IN_SYNC, members), TAKEN, f"a set {text!r}")
    third.life = 2
    # Whoever is registered has promised what its group does, whatever it says now.
    _is(await _asks(third, {"replicas": 1}), DONE, "fewer replicas, of one that is known")
    _is(await _asks(third, {}), DONE, "the same life")
    _is(await _asks(third, {"incarnation": 1, "op": "older"}), NO, "an older life")
    body = orjson.loads((await first.ask(Code.RB_GROUPS)).body)
    assert set(body) == {GROUP, LONG, "founded"}, f"groups: {sorted(body)}"
    least = {name: row["entry"]["min_in_sync"] for name, row in body.items()}
    assert least == {GROUP: 2, LONG: 1, "founded": 1}, f"groups: {least}"
    await _older(first, second, hands[3])


async def _older(first: HandReplica, second: HandReplica, stranger: HandReplica) -> None:
    """A replica that knows of a later epoch than the register stops its group, a stranger does
    not."""
    await first.beat()
    await trio.sleep(0.1)
    epoch = first.entry.epoch
    assert epoch == 1, f"elected: epoch {epoch}, once a member was heard"
    stranger.life = 1
    for who in ({"replica": 7}, {"replica": second.number, "uuid": "another"}):
        found = await _asks(stranger, {"groupUid": first.uid, "promised": epoch + 1, **who})
        _is(found, TAKEN, f"a stranger that knows of a later epoch: {who}")
        _is(await first.beat(), DONE, "a beat after a stranger")
    _is(await _asks(second, {"promised": epoch, "epoch": epoch}), DONE, "one of this epoch")
    _is(await _asks(second, {"groupUid": "", "promised": epoch + 1}), DONE, "one of no group")
    for field in ("promised", "epoch"):
        _is(await _asks(second, {field: epoch + 1}), TAKEN, f"a later {field}")
        _is(await first.beat(), TAKEN, "a beat of a group that stands still")
    _is(await _asks(first, {}), TAKEN, "a group that stands still")
    body = orjson.loads((await first.ask(Code.RB_GROUPS)).body)
    assert "older" in body[GROUP]["damaged"] or "as it was" in body[GROUP]["damaged"], (
        f"groups: {body[GROUP]}"
    )


async def forced(hands: list[HandReplica]) -> None:
    """All that lacked nothing are gone: an operator may have one of the others lead, that is there
    and that nobody has more than; and the epoch says that it was so."""
    member, shorter, longer, late = hands
    for hand in hands[:3]:
        hand.life = 1
        await hand.listen()
        _is(await hand.register(), DONE, "the first three")
    shorter.end, longer.epoch, longer.end = 500, 1, 90
    for hand in hands[:3]:
        _is(await hand.beat(), DONE, "a beat")
    _is(await _force(shorter, 2), NO, "another one while a member is there")
    member.deafen()
    member.hang_up()
    late.life = 1
    for _ in range(8):
        await trio.sleep(0.1)
        for hand in (shorter, longer):
            await hand.beat()
    _is(await late.register(), DONE, "one that says nothing more")
    for number in (0, 1, 3, 9):
        _is(await _force(shorter, number), NO, f"force {number}")
    for hand in (shorter, longer):
        await hand.beat()
    longer.life = 2
    _is(await longer.register(), DONE, "another life")
    _is(await _force(shorter, 2), NO, "a life that nobody has heard")
    _is(await longer.beat(), DONE, "its first beat")
    _is(await _force(shorter, 2), DONE, "the longest log")
    entry = shorter.entry
    told = (entry.leader, dict(entry.in_sync), dict(entry.eligible), entry.unclean)
    assert told == (2, {2: 2}, {}, (entry.epoch,)), f"forced: {entry}"
    _is(await longer.beat(), DONE, "the leader's beat")


async def trouble(
    hands: list[HandReplica], silent: Callable[[bool, bool], None], takes: Callable[[str], None]
) -> None:
    """The store of the register says nothing for a time, is another controller's, is another one:
    nothing is made twice, and nobody is told what is not so."""
    first, second = hands[:2]
    for hand in (first, second):
        hand.life = 1
        _is(await hand.register(), DONE, "the first two")
    _is(await first.beat(), DONE, "a beat, by which it leads")
    await trio.sleep(0.1)
    version = first.entry.version
    nobody = AlterInSyncRequest(
        group=GROUP, leader=0, epoch=1, version=version, inSync="0:1", op=""
    )
    _is(await first.ask(Code.RB_ALTER_IN_SYNC, nobody), NO, "a request without an id")
    both = replace(nobody, inSync="0:1,1:1", op="both")
    silent(True, False)
    _is(await first.ask(Code.RB_ALTER_IN_SYNC, both), TAKEN, "a change while the store is silent")
    silent(False, False)
    await first.beat()
    # It is made, and the answer is lost: whoever asked is told what it became, and it is made once.
    silent(False, True)
    both = replace(both, epoch=first.entry.epoch, version=first.entry.version)
    _is(await first.ask(Code.RB_ALTER_IN_SYNC, both), DONE, "a change whose answer was lost")
    told = (first.entry.op, dict(first.entry.in_sync), first.entry.version)
    assert told == ("both", {0: 1, 1: 1}, both.version + 1), f"answer: {told}"
    for text in ("other", ""):
        takes(text)
        await trio.sleep(0.5)
        want = NOT_ACTIVE if text else DONE
        for code in (Code.RB_GROUPS, Code.RB_REGISTER_REPLICA):
            found = await (first.ask(code) if code == Code.RB_GROUPS else first.register())
            _is(found, want, f"{code.name}, the claim is {text or 'its own'}")
    takes("file")
    await trio.sleep(0.5)
    for found in (await first.register(), await first.beat(), await _force(first, 1)):
        _is(found, TAKEN, "the register is another one")
        assert "register" in (found.remark or ""), f"answer: {found.remark}"


async def lost(hands: list[HandReplica], random: Random, empties: Callable[[], Any]) -> None:
    """The register is lost: nobody leads before an operator says who, and that has to be one that
    nobody has more than. `empties` makes another controller begin with nothing."""
    leads = random.random() < 0.5
    for hand in hands[:3]:
        hand.life = 3
        hand.epoch = hand.promised = random.randint(4, 6)
        hand.end = random.randint(1, 3) * 100
    await empties()
    newest = max(hand.epoch for hand in hands[:3])
    leader = next(hand for hand in hands if hand.epoch == newest) if leads else None
    for hand in hands[:3]:
        found = await _asks(hand, {"groupUid": "gone.1", **_leads(hand is leader)})
        _is(found, UNKNOWN, "a group that is lost")
    fresh = hands[3]
    fresh.life = 1
    _is(await _asks(fresh, {}), UNKNOWN, "an empty one, while others wait for their group")
    body = orjson.loads((await fresh.ask(Code.RB_GROUPS)).body)
    assert "[0, 1, 2]" in body[GROUP]["damaged"], f"groups: {body}"
    _is(await _force(fresh, 3), UNKNOWN, "one that waits for nothing")
    best = max(hands[:3], key=lambda one: (one.epoch, one.end))
    want = leader or best
    for hand in hands[:3]:
        is_good = hand is want if leader else (hand.epoch, hand.end) == (best.epoch, best.end)
        if not is_good:
            _is(await _force(fresh, hand.number), NO, f"{hand.number} for {want.number}")
    found = await _force(fresh, want.number)
    _is(found, DONE, f"{want.number} of {[(one.epoch, one.end) for one in hands]}")
    entry = fresh.entry
    least = REFOUNDED + newest
    assert entry.epoch >= least and entry.unclean == (entry.epoch,), f"refounded: {entry}"
    assert (entry.leader, entry.uid) == (want.number, "gone.1"), f"refounded: {entry}"
    for hand in hands[:3]:
        hand.uid = "gone.1"
        _is(await _asks(hand, {}), DONE, "the group goes on")


async def spoilt(hands: list[HandReplica], spoils: Callable[[], str]) -> None:
    """What the register has of one group cannot be read, in one way after the other: that one
    stands still, and no other."""
    first, second, third, fourth = hands
    for hand in (first, second):
        hand.life = 1
        _is(await hand.register(), DONE, "the first two")
    third.life = fourth.life = 1
    _is(await _asks(third, {"group": "other", "replicas": 1}), DONE, "another group")
    _is(await first.beat(), DONE, "a beat, by which it leads")
    await trio.sleep(0.1)
    spoils()
    second.life = 2
    _is(await second.register(), TAKEN, "a group that cannot be read")
    _is(await _asks(fourth, {"group": "other", "replicas": 1}), DONE, "the other group")
    await trio.sleep(1.5)  # silence longer than a lease: its leader would be fenced
    body = orjson.loads((await first.ask(Code.RB_GROUPS)).body)
    assert "cannot be read" in body[GROUP].get("damaged", ""), f"groups: {body[GROUP]}"
    assert "entry" in body["other"], f"groups: {body['other']}"
    _is(await first.beat(), TAKEN, "a beat of a group that cannot be read")
    for _ in range(SPOILT):
        what = spoils()
        _is(await second.register(), TAKEN, f"a group that cannot be read: {what}")


async def forgotten(hands: list[HandReplica], empties: Callable[[], Any]) -> None:
    """Whoever waited for a lost group and is gone since hinders nobody who begins one."""
    waits, fresh = hands[0], hands[3]
    waits.life, waits.promised, fresh.life = 1, 3, 1
    await empties()
    _is(await waits.register(), UNKNOWN, "a group that is lost")
    await trio.sleep(WAITING_S - 1)
    _is(await fresh.register(), UNKNOWN, "an empty one, within the time")
    await trio.sleep(1.5)
    _is(await fresh.register(), DONE, "an empty one, later")


def _leads(is_leader: bool) -> Edit:
    return {"leads": True} if is_leader else {}


async def _asks(hand: HandReplica, edit: Edit) -> Command:
    def change(values: dict[str, Any]) -> None:
        values.update(edit)

    return await hand.register(change)


async def _force(hand: HandReplica, number: int) -> Command:
    asked = ReplicaRequest(group=GROUP, replica=number, op=f"force {number}")
    return await hand.ask(Code.RB_FORCE_LEADER, asked)


def _is(found: Command, want: int, what: object) -> None:
    assert found.code == want, f"answer: {what}: {found.code} for {want}: {found.remark}"
