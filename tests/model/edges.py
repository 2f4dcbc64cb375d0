"""Rules that decide by numbers and names alone, asked on both sides of each of their limits.

What a node does with an answer hides many of them: the next rule refuses as well, or the numbers
that would tell never come. Here each rule is asked by itself, beside another way to say the same.
"""

from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import orjson

from rocketbed.node.broker.long_polling import LongPolls
from rocketbed.replication.confirm import AckBoard
from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Policy, Replica
from rocketbed.replication.epochs import (
    Epoch,
    History,
    check,
    common_end,
    cut_to,
    may_be_filled,
    spans,
)
from rocketbed.replication.errors import ChangeRefused, EntryDamaged, GroupUnknown, HistoryRefused
from rocketbed.replication.lease import LEASE_S, Fence, Roll, Wait
from rocketbed.replication.lost_groups import WAITING_S, LostGroups
from rocketbed.replication.register.cas import Versioned
from rocketbed.replication.register.form import dumped, loaded
from rocketbed.replication.register.register import Register, new_group
from rocketbed.wire.headers_failover import RegisterReplicaRequest
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.edges_asked import ask_admission, ask_answers, ask_logs
from tests.model.edges_names import ask_checksums, ask_tags, ask_targets
from tests.model.edges_waits import ask_limits, ask_paces, ask_watermarks

SAYS: Final = {
    "epoch": f"{{!r}} is not a number from 0 to {EPOCH_MAX}.",
    "min_in_sync": "0 is not a number from 1 on.",
    "format": "its format is 2",
    "version": "it is version 1 of 'g'",
    "name": "it is version 0 of 'h'",
    "eligible": "replicas [0] are in a set",
}
"""Field of an entry -> what is said of a wrong one."""
HISTORIES: Final = 300
REPLICA: Final = Replica("u", 4, "a", "h")
FILE: Final = 8
"""Bytes of a file in the smallest of logs."""


def run_edges(seed: int) -> str:
    random = Random(f"edges/{seed}")
    _histories(random)
    _filled()
    _entries()
    _founded()
    _waits()
    ask_targets()
    ask_tags()
    ask_checksums()
    ask_admission(random)
    ask_answers()
    ask_limits()
    return run_alone(_main, random).digest


async def _main(world: World, random: Random) -> None:
    _lost_groups()
    _rolls(random)
    await _unreadable()
    await ask_paces(random)
    await ask_watermarks()
    await ask_logs(world, random)


# --- histories of epochs


def _histories(random: Random) -> None:
    """Which can be of a log, and up to where two logs are the same."""
    for _ in range(HISTORIES):
        numbers = sorted(random.randrange(-1, 9) for _ in range(random.randrange(4)))
        starts = sorted(random.randrange(-1, 9) for _ in numbers)
        random.choice((numbers, starts, [])).reverse()
        history, end = tuple(map(Epoch, numbers, starts)), random.choice((0, 1, 5, 8, 9))
        rises = numbers == sorted({*numbers}) and starts == sorted({*starts})
        fits = all(number >= 0 for number in numbers)
        fits = fits and all(0 <= start < end or start == end == 0 for start in starts)
        try:
            is_taken = check(history, end) == history
        except HistoryRefused:
            is_taken = False
        assert is_taken == (rises and fits), f"history: {history} of {end} bytes: {is_taken}"
    for _ in range(HISTORIES):
        one, other = (_drawn(random) for _ in range(2))
        if shared := random.randrange(3):
            history, cut = one[0][:shared], one[0][-1].start + random.randrange(1, 9)
            other = (*history, Epoch(9, cut)), cut + random.randrange(1, 9)
            if random.random() < 0.5:
                other = history, history[-1].start + random.randrange(1, 6)
        whole = dict(_ends(*other))
        same = [min(end, whole[epoch]) for epoch, end in _ends(*one) if epoch in whole]
        want = same[-1] if same else None
        found = common_end(*one, *other)
        assert found == want, f"history: {one} and {other} are the same up to {found}"
        told = [(span.epoch, span.end) for span in spans(*one)]
        assert told == _ends(*one), f"history: {one}: {told}"
        at = random.randrange(14)
        left = tuple(epoch for epoch in one[0] if epoch.start not in range(at, 99))
        assert cut_to(one[0], at) == left, f"history: {one} cut at {at}: {cut_to(one[0], at)}"


def _drawn(random: Random) -> tuple[History, int]:
    starts = sorted(random.sample(range(12), random.randrange(1, 4)))
    numbers = sorted(random.sample(range(5), len(starts)))
    return tuple(map(Epoch, numbers, starts)), starts[-1] + random.randrange(1, 4)


def _ends(history: History, end: int) -> list[tuple[Epoch, int]]:
    found, rest = [], end
    for epoch in reversed(history):
        found.append((epoch, rest))
        rest = epoch.start
    return found[::-1]


