"""Random walks through the model, and the shortest part of one that still fails.

python -m tests.support.model.walks --seconds 60 [--without RULE] [--policy memory] [--min 2]
"""

import argparse
import random
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from rocketbed.replication.entry import Policy
from tests.support.model.cluster import Action, Cluster, Violated
from tests.support.model.rules import RULES

STEPS = 400
SETTLE: Action = ("settle",)
"""How every walk ends."""
IN_FLIGHT_MAX = 18
"""Of more the oldest is lost."""
VERBS = {
    "deliver": 30.0,
    "fetch": 16.0,
    "attach": 8.0,
    "write": 8.0,
    "confirm": 12.0,
    "flush": 4.0,
    "join": 6.0,
    "ask": 2.0,
    "leave": 3.0,
    "read": 5.0,
    "promise": 8.0,
    "lead": 8.0,
    "elect": 6.0,
    "fence": 0.4,
    "crash": 0.15,
    "restart": 1.5,
    "register": 3.0,
    "hand_over": 0.3,
}


class Shape(NamedTuple):
    """How a walk begins; the arguments of `Cluster.of`."""

    size: int
    min_in_sync: int
    policy: Policy
    members: int = 0


def shape_of(seed: int, min_in_sync: int, policy: Policy, size: int = 0) -> Shape:
    """Three or four replicas, unless `size` is told, of which one or more are in sync."""
    size = size or (3, 3, 4)[seed % 3]
    return Shape(size, min_in_sync, policy, 1 + seed % size)


class Walker:
    """Draws actions; how often each comes is drawn for each walk."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        self.size = size
        choose = self.random.choice
        self.verbs = list(VERBS)
        self.weights = [one * choose((0.25, 0.5, 1, 1, 2, 4)) for one in VERBS.values()]
        self.lossy = choose((0.2, 0.6, 1.0))
        self.lost = choose((0.0, 0.05, 0.3))

    def actions(self, cluster: Cluster) -> Iterable[Action]:
        """What is tried in one step: the first that can be done is."""
        draw = self.random.randrange
        verb = self.random.choices(self.verbs, self.weights)[0]
        one, other = draw(self.size), draw(self.size)
        match verb:
            case "deliver":
                return self._message(cluster)
            case "fetch":
                return [(verb, one, draw(4))]
            case "attach":
                leader = cluster.entry.leader
                again = cluster.nodes[one].follows is not None and self.random.random() > 0.2
                if again:
                    return []
                known = leader is not None and self.random.random() < 0.7
                return [(verb, one, leader if known and leader is not None else other)]
            case "hand_over":
                return [(verb, one, other)]
            case "join" | "leave":
                first = [number for number in range(self.size) if number != one]
                return [(verb, leader, one) for leader in first]
            case "crash":
                node = cluster.nodes[one]
                above = len(node.log) - node.flushed
                lossy = self.random.random() < self.lossy
                return [(verb, one, draw(above + 1) if lossy else above)]
            case _:
                return [(verb, one)]

    def _message(self, cluster: Cluster) -> list[Action]:
        count = len(cluster.messages)
        if not count:
            return []
        place = self.random.randrange(count)
        if count > IN_FLIGHT_MAX:
            return [("lose", 0)]
        if self.random.random() < self.lost:
            return [("lose", place)]
        chance = self.random.random()
        verb = "deliver" if chance < 0.65 else "deliver_only" if chance < 0.95 else "repeat"
        return [(verb, place)]


def walk(seed: int, shape: Shape) -> list[Action] | None:
    """The actions up to a violation, or None."""
    cluster, walker = Cluster.of(*shape), Walker(seed, shape.size)
    done: list[Action] = []
    while len(done) < STEPS:
        for action in walker.actions(cluster):
            try:
                changed = cluster.apply(action)
            except Violated:
                return [*done, action]
            if changed:
                done.append(action)
                break
    try:
        cluster.apply(SETTLE)
    except Violated:
        return [*done, SETTLE]
    return None


def violated_by(actions: Iterable[Action], shape: Shape) -> str:
    """Name of the invariant that a row of actions violates, or nothing."""
    return (fails(actions, shape) or "").partition(":")[0]


def fails(actions: Iterable[Action], shape: Shape) -> str | None:
    """What a row of actions violates; those that cannot be done are passed over."""
    cluster = Cluster.of(*shape)
    for action in actions:
        try:
            cluster.apply(action)
        except Violated as violated:
            return str(violated)
    return None


def shrunk(actions: list[Action], shape: Shape) -> list[Action]:
    """Without what the violation does not need: no single action more can be left out."""
    same = violated_by(actions, shape)
    width = len(actions) // 2
    while width:
        at = 0
        while at < len(actions):
            fewer = actions[:at] + actions[at + width :]
            if violated_by(fewer, shape) == same:
                actions = fewer
            else:
                at += width
        width = width // 2 if width > 1 or at < len(actions) else 0
    return actions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--without", choices=sorted(RULES))
    parser.add_argument("--policy", type=Policy, default=Policy.MEMORY)
    parser.add_argument("--min", type=int, default=2)
    parser.add_argument("--size", type=int, default=0, help="0: three or four, by the seed")
    parser.add_argument("--seed", type=int, default=1, help="of the first walk")
    asked = parser.parse_args()
    removed: AbstractContextManager[None] = (
        RULES[asked.without].removed() if asked.without else nullcontext()
    )
    until, seed = time.monotonic() + asked.seconds, asked.seed
    with removed:
        while time.monotonic() < until:
            shape = shape_of(seed, asked.min, asked.policy, asked.size)
            found = walk(seed, shape)
            if found is not None:
                print(f"walk {seed}, {shape}:", fails(found, shape))
                for action in shrunk(found, shape):
                    print(f"    {action},")
                raise SystemExit(1)
            seed += 1
    print(f"{seed - asked.seed} walks, nothing violated")


if __name__ == "__main__":
    main()
