"""Whom a controller takes, what a replica finds in its log at its start and compares with its
leader's, where a page or a new group begins, whom a slave follows: each rule by itself.
"""

import errno
import zlib
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from rocketbed.node.broker.admin import PAGE_MAX, _first_row, _page
from rocketbed.node.broker.queries import Queries
from rocketbed.node.broker.registration import Registration
from rocketbed.node.store.cut import last_nonzero
from rocketbed.node.store.errors import CorruptRecord
from rocketbed.node.store.status import GetStatus
from rocketbed.replication.admission import (
    REPLICAS_MAX,
    TEXT_MAX,
    check_words,
    refuse_copy,
    refuse_other_promise,
    refuse_second,
    refuse_stranger,
)
from rocketbed.replication.controller import Controller
from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import EPOCH_MAX, GroupEntry, Policy, Replica
from rocketbed.replication.epoch_file import EpochFile
from rocketbed.replication.epochs import Epoch
from rocketbed.replication.errors import (
    ChangeRefused,
    GroupUnknown,
    LinkRefused,
    NumberTaken,
    RecordRefused,
)
from rocketbed.replication.follower import Follower
from rocketbed.replication.lease import LEASE_S, Roll
from rocketbed.replication.member import Member
from rocketbed.wire.bodies import DataVersion
from rocketbed.wire.command import Command, answer
from rocketbed.world.api import World

ASKED: Final[dict[str, Any]] = {
    "group": "g", "replica": 1, "uuid": "u", "incarnation": 4, "address": "a", "haAddress": "h",
    "lossless": True, "replicas": 3, "policy": "memory", "founds": True, "groupUid": "",
    "promised": 0, "epoch": 0, "end": 0, "op": "o",
}  # fmt: skip
QUIET: Final[Any] = SimpleNamespace(
    error=lambda *_, **__: None, info=lambda *_, **__: None, warning=lambda *_, **__: None
)


def _asked(**changes: Any) -> Any:
    return SimpleNamespace(**(ASKED | changes))


def _outcome(rule: Any, *place: Any, **named: Any) -> type[Exception] | None:
    try:
        rule(*place, **named)
    except (ChangeRefused, GroupUnknown, LinkRefused, NumberTaken, RecordRefused) as exc:
        return type(exc)
    return None


def ask_admission(random: Random) -> None:
    """Whether a replica may have its number, by what it says and who was heard when."""
    long = "x" * TEXT_MAX
    cases: list[tuple[dict[str, Any], bool]] = [
        *(({name: long}, True) for name in ("group", "uuid", "address", "haAddress", "op")),
        *(({name: f"{long}x"}, False) for name in ("group", "uuid", "address", "groupUid", "op")),
        *(({name: ""}, name == "groupUid") for name in ("group", "uuid", "groupUid", "haAddress")),
        *(({name: -1}, False) for name in ("end", "epoch", "promised", "replica", "incarnation")),
        *(({name: EPOCH_MAX}, True) for name in ("epoch", "promised")),
        *(({name: EPOCH_MAX + 1}, False) for name in ("epoch", "promised")),
        ({"end": EPOCH_MAX + 1}, True), ({"op": "a\n"}, False), ({"replica": 0}, True),
        ({"replica": REPLICAS_MAX - 1}, True), ({"replica": REPLICAS_MAX}, False),
        ({"replicas": REPLICAS_MAX}, True), ({"replicas": REPLICAS_MAX + 1}, False),
        ({"replicas": 1}, True), ({"replicas": 0}, False), ({"incarnation": 1}, True),
        ({"incarnation": 0}, False), ({"policy": "fsync"}, True), ({"policy": "none"}, False),
    ]  # fmt: skip
    for changes, is_taken in cases:
        found = _outcome(check_words, _asked(**changes))
        assert found == (None if is_taken else ChangeRefused), f"admission: {changes}: {found}"
    known = GroupEntry("g", Policy.MEMORY, 2, {1: Replica("u", 3, "a")}, uid="own")
    for uid, founds, entry in product(("", "own", "x"), (True, False), (known, None)):
        refused = (entry is not None and uid == "x") or (entry is None and not founds)
        found = _outcome(refuse_stranger, _asked(groupUid=uid, founds=founds), entry)
        assert found == (GroupUnknown if refused else None), f"admission: {uid} {founds}: {found}"
    for number, replicas, policy in product((1, 2), (1, 2, 3), ("memory", "fsync")):
        refused = policy == "fsync" or (number == 2 and replicas < 3)
        asked = _asked(replica=number, replicas=replicas, policy=policy)
        found = _outcome(refuse_other_promise, asked, known)
        assert found == (ChangeRefused if refused else None), f"admission: {asked}: {found}"
    for address, uuid, life, linked, late in product(
        "ab", "uv", (2, 3, 4), ((), (1,)), (0, LEASE_S - 0.01, LEASE_S, None)
    ):
        roll = Roll(0.0)
        if late is not None:
            roll.record_beat(1, Candidate(3), 9.0 - late)
        asked = _asked(address=address, uuid=uuid, incarnation=life)
        runs = bool(linked) and late is not None and 9.0 - (9.0 - late) < LEASE_S
        refused = address != "a" and uuid == "u" and life > 3 and runs
        found = _outcome(refuse_copy, asked, known, roll, linked, 9.0)
        assert found == (ChangeRefused if refused else None), f"admission: {asked}: {found}"
    found = _outcome(refuse_copy, _asked(replica=2, address="b"), known, Roll(0.0), (2,), 9.0)
    assert found is None, f"admission: a copy of nobody: {found}"
    _seconds(random)
    _fallen()


