"""Delayed and returned messages while their master ends and it, or its slave, serves again.

Each that waits arrives once, and not before its time.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from rocketbed.node.broker.topics import SCHEDULE_TOPIC
from rocketbed.remoting.client import open_connection
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.command import Command, RequestCode, ResponseCode, request
from rocketbed.wire.headers import SendBackRequest
from rocketbed.wire.message import StoredMessage
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.reading import all_of
from tests.model.stage import AS_SLAVE, PORT, Stage

TOPIC, GROUP = "T", "g"
RETRIES: Final = f"%RETRY%{GROUP}"
DELAYS_MS: Final = (1000, 5000)
"""Delays of the levels in use."""
PAUSE_S: Final = 0.06
LOAD_S: Final = 4.0
DUE_S: Final = 12.0
"""Longer than the longest delay and a start."""
CASES: Final = (
    ("kill", "master"),
    ("power", "master"),
    ("stop", "master"),
    ("kill", "slave"),
    ("power", "slave"),
)
"""End of the master, and the node that serves then."""
MASTER: Final = {"brokerRole": "SYNC_MASTER", "brokerId": 0, "inSyncReplicas": 2}
Key = tuple[str, bytes]
"""Topic and body."""


@dataclass
class Producer:
    """A client that sends until it is told to end."""

    random: Random
    ends: bool = False
    acknowledged: list[Key] = field(default_factory=list)
    number: int = 0

    async def run(self, world: World, host: str) -> None:
        try:
            async with open_connection(world, (host, PORT)) as connection:
                while not self.ends:
                    await self._step(connection.request)
                    await trio.sleep(self.random.random() * PAUSE_S)
        except* (RemotingError, OSError):
            pass  # the node has ended

    async def _step(self, ask: Any) -> None:
        """Send a delayed message, or a plain one that is then sent back."""
        self.number += 1
        body, level = b"%d" % self.number, self.random.randint(1, len(DELAYS_MS))
        properties = {"DELAY": str(level)} if self.random.random() < 0.7 else {}
        command = Peer.send_request(body=body, properties=properties, b=TOPIC, c="TBW102", d=1, e=0)
        answer: Command = await ask(command, timeout_s=60)
        if answer.code != ResponseCode.SUCCESS:
            return
        self.acknowledged.append((TOPIC, body))
        if not properties:
            offset = int(answer.fields["msgId"][-16:], 16)
            header = SendBackRequest(offset=offset, group=GROUP, delayLevel=level)
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
            if (await ask(command, timeout_s=60)).code == ResponseCode.SUCCESS:
                self.acknowledged.append((RETRIES, body))


def run_waiting(seed: int) -> str:
    """Run each case; return a digest."""
    random, digest = Random(f"waiting/{seed}"), ""
    for end, server in CASES:
        with Stage(f"waiting/{seed}/{end}/{server}") as stage:
            flush = "SYNC_FLUSH" if end == "power" else "ASYNC_FLUSH"
            _run_case(stage, random, end, server, {"flushDiskType": flush})
            digest += stage.simulation.digest()
    return digest


def _run_case(
    stage: Stage, random: Random, end: str, server: str, settings: dict[str, object]
) -> None:
    simulation, producer = stage.simulation, Producer(random)
    stage.node("master", {**settings, **MASTER})
    slave = stage.node("slave", {**settings, **AS_SLAVE}).replication.slave
    assert slave is not None
    stage.until(lambda: slave.state == "following", "the slave follows")
    simulation.start("client", producer.run, "master")
    simulation.run(LOAD_S * (0.5 + random.random()))
    if end == "kill":
        simulation.kill("master")
    elif end == "power":
        simulation.power_cut("master")
    else:
        stage.stop("master")
    if server == "slave":
        stage.stop("slave")
    stage.node(server, {**settings, "brokerRole": "ASYNC_MASTER"})
    simulation.start("client-2", producer.run, server)
    simulation.run(LOAD_S)
    producer.ends = True
    simulation.run(DUE_S)
    count = _check(stage, server, producer)
    stage.stop(server)
    stage.node(server, {**settings, "brokerRole": "ASYNC_MASTER"})
    simulation.run(DUE_S)
    assert _check(stage, server, producer) == count, "waiting: a start delivers repeatedly"


def _check(stage: Stage, server: str, producer: Producer) -> int:
    """Compare delivered messages with those that waited; return their number."""
    due_ms = {
        (message.properties["REAL_TOPIC"], message.body): message.store_timestamp + delay_ms
        for level, delay_ms in enumerate(DELAYS_MS)
        for message in _messages(stage, server, SCHEDULE_TOPIC, level)
    }
    stored = {topic: _messages(stage, server, topic, 0) for topic in (TOPIC, RETRIES)}
    delivered = [
        ((topic, message.body), message)
        for topic, messages in stored.items()
        for message in messages
        if "REAL_TOPIC" in message.properties
    ]
    counts = Counter(key for key, _ in delivered)
    for key, count in counts.items():
        assert count == 1, f"repeated: {key} arrived {count} times"
    difference = set(counts) ^ set(due_ms)
    assert not difference, f"waiting: {sorted(difference)}"
    for key, message in delivered:
        early_ms = due_ms[key] - message.store_timestamp
        assert early_ms <= 0, f"early: {key} by {early_ms} ms"
    plain = {(TOPIC, message.body) for message in stored[TOPIC]}
    lost = set(producer.acknowledged) - set(counts) - plain
    assert not lost, f"lost: {sorted(lost)}"
    return len(counts)


def _messages(stage: Stage, server: str, topic: str, queue: int) -> list[StoredMessage]:
    result: list[StoredMessage] = stage.ask(server, lambda peer: all_of(peer, topic, queue))
    return result
