"""A broker and two nameservers by hand, which refuse, hang up, fall silent and name a master: what
it registers, when, and whom a slave follows.

It is registered at both, with what it has at that moment, soon after it begins, anything changes or
a nameserver takes it again, and once a period; the newest word of a master counts.
"""

import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

import trio

from rocketbed.remoting.client import dial
from rocketbed.remoting.connection import Connection
from rocketbed.remoting.handlers import Handlers, Inline
from rocketbed.remoting.server import Server
from rocketbed.wire.bodies import (
    BrokerMemberGroup,
    HaRuntimeInfo,
    KvTable,
    MemberGroupBody,
    RegisterBrokerBody,
    TopicConfig,
)
from rocketbed.wire.command import Command, RequestCode, ResponseCode, answer
from rocketbed.wire.headers_admin import RegisterBrokerRequest, RegisterBrokerResponse
from rocketbed.wire.message import CRC_MASK
from rocketbed.world.api import World
from tests.model.broker import Peer
from tests.model.script import Script, wait_until
from tests.model.stage import HA_PORT, PORT, Stage

Code = RequestCode
NODE, PEERS = "node", "peers"
BASE: Final = 9870
"""Port of nameserver 0; each has its own."""
MASTERS: Final = 12_000
"""Replication port of master 0; its main port is one below."""
PERIOD_S: Final = 6.0
SOON_S: Final = 0.3
RETRY_S, RETRY_MAX_S = 0.5, 5.0
"""Pause before another try: the first, and the longest of ever longer ones."""
WATCH_S: Final = 1.0
"""Between two questions of a slave who the master is."""
TIMEOUT_S: Final = 2.0
SETTINGS: Final = {
    "autoCreateTopicEnable": False,
    "registerNameServerPeriod": int(PERIOD_S * 1000),
    "registerBrokerTimeoutMills": int(TIMEOUT_S * 1000),
    "brokerClusterName": "c",
}


class HandNameserver:
    """Takes what is registered, or not, as the script says."""

    def __init__(self, number: int, host: str) -> None:
        self.port = BASE + number
        self._host = host
        self.says = "takes"
        """Or `refuses`, `is silent`."""
        self.knows_groups = True
        """Whether it answers who the members of a group are; 4.x does not."""
        self.master: int | None = None
        """Which it names."""
        self.took: list[tuple[float, RegisterBrokerRequest, dict[str, TopicConfig]]] = []
        self.tries: list[float] = []
        self.dialled: list[float] = []
        self.questions: list[float] = []
        self.wrong: list[str] = []
        self.taken_from: dict[Connection, None] = {}
        """Connections on which it took what was registered."""
        self._links: dict[Connection, None] = {}

    async def serve(self, world: World, nursery: trio.Nursery) -> None:
        inline: dict[int, Callable[[Command, Connection], Command | None]] = {
            Code.REGISTER_BROKER: self._register,
            Code.GET_BROKER_MEMBER_GROUP: self._members,
        }
        server = Server(world, ("", self.port), Handlers(inline=inline), on_close=self._left)
        await nursery.start(server.run)

    def _left(self, connection: Connection) -> None:
        self._links.pop(connection, None)

    @property
    def is_linked(self) -> bool:
        return bool(self._links)

    def hang_up(self) -> None:
        for link in list(self._links):
            link.close()

    def address_of(self, number: int, *, ha: bool) -> str:
        return f"{self._host}:{MASTERS + 10 * number - (not ha)}"

    def _register(self, command: Command, connection: Connection) -> Command | None:
        self.tries.append(trio.current_time())
        if connection not in self._links:
            self._links[connection] = None
            self.dialled.append(trio.current_time())
        if self.says == "is silent":
            return None
        if self.says == "refuses":
            return answer(command, ResponseCode.SYSTEM_ERROR, "not now")
        header = RegisterBrokerRequest.decode(command.raw_fields)
        if header.bodyCrc32 != zlib.crc32(command.body) & CRC_MASK:
            self.wrong.append(f"a checksum of {header.bodyCrc32}")
        wrapper = RegisterBrokerBody.decode(command.body).topic_config_serialize_wrapper
        self.taken_from[connection] = None
        self.took.append((trio.current_time(), header, wrapper.topic_config_table))
        found = RegisterBrokerResponse()
        if self.master is not None:
            found = RegisterBrokerResponse(
                haServerAddr=self.address_of(self.master, ha=True),
                masterAddr=self.address_of(self.master, ha=False),
            )
        return answer(command, ResponseCode.SUCCESS, None, found.encode())

    def _members(self, command: Command, _connection: Connection) -> Command:
        self.questions.append(trio.current_time())
        if not self.knows_groups:
            return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "4.9")
        known = {} if self.master is None else {0: self.address_of(self.master, ha=False)}
        group = BrokerMemberGroup(cluster="c", broker_name="broker-a", broker_addrs=known)
        return answer(command, body=MemberGroupBody(broker_member_group=group).encode())


