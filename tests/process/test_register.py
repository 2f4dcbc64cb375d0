"""The register in both of its stores: a real file of SQLite, a real etcd."""

import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest
import trio

from rocketbed.replication.election import Candidate, Proposal
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.errors import (
    ChangeRefused,
    EntryDamaged,
    GroupUnknown,
    ReplicationError,
    Superseded,
)
from rocketbed.replication.register.cas import (
    CHANGES_MAX,
    CasBroken,
    CasStore,
    CasSuperseded,
    CasUnknown,
    Versioned,
)
from rocketbed.replication.register.etcd import EtcdCas
from rocketbed.replication.register.form import dumped
from rocketbed.replication.register.register import Register, new_group
from rocketbed.replication.register.sqlite import open_sqlite
from rocketbed.world.real import real_world
from tests.support.etcd import etcd
from tests.support.lossy_cas import LossyCas

STORES = ("sqlite", pytest.param("etcd", marks=pytest.mark.slow))
HANG_S = 120


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CasStore]:
    """A store that this process has claimed."""
    if request.param == "sqlite":
        opened: CasStore = await open_sqlite(real_world("one"), str(tmp_path / "register.db"))
        yield opened
        await opened.aclose()
        return
    with etcd(tmp_path) as server:
        async with EtcdCas(real_world("one"), [server.address], "test") as claimed:
            await claimed.claim()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claimed.keep)
                yield claimed
                nursery.cancel_scope.cancel()


async def test_swap_applies_once_and_to_the_newest_version(store: CasStore) -> None:
    name = "a group/with ü%"
    assert await store.read(name) is None
    assert not await store.swap(name, b"x", after=1)
    assert await store.swap(name, b"one", after=0)
    assert not await store.swap(name, b"again", after=0)
    assert await store.swap(name, b"", after=1)
    assert await store.read(name) == Versioned(2, b"")
    assert await store.swap("b", b"\x00\xff", after=0)
    assert await store.names() == [name, "b"]
    assert await store.changes(name) == [Versioned(1, b"one"), Versioned(2, b"")]
    assert await store.changes("none") == []


async def test_only_the_newest_thousand_versions_are_kept(store: CasStore) -> None:
    for version in range(CHANGES_MAX + 3):
        assert await store.swap("g", str(version).encode(), after=version)
    versions = await store.changes("g")
    assert [one.version for one in versions] == list(range(3, CHANGES_MAX + 4))
    assert versions[-1] == await store.read("g")


async def test_concurrent_swaps_get_one_version_each(store: CasStore) -> None:
    written: list[int] = []

    async def increment() -> None:
        for _ in range(8):
            while True:
                current = await store.read("n")
                version, value = (current.version, int(current.value)) if current else (0, 0)
                if await store.swap("n", str(value + 1).encode(), after=version):
                    written.append(value + 1)
                    break

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(increment)
    assert sorted(written) == list(range(1, 49))


async def test_cancelled_caller_leaves_the_store_intact(store: CasStore) -> None:
    for number in range(10):
        with trio.move_on_after(number / 5000):
            await store.swap("g", b"x", after=number)
        current = await store.read("g")
        if current is None or current.version == number:
            with trio.fail_after(HANG_S):
                await store.swap("g", b"x", after=number)  # False: it was made late
    assert [one.version for one in await store.changes("g")] == list(range(1, 11))


@pytest.mark.parametrize("seed", range(6))
async def test_answered_changes_are_stored_despite_lost_requests(
    store: CasStore, seed: int
) -> None:
    """I2, I10, I20: versions rise by one, epochs are never reused, each has one leader, no request
    is carried out twice, and what was answered is in the history as it was answered."""
    random = Random(seed)
    lossy = LossyCas(store, random, trouble=0.4)
    register = Register(lossy)
    answers: list[tuple[str, GroupEntry]] = []
    refused = 0

    async def controller(number: int) -> None:
        nonlocal refused
        steps = count()
        while (step := next(steps)) < 25 or lossy.met <= 5:  # how often depends on the order
            op = f"{number}-{step}"
            try:
                answers.append((op, await _any_change(register, random, op)))
            except (ReplicationError, CasUnknown):
                refused += 1

    await register.register(0, Replica("u0", 1), new_group("g", replicas=3), lossless=True, op="0")
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(controller, number)
    for _ in range(50):
        await lossy.deliver()

    history = await register.history("g")
    assert [one.version for one in history] == list(range(1, len(history) + 1))
    ops = [one.op for one in history]
    assert len(set(ops)) == len(ops)
    leaders: dict[int, set[int]] = {}
    for before, after in pairwise(history):
        assert after.epoch in (before.epoch, before.epoch + 1)
        if after.leader is not None:
            leaders.setdefault(after.epoch, set()).add(after.leader)
    assert all(len(one) == 1 for one in leaders.values()), leaders
    by_version = {one.version: one for one in history}
    assert all(entry == by_version[entry.version] for _, entry in answers if entry.version)
    assert len(history) > 10, refused
    assert lossy.met > 5