def _seconds(random: Random) -> None:
    for _ in range(400):
        now = 16.0 + random.randrange(4)
        begun = now - random.choice((0, LEASE_S - 0.125, LEASE_S, LEASE_S + 1))
        heard = random.choice((None, now, now - LEASE_S + 0.125, now - LEASE_S, now - 9))
        since = random.choice((now - 0.25, now, now - 9, heard or 0.0))
        roll = None if random.random() < 0.1 else Roll(begun)
        if roll is not None and heard is not None:
            roll.record_beat(1, Candidate(3), heard)
        said = {name: random.random() < 0.1 for name in ("epoch", "end", "promised")}
        sets: dict[str, Any] = random.choice(
            ({}, {"in_sync": {1: 3}}, {"eligible": {1: 3}}, {"last_known": frozenset({1})})
        )
        known = GroupEntry("g", Policy.MEMORY, 2, {1: Replica("v", 3)}, **sets)
        want: type[Exception] | None = NumberTaken if sets else None
        if roll is not None and heard is not None and now - heard < LEASE_S:
            want = ChangeRefused if heard > since else NumberTaken
        if roll is None or not now >= begun + LEASE_S:
            want = NumberTaken
        if any(said.values()):
            want = ChangeRefused
        found = _outcome(
            refuse_second, _asked(**said), known, Replica("v", 3), roll, since=since, now=now
        )
        what = f"{said}, {sets}, begun {begun}, heard {heard}, since {since}, now {now}"
        assert found == want, f"admission: {found} for {want}: {what}"


def _fallen() -> None:
    """A log in memory that ends before where it was heard to end."""
    roll = Roll(0.0)
    roll.record_beat(1, Candidate(3, epoch=2, end=50), 1.0)
    fake: Any = SimpleNamespace(
        _groups={"g": SimpleNamespace(roll=roll)}, _world=SimpleNamespace(log=QUIET)
    )
    for group, number, policy, place in product(
        "gh", (1, 2), Policy, ((1, 99), (2, 49), (2, 50), (2, 51), (3, 0))
    ):
        asked = _asked(group=group, replica=number, policy=policy, epoch=place[0], end=place[1])
        want = (group, number, policy) == ("g", 1, Policy.MEMORY) and place < (2, 50)
        found = Controller._fell_back(fake, asked)
        assert found == want, f"admission: {asked} fell back: {found}"


async def ask_logs(world: World, random: Random) -> None:
    """The epochs of a log that a file knows in part; what is compared of two; where zeros begin."""
    world.disk.makedirs("/member")
    for _ in range(30):
        low = random.choice((0, 0, 5))
        starts = sorted(random.sample(range(low, low + 6), random.randrange(4)))
        epochs = [Epoch(number + 1, start) for number, start in enumerate(starts)]
        end = max(
            [low + random.randrange(3), *(start + 1 + random.randrange(2) for start in starts)]
        )
        file = EpochFile(world, "/member")
        noted = epochs[: random.randrange(len(epochs) + 1)]
        beyond = [Epoch(9, end + random.randrange(3))] if random.random() < 0.3 else []
        confirm = random.choice((end - 1, end, end + 1))
        cut = random.choice((None, None, end, end + 1))
        await file.save(history=(*noted, *beyond), confirm=confirm, cut_to=cut)
        asked, cuts = list[int](), list[int]()
        written = SimpleNamespace(value=end + 1 if cut is not None else end)

        async def cut_to(offset: int, cuts: list[int] = cuts) -> None:
            cuts.append(offset)

        async def found_in(
            since: int, asked: list[int] = asked, epochs: list[Epoch] = epochs
        ) -> list[tuple[int, int]]:
            asked.append(since)
            return [(one.number, one.start) for one in epochs if one.start >= since]

        log = SimpleNamespace(
            min_offset=low,
            written=written,
            epochs=found_in,
            cut_to=cut_to,
            whole_end=lambda end=end: end,
        )
        fake: Any = SimpleNamespace(_log=log, _file=file)
        await Member._recover(fake)
        want = tuple(epochs)
        if (epochs and not low and epochs[0].start) or (not epochs and end > low):
            want = (Epoch(0, 0), *want)
        told = file.state.history, file.state.confirm, file.state.cut_to, cuts
        begin = noted[-1].start + 1 if noted else low
        assert asked == [begin], f"epochs: looked for from {asked}, not {begin}"
        wanted = want, min(confirm, end), None, [end] if cut == end else []
        assert told == wanted, f"epochs: {told} for {wanted} of {noted}, from {low} to {end}"
    _compared()
    for data, at, end in ((bytes(9), 2, 2), (b"\0" * 7 + b"ab" + bytes(9), 2, 9), (b"a", 0, 1)):
        segments = SimpleNamespace(
            has=lambda at, data=data: at < len(data),
            read=lambda at, _, data=data: data[at : at + 5],
        )
        parts: Any = SimpleNamespace(log=SimpleNamespace(segments=segments))
        found = last_nonzero(parts, at)
        assert found == end, f"zeros: {data!r} ends at {found} from {at}"


