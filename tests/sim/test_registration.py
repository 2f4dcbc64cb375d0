"""Requests of replicas to a controller at the edge of what it accepts.

Drawn requests of a running group are in `tests/model/register.py`.
"""

from dataclasses import replace
from typing import Any, Final

import trio

from rocketbed.replication.entry import EPOCH_MAX
from rocketbed.wire.command import RequestCode
from rocketbed.wire.headers_failover import (
    AlterInSyncRequest,
    BeatRequest,
    HandOverRequest,
    ReplicaRequest,
)
from tests.support.peers.replica import GROUP
from tests.support.sim.scripted_group import (
    BUSY,
    DONE,
    REFUSED,
    UNKNOWN,
    ScriptedGroup,
    check_code,
    force,
    found_group,
    scenario,
)

LONG: Final = "x" * 255
Code = RequestCode
INVALID: Final[list[dict[str, Any]]] = [
    *({name: text} for name in ("group", "uuid", "address", "haAddress", "op")
      for text in ("", LONG + "x", "a\nb")),
    *({"groupUid": text} for text in (LONG + "x", "a\nb")),
    {"replica": -1}, {"replica": 64}, {"replicas": 0}, {"replicas": 65},
    {"incarnation": 0}, {"end": -1}, {"epoch": -1}, {"promised": -1},
    {"epoch": EPOCH_MAX + 1}, {"promised": EPOCH_MAX + 1}, {"policy": "none"},
    {"policy": "fsync"}, {"replicas": 2}, {"replicas": 1},
]  # fmt: skip


@scenario
async def test_invalid_registrations_are_refused(group: ScriptedGroup) -> None:
    first, second, third, _ = group.replicas
    await found_group([first, second], incarnation=2)
    assert first.group_uid == f"{first.uuid}.2"
    third.incarnation = 1
    for changes in INVALID:
        check_code(await third.register(**changes), REFUSED, changes)
    for unknown in ({"groupUid": "another"}, {"group": "h", "founds": False}):
        check_code(await third.register(**unknown), UNKNOWN, unknown)
    for text in ("", "0", "0:1,x", "0:1:2"):
        header = AlterInSyncRequest(
            group=GROUP, leader=0, epoch=1, version=3, inSync=text, op="text"
        )
        check_code(await first.ask(Code.RB_ALTER_IN_SYNC, header), BUSY, f"set {text!r}")


@scenario
async def test_registrations_at_the_limits_are_accepted(group: ScriptedGroup) -> None:
    first, second, third, _ = group.replicas
    await found_group([first, second], incarnation=2)
    third.incarnation = 1
    changes: dict[str, Any]
    for changes in (
        {"uuid": LONG, "replica": 63, "replicas": 64, "op": LONG, "address": LONG,
         "haAddress": LONG, "groupUid": "", "promised": EPOCH_MAX, "epoch": EPOCH_MAX},
        {"group": LONG, "policy": "fsync", "replicas": 2},
        {"group": "founded", "founds": True, "replicas": 1},
        {"founds": False},
    ):  # fmt: skip
        check_code(await third.register(**changes), DONE, changes)
    third.incarnation = 2
    check_code(await third.register(replicas=1), DONE, "fewer replicas than the group has")
    check_code(await third.register(), DONE, "same incarnation")
    check_code(await third.register(incarnation=1, op="older"), REFUSED, "older incarnation")
    least = {name: row["entry"]["min_in_sync"] for name, row in (await group.status()).items()}
    assert least == {GROUP: 2, LONG: 1, "founded": 1}


@scenario
async def test_requests_for_an_unknown_group_are_refused(group: ScriptedGroup) -> None:
    alter = AlterInSyncRequest(group="h", leader=0, epoch=1, version=1, inSync="0:1", op="x")
    beat = BeatRequest(group="h", replica=0, incarnation=1, epoch=0, end=0, version=0)
    leave = ReplicaRequest(group="h", replica=0, incarnation=1, op="x")
    hand_over = HandOverRequest(group="h", leader=0, epoch=1, to=1, op="x")
    for code, header in (
        (Code.RB_ALTER_IN_SYNC, alter), (Code.RB_BEAT, beat), (Code.RB_LEAVE, leave),
        (Code.RB_HAND_OVER, hand_over), (Code.RB_FORCE_LEADER, leave),
    ):  # fmt: skip
        check_code(await group.replicas[0].ask(code, header), UNKNOWN, code.name)


