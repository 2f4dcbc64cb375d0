"""A cluster of the testbed to measure, ours or a real RocketMQ's, and its network."""

import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.choice import Net
from rocketbed.chaos.backends.process.run import ProcessHost
from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.plan.plan import Plan
from rocketbed.host.janitor.record import Ledger


@asynccontextmanager
async def testbed(host: ProcessHost, net: Net, plan: Plan) -> AsyncIterator[ProcessBackend]:
    """Yield the machines of a plan; nothing runs yet, and all that is started ends with the
    block."""
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketbed-bench-"))
        )
        keeper = stack.enter_context(Ledger.begin())
        began_ns = time.monotonic_ns()
        history = HistoryWriter(directory / "history", lambda: time.monotonic_ns() - began_ns)
        setup = SetUp(
            plan=plan,
            network=host.network(net, plan, keeper),
            machines={name: Machine(directory / "nodes" / name, name) for name in plan.shape.nodes},
            history=stack.enter_context(history),
            directory=directory / "nodes",
            began_ns=began_ns,
            keeper=keeper,
        )
        async with host.backend(setup) as backend:
            yield backend