def _compared() -> None:
    """Bytes of one file, from where the log begins."""
    data = bytes(range(32))
    log = SimpleNamespace(min_offset=3, segment_size=8, read=lambda at, size: data[at : at + size])
    fake: Any = SimpleNamespace(_log=log, leader=1)
    for start, cut, crc in product((2, 3, 8, 15), (3, 4, 8, 9, 16, 17), (0, 1)):
        is_read = start > 2 and start < cut and (cut + 7) // 8 - start // 8 == 1
        wrong = zlib.crc32(data[start:cut]) + crc
        welcome: Any = SimpleNamespace(compared=start, cut=cut, crc=wrong)
        found = _outcome(lambda one: Follower._compare(fake, one), welcome)
        want = RecordRefused if is_read and crc else None
        assert found == want, f"compared: {start} to {cut}: {found}"

    def fails(*_: int) -> bytes:
        raise OSError(errno.EIO, "it fails")

    log.read = fails
    welcome = SimpleNamespace(compared=3, cut=8, crc=0)
    found = _outcome(lambda one: Follower._compare(fake, one), welcome)
    assert found == LinkRefused, f"compared: of a disk that fails: {found}"


class _Store:
    """Of 100 bytes, with one answer to the first pull of a queue."""

    def __init__(self, result: SimpleNamespace) -> None:
        self.result, self.max_offset, self.is_damaged = result, 100, False

    def get_messages(self, *asked: object) -> SimpleNamespace:
        assert asked == ("T", 3, 0, 1), f"page: {asked} is asked for"
        if self.is_damaged:
            raise CorruptRecord("bad", offset=0)
        return self.result


def ask_answers() -> None:
    """Where pages and new groups begin, and whom a slave follows."""
    for asked, rows in ((None, PAGE_MAX), (0, PAGE_MAX), (-1, PAGE_MAX), (1, 1), (2, 2),
                        (PAGE_MAX, PAGE_MAX), (PAGE_MAX + 1, PAGE_MAX)):  # fmt: skip
        assert _page(asked) == rows, f"page: of {asked}: {_page(asked)}"
    version, other = DataVersion(timestamp=5), DataVersion(timestamp=6)
    for at, text, first in (
        (3, None, 3), (3, "", 3), (0, None, 0), (-1, None, 0), (1, version.encode().decode(), 1),
        (3, other.encode().decode(), 0),
    ):  # fmt: skip
        found = _first_row(at, text, version)
        assert found == first, f"page: {at} of {text}: {found}"
    for near, at, low, status in product((0, 10), (89, 90, 91), (0, 1), (GetStatus.FOUND, None)):
        result = SimpleNamespace(status=status, min_offset=low, ranges=[(at, 1)])
        store = _Store(result)
        config = SimpleNamespace(store=SimpleNamespace(memory_bytes=near))
        fake: Any = SimpleNamespace(_store=store, _config=config)
        store.is_damaged = True
        assert not Queries._starts_in_memory(fake, "T", 3), "page: what is damaged is near"
        store.is_damaged = False
        is_near = status is not None and low == 0 and (at >= 90 or not near)
        was_near = Queries._starts_in_memory(fake, "T", 3)
        assert was_near == is_near, f"page: {at} of 100 is near by {near}: {was_near}"
    address = "n", 1
    for is_slave, replica, ha, master in product((True, False), (None, 1), ("h", ""), ("m", "")):
        follows = list[tuple[str, str]]()
        fake = SimpleNamespace(
            registered={address: False}, _world=SimpleNamespace(log=QUIET), _masters={},
            _config=SimpleNamespace(is_slave=is_slave, replica=replica), _follow=follows.append,
        )  # fmt: skip
        fields = {"haServerAddr": ha, "masterAddr": master}
        told = answer(
            Command(code=103), 0, None, {name: one for name, one in fields.items() if one}
        )
        for _ in range(2):
            Registration._accept(fake, address, told)
        want = [(ha, master)] if is_slave and replica is None and ha and master else []
        assert (follows, fake.registered) == (want, {address: True}), f"named: {follows}: {fields}"