class _Overtaken(LossyCas):
    """The answer to the first swap is lost, and another change is made before it is missed."""

    def __init__(self, store: CasStore) -> None:
        super().__init__(store, Random(0), trouble=0)
        self.is_first = True

    async def swap(self, name: str, value: bytes, *, after: int) -> bool:
        done = await self._store.swap(name, value, after=after)
        if self.is_first:
            self.is_first = False
            await Register(self._store).fence(name, 0, 1, op="other")
            raise CasUnknown("the answer was lost")
        return done


async def test_change_with_a_lost_answer_is_not_repeated(
    store: CasStore,
) -> None:
    register = Register(store)
    for number in range(2):
        new = new_group("g", replicas=2, policy=Policy.FSYNC)
        await register.register(
            number, Replica(f"u{number}", 1), new, lossless=True, op=f"{number}"
        )
    entry = await Register(_Overtaken(store)).elect("g", {0: Candidate(1)}, op="elect")
    assert (entry.leader, entry.epoch, entry.op) == (0, 1, "elect")
    history = await register.history("g")
    assert [one.op for one in history] == ["0", "1", "elect", "other"]


async def _any_change(register: Register, random: Random, op: str) -> GroupEntry:
    """Something that a controller might be asked, on the ground of what it read a moment ago."""
    entry = await register.get("g")
    assert entry is not None
    number = random.randrange(3)
    life = entry.replicas[number].incarnation if number in entry.replicas else 0
    alive = {one: Candidate(replica.incarnation) for one, replica in entry.replicas.items()}
    match random.randrange(6):
        case 0:
            replica = Replica(f"u{number}", life + 1)
            new = new_group("g", replicas=3)
            lossless = random.random() < 0.8
            return await register.register(number, replica, new, lossless=lossless, op=op)
        case 1:
            return await register.fence("g", number, life, op=op)
        case 2 if entry.leader is not None:
            return await register.hand_over(
                "g", leader=entry.leader, epoch=entry.epoch, to=number, op=op
            )
        case 3 if entry.leader is not None:
            members = {**entry.in_sync, number: life}
            proposal = Proposal(entry.leader, entry.epoch, entry.version, members)
            return await register.alter("g", proposal, op=op)
        case 4:
            return await register.force("g", number, alive, op=op)
    return await register.elect("g", alive, op=op)


async def test_repeated_request_changes_nothing_and_late_one_fails(
    store: CasStore,
) -> None:
    register = Register(store)
    new = new_group("g", replicas=3)
    first = await register.register(0, Replica("u0", 1), new, lossless=True, op="a")
    assert first == await register.register(0, Replica("u0", 1), new, lossless=True, op="a")
    assert first == await register.register(0, Replica("u0", 1), new, lossless=True, op="a2")
    assert (first.policy, first.min_in_sync) == (Policy.MEMORY, 2)
    second = await register.register(1, Replica("u1", 1), new, lossless=True, op="b")
    assert second.in_sync == {0: 1}
    led = await register.elect("g", {0: Candidate(1)}, op="c")
    assert (led.leader, led.epoch) == (0, 1)
    assert led == await register.elect("g", {0: Candidate(1)}, op="d"), "there is a leader"
    assert led == await register.fence("g", 0, 7, op="e"), "that life is another one"
    both = Proposal(0, 1, led.version, {0: 1, 1: 1})
    joined = await register.alter("g", both, op="f")
    assert joined == await register.alter("g", both, op="f")
    with pytest.raises(Superseded):
        await register.alter("g", both, op="late")
    with pytest.raises(ChangeRefused, match="have lost nothing"):
        await register.force("g", 1, {0: Candidate(1), 1: Candidate(1)}, op="h")
    with pytest.raises(GroupUnknown, match="'other'"):
        await register.elect("other", {}, op="i")
    handed = await register.hand_over("g", leader=0, epoch=1, to=1, op="j")
    assert (handed.leader, handed.epoch) == (1, 2)
    assert await register.groups() == ({"g": handed}, {})
    assert [one.op for one in await register.history("g")] == ["a", "b", "c", "f", "j"]


