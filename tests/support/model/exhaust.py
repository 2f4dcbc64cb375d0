"""Every state that a small group can reach within limits, each checked once.

    python -m tests.support.model.exhaust --size 3 --min 2 --policy memory --elections 2

Left out is what cannot matter: messages that change nothing however late they come, what a node
read of the register when it does not concern it, and which replica of equal ones is elected first.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rocketbed.replication.election import Proposal
from rocketbed.replication.entry import GroupEntry, Policy
from tests.support.model.cluster import Action, Cluster, Violated
from tests.support.model.node import Ack, Alter, Node


@dataclass(frozen=True, slots=True)
class Limits:
    """How often each may happen on one path."""

    writes: int = 1
    elections: int = 2
    crashes: int = 1
    fences: int = 1
    requests: int = 1
    """Of leaders for another set."""


Trace = tuple["Trace | None", Action]
"""The action that led to a state, behind those before it."""


def search(start: Cluster, limits: Limits, states_max: int = 10**9) -> tuple[int, list[Action]]:
    """How many states there are, and the actions to one that violates, if there is one.

    The shortest such row is found first. `states_max` ends a search that is not done.
    """
    seen = {hash(_key(start, limits))}
    front: list[tuple[Cluster, Limits, Trace | None]] = [(start, limits, None)]
    while front and len(seen) < states_max:
        behind: list[tuple[Cluster, Limits, Trace | None]] = []
        for cluster, left, path in front:
            after = cluster.clone()
            for action, rest in _possible(cluster, left):
                try:
                    if not after.apply(action):
                        continue
                except Violated:
                    return len(seen), _actions((path, action))
                lost = _lose_what_matters_not(after)
                key = hash(_key(after, rest))
                if key not in seen:
                    seen.add(key)
                    behind.append((after, rest, _appended(path, [action, *lost])))
                after = cluster.clone()
        front = behind
    return len(seen), []


def _appended(path: Trace | None, actions: list[Action]) -> Trace | None:
    for action in actions:
        path = (path, action)
    return path


def _actions(path: Trace | None) -> list[Action]:
    found: list[Action] = []
    while path is not None:
        path, action = path
        found.append(action)
    return found[::-1]


def _possible(cluster: Cluster, left: Limits) -> Iterator[tuple[Action, Limits]]:
    numbers = range(len(cluster.nodes))
    for number in numbers:
        for verb in ("read", "promise", "lead", "confirm", "restart", "register"):
            yield (verb, number), left
        if cluster.policy is Policy.FSYNC or left.crashes:
            yield ("flush", number), left
        yield ("fetch", number, 1), left
        if left.writes:
            yield ("write", number), replace(left, writes=left.writes - 1)
        if left.elections and (cluster.entry.epoch or number == 0):
            yield ("elect", number), replace(left, elections=left.elections - 1)
        if left.fences:
            yield ("fence", number), replace(left, fences=left.fences - 1)
        if left.crashes:
            node = cluster.nodes[number]
            for kept in range(len(node.log) - node.flushed + 1):
                yield ("crash", number, kept), replace(left, crashes=left.crashes - 1)
    for number, other in product(numbers, numbers):
        yield ("attach", number, other), left
        if left.elections:
            yield ("hand_over", number, other), replace(left, elections=left.elections - 1)
        if left.requests:
            yield ("join", number, other), replace(left, requests=left.requests - 1)
            yield ("leave", number, other), replace(left, requests=left.requests - 1)
    for place in range(len(cluster.messages)):
        yield ("deliver", place), left
        yield ("deliver_only", place), left


def _lose_what_matters_not(cluster: Cluster) -> list[Action]:
    """Newest first, so that the places of the others stay."""
    places = range(len(cluster.messages) - 1, -1, -1)
    gone = [place for place in places if not _matters(cluster, cluster.messages[place])]
    for place in gone:
        del cluster.messages[place]
    return [("lose", place) for place in gone]


def _matters(cluster: Cluster, message: Ack | Alter) -> bool:
    """Whether it can still change anything but what its receiver could read itself."""
    if isinstance(message, Alter):
        asked, entry = message.proposal, cluster.entry
        now = (entry.leader, entry.epoch, entry.version)
        return (asked.leader, asked.epoch, asked.version) == now
    node = cluster.nodes[message.target]
    if node.view is None or (node.incarnation, node.view.epoch) != (message.life, message.epoch):
        return False
    known = node.view.positions.get(message.source)
    return known is None or (known.incarnation, known.end) < (message.incarnation, message.end)


def _key(cluster: Cluster, left: Limits) -> Any:
    """Equal for states that behave alike."""
    messages = frozenset(
        (_of_request(one.proposal), one.life) if isinstance(one, Alter) else one
        for one in cluster.messages
    )
    nodes = tuple(_of_node(node) for node in cluster.nodes)
    return nodes, messages, _of_entry(cluster.entry), cluster.confirmed, left


def _of_node(node: Node) -> Any:
    named = node.read is not None and node.read.leader == node.number
    own = (node.incarnation, node.up, node.lost, node.log, node.flushed, node.history)
    said = (node.promised, node.follows, node.read and named and _of_entry(node.read))
    view = node.view
    if view is None:
        return own, said
    positions = tuple(sorted(view.positions.items(), key=lambda pair: pair[0]))
    asked = view.pending and _of_request(view.pending)
    return own, said, view.epoch, view.confirm, _of_entry(view.entry), positions, asked


def _of_entry(entry: GroupEntry) -> Any:
    lives = tuple(replica.incarnation for replica in entry.replicas.values())
    sets = (tuple(sorted(one.items())) for one in (entry.in_sync, entry.eligible))
    return entry.version, entry.epoch, entry.leader, lives, *sets


def _of_request(proposal: Proposal) -> Any:
    in_sync = tuple(sorted(proposal.in_sync.items()))
    return proposal.leader, proposal.epoch, proposal.version, in_sync


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--min", type=int, default=1)
    parser.add_argument("--members", type=int, default=0)
    parser.add_argument("--policy", type=Policy, default=Policy.FSYNC)
    parser.add_argument("--states", type=int, default=10**9)
    for name in Limits.__slots__:
        parser.add_argument(f"--{name}", type=int, default=getattr(Limits(), name))
    asked = vars(parser.parse_args())
    limits = Limits(**{name: asked[name] for name in Limits.__slots__})
    start = Cluster.of(asked["size"], asked["min"], asked["policy"], asked["members"])
    states, path = search(start, limits, asked["states"])
    print(f"{states:,} states;", "violated by:" if path else "nothing violated")
    for action in path:
        print(f"    {action},")
    raise SystemExit(bool(path))


if __name__ == "__main__":
    main()
