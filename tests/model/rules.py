"""Tables of a broker by themselves, beside another way to say the same: pulls that wait, locks of
queues, what is known of plain sends.
"""

from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import trio
from trio.testing import wait_all_tasks_blocked

from rocketbed.node.broker.locks import LASTS_S, QueueLocks
from rocketbed.node.broker.long_polling import ADVANCE_EVERY, SWEEP_S, LongPoll, LongPolls
from rocketbed.node.broker.plain_shapes import (
    MEANINGS_MAX,
    NAMES_MAX,
    SLOW_PROPERTIES,
    Meanings,
    Names,
)
from rocketbed.node.store.entry import Entry
from rocketbed.wire.bodies import LockedQueues, LockQueues, MessageQueue
from rocketbed.wire.command import RequestCode, request
from rocketbed.wire.properties import CRC32, KEYS, PAIR_END, TAGS, UNIQUE_KEY, WAIT
from rocketbed.world.api import World
from tests.model.alone import run_alone
from tests.model.rules_delays import ask_delays
from tests.model.rules_known import ask_known
from tests.model.rules_tables import ask_tables

STEPS: Final = 120
TOPICS: Final = ("A", "B")
BROKER: Final = "b"
SUFFIX: Final = b"more"


def run_rules(seed: int) -> str:
    random = Random(f"rules/{seed}")
    _names(random)
    _meanings()
    return run_alone(_main, random).digest


async def _main(world: World, random: Random) -> None:
    for _ in range(4):
        await _polls(random)
        await _locks(random)
    await ask_delays(world, random)
    await ask_tables(world, random)
    await ask_known(world, random)


# --- pulls that wait


async def _polls(random: Random) -> None:
    """Each is answered once: when a message comes that it is for, or its time is over."""
    limit, answered = random.randrange(3, 9), list[Any]()
    ends = {(topic, queue): random.randrange(5) for topic in TOPICS for queue in (0, 1)}
    polls = LongPolls(limit=limit, queue_max=lambda *key: ends[key], execute=answered.append)
    held, outlived = list[tuple[tuple[str, int], Any]](), list[Any]()
    want, sweeps = list[Any](), 0
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls.run)
        await wait_all_tasks_blocked()
        for _ in range(STEPS):
            key = random.choice(TOPICS), random.randrange(2)
            draw, due = random.random(), list[Any]()
            if draw < 0.45:
                codes = random.choice((None, frozenset((5,)), frozenset((7, 9))))
                connection: Any = SimpleNamespace(is_closed=False)
                command: Any = None
                late = trio.current_time() + random.choice((0.5, 2.25, 60))
                pull = LongPoll(command, connection, ends[key] + random.randrange(2), codes, late)
                was_held = polls.add(*key, pull)
                assert was_held == (len(held) < limit), f"hold: {len(held)} of {limit} are held"
                held += [(key, pull)] if was_held else []
            elif draw < 0.65:
                count, code = random.choice((1, -2, 0)), random.choice((5, 7))
                polls.on_arrival([Entry(*key, ends[key], 0, 99, code, 0, (), count)])
                ends[key] += abs(count)
                fits = [one for at, one in held if at == key and code in (one.tag_codes or (code,))]
                due = [one for one in fits if count and one.offset < ends[key]]
            elif draw < 0.7:
                polls.release(*key)
                due = [one for at, one in held if at == key]
            elif draw < 0.75:
                polls.topic_deleted(key[0])
                outlived += [one for at, one in held if at[0] == key[0]]
            elif draw < 0.8:
                queues = random.randrange(3)
                polls.topic_recreated(key[0], queues)
                mine = [(at, one) for at, one in held if at[0] == key[0] and at[1] < queues]
                due = [one for at, one in sorted(mine, key=lambda row: row[0]) if one in outlived]
            elif draw < 0.83 and held:
                random.choice(held)[1].connection.is_closed = True
            elif draw < 0.9:
                ends[key] += 1  # that nobody is told of
            else:
                await trio.sleep(random.choice((0.25, SWEEP_S, 3 * SWEEP_S)))
            await wait_all_tasks_blocked()
            while sweeps < int((trio.current_time() - begin) / SWEEP_S):
                sweeps += 1
                at_s = begin + sweeps * SWEEP_S
                gone = [one for _, one in held if one.connection.is_closed]
                held = [(at, one) for at, one in held if one not in gone]
                for at, one in held:
                    high = ends[at] if sweeps % ADVANCE_EVERY == 0 else -1
                    if (one.deadline <= at_s or one.offset < high) and one not in due:
                        due.append(one)
            held = [(at, one) for at, one in held if one not in due]
            want += [one for one in due if not one.connection.is_closed]
            found = sorted(map(id, answered))
            assert found == sorted(map(id, want)), (
                f"hold: {len(answered)} are answered of {len(want)}"
            )
            assert len(polls) == len(held), f"hold: {len(polls)} are held, not {len(held)}"
        polls.release_all()
        want += [one for _, one in held if not one.connection.is_closed]
        assert sorted(map(id, answered)) == sorted(map(id, want)), "hold: some are not answered"
        assert not len(polls), f"hold: {len(polls)} are held at the end"
        nursery.cancel_scope.cancel()


