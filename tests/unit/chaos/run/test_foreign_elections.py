"""Roles that a controller decides: leaders over time, and events of the history."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from rocketbed.chaos.evidence.history import Function
from rocketbed.chaos.plan.plan import Shape
from rocketbed.chaos.run.api import Backend, Elected, State
from rocketbed.chaos.run.members import Members


class Electing:
    """A backend that starts nodes in no time and whose controller says what it is told to."""

    elects = True

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, Any]]] = []
        self.history = SimpleNamespace(event=self._note)
        self.up: list[str] = []
        self.answer: Elected | None = None

    def _note(self, function: Function, node: str, event: str, fields: Mapping[str, Any]) -> None:
        self.events.append((node, event, fields))

    def state(self, name: str) -> State:
        return "running" if name in self.up else "down"

    async def settled(self, name: str) -> None:
        return None

    async def start(self, name: str, settings: Mapping[str, str]) -> None:
        self.up.append(name)

    async def election(self) -> None:
        await trio.sleep_forever()

    async def elected(self, group: str) -> Elected | None:
        if self.answer is None and self.up:
            return Elected(node=self.up[0], epoch=1, start=0)
        return self.answer


def electing() -> tuple[Electing, Members]:
    backend = Electing()
    return backend, Members(Shape(brokers=3, nameservers=1), cast(Backend, backend))


async def test_first_node_of_a_group_starts_as_master() -> None:
    backend, members = electing()
    await members.start_all()
    assert backend.up == ["b1", "b2", "b3"]
    assert members.leader("b") == "b1"
    assert {fields["id"] for _, what, fields in backend.events if what == "start"} == {-1}
    assert [what for _, what, _ in backend.events] == ["start"] * 3


async def test_an_election_changes_the_leader_once() -> None:
    backend, members = electing()
    await members.start_all()
    backend.answer = Elected(node="b3", epoch=2, start=900)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.follow_elections)
        await trio.testing.wait_all_tasks_blocked()
        assert members.leader("b") == "b3"
        backend.answer = Elected(node="b3", epoch=3, start=950)
        nursery.cancel_scope.cancel()
    assert sorted(members.followers("b")) == ["b1", "b2"]
    promotions = [
        (node, dict(fields)) for node, what, fields in backend.events if what == "promote"
    ]
    assert promotions == [("b3", {"former": "b1", "written": 900, "epoch": 2})]


async def test_election_counts_once_its_master_reports_its_start() -> None:
    backend, members = electing()
    await members.start_all()
    for elected in (
        Elected(node="b2", epoch=2, start=None),
        Elected(node="b2", epoch=1, start=5),
    ):
        backend.answer = elected
        assert await members._look_at_election("b") == "b2"
        assert members.leader("b") == "b1"


async def test_a_promotion_waits_for_the_election() -> None:
    backend, members = electing()
    await members.start_all()
    backend.up.remove("b1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.promote, "b2")
        await trio.testing.wait_all_tasks_blocked()
        backend.answer = Elected(node="b3", epoch=2, start=900)
        await members._look_at_election("b")
    assert members.leader("b") == "b3"
    assert "b1" not in backend.up
