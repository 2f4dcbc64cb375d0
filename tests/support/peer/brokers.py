"""The processes of one test: nameserver and brokers, real ones and ours, all on loopback.

A `Broker` is a place, not a process: ports, a store directory, settings. Either kind of program can
be started in it, one after the other, which is what these tests are about.
"""

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import trio

from rocketbed.chaos.backends.foreign.rocketmq import BROKER_MAIN, NAMESERVER_MAIN
from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.host.member import ManagedProcess
from rocketbed.host.parent_death import tied_command
from rocketbed.host.ports import HOST, free_node_port, free_port, node_ports
from rocketbed.host.program import tied_program
from rocketbed.inspect import open_directory
from rocketbed.remoting.errors import RemotingError
from rocketbed.wire.properties_text import render_properties
from rocketbed.world.real import real_world
from tests.support.peer.installation import Installation

Kind = Literal["rocketmq", "rocketbed"]
Looking = Callable[[Admin], Awaitable[bool]]

SERVING_S: Final = 60.0
"""A real broker needs 3 to 10 s until the nameserver routes to it."""
STOP_S: Final = 60.0
"""A real broker takes 4 to 19 s for a clean stop."""
LOOK_S: Final = 0.02
"""Pause between looks; a process cannot tell us that it serves."""
MEMORY_MIB: Final = 384
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "1280",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "mappedFileSizeTimerLog": "524288",
}
"""Of each kind of file a few thousand messages fill several (queue: 64 units)."""
PATIENCE: Final = {"waitTimeMillsInSendQueue": "60000", "osPageCacheBusyTimeOutMills": "60000"}
"""A real broker refuses sends that waited for 200 ms ("broker busy"), as on a loaded machine."""


class PeerError(Exception):
    """A process of a test that did not do what it should; the message shows its log's end."""


@dataclass(slots=True)
class Broker:
    """A place for a broker."""

    name: str
    broker_id: int
    port: int
    directory: Path
    settings: dict[str, str]
    processes: dict[Kind, ManagedProcess] = field(default_factory=dict)
    running: ManagedProcess | None = None

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def store(self) -> Path:
        """Its store directory, which any program may use."""
        return self.directory / "store"

    @property
    def process(self) -> ManagedProcess:
        """The process that runs in it."""
        assert self.running is not None, f"nothing was started in {self.name}"
        return self.running