def run_registered(seed: int) -> str:
    """A master, one that takes no messages, and a slave."""
    digest = ""
    for role, permission in (("ASYNC_MASTER", 6), ("ASYNC_MASTER", 4), ("SLAVE", 6)):
        name = f"registered/{seed}/{role}/{permission}"
        with Stage(name) as stage:
            registered = Registered(stage, Random(name), role, permission)
            script = Script(stage.simulation)
            registered.script = script
            script.play(PEERS, registered.main)
            digest += stage.simulation.digest()
    return digest


class Registered:
    """The node, and the nameservers."""

    script: Script

    def __init__(self, stage: Stage, random: Random, role: str, permission: int) -> None:
        self.stage, self.random, self.role, self.permission = stage, random, role, permission
        self.host = stage.simulation.host(PEERS).address
        self.names = [HandNameserver(number, self.host) for number in range(2)]
        self.followed: list[int] = []
        """Whose replication port was dialled, in order, each once in a row."""
        self.held_s = 0.0
        """How long a connection lasts there."""
        self.mistaken: set[int] = set()
        """Masters that say that they are slaves."""

    async def main(self, world: World) -> None:
        async with trio.open_nursery() as nursery:
            for one in self.names:
                await one.serve(world, nursery)
            for number in range(2):
                listener = await world.network.listen("", MASTERS + 10 * number)
                nursery.start_soon(self._master, listener, number)
                inline: dict[int, Inline] = dict.fromkeys(
                    (Code.GET_BROKER_RUNTIME_INFO, Code.GET_BROKER_HA_STATUS),
                    partial(self._answers, number),
                )
                server = Server(world, ("", MASTERS + 10 * number - 1), Handlers(inline=inline))
                await nursery.start(server.run)
            is_slave = self.role == "SLAVE"
            where = ";".join(f"{self.host}:{one.port}" for one in self.names)
            settings = {
                **SETTINGS, "namesrvAddr": where, "brokerRole": self.role,
                "brokerId": int(is_slave), "brokerPermission": self.permission,
                **({"rbDiverged": "cut"} if is_slave else {}),
            }  # fmt: skip
            self.stage.begin(NODE, settings)
            await self._until(lambda: all(one.took for one in self.names), "both have it", 5)
            self.address = self.stage.simulation.host(NODE).address
            self._right()
            if is_slave:
                await self._whom_it_follows()
                self.held_s = PERIOD_S
            else:
                peer = Peer()
                peer.connection = await dial(world, (self.address, PORT), peer.handlers)
                nursery.start_soon(peer.connection.run)
                await self._changes(peer)
            await self._periods()
            await self._troubles()
            await self.script.outside(lambda: self.stage.simulation.stop(NODE))
            await self._until(lambda: not any(one.is_linked for one in self.names), "it leaves", 1)
            self._told()
            wrong = [said for one in self.names for said in one.wrong]
            assert not wrong, f"registered: {wrong}"
            nursery.cancel_scope.cancel()

    async def _master(self, listener: Any, number: int) -> None:
        """Hears that it is dialled, and says nothing."""
        while True:
            stream = await listener.accept()
            if self.followed[-1:] != [number]:
                self.followed.append(number)
            await trio.sleep(self.held_s)
            await trio.aclose_forcefully(stream)

    def _answers(self, number: int, command: Command, _connection: Connection) -> Command:
        """What it says of its log, and whether it is a master."""
        if command.code == Code.GET_BROKER_RUNTIME_INFO:
            body = KvTable(table={"commitLogMinOffset": "0", "commitLogMaxOffset": "0"}).encode()
        else:
            body = HaRuntimeInfo(master=number not in self.mistaken).encode()
        return answer(command, body=body)

    async def _until(self, holds: Callable[[], bool], what: str, seconds: float = SOON_S) -> None:
        await wait_until(holds, what, seconds, 0.01, lambda: None)

    def _right(self) -> None:
        """What each has last is what the node is and has."""
        node = self.stage.nodes.get(NODE)
        if node is None:
            return
        table = node.tables.topics.body().topic_config_table
        want = {
            name: (one.read_queue_nums, one.write_queue_nums, one.perm & self.permission)
            for name, one in table.items()
        }
        for one in self.names:
            _, header, topics = one.took[-1]
            told = (header.brokerName, header.clusterName, header.brokerId, header.brokerAddr,
                    header.haServerAddr)  # fmt: skip
            me = ("broker-a", "c", int(self.role == "SLAVE"), f"{self.address}:{PORT}",
                  f"{self.address}:{HA_PORT}")  # fmt: skip
            assert told == me, f"registered: {told} for {me}"
            found = {
                name: (row.read_queue_nums, row.write_queue_nums,
                       row.perm if self.permission != 6 else row.perm & 6)
                for name, row in topics.items()
            }  # fmt: skip
            assert found == want, f"registered: {found} for {want}"

    def _told(self) -> None:
        """The node logs once for each connection that it is registered there."""
        lines = [str(one["nameserver"]) for one in self.stage.told(NODE, "broker.registered")]
        for one in self.names:
            said, taken = lines.count(f"{self.host}:{one.port}"), len(one.taken_from)
            is_right = taken - 1 <= said <= taken  # an answer may have been cut off
            assert is_right, f"told: {said} times that it is registered, of {taken} connections"

    async def _changes(self, peer: Peer) -> None:
        """A topic that comes, goes or has more queues is told at once, to both."""
        for number in range(3):
            seen = [len(one.took) for one in self.names]
            if number < 2:
                count = self.random.randint(1, 9) + 10 * number
                await peer.create(readQueueNums=count, writeQueueNums=count)
            else:
                await peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, 0)
            for one, before in zip(self.names, seen, strict=True):
                is_told = partial(lambda one, before: len(one.took) > before, one, before)
                await self._until(is_told, "a change is told")
            await trio.sleep(0.1)
            self._right()

    async def _periods(self) -> None:
        """Once a period, and not more often, where nothing happens."""
        await trio.sleep(0.5)
        seen = [len(one.took) for one in self.names]
        await trio.sleep(2 * PERIOD_S)
        for one, before in zip(self.names, seen, strict=True):
            took = len(one.took) - before
            assert 1 <= took <= 2, f"period: {took} times in {2 * PERIOD_S} s"

    async def _troubles(self) -> None:
        """One nameserver is in trouble, which the other one does not feel: it is tried again, soon
        and then ever later; what it missed it is told then."""
        for says in ("hangs up", "refuses", "is silent"):
            bad, good = self.random.sample(self.names, 2)
            bad.says = says if says != "hangs up" else "takes"
            links, dialled, tries, began = good.is_linked, len(good.dialled), len(bad.tries), 0.0
            bad.hang_up()
            began = trio.current_time()
            await trio.sleep(self.random.uniform(9, 12))
            assert links and len(good.dialled) == dialled, "trouble: of the other one too"
            pauses = self._pauses(bad.tries[tries:], began)
            if says == "hangs up":
                assert pauses[0] < RETRY_S + 0.2, f"trouble: again after {pauses[0]} s"
            else:
                wait_s = TIMEOUT_S if says == "is silent" else 0.0
                want = [RETRY_S]
                while len(want) < len(pauses):
                    want.append(min(2 * want[-1], RETRY_MAX_S))
                want = [one + (wait_s if at else 0.0) for at, one in enumerate(want)]
                right = all(abs(p - w) < 0.2 for p, w in zip(pauses, want, strict=True))
                assert right and len(want) > 2, f"trouble: {says}: {pauses} for {want}"
            taken = len(bad.took) - (bad.says == "takes")
            bad.says = "takes"
            is_taken = partial(lambda bad, taken: len(bad.took) > taken, bad, taken)
            await self._until(is_taken, "it is registered again", RETRY_MAX_S + TIMEOUT_S + 0.5)
            await trio.sleep(0.1)  # an answer that is cut off is a try that failed
            self._right()

    @staticmethod
    def _pauses(tries: list[float], began: float) -> list[float]:
        return [after - one for one, after in zip([began, *tries], tries, strict=False)]

    # --- a slave

    async def _whom_it_follows(self) -> None:
        """The master that a nameserver has named anew, last; nobody before one is named. One that
        does not know the question is registered at again, while it has named none."""
        one, other = self.random.sample(self.names, 2)
        other.knows_groups = False
        seen = len(other.took)
        await trio.sleep(5 * WATCH_S + 0.5)
        assert not self.followed, f"follows: {self.followed}, whom nobody has named"
        again = len(other.took) - seen
        assert 4 <= again <= 6, f"follows: asked {again} times in 5 s who the master is"
        assert len(one.took) <= 2, f"follows: registered {len(one.took)} times"
        one.master = 0
        await self._until(lambda: self.followed == [0], "it follows who is named", WATCH_S + 1)
        other.master = 1
        await self._until(lambda: self.followed[-1:] == [1], "the newest word", WATCH_S + 1)
        seen = len(self.followed)
        await trio.sleep(2 * PERIOD_S)  # the older word is said again, and is no news
        assert len(self.followed) == seen, f"follows: {self.followed}"
        one.master = 1
        await trio.sleep(WATCH_S + 1)
        one.master = 0
        await self._until(lambda: self.followed[-1:] == [0], "a word that is another", WATCH_S + 1)
        await self._mistaken()
        one.master = None
        seen = len(self.followed)
        await trio.sleep(WATCH_S + 1)
        assert len(self.followed) == seen, "follows: another, since none is named"
        one.master = 0

    async def _mistaken(self) -> None:
        """One that says that it is a slave is not followed: another one that was named is, if it
        says so of itself."""
        for wrong, right in ((0, 1), (1, 0)):
            self.mistaken = {wrong}
            await self._until(lambda right=right: self.followed[-1:] == [right], "another", 3)  # type: ignore[misc]
            seen = len(self.followed)
            await trio.sleep(WATCH_S)
            assert len(self.followed) == seen, f"follows: {self.followed[seen:]}"
        self.mistaken = {0, 1}
        await trio.sleep(WATCH_S)
        self.followed.append(-1)  # whoever is dialled from now on is another one
        await trio.sleep(WATCH_S)
        assert self.followed[-1] == -1, f"follows: {self.followed[-1]}, which is a slave"
        self.mistaken = set()
        await self._until(lambda: self.followed[-1] != -1, "a master again", 3)
        await trio.sleep(WATCH_S)
