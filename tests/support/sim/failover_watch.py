"""A group with failover that is watched at every step: invariants of replication.md 7.17.

What each moment shows is checked at that moment, so that a fault of a rule is seen where it acts
and not only where a message happens to be lost by it. The first violation is kept, and ends the
process that it was seen in.
"""

from itertools import takewhile
from typing import NoReturn

from rocketbed.chaos.backends.sim.simulation import LogLine, Simulation
from rocketbed.replication.entry import Policy
from rocketbed.replication.leader import Leader
from rocketbed.wire.ha_native import Ack, NativeReader
from tests.support.sim.failover import HA_PORT, MARKER, FailoverGroup, RecordLog


class Violated(AssertionError):
    """An invariant does not hold; the text begins with its name."""


class WatchedGroup(FailoverGroup):
    """See the module."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        replicas: int = 3,
        rate: float = 100.0,
        only_outcomes: bool = False,
    ) -> None:
        """`only_outcomes` leaves out what is no loss by itself: I7 to I10, I17."""
        super().__init__(simulation, replicas=replicas, controllers=1, rate=rate)
        self._only_outcomes = only_outcomes
        self.violation = ""
        """The first one."""
        self._boots: dict[int, str] = {}
        """Of each replica, the boot in which the register heard of it last."""
        self._promised: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._registered: dict[int, int] = {}
        simulation.on_log.append(self._logged)
        simulation.network.taps[HA_PORT] = self._sent
        self.shelf.on_swap.append(self._swapped)

    @property
    def policy(self) -> Policy:
        return Policy.MEMORY if len(self.names) >= 3 else Policy.FSYNC

    def slow_down(self, *, rate: float) -> None:
        """Messages a second from now on."""
        self._rate = rate

    def is_hopeless(self) -> bool:
        """Whether nobody complete is left, which the rules allow to happen (R9)."""
        return not self.entry.in_sync and not self.entry.eligible

    def _fail(self, text: str) -> NoReturn:
        self.violation = self.violation or text
        raise Violated(text)

    # --- what is checked when

    def _logged(self, line: LogLine) -> None:
        match line.event:
            case "member.leads":
                self._check_complete(line.node)
            case "follower.cut":
                start = line.fields["start"]
                assert isinstance(start, int)
                self._check_cut(line.node, start)

    def _compare(self, log: RecordLog, end: int) -> None:
        name = next(one for one, other in self.logs.items() if other is log)
        leader = self.members[name].leader
        if leader is not None and end > 0 and not self._only_outcomes:
            self._check_held(name, leader, end)
            self._check_need()
        try:
            super()._compare(log, end)
        except AssertionError:
            self._fail(f"I6: {name} confirms other bytes below {end}")

    def _swapped(self) -> None:
        if not self._only_outcomes:
            self._check_lives()
            self._check_lossy()
            self._check_need()

    def _check_complete(self, name: str) -> None:
        """I5: who begins the register's epoch holds all that was confirmed."""
        if self.entry.leader == int(name[1:]):
            held = self._held(self.logs[name])
            if held < len(self.confirmed):
                self._fail(f"I5: {name} leads with {held} of {len(self.confirmed)} confirmed bytes")

    def _check_cut(self, name: str, start: int) -> None:
        """I16: nobody cuts what it heard is confirmed, nor one that may lead confirmed bytes."""
        number, log = int(name[1:]), self.logs[name]
        heard = min(self.members[name].confirm.value, log.written.value)
        if start < heard:
            self._fail(f"I16: {name} cuts at {start}, and heard that {heard} is confirmed")
        may_lead = number in self.entry.in_sync or number in self.entry.eligible
        if may_lead and start < self._held(log):
            self._fail(f"I16: {name} may lead and cuts confirmed bytes at {start}")

    def _check_held(self, name: str, leader: Leader, end: int) -> None:
        """I7: what is confirmed is held by all who were needed for it, and by enough of them."""
        if len(leader.view.entry.in_sync) < leader.view.entry.min_in_sync:
            self._fail(f"I7: {name} confirms {end}, and fewer than the minimum are in sync")
        for number, incarnation in sorted(leader.view.need()):
            other = f"r{number}"
            if other not in self.agents or self.agents[other].me.incarnation != incarnation:
                continue
            log = self.logs[other]
            held = self.policy.held(written=log.written.value, flushed=log.flushed.value)
            if held < end and not self.simulation.process(other).done:
                self._fail(f"I7: {name} confirms {end}, and {other} holds {held}")

    def _check_need(self) -> None:
        """I8, of the leader that the register names, where its confirm offset can move."""
        entry = self.entry
        leader = None
        if entry.leader is not None and f"r{entry.leader}" in self.members:
            leader = self.members[f"r{entry.leader}"].leader
        if leader is None or leader.epoch != entry.epoch or not leader.view.has_enough():
            return
        if self.simulation.process(f"r{entry.leader}").done:
            return
        missing = {*entry.in_sync, *entry.eligible} - {number for number, _ in leader.view.need()}
        if missing:
            self._fail(f"I8: {sorted(missing)} may lead, and their leader does not need them")

    def _check_lives(self) -> None:
        """I10: members are lives that registered, and none that another one followed."""
        entry = self.entry
        for number, incarnation in {**entry.in_sync, **entry.eligible}.items():
            if entry.replicas[number].incarnation != incarnation:
                self._fail(f"I10: life {incarnation} of r{number} is a member, and over")

    def _check_lossy(self) -> None:
        """I9: who came back from a power cut is no member under the policy `memory`."""
        entry = self.entry
        for number, replica in entry.replicas.items():
            agent = self.agents.get(f"r{number}")
            if agent is None or agent.me.incarnation != replica.incarnation:
                continue
            if self._registered.get(number) == replica.incarnation:
                continue
            self._registered[number] = replica.incarnation
            boot = agent._world.process.boot_id
            before, self._boots[number] = self._boots.get(number, boot), boot
            member = number in entry.in_sync or number in entry.eligible
            if self.policy is Policy.MEMORY and before != boot and member:
                self._fail(f"I9: r{number} is a member after it lost bytes")

    def _sent(self, name: str, data: bytes) -> None:
        """I3, I17: nothing is acknowledged below, or before, a promise that is on disk; and no byte
        of an epoch that a start would not know."""
        if name not in self.members or self._only_outcomes:
            return
        state = self.members[name]._file.state
        if state.promised < self._promised.get(name, 0):
            self._fail(f"I3: {name} promised {self._promised[name]}, and now {state.promised}")
        self._promised[name] = state.promised
        known = {(one.number, one.start) for one in state.history}
        for frame in NativeReader().feed(data):
            if not isinstance(frame.content, Ack):
                continue
            if state.promised != frame.epoch:
                self._fail(f"I17: {name} acknowledges at {frame.epoch}, promised {state.promised}")
            end, before = frame.content.received, self._acknowledged.get(name, 0)
            for offset, kind, number in reversed(self.logs[name].records):
                if offset < before:
                    break
                if kind == MARKER and offset < end and (number, offset) not in known:
                    self._fail(f"7.10: {name} acknowledges {end}, epoch {number} is not on disk")
            self._acknowledged[name] = end

    def _held(self, log: RecordLog) -> int:
        """How many of the confirmed bytes a log begins with."""
        own = log.bytes_at(0, len(self.confirmed))
        if own == self.confirmed:
            return len(own)
        pairs = zip(own, self.confirmed, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