class Site:
    """Starts, kills and watches. `close` ends everything by its pid."""

    def __init__(self, directory: Path, installation: Installation) -> None:
        self.directory = directory
        self.installation = installation
        self._processes: list[ManagedProcess] = []
        self._ports: set[int] = set()
        self._world = real_world("peer-test")
        self.nameserver = ""
        """Address of the nameserver, once there is one."""

    # --- places

    def broker(
        self,
        name: str = "broker-a",
        broker_id: int = 0,
        *,
        settings: Mapping[str, str] | None = None,
    ) -> Broker:
        """A new place with free ports and, so far, no store. Its settings suit either kind."""
        port = free_node_port(self._ports)
        self._ports.update(node_ports(port))
        directory = self.directory / f"{name}-{broker_id}"
        directory.mkdir()
        broker = Broker(name, broker_id, port, directory, {})
        broker.settings = {
            "brokerClusterName": "peer",
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "bindAddress": HOST,
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": self.nameserver,
            "storePathRootDir": str(broker.store),
            "storePathCommitLog": str(broker.store / "commitlog"),
            "slaveReadEnable": "true",
            "transientStorePoolEnable": "false",
            **SMALL_FILES,
            **(settings or {}),
        }
        return broker

    # --- starting and ending

    async def start_nameserver(self, kind: Kind) -> None:
        """Start the site's nameserver and wait until it answers."""
        port = free_port(self._ports)
        self._ports.add(port)
        settings = {"listenPort": str(port), "bindAddress": HOST}
        directory = self.directory / "nameserver"
        directory.mkdir()
        config = directory / "namesrv.conf"
        config.write_text(render_properties(settings))
        if kind == "rocketmq":
            command = self._java(NAMESERVER_MAIN, "-c", str(config), home=directory)
        else:
            command = tied_command("nameserver", "-c", str(config))
        self.nameserver = f"{HOST}:{port}"
        process = self._managed(f"nameserver ({kind})", command, directory)
        process.start()
        await self._wait(process, self._nameserver_answers)

    async def start(self, broker: Broker, kind: Kind) -> None:
        """Start a program in a place and wait until the nameserver routes to it and it answers."""
        if kind not in broker.processes:
            directory = broker.directory / kind
            directory.mkdir()
            config = directory / "broker.conf"
            if kind == "rocketmq":
                command = self._java(BROKER_MAIN, "-c", str(config), home=directory)
            else:
                command = tied_command("node", "-c", str(config))
            broker.processes[kind] = self._managed(f"{broker.name} ({kind})", command, directory)
        config = broker.directory / kind / "broker.conf"
        patience = PATIENCE if kind == "rocketmq" else {}
        config.write_text(render_properties({**patience, **broker.settings}))
        broker.running = broker.processes[kind]
        broker.running.start()
        await self._wait(broker.running, lambda admin: self._broker_serves(admin, broker))

    async def kill(self, broker: Broker) -> None:
        """SIGKILL, and wait until it is gone."""
        self.kill_now(broker)
        await broker.process.wait_ended()

    def kill_now(self, broker: Broker) -> None:
        """SIGKILL; the process may take a moment to be gone."""
        if not broker.process.signal(signal.SIGKILL):
            raise PeerError(f"{broker.process.name} does not run: {_tail(broker.process)}")

    async def stop(self, broker: Broker) -> None:
        """SIGTERM, and wait for the clean stop."""
        broker.process.signal(signal.SIGTERM)
        with trio.move_on_after(STOP_S):
            await broker.process.wait_ended()
            assert not (broker.store / "abort").exists(), f"{broker.process.name} left abort"
            return
        raise PeerError(f"{broker.process.name} does not stop: {_tail(broker.process)}")

    async def close(self) -> None:
        """SIGKILL to all that run, each by its pid, and wait for their ends."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        for process in self._processes:
            await process.wait_ended()

    # --- looking

    def admin(self) -> Admin:
        """Our client for administration, to be entered."""
        return Admin(self._world, nameservers=self.nameserver, timeout_s=2.0)

    async def wait_caught_up(self, slave: Broker, master: Broker) -> None:
        """Wait until a slave has all of its master's log, and its queues all of the log."""

        async def has_all(admin: Admin) -> bool:
            end = (await admin.runtime_info(master.address))["commitLogMaxOffset"]
            info = await admin.runtime_info(slave.address)
            return info["commitLogMaxOffset"] == end and info["dispatchBehindBytes"] == "0"

        await self._wait(slave.process, has_all)

    async def wait_dispatched(self, broker: Broker) -> None:
        """Wait until a broker's queues know all of its log."""

        async def has_all(admin: Admin) -> bool:
            return (await admin.runtime_info(broker.address))["dispatchBehindBytes"] == "0"

        await self._wait(broker.process, has_all)

    async def wait_gone(self, broker: Broker) -> None:
        """Wait until the nameserver does not route to a broker any more."""

        async def is_gone(admin: Admin) -> bool:
            row = (await admin.cluster()).broker_addr_table.get(broker.name)
            return row is None or broker.broker_id not in row.broker_addrs

        await self._wait(self._processes[0], is_gone)

    async def wait_mark(self, broker: Broker) -> None:
        """Wait until a node's durable mark is past all that its log has now."""
        async with self.admin() as admin:
            end = int((await admin.runtime_info(broker.address))["commitLogMaxOffset"])

        async def is_high(admin: Admin) -> bool:
            marks = open_directory(broker.store).marks
            return marks is not None and marks.durable_offset >= end

        await self._wait(broker.process, is_high)

    async def _nameserver_answers(self, admin: Admin) -> bool:
        await admin.cluster()
        return True

    async def _broker_serves(self, admin: Admin, broker: Broker) -> bool:
        row = (await admin.cluster()).broker_addr_table.get(broker.name)
        if row is None or row.broker_addrs.get(broker.broker_id) != broker.address:
            return False
        await admin.runtime_info(broker.address)
        return True

    async def _wait(self, process: ManagedProcess, is_so: Looking) -> None:
        """Wait until `is_so`; errors of a client count as not yet. Raises `PeerError`."""
        last: object = "nothing yet"
        with trio.move_on_after(SERVING_S):
            async with self.admin() as admin:
                while process.pid() is not None:
                    try:
                        if await is_so(admin):
                            return
                    except (ClientError, RemotingError) as exc:
                        last = exc
                    await trio.sleep(LOOK_S)
        state = "hangs" if process.pid() else f"ended with code {await process.wait_ended()}"
        raise PeerError(f"{process.name} {state}; last answer: {last}\n{_tail(process)}")

    # --- inside

    def _java(self, main: str, *arguments: str, home: Path) -> list[str]:
        command = self.installation.command(main, *arguments, home=home, memory_mib=MEMORY_MIB)
        return tied_program(command)

    def _managed(self, name: str, command: Sequence[str], directory: Path) -> ManagedProcess:
        process = ManagedProcess(name, command, directory)
        self._processes.append(process)
        return process


def _tail(process: ManagedProcess) -> str:
    return f"{process.log_path} ends with:\n{process.log_tail()}"
