"""The network between containers: the testbed's own switch, or a Docker bridge.

With the switch, each machine is a small container that does nothing but hold a network namespace,
as the machine's kernel would; nodes join it. It resets the connections of a killed node, and a
power cut removes it. The Docker bridge needs no root and has no faults.
"""

from collections.abc import Sequence
from typing import Final, Self

import trio

from rocketbed.chaos.backends.process.network import netns
from rocketbed.chaos.backends.process.network.base import HealthyLinks, Machines
from rocketbed.chaos.backends.process.network.switch.network import SwitchNetwork
from rocketbed.host.docker.client import Daemon, DockerError, call
from rocketbed.host.docker.container import Container, Spec
from rocketbed.host.docker.network import hosts, make_network
from rocketbed.host.janitor.docker import docker_record
from rocketbed.host.janitor.record import Ledger

HOLD: Final = ["sleep", "infinity"]


class ContainerSwitchNetwork(SwitchNetwork):
    """The switch between containers; clients and the harness stay on this system."""

    def __init__(self, daemon: Daemon, image: str, machines: Machines, *, run: Ledger) -> None:
        super().__init__(machines, run=run)
        self._daemon = daemon
        self._image = image
        self._held = frozenset(machines.servers)
        self._holders: dict[str, Container] = {}

    async def __aenter__(self) -> Self:
        async with trio.open_nursery() as nursery:
            for name in sorted(self._held):
                nursery.start_soon(self._hold, name)
        await super().__aenter__()
        return self

    def network(self, machine: str) -> str:
        """Return Docker's name of the machine's network."""
        return f"container:{self._holders[machine].id}"

    def container_address(self, machine: str) -> None:
        """Return None: the address belongs to the container that holds the machine's network."""

    def command(self, machine: str, command: Sequence[str]) -> list[str]:
        return list(command)

    async def _plug_in(self, machine: str) -> None:
        if machine in self._held and machine not in self._holders:
            await self._hold(machine)
        await super()._plug_in(machine)

    async def _make_namespace(self, machine: str) -> None:
        if machine not in self._held:
            await super()._make_namespace(machine)
            return
        pid = self._holders[machine].pid()
        if pid is None:
            raise DockerError(f"the machine of {machine} has ended")
        await trio.to_thread.run_sync(netns.adopt, self.namespace(machine), pid)

    async def _remove(self, machine: str) -> None:
        await super()._remove(machine)
        await self._release(machine)

    async def __aexit__(self, *exception: object) -> None:
        with trio.CancelScope(shield=True):
            try:
                await super().__aexit__(*exception)
            finally:
                async with trio.open_nursery() as nursery:
                    for name in list(self._holders):
                        nursery.start_soon(self._release, name)

    async def _hold(self, machine: str) -> None:
        spec = Spec(image=self._image, command=HOLD, network="none", host_name=machine)
        holder = Container(self._daemon, self._run, f"{machine}-machine", spec)
        await holder.launch()
        self._holders[machine] = holder

    async def _release(self, machine: str) -> None:
        holder = self._holders.pop(machine, None)
        if holder is not None:
            await holder.take_away()


class BridgeNetwork(HealthyLinks):
    """A Docker network with an address for each machine; no faults."""

    name = "bridge"
    instead = "the containers are on a bridge of Docker's: choose --net switch (root)"

    def __init__(self, daemon: Daemon, machines: Machines, *, run: Ledger) -> None:
        super().__init__(machines)
        self._daemon = daemon
        self._run = run
        self._name = f"rocketbed-{run.id}"
        self._record = 0

    async def __aenter__(self) -> Self:
        self._record = self._run.note(
            "docker-network", docker_record(self._daemon.address, self._name)
        )
        subnet = await call(
            lambda: make_network(self._daemon, self._name, self._run.id),
            "no network for the containers",
        )
        self._addresses = dict(zip(self._ports, hosts(subnet), strict=False))
        return self

    async def __aexit__(self, *exception: object) -> None:
        with trio.CancelScope(shield=True):
            await call(lambda: self._daemon.api.remove_network(self._name), f"network {self._name}")
            self._run.forget(self._record)

    def network(self, machine: str) -> str:
        return self._name

    def container_address(self, machine: str) -> str:
        return self._addresses[machine]
