"""Delayed messages, and some that a consumer puts back, while their master ends and somebody serves
on: itself, or its slave. Each that waits has to come, once, and not before its time.
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
from rocketbed.wire.headers import SendBackRequest, SendMessageV2Request
from rocketbed.wire.message import StoredMessage, decode_messages
from rocketbed.wire.properties import encode_properties
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.stage import AS_SLAVE, PORT, Stage

TOPIC, GROUP = "T", "g"
RETRIES: Final = f"%RETRY%{GROUP}"
DELAYS_MS: Final = (1000, 5000)
"""Of the levels that are asked for."""
PAUSE_S: Final = 0.06
FAULTS_S: Final = 4.0
DUE_S: Final = 12.0
"""Longer than the longest of them, and than a start."""
CASES: Final = (
    ("kill", "master"),
    ("power", "master"),
    ("stop", "master"),
    ("kill", "slave"),
    ("power", "slave"),
)
"""How the master ends, and who serves then."""
MASTER: Final = {"brokerRole": "SYNC_MASTER", "brokerId": 0, "inSyncReplicas": 2}


@dataclass
class Sending:
    """What a client has sent; it sends until told to end."""

    random: Random
    ends: bool = False
    safe: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and body of what was acknowledged in full."""
    number: int = 0

    async def run(self, world: World, host: str) -> None:
        try:
            async with open_connection(world, (host, PORT)) as connection:
                while not self.ends:
                    await self._one(connection.request)
                    await trio.sleep(self.random.random() * PAUSE_S)
        except* (RemotingError, OSError):
            pass  # the node has ended

    async def _one(self, ask: Any) -> None:
        self.number += 1
        body, level = b"%d" % self.number, self.random.randint(1, len(DELAYS_MS))
        properties = {"DELAY": str(level)} if self.random.random() < 0.7 else {}
        sent = await self._sent(ask, body, properties)
        if not properties and sent is not None:
            header = SendBackRequest(offset=sent, group=GROUP, delayLevel=level)
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
            answer = await ask(command, timeout_s=60)
            if answer.code == ResponseCode.SUCCESS:
                self.safe.append((RETRIES, body))

    async def _sent(self, ask: Any, body: bytes, properties: dict[str, str]) -> int | None:
        """Log offset of a message, if it is safe."""
        values: dict[str, Any] = {
            "a": "producers", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0,
            "g": 1, "h": 0, "i": encode_properties(properties), "j": 0,
        }  # fmt: skip
        fields = SendMessageV2Request(**values).encode()
        answer: Command = await ask(
            request(RequestCode.SEND_MESSAGE_V2, fields, body), timeout_s=60
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        self.safe.append((TOPIC, body))
        return int(answer.fields["msgId"][-16:], 16)


def run_waiting(seed: int) -> str:
    """Each case; a digest."""
    random, digest = Random(f"waiting/{seed}"), ""
    for end, server in CASES:
        with Stage(f"waiting/{seed}/{end}/{server}") as stage:
            flush = "SYNC_FLUSH" if end == "power" else "ASYNC_FLUSH"
            _case(stage, random, end, server, {"flushDiskType": flush})
            digest += stage.simulation.digest()
    return digest


def _case(stage: Stage, random: Random, end: str, server: str, settings: dict[str, object]) -> None:
    simulation, sending = stage.simulation, Sending(random)
    stage.node("master", {**settings, **MASTER})
    slave = stage.node("slave", {**settings, **AS_SLAVE}).replication.slave
    assert slave is not None
    stage.until(lambda: slave.state == "following", "the slave follows")
    simulation.start("client", sending.run, "master")
    simulation.run(FAULTS_S * (0.5 + random.random()))
    if end == "kill":
        simulation.kill("master")
    elif end == "power":
        simulation.power_cut("master")
    else:
        stage.stop("master")
    if server == "slave":
        stage.stop("slave")
    stage.node(server, {**settings, "brokerRole": "ASYNC_MASTER"})
    simulation.start("client-2", sending.run, server)
    simulation.run(FAULTS_S)
    sending.ends = True
    simulation.run(DUE_S)
    came = _judge(stage, server, sending)
    stage.stop(server)
    stage.node(server, {**settings, "brokerRole": "ASYNC_MASTER"})
    simulation.run(DUE_S)
    assert _judge(stage, server, sending) == came, "waiting: a start delivers once more"


def _judge(stage: Stage, server: str, sending: Sending) -> int:
    """What came is what waited; how many."""
    waited = [
        (message, message.properties["REAL_TOPIC"], delay_ms)
        for level, delay_ms in enumerate(DELAYS_MS)
        for message in _all(stage, server, SCHEDULE_TOPIC, level)
    ]
    came = {
        topic: [one for one in _all(stage, server, topic, 0) if "REAL_TOPIC" in one.properties]
        for topic in (TOPIC, RETRIES)
    }
    due = {(topic, one.body): one.store_timestamp + ms for one, topic, ms in waited}
    times = Counter((topic, one.body) for topic, found in came.items() for one in found)
    for place, count in times.items():
        assert count == 1, f"repeated: {place} came {count} times"
    assert set(times) == set(due), f"waiting: not both: {sorted(set(times) ^ set(due))}"
    for topic, found in came.items():
        for one in found:
            early = due[topic, one.body] - one.store_timestamp
            assert early <= 0, f"early: {one.body!r} came {early} ms early"
    plain = {(TOPIC, one.body) for one in _all(stage, server, TOPIC, 0)}
    lost = set(sending.safe) - set(times) - plain
    assert not lost, f"lost: {sorted(lost)}"
    return len(times)


def _all(stage: Stage, server: str, topic: str, queue_id: int) -> list[StoredMessage]:
    async def ask(peer: Peer) -> list[StoredMessage]:
        assert peer.connection is not None
        found: list[StoredMessage] = []
        while True:
            asked = peer.pull_request(topic=topic, queueId=queue_id, queueOffset=len(found))
            answer = await peer.connection.request(asked, timeout_s=60)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_messages(answer.body)

    result: list[StoredMessage] = stage.ask(server, ask)
    return result
