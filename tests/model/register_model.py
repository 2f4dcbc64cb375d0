"""Expected state of a group: its register entry by the rules of `election`, and who runs."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import trio

from rocketbed.replication import election
from rocketbed.replication.election import Candidate
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.errors import ChangeRefused, Superseded
from rocketbed.replication.register.form import loaded
from rocketbed.wire.command import Command, RequestCode
from rocketbed.wire.headers_failover import AlterInSyncRequest, HandOverRequest
from tests.support.peers.replica import GROUP, ScriptedReplica
from tests.support.sim.scripted_group import (
    DONE,
    REFUSED,
    SUPERSEDED,
    ScriptedGroup,
    check_code,
)

LEASE_S, LEASE_MAX_S = 0.6, 2.4
BEAT_S: Final = 0.1
SETTLED_S: Final = 0.15
"""Longer than anything takes that has nothing to wait for."""


def _comparable(entry: GroupEntry) -> GroupEntry:
    """Leave out what only identifies requests and places."""
    replicas = {
        number: replace(replica, address="", ha_address="")
        for number, replica in entry.replicas.items()
    }
    return replace(entry, op="", uid="", replicas=replicas)


def granted_s(response: Command) -> float:
    """Return the lease that the answer to a beat grants; it is longer if beats came late."""
    lease_s = int(response.fields.get("lease", 1000 * LEASE_S)) / 1000
    assert LEASE_S <= lease_s <= LEASE_MAX_S, f"lease: {response.fields}"
    return lease_s


class Register:
    """The expected entry of the group, and acts of its replicas."""

    def __init__(self, group: ScriptedGroup, random: Random) -> None:
        self.group, self.random, self.replicas = group, random, group.replicas
        self.shape: dict[str, Any] = {
            "replicas": random.choice((2, 3)),
            "policy": random.choice(("memory", "fsync")),
        }
        least = 2 if self.shape["replicas"] == 3 else 1
        self.entry = GroupEntry(GROUP, Policy(self.shape["policy"]), least)
        self.alive: dict[int, Candidate] = {}
        """Latest beat of each replica whose lease has not expired."""
        self.positions: dict[int, tuple[int, int]] = {}
        """End of each log as far as the controller was told."""
        self.leases: dict[tuple[int, int], float] = {}
        """End of the longest lease of each number and incarnation."""
        self.requests = 0
        self.latest: tuple[RequestCode, AlterInSyncRequest | HandOverRequest] | None = None
        """Newest change that was made."""
        self.is_waiting = False
        """True while a new controller waits for beats and elects no leader."""

    # --- what is expected

    def change(self, make: Callable[[], GroupEntry]) -> int:
        """Apply a rule to the expected entry and return the code of its answer."""
        try:
            self.entry = make()
        except Superseded:
            return SUPERSEDED
        except ChangeRefused:
            return REFUSED
        return DONE

    def elect(self) -> None:
        if self.entry.leader is None and not self.is_waiting:
            self.entry = election.elected(self.entry, self.alive) or self.entry

    def lose(self, number: int, incarnation: int) -> None:
        """Take a replica out of the set if this incarnation is a member, and elect."""
        if self.entry.in_sync.get(number) == incarnation:
            self.entry = election.fenced(self.entry, number)
        self.elect()

    def check(self, response: Command, code: int, case: str) -> None:
        check_code(response, code, case)
        if code == DONE:
            entry = loaded(response.body, name=GROUP, version=int(response.fields["version"]))
            self._check_entry(entry, f"answer: {case}")

    def _check_entry(self, entry: GroupEntry | None, case: str) -> None:
        assert entry is not None, f"{case}: no entry"
        actual, expected = _comparable(entry), _comparable(self.entry)
        assert actual == expected, f"{case}: {actual}, expected {expected}"

    def unchanged(self, case: str) -> None:
        self._check_entry(self.group.entry, f"register: {case}")

    async def settled(self, case: str) -> None:
        """Check the register and what every replica was told, after all that happens at once."""
        await trio.sleep(SETTLED_S)
        self.unchanged(case)
        linked = [replica for replica in self.replicas if replica.connection is not None]
        for replica in linked:
            if replica.beats:
                self._check_entry(replica.entry, f"notice: {case}: replica {replica.number}")
            notices = replica.notices
            assert notices == sorted(set(notices)), f"notice: {case}: versions {notices}"
        if not linked:
            return
        row = (await self.group.status())[GROUP]
        assert row["entry"]["version"] == self.entry.version, f"groups: {case}: {row}"
        for replica in self.replicas:
            silent_s = row["silent_s"].get(str(replica.number), 9)
            is_alive = replica.beats and replica.number in self.alive
            assert not is_alive or silent_s < 2 * BEAT_S + SETTLED_S, (
                f"groups: {case}: replica {replica.number} is silent for {silent_s} s"
            )

    # --- time

    def granted_until(self, replica: ScriptedReplica, response: Command) -> float:
        """Return the time at which the last lease of a replica ends that has just been answered."""
        life = (replica.number, replica.incarnation)
        until = max(self.leases.get(life, 0.0), trio.current_time() + granted_s(response))
        self.leases[life] = until
        return until

    async def beat(self) -> None:
        """Let all that run beat once; each is sent an entry that it does not have, and no other."""
        for replica in self.replicas:
            if not replica.beats:
                continue
            version = 0 if replica.entry is None else replica.entry.version
            response = await replica.beat()
            check_code(response, DONE, f"beat of {replica.number}")
            self.granted_until(replica, response)
            number, position = replica.number, replica.position
            self.alive[number] = Candidate(replica.incarnation, *position, replica.is_unfit)
            self.positions[number] = position
            is_newer = version < self.entry.version
            assert bool(response.body) <= is_newer, f"beat: version {version} is sent again"
            self.elect()

    async def live(self, seconds: float) -> None:
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await self.beat()
            await trio.sleep(min(BEAT_S, max(end - trio.current_time(), 0.001)))

    async def begin(self) -> None:
        await self.group.wait_active()
        for replica in self.replicas[:3]:
            await self.start(replica)
            await self.beat()
        await self.settled("the first three")
        await self.live(LEASE_S)  # a new controller waits to hear all

    # --- requests

    def op(self) -> str:
        self.requests += 1
        return f"op {self.requests}"

    async def start(self, replica: ScriptedReplica, *, lossless: bool = True) -> None:
        """Begin an incarnation."""
        await replica.listen()
        replica.incarnation += 1
        if replica.connection is None:
            await replica.dial(self.group.controller)
        await self.register(replica, lossless=lossless)
        replica.beats = True

    async def register(self, replica: ScriptedReplica, *, lossless: bool) -> None:
        number, incarnation = replica.number, replica.incarnation
        shrank = replica.position < self.positions.get(number, (0, 0))
        counts = lossless and not (shrank and self.entry.policy is Policy.MEMORY)
        code, row = DONE, Replica(replica.uuid, incarnation)
        if not self.entry.is_registered(number, incarnation):
            entry = self.entry
            code = self.change(lambda: election.registered(entry, number, row, lossless=counts))
        response = await replica.register(lossless=lossless, **self.shape)
        self.check(response, code, f"register {number}.{incarnation}, lossless: {lossless}")
        self.elect()
