"""A follower as its leader sees it over time, and a replica's own file over its lives."""

from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, Final

from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.identity import ReplicaFile, ReplicaFileDamaged
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.membership import CAUGHT_UP_S, GRACE_S, LAG_S, Membership, Served
from rocketbed.world.api import World

STEPS: Final = 40
ME: Final = 1
START: Final = 10
"""Where the epoch's marker stands."""
EPOCH: Final = 3
TICK_S: Final = 1 / 16
"""Of which each limit is a multiple."""


def ask_members(random: Random) -> None:
    """One that is away for too long, or stays behind, is left out; one that keeps up joins."""
    number = 2
    for is_in, min_in_sync, learner in product((True, False), (1, 2), (True, False)):
        in_sync = {ME: 1} | ({number: 1} if is_in else {})
        replicas = {one: Replica(f"u{one}", 1) for one in (ME, number)}
        entry = GroupEntry(
            "g", Policy.MEMORY, min_in_sync, replicas, EPOCH, 5, leader=ME, in_sync=in_sync
        )
        _member(random, InSyncView(ME, START, entry), number, learner=learner)


class _Hello:
    """Of a follower: its life, and whether it only learns."""

    def __init__(self, incarnation: int, *, learner: bool) -> None:
        self.incarnation, self.learner = incarnation, learner


def _member(random: Random, view: InSyncView, number: int, *, learner: bool) -> None:
    followers: dict[int, Served] = {}
    members, now, end = Membership(view, followers), random.randrange(9) * 1.0, START
    is_in = number in view.entry.in_sync
    is_spare = len(view.entry.in_sync) > view.entry.min_in_sync
    absent: float | None = None
    behind: tuple[float, int] | None = None
    complete: float | None = None
    joining: float | None = None
    for _ in range(2 * STEPS):
        now += TICK_S * random.choice((0, 1, 1, 2, 5))
        draw, link = random.random(), followers.get(number)
        if draw < (0.08 if link is None else 0.02):
            hello: Any = _Hello(random.choice((1, 1, 1, 1 + is_in)), learner=learner)
            nobody: Any = None
            link = followers[number] = Served(nobody, hello, 0)
            members.link_opened(number)
            absent = complete = joining = None
        elif draw < 0.12 and link is not None:
            del followers[number]
            members.link_closed(number)
            link, complete, joining = None, None, None
        elif draw < 0.14 and is_in:
            life, version = random.randrange(1, 3), view.entry.version + 1
            view.read(replace(view.entry, version=version, in_sync={ME: 1, number: life}))
        elif draw < 0.5:
            end += random.randrange(3)
        elif draw < 0.9 and link is not None:
            link.acknowledged = min(end, link.acknowledged + random.randrange(START))
            view.acknowledged(number, link.hello.incarnation, link.acknowledged)
        view.raise_confirm(end)
        want = ""
        is_new = link is not None and link.hello.incarnation != view.entry.in_sync.get(number, 1)
        if is_in and (link is None or is_new):
            absent = now if absent is None else absent
            want = "leave" if now - absent > GRACE_S else ""
        if link is not None and not want:
            since, aim = behind or (now, end)
            behind = (now, end) if link.acknowledged >= aim else (since, aim)
            lags = now - behind[0] > LAG_S
            absent = None if not is_new else absent
            if is_new:
                complete = joining = None
            elif is_in:
                want = "leave" if lags and is_spare else ""
            elif learner or not view.has_marker(number) or lags:
                complete = joining = None
            elif not view.has_enough():
                want = "join" if view.may_join(number) else ""
            else:
                complete = now if complete is None else complete
                if now - complete > CAUGHT_UP_S:
                    want = "join" if view.may_join(number) else ""
                    if not want and joining is None:
                        joining = now
                    elif not want and now - (joining or 0) > LAG_S:
                        complete = joining = None
        asked = members.next_change(end, now)
        found = "" if asked is None else "leave" if number not in asked.in_sync else "join"
        assert found == want, f"member: {found!r} is due for {want!r}"
        if asked is not None:
            view.refused(asked)
            joining = None if found == "join" else joining
        waits = joining is not None
        assert (view.joining == (number, 1)) == waits, f"member: it joins: {view.joining}"


# --- lives of one


async def ask_lives(world: World, random: Random) -> None:
    """What a life may lack is told until the register has heard of it."""
    directory = "/replica"
    world.disk.makedirs(directory)
    boot, number, untold, stopped, kernel = 0, 0, False, True, -1
    for lives in range(STEPS):
        boot += random.random() < 0.3
        process: Any = _booted(world, f"boot{boot}")
        file = ReplicaFile(process, directory)
        policy, trusts = random.choice(tuple(Policy)), random.random() < 0.7
        lost = random.random() < 0.2
        asked: dict[str, Any] = {
            "group": "g",
            "number": 1,
            "policy": policy,
            "trusts_cache": trusts,
            "lost": lost,
        }
        whole = await file.begin(**asked)
        number += 1
        for other in ({"group": "h"}, {"number": 2}):
            try:
                await file.begin(**(asked | other))
            except ReplicaFileDamaged:
                continue
            raise AssertionError(f"life: of {other} after {lives}")
        same = trusts and kernel == boot
        want = (stopped or same or policy is Policy.FSYNC) and not lost and not untold
        assert whole == want, f"life: life {number} is whole: {whole}"
        assert file.state.incarnation == number, f"life: {file.state} is number {number}"
        kernel = boot if stopped or same else -1
        untold, stopped = untold or lost, False
        if random.random() < 0.3:
            number += random.randrange(1, 4)
            await file.raise_life(number)
        if random.random() < 0.5:
            await file.clear_loss()
            untold, kernel = False, boot
        if random.random() < 0.5:
            await file.stopped()
            stopped = kernel == boot
        told = file.state.boot_id == f"boot{boot}", file.state.lost, file.state.stopped
        assert told == (kernel == boot, untold, stopped), f"life: {file.state}"


def _booted(world: World, boot_id: str) -> World:
    """The same after another start of its kernel."""

    class Process:
        def __init__(self) -> None:
            self.boot_id = boot_id

    process: Any = Process()
    return replace(world, process=process)
