"""A controller asked by replicas by hand: who is taken in, who leads, who is in sync, and when.

They come, beat, die, hang, fall silent, come back with less, or as somebody else; they ask for
other sets, hand over, leave; an operator forces. Each answer, each notice and the register itself
are compared with the model, and a leader is named when it has to be, neither before nor after.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

import orjson
import trio

from rocketbed.chaos.backends.sim.clock import SECOND
from rocketbed.chaos.backends.sim.memory_cas import Shelf
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.replication.entry import EPOCH_MAX
from rocketbed.world.api import World
from tests.model.hand_replica import GROUP
from tests.model.register_group import CONTROLLER, PEERS, control
from tests.model.register_steps import DrawnGroup
from tests.model.register_words import forced, forgotten, lost, spoilt, trouble, words
from tests.model.script import Script

STEPS: Final = 40
FAILED: Final = "remoting.handler_failed"


def run_register(seed: int) -> str:
    """The rules at their edges, then drawn work; a digest."""
    digest = ""
    for name in ("drawn", "words", "forced", "trouble", "lost", "forgotten", "spoilt"):
        script = Script(Simulation(f"register/{seed}/{name}"))
        with script.simulation:
            shelf = Shelf(partial(_now_s, script))
            script.simulation.start(CONTROLLER, control, shelf)
            script.play(PEERS, _asks, name, Random(f"register/{seed}/{name}"), script, shelf)
            failed = [one for one in script.simulation.log if one.event == FAILED]
            assert not failed, f"handler: {name}: {failed[:1]}"
            digest += script.simulation.digest()
    return digest


async def _asks(world: World, name: str, random: Random, script: Script, shelf: Shelf) -> None:
    async with trio.open_nursery() as nursery:
        group = DrawnGroup(world, nursery, random, script, shelf)
        if name == "drawn":
            await group.begin()
            for _ in range(STEPS):
                await group.step()
        else:
            await group.active()
            for hand in group.hands:
                await hand.dial(group.controller)
            await _words(name, group)
        nursery.cancel_scope.cancel()


async def _words(name: str, group: DrawnGroup) -> None:
    hands, shelf = group.hands, group.shelf

    async def empties() -> None:
        shelf.values.clear()
        await group.another_controller()
        for hand in hands:
            await hand.dial(group.controller)

    ways = group.random.sample(SPOILT, len(SPOILT))
    right: list[bytes] = []

    def spoils() -> str:
        newest = shelf.values[GROUP][-1]
        right.append(newest.value)
        row, change = orjson.loads(right[0]), ways.pop()
        for path, value in change.items():
            *outer, last = path.split("/")
            inner = row
            for one in outer:
                inner = inner[one]
            inner[last] = value
        shelf.values[GROUP][-1] = replace(newest, value=orjson.dumps(row))
        return str(change)

    def silent(is_silent: bool, loses: bool) -> None:
        shelf.silent = is_silent
        shelf.on_swap = [partial(setattr, shelf, "silent", True)] if loses else []
        if loses:
            group.nursery.start_soon(_speaks_again, shelf)

    def takes(holder: str) -> None:
        shelf.holder = holder
        shelf.renewed = shelf.now_s()
        if holder == "file":
            shelf.replace(shelf.copy())

    match name:
        case "words":
            await words(hands)
        case "forced":
            await forced(hands)
        case "trouble":
            await trouble(hands, silent, takes)
        case "lost":
            await lost(hands, group.random, empties)
        case "forgotten":
            await forgotten(hands, empties)
        case _:
            await spoilt(hands, spoils)


SPOILT: Final[list[dict[str, Any]]] = [
    {"format": 2}, {"name": "another"}, {"version": 99}, {"policy": "none"}, {"replicas": []},
    {"min_in_sync": 0}, {"min_in_sync": True}, {"epoch": -1}, {"epoch": EPOCH_MAX + 1},
    {"epoch": "1"}, {"leader": 3}, {"in_sync/9": 1}, {"in_sync/1": -1}, {"replicas/1": None},
    {"replicas/1/incarnation": 1.0}, {"last_known": [-1]}, {"unclean": 7}, {"op": None, "uid": 1,
    "in_sync/x": 1},
]  # fmt: skip
"""What of an entry is another value than it can have: it is another group's, a later version, of a
form that is not known, or says what cannot be."""


def _now_s(script: Script) -> float:
    return script.simulation.timeline.now / SECOND


async def _speaks_again(shelf: Shelf) -> None:
    while not shelf.silent:  # noqa: ASYNC110, in virtual time
        await trio.sleep(0.01)
    await trio.sleep(0.5)
    shelf.silent, shelf.on_swap = False, []
