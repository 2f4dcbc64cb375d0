"""Waiting across loops: a task parks in its own loop, an event of the simulation wakes it."""

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from rocketbed.chaos.backends.sim.process import SimProcess


class Parking:
    """Room for one parked task. `wake` does nothing without one."""

    __slots__ = ("_process", "_task")

    def __init__(self, process: "SimProcess") -> None:
        self._process = process
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_occupied(self) -> bool:
        return self._task is not None

    async def park(self) -> None:
        """Wait for `wake`. Can be cancelled."""
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
