"""A broker beside two scripted nameservers that refuse, hang up, fall silent, and name a master.

It registers at both when it starts, when a topic changes, when a nameserver accepts it again, and
once a period. A slave follows the master that was named last.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers, Inline
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import (
    HaRuntimeInfo,
    KvTable,
    TopicConfig,
)
from rocketbed.wire.command import Command, RequestCode, answer
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.script import Script, wait_until
from tests.model.scripted_nameserver import MASTER_PORT, ScriptedNameserver
from tests.model.stage import HA_PORT, PORT, Stage

Code = RequestCode
NODE, PEERS = "node", "peers"
PERIOD_S: Final = 6.0
SOON_S: Final = 0.3
RETRY_S, RETRY_MAX_S = 0.5, 5.0
"""Pause before another attempt: the first, and the longest."""
WATCH_S: Final = 1.0
"""Interval at which a slave asks for the master."""
TIMEOUT_S: Final = 2.0
SETTINGS: Final = {
    "autoCreateTopicEnable": False,
    "registerNameServerPeriod": int(PERIOD_S * 1000),
    "registerBrokerTimeoutMills": int(TIMEOUT_S * 1000),
    "brokerClusterName": "c",
}
Row = tuple[int, int, int]
"""Queues to read and to write, and the permission."""


def run_registration(seed: int) -> str:
    """Run a master, a read-only one, and a slave."""
    digest = ""
    for role, permission in (("ASYNC_MASTER", 6), ("ASYNC_MASTER", 4), ("SLAVE", 6)):
        name = f"registered/{seed}/{role}/{permission}"
        with Stage(name) as stage:
            script = Script(stage.simulation)
            broker = Broker(stage, script, Random(name), role, permission)
            script.play(PEERS, broker.main)
            digest += stage.simulation.digest()
    return digest


class Broker:
    """The node, its nameservers, and masters that a slave may follow."""

    def __init__(
        self, stage: Stage, script: Script, random: Random, role: str, permission: int
    ) -> None:
        self.stage, self.script, self.random = stage, script, random
        self.role, self.permission = role, permission
        self.host = stage.simulation.host(PEERS).address
        self.nameservers = [ScriptedNameserver(number, self.host) for number in range(2)]
        self.followed: list[int] = []
        """Masters whose replication port was dialled, in order, without repetitions."""
        self.link_s = 0.0
        """Time that a master holds a connection."""
        self.claim_slave: set[int] = set()
        """Masters that report that they are slaves."""

    async def main(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            for nameserver in self.nameservers:
                await nameserver.serve(world, nursery)
            for number in range(2):
                await self._serve_master(world, nursery, number)
            is_slave = self.role == "SLAVE"
            addresses = ";".join(f"{self.host}:{one.port}" for one in self.nameservers)
            settings = {
                **SETTINGS, "namesrvAddr": addresses, "brokerRole": self.role,
                "brokerId": int(is_slave), "brokerPermission": self.permission,
                **({"rbDiverged": "cut"} if is_slave else {}),
            }  # fmt: skip
            self.stage.begin(NODE, settings)
            await self._until(
                lambda: all(one.registrations for one in self.nameservers), "registered twice", 5
            )
            self.address = self.stage.simulation.host(NODE).address
            self._check_registrations()
            if is_slave:
                await self._check_followed_master()
                self.link_s = PERIOD_S
            else:
                peer = Peer()
                peer.connection = await dial(world, (self.address, PORT), peer.handlers)
                nursery.start_soon(peer.connection.run)
                await self._check_changes(peer)
            await self._check_periods()
            await self._check_failures()
            await self.script.outside(lambda: self.stage.simulation.stop(NODE))
            await self._until(
                lambda: not any(one.is_linked for one in self.nameservers), "disconnected", 1
            )
            self._check_log()
            wrong = sum(one.wrong_checksums for one in self.nameservers)
            assert not wrong, f"registered: {wrong} wrong checksums"
            nursery.cancel_scope.cancel()

    async def _serve_master(self, world: World, nursery: trio.Nursery, number: int) -> None:
        listener = await world.network.listen("", MASTER_PORT + 10 * number)
        nursery.start_soon(self._accept_links, listener, number)
        codes = (Code.GET_BROKER_RUNTIME_INFO, Code.GET_BROKER_HA_STATUS)
        inline: dict[int, Inline] = dict.fromkeys(codes, partial(self._describe_master, number))
        server = Server(world, ("", MASTER_PORT + 10 * number - 1), Handlers(inline=inline))
        await nursery.start(server.run)

    async def _accept_links(self, listener: Any, number: int) -> None:
        while True:
            stream = await listener.accept()
            if self.followed[-1:] != [number]:
                self.followed.append(number)
            await trio.sleep(self.link_s)
            await trio.aclose_forcefully(stream)

    def _describe_master(self, number: int, command: Command, _connection: Connection) -> Command:
        if command.code == Code.GET_BROKER_RUNTIME_INFO:
            body = KvTable(table={"commitLogMinOffset": "0", "commitLogMaxOffset": "0"}).encode()
        else:
            body = HaRuntimeInfo(master=number not in self.claim_slave).encode()
        return answer(command, body=body)

    async def _until(self, holds: Callable[[], bool], state: str, seconds: float = SOON_S) -> None:
        await wait_until(holds, state, seconds, 0.01, lambda: None)

    async def _until_registered(
        self, nameserver: ScriptedNameserver, count: int, seconds: float = SOON_S
    ) -> None:
        await self._until(
            lambda: len(nameserver.registrations) > count, "another registration", seconds
        )

    def _check_registrations(self) -> None:
        """Compare each nameserver's last registration with the node's identity and topics."""
        node = self.stage.nodes.get(NODE)
        if node is None:
            return
        identity = ("broker-a", "c", int(self.role == "SLAVE"), f"{self.address}:{PORT}",
                    f"{self.address}:{HA_PORT}")  # fmt: skip
        table = node.tables.topics.body().topic_config_table
        expected = {name: self._row(row, self.permission) for name, row in table.items()}
        for nameserver in self.nameservers:
            header, topics = nameserver.registrations[-1]
            actual = (header.brokerName, header.clusterName, header.brokerId, header.brokerAddr,
                      header.haServerAddr)  # fmt: skip
            assert actual == identity, f"registered: {actual}, expected {identity}"
            mask = 6 if self.permission == 6 else -1
            rows = {name: self._row(row, mask) for name, row in topics.items()}
            assert rows == expected, f"registered: {rows}, expected {expected}"

    @staticmethod
    def _row(row: TopicConfig, mask: int) -> Row:
        return row.read_queue_nums, row.write_queue_nums, row.perm & mask

    def _check_log(self) -> None:
        """Expect one line in the log for each connection on which it registered."""
        lines = [str(line["nameserver"]) for line in self.stage.told(NODE, "broker.registered")]
        for nameserver in self.nameservers:
            count = lines.count(f"{self.host}:{nameserver.port}")
            connections = len(nameserver.registered_on)
            # The last answer may have been cut off.
            assert connections - 1 <= count <= connections, f"log: {count} of {connections} lines"

    async def _check_changes(self, peer: Peer) -> None:
        """Register at once when a topic is created, changed or deleted."""
        for number in range(3):
            counts = [len(one.registrations) for one in self.nameservers]
            if number < 2:
                queues = self.random.randint(1, 9) + 10 * number
                await peer.create(readQueueNums=queues, writeQueueNums=queues)
            else:
                await peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, 0)
            for nameserver, count in zip(self.nameservers, counts, strict=True):
                await self._until_registered(nameserver, count)
            await trio.sleep(0.1)
            self._check_registrations()

    async def _check_periods(self) -> None:
        """Register once a period while nothing changes."""
        await trio.sleep(0.5)
        counts = [len(one.registrations) for one in self.nameservers]
        await trio.sleep(2 * PERIOD_S)
        for nameserver, before in zip(self.nameservers, counts, strict=True):
            count = len(nameserver.registrations) - before
            assert 1 <= count <= 2, f"period: {count} registrations in {2 * PERIOD_S} s"

    async def _check_failures(self) -> None:
        """Retry a failing nameserver after growing pauses, without effect on the healthy one."""
        for mode in ("hangs up", "refuses", "is silent"):
            failing, healthy = self.random.sample(self.nameservers, 2)
            failing.mode = mode if mode != "hangs up" else "accepts"
            linked, connections = healthy.is_linked, healthy.connections
            attempts, begin = len(failing.attempts), trio.current_time()
            failing.hang_up()
            await trio.sleep(self.random.uniform(9, 12))
            assert linked and healthy.connections == connections, "failure: of the healthy one too"
            times = [begin, *failing.attempts[attempts:]]
            pauses = [after - before for before, after in pairwise(times)]
            if mode == "hangs up":
                assert pauses[0] < RETRY_S + 0.2, f"failure: retried after {pauses[0]} s"
            else:
                wait_s = TIMEOUT_S if mode == "is silent" else 0.0
                expected = [
                    min(RETRY_S * 2**number, RETRY_MAX_S) + (wait_s if number else 0.0)
                    for number in range(len(pauses))
                ]
                is_right = all(abs(a - b) < 0.2 for a, b in zip(pauses, expected, strict=True))
                assert is_right and len(expected) > 2, f"failure: {mode}: pauses {pauses}"
            count = len(failing.registrations) - (failing.mode == "accepts")
            failing.mode = "accepts"
            await self._until_registered(failing, count, RETRY_MAX_S + TIMEOUT_S + 0.5)
            await trio.sleep(0.1)  # an answer that is cut off is a failed attempt
            self._check_registrations()

    # --- a slave

    async def _until_following(self, master: int, seconds: float = WATCH_S + 1) -> None:
        await self._until(
            lambda: self.followed[-1:] == [master], f"master {master} is followed", seconds
        )

    async def _stays(self, seconds: float) -> None:
        """Expect no other master within this time."""
        count = len(self.followed)
        await trio.sleep(seconds)
        assert len(self.followed) == count, f"follows: {self.followed[count:]}"

    async def _check_followed_master(self) -> None:
        """Follow the master that was named last; none before. A nameserver of 4.x is asked by
        registrations while it has named none."""
        new, old = self.random.sample(self.nameservers, 2)
        old.knows_groups = False
        count = len(old.registrations)
        await self._stays(5 * WATCH_S + 0.5)
        count = len(old.registrations) - count
        assert 4 <= count <= 6, f"follows: asked {count} times in 5 s for the master"
        assert len(new.registrations) <= 2, f"follows: {len(new.registrations)} registrations"
        new.master = 0
        await self._until_following(0)
        assert self.followed == [0], f"follows: {self.followed}"
        old.master = 1
        await self._until_following(1)
        await self._stays(2 * PERIOD_S)  # the former master is named again, which is no news
        new.master = 1
        await trio.sleep(WATCH_S + 1)
        new.master = 0
        await self._until_following(0)
        await self._check_master_that_is_a_slave()
        new.master = None
        await self._stays(WATCH_S + 1)
        new.master = 0

    async def _check_master_that_is_a_slave(self) -> None:
        """Follow only a named master that reports that it is one."""
        for slave, master in ((0, 1), (1, 0)):
            self.claim_slave = {slave}
            await self._until_following(master, 3)
            await self._stays(WATCH_S)
        self.claim_slave = {0, 1}
        await trio.sleep(WATCH_S)
        self.followed.append(-1)  # any connection from now on is a new entry
        await self._stays(WATCH_S)
        self.claim_slave = set()
        await self._until(lambda: self.followed[-1] != -1, "a master is followed", 3)
        await trio.sleep(WATCH_S)