def _filled() -> None:
    """What fills a file stands in its last part, right before the marker that begins the next."""
    for start, cut, common in product(range(2 * FILE + 2), range(2 * FILE), range(2 * FILE)):
        history = (Epoch(1, 0), Epoch(2, start)) if start else (Epoch(2, 0),)
        marker = next((at for at in (0, start) if at >= common and at in {0, start}), None)
        want = marker is not None and marker % FILE == 0 and marker - FILE < cut <= common
        found = may_be_filled(history, cut, common, FILE)
        assert found == want, f"filler: {history} from {cut} to {common}: {found}"


# --- entries of the register


def _entries() -> None:
    """The least and the greatest of each number, and one beyond."""
    entry = new_group("g", replicas=3, uid="u")
    kept = orjson.loads(dumped(entry))
    assert loaded(dumped(entry), name="g", version=0) == entry, "entry: another one came back"
    for change, is_taken in (
        ({"epoch": EPOCH_MAX}, True), ({"epoch": EPOCH_MAX + 1}, False), ({"epoch": -1}, False),
        ({"min_in_sync": 1}, True), ({"min_in_sync": 0}, False), ({"leader": -1}, False),
        ({"epoch": True}, False), ({"epoch": 1.0}, False), ({"format": 2}, False),
        ({"version": 1}, False), ({"name": "h"}, False), ({"last_known": [-1]}, False),
        ({"eligible": {"0": 1}}, False), ({"policy": "none"}, False), ({"op": "x"}, True),
    ):  # fmt: skip
        data = orjson.dumps(kept | change)
        try:
            was_taken = loaded(data, name="g", version=0) is not None
        except EntryDamaged as exc:
            was_taken = False
            what, found = next(iter(change.items()))
            says = SAYS.get(what, "").format(found)
            assert f"cannot be read: {says}" in str(exc), f"entry: {exc!s}"
        assert was_taken == is_taken, f"entry: {change}: taken {was_taken}"


async def _unreadable() -> None:
    """What nobody could read is not stored: here an epoch beyond the last one that there is."""
    swapped = list[bytes]()
    for epoch in (EPOCH_MAX - 1, EPOCH_MAX):
        entry = replace(new_group("g", replicas=1), epoch=epoch, replicas={1: REPLICA}, version=1)

        async def read(_name: str, entry: GroupEntry = entry) -> Versioned:
            return Versioned(1, dumped(entry))

        async def swap(_name: str, value: bytes, *, after: int) -> bool:
            swapped.append(value)
            return after == 1

        store: Any = SimpleNamespace(read=read, swap=swap)
        alive = {1: Candidate(incarnation=REPLICA.incarnation)}
        try:
            await Register(store).force("g", 1, alive, op="x")
            assert epoch < EPOCH_MAX, "entry: an epoch that nobody can read was stored"
        except ChangeRefused as exc:
            assert "could read" in str(exc) and epoch == EPOCH_MAX, f"entry: {exc!s}"
    assert len(swapped) == 1, f"entry: {len(swapped)} were stored"


def _founded() -> None:
    """Two copies where there are three replicas, and memory only there."""
    for replicas in range(1, 6):
        found = new_group("g", replicas=replicas)
        want = (Policy.MEMORY, 2) if replicas > 2 else (Policy.FSYNC, 1)
        assert (found.policy, found.min_in_sync) == want, f"group: {replicas}: {found}"
        for policy in Policy:
            told = new_group("g", replicas=replicas, policy=policy)
            assert told.policy == policy, f"group: {policy} for {replicas}: {told.policy}"


def _asked(number: int, **changes: Any) -> RegisterReplicaRequest:
    values: dict[str, Any] = {
        "group": "g", "replica": number, "uuid": f"u{number}", "incarnation": 1, "address": "a",
        "haAddress": "h", "lossless": True, "replicas": 3, "policy": "memory", "founds": True,
        "groupUid": "", "promised": 0, "epoch": 0, "end": 0, "op": "",
    }  # fmt: skip
    return RegisterReplicaRequest(**(values | changes))


