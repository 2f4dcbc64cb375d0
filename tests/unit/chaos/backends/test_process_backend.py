"""Decisions of a backend, with programs that only pretend to run."""

import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rocketbed.chaos.backends.process.backend import ProcessBackend
from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.base import Machines, PlainNetwork
from rocketbed.chaos.backends.process.software import OwnSoftware
from rocketbed.host.errors import HostError
from rocketbed.host.member import Launched
from rocketbed.replication.prefix import EMPTY_IT
from rocketbed.world.api import World
from rocketbed.world.logs import render
from tests.support.network import set_up


class Program:
    """A program that runs from `launch` on until a signal ends it."""

    def __init__(self, directory: Path, may_start: trio.Event) -> None:
        self._log_path = directory / "log"
        self._log_path.touch()
        self.got: list[signal.Signals] = []
        self.ended = trio.Event()
        self.refuses = False
        self._may_start = may_start
        self._is_there = False

    @property
    def log_path(self) -> Path:
        return self._log_path

    async def launch(self) -> int:
        await self._may_start.wait()
        self._is_there = True
        return 0

    def pid(self) -> int | None:
        return 1 if self._is_there and not self.ended.is_set() else None

    async def send(self, number: signal.Signals) -> bool:
        if self.pid() is None:
            return False
        if self.refuses:
            raise HostError("the place where it runs is gone")
        self.got.append(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.ended.set()
        return True

    async def wait_ended(self) -> int | None:
        await self.ended.wait()
        if signal.SIGKILL in self.got:
            return -signal.SIGKILL
        return 0 if signal.SIGTERM in self.got else 3


class Backend(ProcessBackend):
    """A backend of such programs; `may_start` holds back those that are being started."""

    programs: dict[str, Program]
    may_start: trio.Event

    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], own: Path
    ) -> Launched:
        self.programs[name] = Program(own, self.may_start)
        return self.programs[name]


class Network(PlainNetwork):
    """Knows what was asked of it, and whether it was left; a machine may be slow to come back."""

    was_left = False

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self.requests: list[str] = []
        self.may_restore = trio.Event()
        self.may_restore.set()

    async def silence(self, machine: str) -> None:
        self.requests.append("silence")

    async def restore(self, machine: str) -> None:
        await self.may_restore.wait()
        self.requests.append("restore")

    async def __aexit__(self, *exception: object) -> None:
        self.was_left = True


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    machines = {name: Machine(tmp_path / name, name) for name in ("b1", "b2")}
    network = Network(Machines(["b1", "b2"], ["ns1"]))
    with set_up(network, machines, tmp_path / "nodes") as setup:
        prepared = Backend(setup)
        prepared.programs = {}
        prepared.may_start = trio.Event()
        prepared.may_start.set()
        yield prepared


async def while_starting(backend: Backend, name: str, do: Callable[[], Awaitable[object]]) -> None:
    """Do something to a program that has started only afterwards."""
    backend.may_start = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.start, name, {})
        await wait_all_tasks_blocked()
        nursery.start_soon(do)
        await wait_all_tasks_blocked()
        backend.may_start.set()


@pytest.mark.parametrize("method", ["kill", "stop"])
async def test_starting_program_is_ended_too(method: str, backend: Backend) -> None:
    async with backend:
        await while_starting(backend, "b1", partial(getattr(backend, method), "b1"))
        assert backend.state("b1") == "down"
        assert backend.ends("b1") == 1
        assert backend.end_reason("b1") == ""


async def test_starting_program_is_paused_once_it_runs(
    backend: Backend,
) -> None:
    async with backend:
        await while_starting(backend, "b1", partial(backend.pause, "b1"))
        assert backend.state("b1") == "paused"
        assert backend.programs["b1"].got == [signal.SIGSTOP]


async def test_program_stopped_while_paused_runs_when_restarted(
    backend: Backend,
) -> None:
    async with backend:
        await backend.start("b1", {})
        await backend.pause("b1")
        assert await backend.stop("b1")
        await backend.start("b1", {})
        assert backend.state("b1") == "running"


async def test_unexpected_end_has_a_reason_and_a_kill_has_none(
    backend: Backend,
) -> None:
    async with backend:
        for name in ("b1", "b2"):
            await backend.start(name, {})
        backend.programs["b1"].log_path.write_text("rocketbed: the disk is full\n")
        backend.programs["b1"].ended.set()
        await backend.settled("b1")
        await backend.kill("b2")
        assert backend.end_reason("b1") == "the disk is full (exit code 3)"
        assert backend.end_reason("b2") == ""
        await backend.start("b1", {})
        assert (backend.state("b1"), backend.end_reason("b1")) == ("running", "")


class Cut(Machine):
    """A machine whose power can be cut, without any effect."""

    def power_cut(self) -> None:
        """Nothing."""


async def test_power_cut_waits_for_the_start_of_a_machine(tmp_path: Path) -> None:
    """Before its start, the node would start on a network that stays silent."""
    network = Network(Machines(["b1"], ["ns1"]))
    with set_up(network, {"b1": Cut(tmp_path / "b1", "b1")}, tmp_path / "nodes") as setup:
        backend = Backend(setup)
        network.may_restore = trio.Event()
        backend.programs, backend.may_start = {}, network.may_restore
        (tmp_path / "b1/store").mkdir(parents=True)
        async with backend, trio.open_nursery() as nursery:
            nursery.start_soon(backend.start, "b1", {})
            await wait_all_tasks_blocked()
            nursery.start_soon(backend.power_cut, "b1", "all")
            await wait_all_tasks_blocked()
            assert network.requests == []
            network.may_restore.set()
        assert network.requests == ["restore", "silence"]
        assert backend.programs["b1"].got == [signal.SIGKILL]


async def test_others_end_although_one_program_cannot(backend: Backend) -> None:
    """The place where it runs may be gone: the others are ended, the network is left."""

    async def use() -> None:
        async with backend:
            for name in ("ns1", "b1", "b2"):
                await backend.start(name, {})
            backend.programs["ns1"].refuses = True

    with pytest.raises(HostError, match="is gone"):
        await use()
    assert [backend.programs[name].pid() for name in ("b1", "b2")] == [None, None]
    assert isinstance(backend.network, Network)
    assert backend.network.was_left


async def test_client_is_killed_once_its_program_has_ended(backend: Backend) -> None:
    ended: list[str] = []

    async def program(world: World) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(world.name)

    async with backend:
        backend.start_client("producer-1", program)
        await wait_all_tasks_blocked()
        assert backend.client_state("producer-1") == "running"
        await backend.kill_client("producer-1")
        assert (ended, backend.client_state("producer-1")) == (["producer-1"], "down")
        await backend.kill_client("producer-1")


def test_slave_must_be_emptied_while_its_last_log_line_says_so() -> None:
    lines = []
    for event, reason in (
        ("replication.refused", f"it differs from the master's at 3; {EMPTY_IT}"),
        ("replication.master_set", ""),
        ("replication.refused", "its log is shorter; set rbDiverged=cut, or empty its store"),
    ):
        lines.append(f"2026-11-27 ERROR node {render(event, {'master': 'm:1', 'reason': reason})}")
    reasons = [OwnSoftware().refuses("\n".join(lines[: end + 1]).encode()) for end in range(3)]
    assert reasons == [f"it differs from the master's at 3; {EMPTY_IT}", "", ""]
