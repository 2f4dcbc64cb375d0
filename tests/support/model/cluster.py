"""A replicated group as one state that changes by explicit actions: the oracle of failover.

Nodes, their logs, the register's entry and the messages in flight are plain data; everything that
is decided goes through the functions of `rocketbed.replication`. There is no clock: any action
may come at any time that its precondition allows, so two leaders may act at once, an answer may
never come, and an acknowledgement may arrive in another life. Offsets count entries: one of a log
is `(epoch, value)`, and value 0 is an epoch's marker.

Checked at each action (replication.md 7.17): two confirmed prefixes never differ (I6), who is
elected holds the confirmed prefix (I5), the leader that the register names needs all who may
replace it (I8), nobody who may lead cuts confirmed bytes, nor anybody what it heard is confirmed
(I16), and nobody leads after it promised a newer epoch (I3).
Checked at the end of a walk: a group that is let alone recovers (I21).
"""

from dataclasses import dataclass, field

from rocketbed.replication import election, epochs, restart
from rocketbed.replication.entry import GroupEntry, Policy, Replica
from rocketbed.replication.epochs import Epoch
from rocketbed.replication.errors import ChangeRefused, HistoryRefused, Superseded
from rocketbed.replication.insync import InSyncView
from tests.support.model.node import Ack, Alter, Log, Node

Action = tuple[str, *tuple[int, ...]]
"""A verb of `Cluster` and its arguments: numbers of nodes, counts, a message's place."""
MARKER = 0


class Violated(Exception):
    """An invariant does not hold; the text says which."""


