"""Connections between machines of a network; a master and its slave, seen from a producer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from rocketbed import Message, Producer, Sent
from rocketbed.chaos.backends.process.backend import ProcessBackend, SetUp
from rocketbed.chaos.backends.process.machine.machine import Machine
from rocketbed.chaos.backends.process.network.base import Network
from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.plan.plan import Plan, Shape
from rocketbed.chaos.run.api import Sample
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.api import Listener, Stream

NODES = ("b1", "b2")
PRODUCER = "producer-1"
LOOK_S = 0.02


async def serve(network: Network, machine: str) -> Listener:
    """Listen as the machine's server would."""
    host, port = network.settings(machine)["bindAddress"], network.address(machine)[1]
    return await network.world(machine).network.listen(host, port)


async def dial(network: Network, source: str, target: str) -> Stream:
    """Connect, trying again while the server is only about to be seen."""
    while True:
        try:
            return await network.world(source).network.connect(*network.address(target))
        except ConnectionRefusedError:
            await trio.sleep(0.005)


@asynccontextmanager
async def connected(
    network: Network, source: str = "b2", target: str = "b1"
) -> AsyncIterator[tuple[Stream, Stream]]:
    """The two ends of a connection: the client's, the server's."""
    listener = await serve(network, target)
    client = await dial(network, source, target)
    server = await listener.accept()
    try:
        yield client, server
    finally:
        for stream in (client, server, listener):
            await stream.aclose()


async def receive(stream: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := await stream.receive_some(size - len(data))):
        data += part
    return bytes(data)


async def round_trip(sender: Stream, receiver: Stream) -> float:
    began = trio.current_time()
    await sender.send_all(b"?")
    assert await receive(receiver, 1) == b"?"
    await receiver.send_all(b"!")
    assert await receive(sender, 1) == b"!"
    return trio.current_time() - began


async def shortest(sender: Stream, receiver: Stream, *, below: float, tries: int = 5) -> float:
    """The seconds of the shortest round trip, of as many as it takes to see one below the limit."""
    best = min([await round_trip(sender, receiver) for _ in range(tries)])
    while best >= below:
        best = min(best, await round_trip(sender, receiver))
    return best


async def speak_on(stream: Stream) -> None:
    """Send until the stream breaks."""
    while True:
        await stream.send_all(b"is anybody there?")
        await trio.sleep(0.001)


async def is_mute(operation: Callable[[], Awaitable[object]]) -> bool:
    """True if an operation does not end within a while that is long for loopback."""
    with trio.move_on_after(0.1) as scope:
        await operation()
    return scope.cancelled_caught


async def check_replication(network: Network, directory: Path) -> None:
    """A message is safe; during a cut between the nodes none is; afterwards all are copied."""
    async with replicating(network, directory) as backend:
        world = network.world(PRODUCER)
        async with Producer(world, nameservers=backend.nameservers(), retries=0) as producer:
            assert await _is_safe(producer)
            await backend.set_link("b1", "b2", LinkState(cut=True))
            assert not await _is_safe(producer)
            await backend.set_link("b1", "b2", LinkState())
            await _until_safe(producer)
            await backend.reset("b1", "b2")
            await _until_safe(producer)
        master = await _until(backend, "b1", lambda sample: sample.in_sync == 2)
        slave = await _until(backend, "b2", lambda sample: sample.is_following)
        assert master.written == slave.written > 0


@contextmanager
def set_up(network: Network, machines: Mapping[str, Machine], directory: Path) -> Iterator[SetUp]:
    """Build the parts that a backend of these machines and one nameserver needs."""
    directory.mkdir(exist_ok=True)
    plan = Plan(name="test", seed=1, shape=Shape(nameservers=1))
    with (
        HistoryWriter(directory / "history", lambda: 0) as history,
        Ledger.begin(directory / "runs", guard=False) as keeper,
    ):
        yield SetUp(
            plan=plan,
            network=network,
            machines=machines,
            history=history,
            directory=directory,
            began_ns=0,
            keeper=keeper,
        )


@asynccontextmanager
async def replicating(network: Network, directory: Path) -> AsyncIterator[ProcessBackend]:
    """The cluster, once the slave follows."""
    machines = {name: Machine(directory / name, name) for name in NODES}
    for name in NODES:
        (directory / name).mkdir()
    with set_up(network, machines, directory) as setup:
        async with ProcessBackend(setup) as backend:
            await backend.start("ns1", {})
            for number, name in enumerate(NODES):
                await backend.start(name, _settings(number))
            await _until(backend, "b2", lambda sample: sample.is_following)
            await _until(backend, "b1", lambda sample: sample.in_sync == 2)
            yield backend


def _settings(number: int) -> dict[str, str]:
    return {
        "brokerName": "b",
        "brokerId": str(number),
        "brokerRole": "SLAVE" if number else "SYNC_MASTER",
        "inSyncReplicas": "2",
        "syncFlushTimeout": "500",
        "mappedFileSizeCommitLog": "4194304",
    }


async def _is_safe(producer: Producer) -> bool:
    outcome = await producer.send(Message("Orders", b"one coffee"))
    return isinstance(outcome, Sent) and outcome.is_safe


async def _until_safe(producer: Producer) -> None:
    while not await _is_safe(producer):
        await trio.lowlevel.checkpoint()


async def _until(backend: ProcessBackend, node: str, holds: Callable[[Sample], bool]) -> Sample:
    while True:
        sample = await backend.observe(node)
        if sample is not None and holds(sample):
            return sample
        await trio.sleep(LOOK_S)