# --- locks of queues


async def _locks(random: Random) -> None:
    """One client of a group has a queue, for a minute since it asked last; others are told whom."""
    there: Any = SimpleNamespace(
        get=lambda topic: SimpleNamespace(queue_nums=2) if topic in TOPICS else None
    )
    nobody: Any = None
    locks = QueueLocks(BROKER, there)
    known: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
    told: dict[tuple[str, MessageQueue], float] = {}
    changed = dict[tuple[str, MessageQueue], None]()
    locks.take_changes()
    for _ in range(STEPS):
        now = trio.current_time()
        group, client, draw = random.choice("gh"), random.choice("xyz"), random.random()
        queues = [
            MessageQueue(topic=topic, broker_name=broker, queue_id=number)
            for topic in ("A", "N")
            for broker in (BROKER, "c")
            for number in random.sample(range(-1, 4), 2)
        ]
        asked = LockQueues(consumer_group=group, client_id=client, mq_set=queues)
        if draw < 0.4:
            body = locks.lock(request(RequestCode.LOCK_BATCH_MQ, {}, asked.encode()), nobody).body
            want = set[MessageQueue]()
            for queue in queues:
                holder, until = known.get((group, queue), ("", -inf))
                is_ours = queue.topic == "A" and queue.broker_name == BROKER
                if not is_ours or queue.queue_id not in (0, 1):
                    continue
                if holder in ("", client) or not now < until:
                    want.add(queue)
                    if holder != client or not now < told[group, queue] + LASTS_S:
                        told[group, queue] = now
                        changed[group, queue] = None
                    known[group, queue] = client, now + LASTS_S
            found = set(LockedQueues.decode(body).lock_ok_mq_set)
            assert found == want, f"lock: {client} has {found}, not {want}"
        elif draw < 0.55:
            locks.unlock(request(RequestCode.UNLOCK_BATCH_MQ, {}, asked.encode()), nobody)
            for queue in queues:
                if known.get((group, queue), ("",))[0] == client:
                    del known[group, queue]
                    changed[group, queue] = None
        elif draw < 0.65:
            locks.forget_expired()
            for key in [key for key, (_, until) in known.items() if not now < until]:
                del known[key]
                changed[key] = None
        elif draw < 0.75:
            locks.renew()
            known = {key: (holder, now + LASTS_S) for key, (holder, _) in known.items()}
        elif draw < 0.85:
            number, holder = random.randrange(2), random.choice(("", "x", "w"))
            locks.apply({f"A@{group}": {number: holder}})
            queue = MessageQueue(topic="A", broker_name=BROKER, queue_id=number)
            known.pop((group, queue), None)
            if holder:
                known[group, queue], told[group, queue] = (holder, now + LASTS_S), -inf
        else:
            await trio.sleep(random.choice((1, 20, 30, LASTS_S)))
        if random.random() < 0.5:
            rows = {
                (key.partition("@")[2], number): holder
                for key, row in locks.take_changes().items()
                for number, holder in row.items()
            }
            holds = {
                (at, queue.queue_id): known.get((at, queue), ("",))[0] for at, queue in changed
            }
            assert rows == holds, f"lock: {rows} are told, not {holds}"
            changed.clear()
        groups = {at for at, _ in known}
        assert set(locks._groups) == groups, f"lock: {sorted(locks._groups)} have some"