@dataclass(slots=True)
class Cluster:
    """The whole state. `apply` changes it in place; `clone` is for those who look ahead."""

    policy: Policy
    nodes: list[Node]
    entry: GroupEntry
    messages: list[Ack | Alter] = field(default_factory=list)
    confirmed: Log = ()
    """The longest prefix that anybody confirmed."""
    values: int = 0

    @classmethod
    def of(cls, size: int, min_in_sync: int, policy: Policy, members: int = 0) -> "Cluster":
        """The first `members` (0: all) in sync, nobody elected, all logs empty."""
        nodes = [Node(number) for number in range(size)]
        entry = GroupEntry(
            "g",
            policy,
            min_in_sync,
            replicas={number: Replica(str(number), 1) for number in range(size)},
            in_sync=dict.fromkeys(range(members or size), 1),
        )
        return cls(policy, nodes, entry)

    def clone(self) -> "Cluster":
        nodes = [node.clone() for node in self.nodes]
        return Cluster(
            self.policy, nodes, self.entry, list(self.messages), self.confirmed, self.values
        )

    def apply(self, action: Action) -> bool:
        """Carry out an action; False if it cannot be now. Raises `Violated`."""
        verb, *arguments = action
        changed: bool = getattr(self, verb)(*arguments)
        if changed:
            self.check_need()
        return changed

    # What clients and disks do.

    def write(self, number: int) -> bool:
        """A leader appends a message."""
        node = self.nodes[number]
        if node.view is None:
            return False
        self.values += 1
        node.log = (*node.log, (node.view.epoch, self.values))
        return True

    def flush(self, number: int) -> bool:
        node = self.nodes[number]
        if not node.up or node.flushed == len(node.log):
            return False
        node.flushed = len(node.log)
        return True

    def crash(self, number: int, kept: int) -> bool:
        """A node ends; `kept` entries of those that were not synced are left, all at most."""
        node = self.nodes[number]
        if not node.up:
            return False
        end = min(node.flushed + kept, len(node.log))
        node.lost = self.is_lossy(node, end)
        node.up, node.view, node.follows, node.read = False, None, None, None
        node.log, node.history = node.log[:end], epochs.cut_to(node.history, end)
        node.confirm = min(node.confirm, end)
        return True

    def is_lossy(self, node: Node, end: int) -> bool:
        """An end takes nothing back that an end before it lost."""
        return node.lost or end < len(node.log)

    def restart(self, number: int) -> bool:
        """It syncs what it kept, and counts a life more."""
        node = self.nodes[number]
        if node.up:
            return False
        node.up, node.incarnation, node.flushed = True, node.incarnation + 1, len(node.log)
        return True

    def register(self, number: int) -> bool:
        """The register hears of a life, and whether the one before it lost bytes."""
        node = self.nodes[number]
        if not node.up or self.entry.replicas[number].incarnation == node.incarnation:
            return False
        lossless = restart.lost_nothing(self.policy, stopped=False, same_kernel=not node.lost)
        replica = Replica(str(number), node.incarnation)
        self.entry = election.registered(self.entry, number, replica, lossless=lossless)
        node.lost = False
        return True

    # What the controller does.

    def fence(self, number: int) -> bool:
        before = self.entry
        self.entry = election.fenced(before, number)
        return self.entry is not before

    def elect(self, number: int) -> bool:
        """Elect one that is alive, if the rules let it lead."""
        node = self.nodes[number]
        if self.entry.leader is not None or not node.up:
            return False
        entry = election.elected(self.entry, {number: election.Candidate(node.incarnation)})
        if entry is None:
            return False
        self.entry = entry
        self.check_complete(node, "elected")
        return True

    def hand_over(self, number: int, to: int) -> bool:
        """A leader gives way to a member."""
        view = self.nodes[number].view
        if view is None or number == to:
            return False
        try:
            self.entry = election.handed_over(self.entry, leader=number, epoch=view.epoch, to=to)
        except (Superseded, ChangeRefused):
            return False
        node = self.nodes[to]
        if node.up and self.entry.in_sync[to] == node.incarnation:
            self.check_complete(node, "handed over to")
        return True

    # What leaders do.

    def read(self, number: int) -> bool:
        """A node reads the register; one that is deposed notices, unless it has gone on."""
        node = self.nodes[number]
        if not node.up or node.read is self.entry:
            return False
        node.read = self.entry
        if node.view is not None:
            node.view.read(self.entry)
        return True

    def promise(self, number: int) -> bool:
        """Who read that it is elected gives up what it followed or led."""
        node = self.nodes[number]
        named = node.read
        if named is None or not node.up or named.leader != number:
            return False
        if named.in_sync[number] != node.incarnation or named.epoch <= node.promised:
            return False
        node.promised, node.follows, node.view = named.epoch, None, None
        return True

    def lead(self, number: int) -> bool:
        """Who promised to lead begins its epoch with a marker, as late as it likes."""
        node = self.nodes[number]
        named = node.read
        if named is None or node.view is not None or named.leader != number:
            return False
        if node.promised != named.epoch or named.in_sync[number] != node.incarnation:
            return False
        if any(epoch.number == named.epoch for epoch in node.history):
            return False
        node.view = InSyncView(number, self.begin(node, named.epoch), named)
        if self.entry.epoch == named.epoch and self.entry.leader == number:
            self.check_complete(node, "a leader of the register's epoch")
        return True

    def begin(self, node: Node, number: int) -> int:
        """Append the marker; where it stands."""
        start = len(node.log)
        try:
            node.history = epochs.begun(node.history, Epoch(number, start))
        except HistoryRefused as refused:
            raise Violated(f"I3: node {node.number} leads: {refused}") from refused
        node.log = (*node.log, (number, MARKER))
        return start

    def confirm(self, number: int) -> bool:
        node = self.nodes[number]
        if node.view is None:
            return False
        before = (node.view.confirm, node.confirm)
        own = self.policy.held(written=len(node.log), flushed=node.flushed)
        node.confirm = max(node.confirm, node.view.raise_confirm(own))
        if (node.view.confirm, node.confirm) == before:
            return False
        prefix = node.log[: node.view.confirm]
        both = min(len(prefix), len(self.confirmed))
        if prefix[:both] != self.confirmed[:both]:
            raise Violated(f"I6: node {number} confirms {prefix}, confirmed is {self.confirmed}")
        self.confirmed = max(prefix, self.confirmed, key=len)
        return True

    def join(self, number: int, other: int) -> bool:
        view = self.nodes[number].view
        if view is None or view.pending or not view.may_join(other):
            return False
        self.messages.append(Alter(view.join(other), self.nodes[number].incarnation))
        return True

    def ask(self, number: int) -> bool:
        """Repeat a request whose answer did not come."""
        node = self.nodes[number]
        if node.view is None or node.view.pending is None:
            return False
        again = Alter(node.view.pending, node.incarnation)
        if again in self.messages:
            return False
        self.messages.append(again)
        return True

    def leave(self, number: int, other: int) -> bool:
        view = self.nodes[number].view
        if view is None or view.pending or number == other or other not in view.entry.in_sync:
            return False
        self.messages.append(Alter(view.leave(other), self.nodes[number].incarnation))
        return True

    # What followers do.

    def attach(self, number: int, leader: int) -> bool:
        """Follow whoever takes itself for a leader, and cut to the common end."""
        node, other = self.nodes[number], self.nodes[leader]
        if number == leader or not node.up or other.view is None:
            return False
        epoch = other.view.epoch
        link = (leader, other.incarnation, epoch)
        if not self.may_follow(node, epoch) or node.follows == link:
            return False
        heard, held = node.confirm, self.held_of_confirmed(node)
        end = self.common_end(node, other)
        node.view, node.promised, node.follows = None, max(node.promised, epoch), link
        node.log, node.history = node.log[:end], epochs.cut_to(node.history, end)
        node.flushed, node.confirm = min(node.flushed, end), min(node.confirm, end)
        self.learn(node, other)
        fewer = self.held_of_confirmed(node) < held
        if end < heard or (fewer and number in {**self.entry.in_sync, **self.entry.eligible}):
            raise Violated(f"I16: node {number} cuts to {end}, confirmed is {self.confirmed}")
        return True

    def may_follow(self, node: Node, epoch: int) -> bool:
        """Who promised a newer epoch follows no older one, and nobody follows at its own."""
        return epoch >= node.promised and (node.view is None or node.view.epoch < epoch)

    def common_end(self, node: Node, leader: Node) -> int:
        sides = (node.history, len(node.log), leader.history, len(leader.log))
        return epochs.common_end(*sides) or 0

    def fetch(self, number: int, count: int) -> bool:
        """Append what the leader has next, and acknowledge."""
        node = self.nodes[number]
        if not node.up or node.follows is None or not self.is_linked(node):
            return False
        leader = self.nodes[node.follows[0]]
        before, end = (node.log, node.history, node.confirm), len(node.log)
        node.log += leader.log[end : end + count]
        self.learn(node, leader)
        node.confirm = max(node.confirm, min(leader.confirm, len(node.log)))
        own = self.policy.held(written=len(node.log), flushed=node.flushed)
        ack = Ack(number, leader.number, node.incarnation, leader.incarnation, node.follows[2], own)
        if ack in self.messages:
            return before != (node.log, node.history, node.confirm)
        self.messages.append(ack)
        return True

    def learn(self, node: Node, leader: Node) -> None:
        """Epochs whose markers a follower has now."""
        last = node.history[-1].start if node.history else -1
        new = (epoch for epoch in leader.history if last < epoch.start < len(node.log))
        node.history += tuple(new)

    def is_linked(self, node: Node) -> bool:
        assert node.follows is not None
        leader, incarnation, epoch = node.follows
        other = self.nodes[leader]
        if other.view is None or other.incarnation != incarnation:
            return False
        return other.view.epoch == epoch == node.promised

    # What the network does.

    def deliver(self, place: int) -> bool:
        """A message arrives, and of a request the answer too."""
        return self._arrive(place, remove=True, answered=True)

    def deliver_only(self, place: int) -> bool:
        """A request arrives, its answer does not."""
        return self._arrive(place, remove=True, answered=False)

    def repeat(self, place: int) -> bool:
        """A copy of a message arrives."""
        return self._arrive(place, remove=False, answered=True)

    def lose(self, place: int) -> bool:
        if place >= len(self.messages):
            return False
        del self.messages[place]
        return True

    def _arrive(self, place: int, *, remove: bool, answered: bool) -> bool:
        if place >= len(self.messages):
            return False
        message = self.messages.pop(place) if remove else self.messages[place]
        if isinstance(message, Ack):
            view = self.nodes[message.target].view
            here = self.nodes[message.target].incarnation == message.life
            if view is not None and here and view.epoch == message.epoch:
                view.acknowledged(message.source, message.incarnation, message.end)
            return True
        refused = False
        try:
            self.entry = election.altered(self.entry, message.proposal)
        except ChangeRefused:
            refused = True
        except Superseded:
            pass
        if answered:
            self._answer(message, refused=refused)
        return True

    def _answer(self, message: Alter, *, refused: bool) -> None:
        node = self.nodes[message.proposal.leader]
        if node.view is None or node.incarnation != message.life:
            return
        if node.view.epoch == message.proposal.epoch:
            node.view.read(self.entry)
            if refused:
                node.view.refused(message.proposal)

    def settle(self) -> bool:
        """All that a healthy network and controller do, to the end; every replica comes back.

        I21: unless all who were complete lost bytes, the group then has a leader, everybody is in
        sync, and what is written is confirmed.
        """
        numbers = range(len(self.nodes))
        for number in numbers:
            self.restart(number)
            self.register(number)
        if not self.entry.in_sync and not self.entry.eligible:
            return True
        for _ in range(3 * len(self.nodes) + 3):
            leader = self._lead_settled()
            self._follow_settled(leader)
        view = self.nodes[leader].view
        all_in = len(self.entry.in_sync) == len(self.nodes)
        if not all_in or view is None or view.confirm < len(self.nodes[leader].log):
            raise Violated(f"I21: {self.entry} does not recover, {view and vars(view)}")
        return True

    def _lead_settled(self) -> int:
        numbers = range(len(self.nodes))
        for number in numbers:
            self.elect(number)
        for number in numbers:
            self.read(number)
            self.promise(number)
            self.lead(number)
        if self.entry.leader is None:
            raise Violated(f"I21: nobody is elected by {self.entry}")
        return self.entry.leader

    def _follow_settled(self, leader: int) -> None:
        for number in range(len(self.nodes)):
            self.attach(number, leader)
            self.fetch(number, len(self.nodes[leader].log))
            self.flush(number)
            self.fetch(number, 0)
        self._deliver_all()
        self.confirm(leader)
        self.ask(leader)
        for number in range(len(self.nodes)):
            self.join(leader, number)
        self._deliver_all()

    def _deliver_all(self) -> None:
        while self.messages:
            self.deliver(0)

    # What has to hold.

    def check_need(self) -> None:
        """I8, of the leader that the register names, where its confirm offset can move."""
        entry = self.entry
        view = self.nodes[entry.leader].view if entry.leader is not None else None
        if view is None or view.epoch != entry.epoch or not view.has_enough():
            return
        missing = {*entry.in_sync, *entry.eligible} - {number for number, _ in view.need()}
        if missing:
            raise Violated(f"I8: replicas {missing} may lead, and their leader does not need them")

    def check_complete(self, node: Node, what: str) -> None:
        """I5."""
        if node.log[: len(self.confirmed)] != self.confirmed:
            raise Violated(f"I5: {what}, node {node.number} has {node.log} of {self.confirmed}")

    def held_of_confirmed(self, node: Node) -> int:
        """How many of the confirmed entries a log begins with."""
        pairs = zip(node.log, self.confirmed, strict=False)
        shorter = min(len(node.log), len(self.confirmed))
        return next((at for at, (own, one) in enumerate(pairs) if own != one), shorter)
