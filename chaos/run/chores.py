"""An operator's routine work that goes on during the faults and must be finished after them."""

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
        """Work from the start of the load until everything is done."""

    async def finish(self, without: frozenset[str]) -> str:
        """Wait for the work to be done in a healed cluster, except on the nodes in `without`.
        Return what is not done; empty if all is."""


def chores_of(
    plan: Plan, backend: Backend, control: LoadControl, members: Members, topics: RunTopics
) -> list[Chore]:
    chores: list[Chore] = []
    if plan.producers.deleted:
        chores.append(Deletions(plan, backend, control, members, topics))
    if plan.producers.changes:
        chores.append(Changes(plan, backend, members))
    if plan.producers.settings:
        chores.append(SettingChanges(plan, backend, members))
    return chores