async def test_altered_entry_is_refused_with_advice(
    store: CasStore,
) -> None:
    register = Register(store)
    new = new_group("g", replicas=2)
    entry = await register.register(0, Replica("u0", 1), new, lossless=True, op="a")
    await store.swap("g", dumped(entry), after=1)
    pattern = r"version 1 of 'g'.* Bring back a copy"
    for ask in (register.history("g"), register.fence("g", 0, 1, op="c")):
        with pytest.raises(EntryDamaged, match=pattern):
            await ask
    await store.swap("g", dumped(replace(entry, version=3, epoch=1 << 31)), after=2)
    with pytest.raises(EntryDamaged, match=r"version 3 of .* 2147483648 is not a number"):
        await register.fence("g", 0, 1, op="c")
    second_entry = await register.register(
        0, Replica("u0", 1), new_group("h", replicas=2), lossless=True, op="a"
    )
    entries, damaged = await register.groups()
    assert entries == {"h": second_entry}
    assert re.search("2147483648 .* Bring back a copy", str(damaged["g"]))
    with pytest.raises(ChangeRefused, match="needs an id"):
        await register.fence("h", 0, 1, op="")
    with pytest.raises(ChangeRefused, match="nobody could read"):
        await register.register(1, Replica("u1", -1), second_entry, lossless=True, op="b")
    assert (await register.groups())[0] == {"h": second_entry}


async def test_register_without_its_file_reports_it(tmp_path: Path) -> None:
    path = tmp_path / "register.db"
    store = await open_sqlite(real_world("one"), str(path))
    path.unlink()
    with pytest.raises(
        CasBroken, match=r"is gone, or another file: stop this process, bring its newest copy"
    ):
        await store.keep()
    await store.aclose()


async def test_second_controller_waits_then_supersedes_the_first(tmp_path: Path) -> None:
    path = str(tmp_path / "register.db")
    first = await open_sqlite(real_world("one"), path)
    with pytest.raises(CasSuperseded, match="in use by another process"):
        await open_sqlite(real_world("two"), path)
    assert await first.swap("g", b"x", after=0)
    await first.aclose()
    with pytest.raises(CasSuperseded, match="was closed"):
        await first.swap("g", b"y", after=1)
    second = await open_sqlite(real_world("two"), path)
    assert await second.read("g") == Versioned(1, b"x")
    await second.aclose()


_KILLED = """
import os, signal, sys, trio
from rocketbed.replication.entry import Replica
from rocketbed.replication.register.register import Register, new_group
from rocketbed.world.real import real_world
from rocketbed.replication.register.sqlite import open_sqlite

async def main():
    store = await open_sqlite(real_world("one"), sys.argv[1])
    swap = store.swap
    async def killed(name, value, *, after):
        assert await swap(name, value, after=after)
        os.kill(os.getpid(), signal.SIGKILL)
    store.swap = killed
    new = new_group("g", replicas=1)
    await Register(store).register(0, Replica("u", 1), new, lossless=True, op="op")

trio.run(main)
"""


async def test_kill_between_commit_and_answer_applies_once(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "register.db")
    died = await trio.run_process([sys.executable, "-P", "-c", _KILLED, path], check=False)
    assert died.returncode == -signal.SIGKILL
    store = await open_sqlite(real_world("two"), path)
    new = new_group("g", replicas=1)
    entry = await Register(store).register(0, Replica("u", 1), new, lossless=True, op="op")
    assert entry.version == 1
    await store.aclose()


async def test_deleted_file_is_reported_and_changes_stop(
    tmp_path: Path,
) -> None:
    for replaced in (False, True):
        path = tmp_path / f"{replaced}.db"
        store = await open_sqlite(real_world("one"), str(path))
        assert await store.swap("g", b"x", after=0)
        path.rename(f"{path}.old")
        if replaced:
            path.touch()
        for _ in range(2):
            with pytest.raises(CasBroken, match="deleted or replaced"):
                await store.read("g")
        await store.aclose()


async def test_full_disk_delays_and_answered_changes_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    await trio.run_process(mount)
    try:
        path = str(disk / "register.db")
        store = await open_sqlite(real_world("one"), path)
        (disk / "filler").write_bytes(bytes(100 << 10))
        values: list[bytes] = []
        for is_full in (True, False):
            with suppress(CasUnknown):
                while len(values) < 100:
                    value = os.urandom(1000)
                    assert await store.swap("g", value, after=len(values))
                    values.append(value)
            assert (len(values) < 100) is is_full
            for _ in range(2):
                stored = await store.read("g")
                assert stored == Versioned(len(values), values[-1])
            if is_full:
                with pytest.raises(CasUnknown, match="full: make room"):
                    await store.swap("g", b"x", after=len(values))
                (disk / "filler").unlink()
                await trio.run_process(["mount", "-o", "remount,size=10m", str(disk)])
        await store.aclose()
        store = await open_sqlite(real_world("one"), path)
        stored = await store.read("g")
        assert stored == Versioned(100, values[-1])
        await store.aclose()
    finally:
        await trio.run_process(["umount", str(disk)])