def _lost_groups() -> None:
    """Who knows more than the register waits, for a while; whom an operator may name."""
    now = [100.0]
    groups = LostGroups(lambda: now[0])
    knows: tuple[dict[str, Any], ...] = (
        {},
        {"epoch": 1},
        {"promised": 1},
        {"group": "h", "epoch": 3},
    )
    for number, changes in enumerate(knows):
        groups.refusal(_asked(number, **changes))
    assert sorted(groups.of("g")) == [1, 2], f"lost: {sorted(groups.of('g'))} wait"
    assert sorted(groups.of("g", but=1)) == [2], "lost: one waits beside itself"
    assert sorted(groups.of("h")) == [3], f"lost: {sorted(groups.of('h'))} of another group wait"
    assert sorted(groups.reasons()) == ["g", "h"], f"lost: {groups.reasons()}"
    now[0] += WAITING_S - 0.5
    groups.refusal(_asked(1, epoch=1))
    now[0] += 1
    assert sorted(groups.of("g")) == [1], f"lost: {sorted(groups.of('g'))} wait still"
    found = groups.refounding("g", 1)
    assert found.epoch == 1001, f"lost: epoch {found.epoch} after 1"
    groups.clear()
    assert not groups.of("g"), "lost: somebody waits where nobody does"
    cases: tuple[tuple[tuple[Any, Any], int, type[Exception] | None], ...] = (
        (({"epoch": 2, "end": 10}, {"epoch": 2, "end": 20}), 0, ChangeRefused),
        (({"epoch": 2, "end": 10}, {"epoch": 2, "end": 20}), 1, None),
        (({"epoch": 2, "end": 20}, {"epoch": 2, "end": 20, "promised": 7}), 0, None),
        (({"epoch": 2, "end": 10}, {"epoch": 1, "end": 20}), 1, ChangeRefused),
        (({"epoch": 2, "end": 10, "leads": True}, {"epoch": 2, "end": 20}), 1, ChangeRefused),
        (({"epoch": 2, "end": 10, "leads": True}, {"epoch": 2, "end": 20}), 0, None),
        (({"epoch": 1, "end": 30, "leads": True}, {"epoch": 2, "end": 20}), 1, None),
        (({"epoch": 1, "end": 30, "leads": True}, {"epoch": 2, "end": 20}), 0, ChangeRefused),
        (({"epoch": 1}, {"epoch": 2}), 2, GroupUnknown),
    )
    for waiting, named, error in cases:
        _refounds(LostGroups(lambda: now[0]), waiting, named, error)


def _refounds(
    groups: LostGroups, waiting: tuple[Any, Any], named: int, error: type[Exception] | None
) -> None:
    for number, changes in enumerate(waiting):
        uid = {"groupUid": "own"} if number else {}
        groups.refusal(_asked(number, policy="fsync", **uid, **changes))
    try:
        found: Any = groups.refounding("g", named)
    except (ChangeRefused, GroupUnknown) as exc:
        assert error is not None and isinstance(exc, error), f"lost: {named} of {waiting}: {exc}"
        return
    assert error is None, f"lost: {named} of {waiting} may lead"
    newest = max(max(one.get("promised", 0), one["epoch"]) for one in waiting)
    told = found.epoch, found.new.policy, found.new.min_in_sync, found.new.uid, found.replica.uuid
    want = 1000 + newest, Policy.FSYNC, 2, "own" if named else "u0.1", f"u{named}"
    assert told == want, f"lost: {told} for {want}"


def _waits() -> None:
    """Whether a send waits for anybody; a pull, where as many wait as may."""
    for copies in range(1, 4):
        told = AckBoard(copies).waits
        assert told == (copies > 1), f"waits: for {copies} copies: {told}"
    polls = LongPolls(limit=2, queue_max=lambda topic, queue: 0, execute=lambda pull: None)
    pull: Any = None
    taken = [polls.add("T", number % 2, pull) for number in range(4)]
    assert (taken, len(polls)) == ([True, True, False, False], 2), f"waits: {taken}"


# --- who was heard when


def _rolls(random: Random) -> None:
    """A lease ends when it says, not later; before that nobody is named."""
    since = random.randrange(100) * 1.0
    roll, entry = Roll(since), GroupEntry("g", Policy.FSYNC, min_in_sync=1, epoch=1)
    for late, waits in ((0.0, True), (LEASE_S - 0.001, True), (LEASE_S, False), (9.0, False)):
        found = roll.next(entry, since + late)
        want: Fence | Wait = Wait(since + LEASE_S) if waits else Wait(None)
        assert found == want, f"lease: {late} s after its beginning: {found}"
    assert roll.last_heard(1, since) is None, "lease: one that was never heard was"
    at, ends = since + 1, (2, 50)
    roll.record_beat(1, Candidate(4, epoch=2, end=50), at)
    led = replace(entry, replicas={1: REPLICA}, leader=1, in_sync={1: 4})
    other = replace(led, in_sync={1: 5})
    for late, is_alive in ((0.0, True), (LEASE_S - 0.001, True), (LEASE_S, False)):
        now = at + late
        assert (1 in roll.alive(now)) == is_alive, f"lease: {late} s after it was heard"
        want = Wait(at + LEASE_S) if is_alive else Fence(1, 4)
        assert roll.next(led, now) == want, f"lease: {late} s after its leader was heard"
        want = Wait(since + LEASE_S) if now < since + LEASE_S else Fence(1, 5)
        assert roll.next(other, now) == want, f"lease: {late} s: of another life"
    roll.since = at + 1
    assert roll.next(led, at + 1) == Wait(at + 1 + LEASE_S), "lease: of a new controller"
    roll.record_death(1, 3)
    assert roll.last_heard(1, at + 2) == 2, "lease: another life is gone"
    roll.record_death(1, 4)
    told = roll.last_heard(1, at), roll.alive(at), roll.next(led, at), roll.last_end(1)
    assert told == (None, {}, Fence(1, 4), ends), f"lease: one that is gone: {told}"
    assert roll.last_end(2) is None, "lease: the end of one that was never heard"
