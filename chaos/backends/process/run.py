"""Run of a plan on real processes: from a seed to a run directory."""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import trio

from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.backends.process.network.choice import Net, make_network
from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.conductor import Attendant, Company, Conductor, MakeConductor
from rocketbed.host.child import STOPPING
from rocketbed.host.janitor.record import Ledger

ROOM_MIN: Final = 16 << 20
"""Bytes that have to be free: with less, nodes' disks would fail without a fault."""
LOOK_S: Final = 0.25
CLIENTS_LOG: Final = "clients.log"
"""File of the run's directory with the log of the load's clients."""
NODES: Final = "nodes"
"""Folder of the run's directory with configurations, logs and, for plain machines, stores."""


class Guest(Protocol):
    """Data that the first master begins with."""

    def settle(self, store: Path) -> None:
        """Put it into that master's store directory."""

    async def visit(self, when: str, backend: Backend) -> None:
        """Check whether it is served, before and after the faults."""


class ProcessHost:
    """Runs the programs of a cluster as processes of this system."""

    def network(self, net: Net, plan: Plan, keeper: Ledger) -> Network:
        """Return the network between its machines. Raises `HostError` if it is not available."""
        return make_network(net, plan, keeper)

    def backend(self, setup: SetUp) -> ProcessBackend:
        """Return a cluster, to be entered."""
        return ProcessBackend(setup)


def run_in_processes(
    plan: Plan,
    directory: Path,
    *,
    net: Net = "auto",
    say: Callable[[str], None] = lambda line: None,
    guest: Guest | None = None,
    host: ProcessHost | None = None,
    conductor: MakeConductor = Conductor,
) -> RunRecord:
    """Run a plan on `host` (None: this system). The directory has to exist and be empty.

    SIGINT, SIGTERM and SIGHUP end what was started, then raise `KeyboardInterrupt`. Raises
    `HostError`.
    """
    records: list[RunRecord] = []

    async def until_signal() -> None:
        with trio.open_signal_receiver(*STOPPING) as signals:
            async with trio.open_nursery() as nursery:

                async def stop_at_signal() -> None:
                    async for _number in signals:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(stop_at_signal)
                records.append(
                    await run(plan, directory, net, say, guest, host, conductor=conductor)
                )
                nursery.cancel_scope.cancel()

    trio.run(until_signal)
    if not records:
        raise KeyboardInterrupt
    return records[0]


async def run(
    plan: Plan,
    directory: Path,
    net: Net,
    say: Callable[[str], None],
    guest: Guest | None = None,
    host: ProcessHost | None = None,
    attendant: Attendant | None = None,
    conductor: MakeConductor = Conductor,
) -> RunRecord:
    """Run a plan within a trio program; if cancelled, end what it started.

    Raises `OSError` (ENOSPC) when the directory's file system fills up.
    """
    check_room(directory)
    host = ProcessHost() if host is None else host
    began_ns = time.monotonic_ns()
    shape = plan.shape
    of_steps = (need for step in plan.steps for need in step.needs)
    by_hand = attendant.needs if attendant is not None else ()
    wall_rate = plan.background.wall_rate
    by_clock = ("clock.jump",) if wall_rate != 1 else ()
    capabilities = sorted({*plan.needs, *of_steps, *by_hand, *by_clock})
    with ExitStack() as stack:
        stack.enter_context(clients_log(directory / CLIENTS_LOG))
        keeper = stack.enter_context(Ledger.begin())
        machines = {
            name: Machine(
                directory / NODES / name,
                f"{plan.seed}/{name}",
                keeper,
                capabilities,
                wall_rate=wall_rate,
            )
            for name in shape.nodes
        }
        if guest is not None:
            guest.settle(machines[shape.nodes[0]].store)
        network = host.network(net, plan, keeper)
        history = stack.enter_context(
            HistoryWriter(directory / HISTORY_FILE, lambda: time.monotonic_ns() - began_ns)
        )
        setup = SetUp(
            plan=plan,
            network=network,
            machines=machines,
            history=history,
            directory=directory / NODES,
            began_ns=began_ns,
            keeper=keeper,
        )
        try:
            async with host.backend(setup) as backend, trio.open_nursery() as nursery:
                nursery.start_soon(_watch_room, directory)
                visit = None if guest is None else guest.visit
                company = Company(say=say, visit=visit, attendant=attendant)
                record = await conductor(plan, backend, company).run(directory)
                nursery.cancel_scope.cancel()
            return record
        finally:
            with trio.CancelScope(shield=True):
                for machine in machines.values():
                    await machine.close()
                    shutil.rmtree(machine.store, ignore_errors=True)


@contextmanager
def clients_log(path: Path) -> Iterator[None]:
    """Log what the load's clients say into a file: they live through faults, and their remarks
    would stand between the lines of the run."""
    logger = logging.getLogger("rocketbed.client")
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    passes_on = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = passes_on
        logger.removeHandler(handler)
        handler.close()


def check_room(directory: Path) -> None:
    """Raise `OSError` (ENOSPC) if little room is left for the machines."""
    look = os.statvfs(directory)
    if look.f_bavail * look.f_frsize < ROOM_MIN:
        reason = f"less than {ROOM_MIN >> 20} MiB are free"
        raise OSError(errno.ENOSPC, reason, str(directory))


async def _watch_room(directory: Path) -> None:
    while True:
        check_room(directory)
        await trio.sleep(LOOK_S)
