"""A controller whose register is lost, unreadable, or another controller's."""

from dataclasses import replace
from random import Random
from typing import Any, Final

import orjson
import pytest
import trio

from rocketbed.replication.entry import EPOCH_MAX
from rocketbed.wire.command import RequestCode
from tests.support.peers.replica import GROUP
from tests.support.sim.scripted_group import (
    BUSY,
    DONE,
    NOT_ACTIVE,
    REFUSED,
    UNKNOWN,
    ScriptedGroup,
    check_code,
    force,
    found_group,
    run_group,
    scenario,
)

REFOUNDED: Final = 1000
"""The epoch of a group whose entry was lost rises by at least this."""
Code = RequestCode
SPOILT: Final[list[dict[str, Any]]] = [
    {"format": 2}, {"name": "another"}, {"version": 99}, {"policy": "none"}, {"replicas": []},
    {"min_in_sync": 0}, {"min_in_sync": True}, {"epoch": -1}, {"epoch": EPOCH_MAX + 1},
    {"epoch": "1"}, {"leader": 3}, {"in_sync/9": 1}, {"in_sync/1": -1}, {"replicas/1": None},
    {"replicas/1/incarnation": 1.0}, {"last_known": [-1]}, {"unclean": 7},
    {"op": None, "uid": 1, "in_sync/x": 1},
]  # fmt: skip
"""Fields of an entry with values that they cannot have."""


@scenario
async def test_a_controller_without_its_register_changes_nothing(
    group: ScriptedGroup,
) -> None:
    first, shelf = group.replicas[0], group.shelf
    await found_group(group.replicas[:2])
    for holder, code in (("another", NOT_ACTIVE), ("", DONE)):
        shelf.holder, shelf.renewed = holder, shelf.now_s()
        await trio.sleep(0.5)
        check_code(await first.ask(Code.RB_GROUPS), code, f"status, claim of {holder!r}")
        check_code(await first.register(), code, f"registration, claim of {holder!r}")
    shelf.holder, shelf.renewed = "file", shelf.now_s()
    shelf.replace(shelf.copy())
    await trio.sleep(0.5)
    for response in (await first.register(), await first.beat(), await force(first, 1)):
        check_code(response, BUSY, "another register file")
        assert "register" in (response.remark or "")


@pytest.mark.parametrize("has_leader", [False, True])
def test_a_lost_group_is_led_by_its_longest_log(has_leader: bool) -> None:
    async def main(group: ScriptedGroup, random: Random) -> None:
        *waiting, fresh = group.replicas
        for replica in waiting:
            replica.incarnation, replica.end = 3, random.randint(1, 3) * 100
            replica.epoch = replica.promised = random.randint(4, 6)
        await group.lose_register()
        newest = max(replica.epoch for replica in waiting)
        best = max(waiting, key=lambda replica: replica.position)
        leader = next(one for one in waiting if one.epoch == newest) if has_leader else best
        for replica in waiting:
            leads = {"leads": True} if has_leader and replica is leader else {}
            response = await replica.register(groupUid="gone.1", **leads)
            check_code(response, UNKNOWN, "lost group")
        fresh.incarnation = 1
        check_code(await fresh.register(), UNKNOWN, "an empty replica beside a lost group")
        assert "[0, 1, 2]" in (await group.status())[GROUP]["damaged"]
        check_code(await force(fresh, 3), UNKNOWN, "a replica that does not wait")
        for replica in waiting:
            is_equal = not has_leader and replica.position == leader.position
            if replica is not leader and not is_equal:
                response = await force(fresh, replica.number)
                check_code(response, REFUSED, f"{replica.position}, best {leader.position}")
        check_code(await force(fresh, leader.number), DONE, leader.position)
        entry = group.entry
        assert entry.epoch >= REFOUNDED + newest
        assert (entry.leader, entry.uid, entry.unclean) == (leader.number, "gone.1", (entry.epoch,))
        for replica in waiting:
            replica.group_uid = "gone.1"
            check_code(await replica.register(), DONE, "the group goes on")

    for seed in range(3):
        run_group(f"{has_leader}/{seed}", main)


@scenario
async def test_a_waiting_replica_is_forgotten_after_five_seconds(group: ScriptedGroup) -> None:
    """An empty replica founds no group of that name before."""
    waiting, fresh = group.replicas[0], group.replicas[3]
    waiting.incarnation, waiting.promised, fresh.incarnation = 1, 3, 1
    await group.lose_register()
    for pause_s, replica, code in ((0, waiting, UNKNOWN), (4, fresh, UNKNOWN), (1.5, fresh, DONE)):
        await trio.sleep(pause_s)
        check_code(await replica.register(), code, f"after {pause_s} s more")


@scenario
async def test_an_unreadable_entry_stops_only_its_group(group: ScriptedGroup) -> None:
    first, second, third, fourth = group.replicas
    await found_group([first, second])
    third.incarnation = fourth.incarnation = 1
    check_code(await third.register(group="other", replicas=1), DONE, "another group")
    newest = group.shelf.values[GROUP][-1]
    second.incarnation = 2
    for changes in SPOILT:
        row = orjson.loads(newest.value)
        for path, value in changes.items():
            *outer, last = path.split("/")
            inner = row
            for name in outer:
                inner = inner[name]
            inner[last] = value
        group.shelf.values[GROUP][-1] = replace(newest, value=orjson.dumps(row))
        check_code(await second.register(), BUSY, changes)
    check_code(await fourth.register(group="other", replicas=1), DONE, "the other group")
    await trio.sleep(1.5)  # longer than a lease: its leader would be fenced
    status = await group.status()
    assert "cannot be read" in status[GROUP]["damaged"]
    assert "entry" in status["other"]
    check_code(await first.beat(), BUSY, "beat in the unreadable group")
