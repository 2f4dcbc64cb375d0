"""Waiting across loops: a task parks in its own loop, an event of the simulation wakes it."""

from typing import Protocol

import trio

from rocketbed.chaos.sim.incarnation import Fate


class SimMachine(Protocol):
    """A host, as its connections know it."""

    address: str
    has_power: bool


class Owner(Protocol):
    """A process, as its listeners and connections know it."""

    fate: Fate

    @property
    def host(self) -> SimMachine: ...

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake a parked task; does nothing once the process is dead."""


class Parking:
    """Room for one parked task. `wake` with nobody parked does nothing."""

    __slots__ = ("_process", "_task")

    def __init__(self, process: Owner) -> None:
        self._process = process
        self._task: trio.lowlevel.Task | None = None

    @property
    def taken(self) -> bool:
        return self._task is not None

    async def park(self) -> None:
        """Wait for `wake`. Cancelling leaves nothing behind."""
        if self._task is not None:
            raise trio.BusyResourceError("another task is already waiting here")
        self._task = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            self._process.wake(task)