async def test_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "register.db"
    store = await open_sqlite(real_world("one"), str(path))
    for version in range(200):
        await store.swap(f"g{version}", b"x" * 100, after=0)
    await store.aclose()
    whole = path.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle] + b"\xff" * 4096 + whole[middle + 4096 :],
        whole[: len(whole) // 2],
        b"not a database" * 100,
    ):
        path.write_bytes(damaged)
        with pytest.raises(CasBroken, match="damaged"):
            await open_sqlite(real_world("one"), str(path))
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t(x)")
    database.close()
    with pytest.raises(CasBroken, match="of another program"):
        await open_sqlite(real_world("one"), str(path))
    path.write_bytes(whole)
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(CasBroken, match="its format is 9"):
        await open_sqlite(real_world("one"), str(path))
    with pytest.raises(CasBroken, match="cannot be opened"):
        await open_sqlite(real_world("one"), str(tmp_path))


@pytest.mark.slow
async def test_only_the_active_controller_of_two_changes_etcd(
    tmp_path: Path,
) -> None:
    """The one that stops to renew is fenced by the store, though it believes to be active."""
    with etcd(tmp_path) as server, trio.fail_after(HANG_S):
        async with (
            EtcdCas(real_world("one"), [server.address], "c") as first,
            EtcdCas(real_world("two"), [("127.0.0.1", 1), server.address], "c") as two,
        ):
            with pytest.raises(CasSuperseded, match="no claim"):
                await first.swap("g", b"x", after=0)
            await first.claim()
            assert await first.swap("g", b"x", after=0)
            with trio.move_on_after(1):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(first.keep)
                    await two.claim()
            assert await two.read("g") == Versioned(1, b"x"), "all may read"
            with pytest.raises(CasSuperseded, match="no claim"):
                await two.swap("g", b"y", after=1)
            await two.claim()  # the first one's claim is not renewed
            with pytest.raises(CasSuperseded, match="another controller is active"):
                await first.swap("g", b"y", after=1)
            assert await two.swap("g", b"z", after=1)
            with pytest.raises(CasSuperseded):
                await first.keep()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.claim)
                await two.aclose()  # gives it up at once
            assert await first.swap("g", b"w", after=2)
            assert [found.version for found in await first.changes("g")] == [1, 2, 3]


@pytest.mark.slow
async def test_lost_etcd_ends_the_claim_and_a_new_one_follows(
    tmp_path: Path,
) -> None:
    with etcd(tmp_path) as server, trio.fail_after(HANG_S):
        async with EtcdCas(real_world("one"), [server.address], "c") as store:
            await store.claim()
            assert await store.swap("g", b"x", after=0)
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            with pytest.raises(CasUnknown):
                await store.swap("g", b"y", after=1)
            with pytest.raises(CasSuperseded, match="not renewed in time"):
                await store.keep()
            server.process.send_signal(signal.SIGCONT)
            server.kill()
            with pytest.raises(CasUnknown, match="no member of etcd can be reached"):
                await store.read("g")
            server.start()
            await store.claim()
            current = await store.read("g")
            assert current is not None
            assert await store.swap("g", b"z", after=current.version)


@pytest.mark.parametrize(
    ("answer", "error", "pattern"),
    [
        (b"SSH-2.0-x\r\n\r\n", CasBroken, "does not speak HTTP"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", CasBroken, "is this etcd 3.4"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", CasUnknown, "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n<>", CasUnknown, "127.0.0.1"),
        (
            b'HTTP/1.1 503 x\r\nContent-Length: 21\r\n\r\n{"error":"no leader"} ',
            CasUnknown,
            "503 no leader",
        ),
        (b"", CasUnknown, "127.0.0.1"),
    ],
)
async def test_unexpected_etcd_answer_is_reported(
    answer: bytes, error: type[Exception], pattern: str
) -> None:
    async def answer_so(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listeners[0].socket.getsockname()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer_so, listeners)
        async with EtcdCas(real_world("one"), [address], "c") as store:
            with pytest.raises(error, match=pattern):
                await store.read("g")
        nursery.cancel_scope.cancel()