@scenario
async def test_a_later_epoch_of_a_member_stops_the_group(group: ScriptedGroup) -> None:
    """A replica that knows a later epoch than the register stops its group; a stranger does not."""
    first, second, _, stranger = group.replicas
    await found_group([first, second])
    assert first.entry is not None
    epoch = first.entry.epoch
    assert epoch == 1
    stranger.incarnation = 1
    for changes in ({"replica": 7}, {"replica": second.number, "uuid": "another"}):
        response = await stranger.register(groupUid=first.group_uid, promised=epoch + 1, **changes)
        check_code(response, BUSY, changes)
        check_code(await first.beat(), DONE, "beat after a stranger")
    check_code(await second.register(promised=epoch, epoch=epoch), DONE, "same epoch")
    check_code(await second.register(groupUid="", promised=epoch + 1), DONE, "no group")
    for field in ("promised", "epoch"):
        check_code(await second.register(**{field: epoch + 1}), BUSY, field)
        check_code(await first.beat(), BUSY, "beat in a stopped group")
    check_code(await first.register(), BUSY, "registration in a stopped group")
    assert "as it was in epoch 1" in (await group.status())[GROUP]["damaged"]


@scenario
async def test_an_operator_forces_only_the_longest_log(group: ScriptedGroup) -> None:
    """No complete replica is left: a running one may lead if no other one has a longer log."""
    member, shorter, longer, silent = group.replicas
    for replica in (member, shorter, longer):
        replica.incarnation = 1
        await replica.listen()
        check_code(await replica.register(), DONE, "registration")
    shorter.end, longer.epoch, longer.end = 500, 1, 90
    for replica in (member, shorter, longer):
        await replica.beat()
    check_code(await force(shorter, 2), REFUSED, "a complete member runs")
    member.stop_listening()
    member.hang_up()
    silent.incarnation = 1
    for _ in range(8):
        await trio.sleep(0.1)
        await shorter.beat()
        await longer.beat()
    check_code(await silent.register(), DONE, "a replica that does not beat")
    for number in (0, 1, 3, 9):
        check_code(await force(shorter, number), REFUSED, number)
    await shorter.beat()
    await longer.beat()
    longer.incarnation = 2
    await longer.register()
    check_code(await force(shorter, 2), REFUSED, "an incarnation without a beat")
    await longer.beat()
    check_code(await force(shorter, 2), DONE, "longest log")
    entry = shorter.entry
    assert entry is not None
    assert (entry.leader, entry.in_sync, entry.eligible) == (2, {2: 2}, {})
    assert entry.unclean == (entry.epoch,)
    check_code(await longer.beat(), DONE, "beat of the leader")


@scenario
async def test_a_request_is_made_once_while_the_register_is_silent(group: ScriptedGroup) -> None:
    first, second = group.replicas[:2]
    await found_group([first, second])
    shelf, version = group.shelf, group.entry.version
    header = AlterInSyncRequest(
        group=GROUP, leader=0, epoch=1, version=version, inSync="0:1,1:1", op="both"
    )
    without_id = await first.ask(Code.RB_ALTER_IN_SYNC, replace(header, inSync="0:1", op=""))
    check_code(without_id, REFUSED, "no id")
    shelf.silent = True
    check_code(await first.ask(Code.RB_ALTER_IN_SYNC, header), BUSY, "silent register")
    shelf.silent = False
    await first.beat()

    async def fall_silent_for_a_moment() -> None:
        while not shelf.silent:  # noqa: ASYNC110, in virtual time
            await trio.sleep(0.01)
        await trio.sleep(0.5)
        shelf.silent, shelf.on_swap = False, []

    shelf.on_swap = [lambda: setattr(shelf, "silent", True)]
    header = replace(header, epoch=group.entry.epoch, version=group.entry.version)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fall_silent_for_a_moment)
        check_code(await first.ask(Code.RB_ALTER_IN_SYNC, header), DONE, "lost answer")
    entry = first.entry
    assert entry is not None
    assert (entry.op, entry.in_sync) == ("both", {0: 1, 1: 1})
    assert entry.version == header.version + 1
