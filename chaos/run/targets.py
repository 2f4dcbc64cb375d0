"""Resolves a target such as `follower:insync` to names at the moment a step is due."""

from collections.abc import Callable
from random import Random

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.targets import (
    NUMBERED,
    client_names,
    consumer_names,
    listener_names,
    machine_names,
    producer_names,
)
from rocketbed.chaos.run.members import Members


class Resolver:
    def __init__(self, plan: Plan, members: Members, random: Random) -> None:
        self.plan = plan
        self.members = members
        self._random = random
        self.hit: dict[str, list[str]] = {}
        """Label -> names that its step hit last."""

    async def names(self, text: str, *, excluded: list[str] | None = None) -> list[str]:
        """Return the names of the machines, none if nothing fits now. `excluded` is what `others`
        leaves out."""
        machines: dict[str, None] = {}
        for part in text.split(","):
            for name in await self._part(part, excluded or []):
                machines[name] = None
        return list(machines)

    async def _part(self, part: str, excluded: list[str]) -> list[str]:
        plan, members = self.plan, self.members
        if part.startswith("@"):
            return self.hit.get(part[1:], [])
        if (name := part.removeprefix("node:")) in machine_names(plan):
            return [name]
        if numbered := NUMBERED.fullmatch(part):
            number = numbered[2]
            return [f"ns{number}"] if numbered[1] == "ns" else self._some(int(number))
        simple: dict[str, Callable[[], list[str]]] = {
            "all": lambda: members.nodes,
            "others": lambda: [node for node in members.nodes if node not in excluded],
            "ns:all": lambda: plan.shape.nameserver_names,
            "ns:any": lambda: [self._random.choice(plan.shape.nameserver_names)],
            "clients:all": lambda: client_names(plan),
            "clients:producers": lambda: producer_names(plan),
            "clients:consumers": lambda: consumer_names(plan) + listener_names(plan)[1:],
            "rand:minority": lambda: self._some((len(members.nodes) - 1) // 2),
            "rand:majority": lambda: self._some(len(members.nodes) // 2 + 1),
        }
        if part in simple:
            return simple[part]()
        return await self._role(part)

    def _some(self, count: int) -> list[str]:
        nodes = self.members.nodes
        return sorted(self._random.sample(nodes, min(count, len(nodes))))

    async def _role(self, part: str) -> list[str]:
        groups = self.plan.shape.group_nodes()
        head, _, last = part.rpartition(":")
        if head and last in groups:
            part, group = head, last
        else:
            group = self._random.choice(sorted(groups)) if len(groups) > 1 else next(iter(groups))
        if part == "leader":
            return [self.members.leader(group)]
        followers = self.members.followers(group)
        if part in ("longest", "follower:longest"):
            longest = await self.members.longest(group, leader_too=part == "longest")
            return [] if longest is None else [longest]
        if part == "follower:all":
            return followers
        if part in ("follower:insync", "follower:lagging"):
            followers = await self._by_lag(group, followers, lagging=part.endswith("lagging"))
        return [self._random.choice(followers)] if followers else []

    async def _by_lag(self, group: str, followers: list[str], *, lagging: bool) -> list[str]:
        leader = await self.members.backend.observe(self.members.leader(group))
        matching = []
        for node in followers:
            sample = await self.members.backend.observe(node)
            is_lagging = sample is None or (
                leader is not None and sample.written < leader.confirmed
            )
            if is_lagging == lagging:
                matching.append(node)
        return matching
