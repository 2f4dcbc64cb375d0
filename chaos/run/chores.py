"""What an operator does besides while faults go on, and has to have done when they are over."""

from typing import Protocol

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.changes import Changes
from rocketbed.chaos.run.deletions import Deletions
from rocketbed.chaos.run.load import LoadControl
from rocketbed.chaos.run.members import Members
from rocketbed.chaos.run.settings import SettingChanges
from rocketbed.chaos.run.topics import RunTopics


class Chore(Protocol):
    async def run(self) -> None:
        """Begins with the load, ends when it is done."""

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for it in a healed cluster, but for nodes that stay away; what is not done."""


def chores_of(
    plan: Plan, backend: Backend, control: LoadControl, members: Members, topics: RunTopics
) -> list[Chore]:
    found: list[Chore] = []
    if plan.producers.deleted:
        found.append(Deletions(plan, backend, control, members, topics))
    if plan.producers.changes:
        found.append(Changes(plan, backend, members))
    if plan.producers.settings:
        found.append(SettingChanges(plan, backend, members))
    return found