# --- plain sends


def _names(random: Random) -> None:
    """Where the four are that a plain send's record needs, if none of its names is a slow one."""
    names = Names(SUFFIX)
    words = (UNIQUE_KEY, TAGS, KEYS, WAIT, "a", "b", "")
    slow = (*sorted(SLOW_PROPERTIES), CRC32, f"__{CRC32}", f"{CRC32}1")
    for _ in range(300):
        chosen = random.sample(words, random.randrange(1, 6))
        chosen += random.sample(slow, 1) if random.random() < 0.2 else []
        chosen += chosen[:1] if random.random() < 0.1 else []
        chosen += ["n" * NAMES_MAX] if random.random() < 0.1 else []
        chosen += ["c"] if chosen[-1] == "" else []
        key = [chosen[0], *(PAIR_END + name for name in chosen[1:])]
        if random.random() < 0.1:
            key[-1] = key[-1].removeprefix(PAIR_END)
        is_apart = all(name[:1] == PAIR_END for name in key[1:])
        is_ended = random.random() < 0.5
        key += [PAIR_END] * is_ended
        is_slow = any(name in SLOW_PROPERTIES or name[-len(CRC32) :] == CRC32 for name in chosen)
        is_plain = UNIQUE_KEY in chosen and "" not in chosen and sorted({*chosen}) == sorted(chosen)
        want: Any = None
        if is_plain and is_apart and not is_slow:
            places = [
                chosen.index(name) * 2 + 1 if name in chosen else 0
                for name in (UNIQUE_KEY, TAGS, KEYS, WAIT)
            ]
            pairs = len(chosen) - 1 + is_ended
            rest = SUFFIX if is_ended else PAIR_END.encode() + SUFFIX
            want = (*places, pairs, 2 * len(chosen) + is_ended, rest)
        asked = tuple(key)
        assert names[asked] == want, f"plain: {asked}: {names[asked]}, not {want}"
        is_kept = sum(len(name) for name in key) < NAMES_MAX + 1
        assert (asked in names) == is_kept, f"plain: {asked} is kept: {asked in names}"


def _meanings() -> None:
    """Numbers that fit into a record, of a queue that is there."""
    meanings = Meanings({"A": 2})
    asked: tuple[tuple[tuple[str, str, str, str], bool], ...] = (
        (("A", "0", "0", "0"), True), (("A", "1", "3", "-2147483648"), True),
        (("A", "1", "256", "2147483647"), True), (("A", "2", "0", "0"), False),
        (("A", "-1", "0", "0"), False), (("A", "0", "-1", "0"), False),
        (("A", "0", "4", "0"), False), (("A", "0", "128", "0"), False),
        (("A", "0", str(0x7FFFFF03), "0"), True), (("A", "0", str(1 << 31), "0"), False),
        (("A", "0", "0", "2147483648"), False), (("A", "0", "0", "-2147483649"), False),
        (("N", "0", "0", "0"), False), (("A", "x", "0", "0"), False),
    )  # fmt: skip
    for texts, is_plain in asked:
        try:
            found: object = meanings[texts]
        except (KeyError, ValueError):
            found = None
        want = tuple(map(int, texts[1:])) if is_plain else None
        assert found == want, f"plain: {texts}: {found}"
    for flag in range(MEANINGS_MAX - len(meanings)):
        meanings["A", "0", "1", str(flag)]
    assert len(meanings) == MEANINGS_MAX, f"plain: {len(meanings)} are kept"
    meanings["A", "0", "2", "0"]
    assert len(meanings) == 1, f"plain: {len(meanings)} are kept when it was full"
