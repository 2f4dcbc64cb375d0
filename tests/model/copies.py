"""Who has how much of a log, and what follows: what is confirmed, who joins and who is left out,
where two logs are compared. Drawn histories, each beside another way to say the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any, Final

from rocketbed.replication.confirm import (
    GAP_MAX,
    AckBoard,
    Link,
    certain_slaves,
    count_in_sync,
    is_in_sync,
)
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.insync import InSyncView
from rocketbed.replication.restart import lost_nothing
from rocketbed.replication.watermark import Watermark
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.copies_asked import ask_searches
from tests.model.copies_members import EPOCH, ME, START, STEPS, ask_lives, ask_members

HISTORIES: Final = 60
Life = tuple[int, int]
Known = tuple[Link, dict[int, int], list[int]]
"""A connection; what was offered on it when each later one came; its number, until which one it
was in use, and what it acknowledged."""


def run_copies(seed: int) -> str:
    random = Random(f"copies/{seed}")
    for _ in range(HISTORIES):
        _boards(random)
        _views(random)
    _in_sync()
    return run_alone(_main, random).digest


async def _main(world: World, random: Random) -> None:
    for _ in range(HISTORIES):
        ask_members(random)
    await ask_searches(random)
    await ask_lives(world, random)


# --- slaves without a name


def _boards(random: Random) -> None:
    """Connections of one host are so many slaves as were surely in use at one moment."""
    needed, confirmed = random.randrange(1, 4), Watermark()
    board, value, joined = AckBoard(needed + 1, confirmed), 0, 0
    links: list[Known] = []
    for _ in range(STEPS):
        if not links or random.random() < 0.25:
            link = Link(random.choice("ab"), offered=random.randrange(9))
            joined += 1
            links.append((link, {}, [joined, 0, 0]))
            for other, before, _ in links:
                if other.address == link.address:
                    before[joined] = other.offered
            board.join(link)
            continue
        at = random.randrange(len(links))
        link, before, used = links[at]
        draw = random.random()
        if draw < 0.3:
            link.offered += random.randrange(3)
        elif draw < 0.9:
            offset = random.randrange(link.offered + 2)
            newer = [number for number, sent in before.items() if sent < offset]
            used[1:] = max([used[1], *newer]), offset
            board.acknowledge(link, offset)
            held = [end for _, _, (*_, end) in links if end and _slaves(links, end) >= needed]
            value = max([value, *held])
        else:
            board.leave(link)
            del links[at]
        told = [(one.number, one.in_use_until) for one in board.links]
        want = [(first, last) for _, _, (first, last, _) in links]
        assert told == want, f"links: in use from and until {told}, not {want}"
        assert confirmed.value == value, f"confirmed: {confirmed.value} for {value}, {want}"
        every = [link for link, _, _ in links]
        assert certain_slaves(every) == _slaves(links, 0), f"links: slaves of {want}"


def _slaves(links: Sequence[Known], offset: int) -> int:
    count = 0
    for address in "ab":
        spans = [
            (first, last)
            for link, _, (first, last, end) in links
            if link.address == address and end >= offset
        ]
        used = [(first, last) for first, last in spans if first <= last]
        count += max(
            (
                size
                for size in range(1, len(used) + 1)
                for some in combinations(used, size)
                if max(first for first, _ in some) <= min(last for _, last in some)
            ),
            default=1 if spans else 0,
        )
    return count


def _in_sync() -> None:
    """Up to how far behind; and who waits for nobody."""
    alone, unseen = Watermark(), AckBoard(2)
    for board, host in ((AckBoard(1, alone), "a"), (unseen, "b")):
        link = Link(host, offered=5)
        board.join(link)
        board.acknowledge(link, 5)
    assert alone.value == 0, "confirmed: by a slave, where none is waited for"
    try:
        AckBoard(0)
    except ValueError:
        pass
    else:
        raise AssertionError("confirmed: by no replica")
    for behind, is_there in ((0, True), (GAP_MAX - 1, True), (GAP_MAX, False)):
        found = is_in_sync(GAP_MAX + 5, GAP_MAX + 5 - behind)
        assert found == is_there, f"sync: {behind} bytes behind: {found}"
    found_all = count_in_sync(9, [9, 8, 7, 6, 5], 3)
    assert found_all == 3, f"sync: {found_all} of five are in sync"
    for policy, stopped, same in product(Policy, (False, True), (False, True)):
        kept = lost_nothing(policy, stopped=stopped, same_kernel=same)
        want = any((policy == Policy.FSYNC, stopped, same))
        assert kept == want, f"lost: {policy}, stopped {stopped}, same {same}: {kept}"
        held = policy.held(written=7, flushed=5)
        assert held == (5 if policy == Policy.FSYNC else 7), f"lost: {policy} holds {held}"


# --- members of a set


def _entry(random: Random, **changes: Any) -> GroupEntry:
    lives = {number: random.randrange(1, 3) for number in range(1, 5)}
    in_sync = {number: lives[number] for number in lives if number == ME or random.random() < 0.5}
    return GroupEntry(
        "g",
        Policy.MEMORY,
        random.randrange(1, 3),
        replicas={one: Replica(f"u{one}", life) for one, life in lives.items()},
        leader=ME,
        in_sync=in_sync,
        **({"epoch": EPOCH, "version": 5} | changes),
    )


def _views(random: Random) -> None:
    """Nothing is confirmed that a member of the set, or of the one asked for, lacks."""
    known = _entry(random)
    view, ends, confirm = InSyncView(ME, START, known), dict[int, Life](), 0
    pending: tuple[int, dict[int, int]] | None = None
    joining: Life | None = None
    asked: Any = None
    for _ in range(STEPS):
        draw = random.random()
        number, life = random.randrange(2, 5), random.randrange(1, 3)
        if draw < 0.4:
            new = life, random.randrange(START - 2, START + 6)
            view.acknowledged(number, *new)
            ends[number] = max(ends.get(number, new), new)
        elif draw < 0.5 and pending is None and joining is None:
            joining = view.joining = number, ends.get(number, (life, 0))[0]
        elif draw < 0.65 and pending is None:
            if number in known.in_sync:
                rest = {one: kept for one, kept in known.in_sync.items() if one != number}
                asked, pending = view.leave(number), (known.version, rest)
            elif number in ends:
                more = {**known.in_sync, number: ends[number][0]}
                asked, pending, joining = view.join(number), (known.version, more), None
            else:
                continue
            told = asked.leader, asked.epoch, asked.version, asked.in_sync
            assert told == (ME, EPOCH, *pending), f"view: {asked} is asked, not {pending}"
        elif draw < 0.75:
            entry = _entry(random, version=known.version + random.randrange(-1, 2))
            if random.random() < 0.3:
                epoch, leads = random.choice(((EPOCH + 1, ME), (EPOCH, 0), (EPOCH - 1, ME)))
                in_sync = {one or ME: kept for one, kept in entry.in_sync.items()} | {leads: 1}
                entry = replace(entry, epoch=epoch, leader=leads, in_sync=in_sync, eligible={})
                assert not view.read(entry), "view: another one leads"
            else:
                assert view.read(entry), "view: it leads no more"
                known = entry if entry.version > known.version else known
                pending = None if pending and known.version > pending[0] else pending
        elif draw < 0.8 and asked is not None:
            view.refused(replace(asked, version=asked.version + 1))
            if random.random() < 0.5:
                view.refused(asked)
                pending = None
        own = START + random.randrange(8)
        need = {*known.in_sync.items(), *(pending[1].items() if pending else ())}
        need |= {joining} if joining else set()
        assert view.need() == need, f"view: {view.need()} are needed for {need}"
        if len(known.in_sync) >= known.min_in_sync:
            have = [ends[one][1] if ends.get(one, (0,))[0] == kept else 0 for one, kept in
                    sorted(need - {(ME, known.in_sync[ME])})]  # fmt: skip
            confirm = max(confirm, min([own, *have]))
        assert view.has_enough() == (len(known.in_sync) >= known.min_in_sync), "view: enough"
        found = view.raise_confirm(own), view.confirm
        assert found == (confirm, confirm), f"confirmed: {found} of {need}, {ends}: {confirm}"
        for one in range(2, 5):
            kept, end = ends.get(one, (0, 0))
            fits = one not in known.in_sync and known.replicas[one].incarnation == kept
            has = fits and end >= START + 1
            assert view.has_marker(one) == has, f"view: marker of {one}: {has}"
            joins = has and not end < confirm
            assert view.may_join(one) == joins, f"view: {one} may join: {joins}"
