"""Time during which a node counts as one that should run: from the begin of its start until a fault
takes it.
"""

from functools import partial
from types import SimpleNamespace
from typing import cast

import trio
from trio.testing import wait_all_tasks_blocked

from rocketbed.chaos.plan.plan import Shape
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.conductor import Conductor
from rocketbed.chaos.run.leave import Leave
from rocketbed.chaos.run.members import Members


class Slow:
    """A backend whose programs start when they may, and are down until then and after."""

    elects = False

    def __init__(self) -> None:
        self.may_start = trio.Event()
        self.history = SimpleNamespace(event=lambda *_: None)

    def state(self, name: str) -> str:
        return "down"

    async def settled(self, name: str) -> None:
        await trio.lowlevel.checkpoint()

    async def start(self, name: str, settings: dict[str, str]) -> None:
        await self.may_start.wait()

    def end_reason(self, name: str) -> str:
        return "it ended"

    def now_ns(self) -> int:
        return 7


def noted_crashes(backend: Slow, members: Members) -> list[str]:
    """Nodes that the conductor takes for ended by themselves."""
    record = SimpleNamespace(crashes=[])
    leave = Leave(members, backend.now_ns)
    actions = SimpleNamespace(leave=leave, nodes=SimpleNamespace(damaged=()))
    conducting = SimpleNamespace(backend=backend, members=members, actions=actions, record=record)
    conducting._note_end = partial(Conductor._note_end, cast(Conductor, conducting))
    Conductor._note_ends(cast(Conductor, conducting))
    return [crash.node for crash in record.crashes]


async def test_fault_during_a_start_is_remembered() -> None:
    backend = Slow()
    members = Members(Shape(brokers=1), cast(Backend, backend))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.start, "b1")
        await wait_all_tasks_blocked()
        members.members["b1"].should_run = False
        backend.may_start.set()
    assert noted_crashes(backend, members) == []


async def test_starting_node_has_not_ended() -> None:
    backend = Slow()
    members = Members(Shape(brokers=1), cast(Backend, backend))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.start, "b1")
        await wait_all_tasks_blocked()
        assert noted_crashes(backend, members) == []
        backend.may_start.set()
    assert noted_crashes(backend, members) == ["b1"], "it ended as soon as it ran"
    assert noted_crashes(backend, members) == [], "told once"
