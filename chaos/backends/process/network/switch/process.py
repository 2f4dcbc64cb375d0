"""The switch: a process that moves packets between the TUN devices of machines.

    python -P -m rocketbed.chaos.backends.process.network.switch.process PID SEED LOG

PID is that of the starter.

Standard input is a socket to the harness: a line of JSON for each order, a line back when it is in
force (`chaos.backends.process.network.switch.control` speaks to it). It lives in its own process
because Python needs all of a processor for some 40 thousand packets a second, and dies with the
harness (`tied`). Every order is a line of the log. Nothing but what the machines' own devices hand
over ever gets in, and nothing leaves but through them.
"""

import fcntl
import heapq
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, BinaryIO, Final

from rocketbed.chaos.backends.process.network import netns
from rocketbed.chaos.backends.process.network.switch.resets import Resets
from rocketbed.chaos.backends.process.network.switch.rules import Path, Port
from rocketbed.chaos.run.links import LinkState
from rocketbed.host.parent_death import EXIT_ORPHAN, tie_to

TUN_DEVICE: Final = "/dev/net/tun"
TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 1
IFF_NO_PI: Final = 0x1000
INTERFACE: Final = "rb0"
NETMASK: Final = "255.255.0.0"
BATCH: Final = 32
"""Packets taken from one machine before the others have their turn."""
CONTROL: Final = 0
UnderWay = tuple[float, int, Port, Port, Path, bytes]
"""Time of delivery, a number that keeps the order, source, target, the path between, the packet."""


class Switch:
    """Switch with its ports and the packets under way."""

    def __init__(self, seed: str) -> None:
        self.ports: dict[str, Port] = {}
        self.resets = Resets(self.write)
        self.forwarded = 0
        self._seed = seed
        self.tuns: dict[int, Port] = {}
        self.poll = select.poll()
        """For packets from machines."""
        self._heap: list[UnderWay] = []
        self._number = 0

    # --- orders

    def attach(self, name: str, address: str, namespace: str, mtu: int) -> None:
        """Connect a machine; one that is connected already gets a new device, and is no longer
        silent."""
        tun = _open_tun(namespace, address, mtu)
        port = self.ports.get(name)
        if port is None:
            port = Port(name, socket.inet_aton(address), namespace, tun, mtu)
            for neighbour in self.ports.values():
                port.paths[neighbour.address] = neighbour, self._path(name, neighbour.name)
                neighbour.paths[port.address] = port, self._path(neighbour.name, name)
            self.ports[name] = port
        else:
            del self.tuns[port.tun]
            self.poll.unregister(port.tun)
            os.close(port.tun)
            self._forget(lambda entry: port in entry[2:4])
            port.tun, port.namespace, port.silent = tun, namespace, False
        self.tuns[tun] = port
        self.poll.register(tun, select.POLLIN)

    def set_link(self, source: str, target: str, state: dict[str, Any]) -> None:
        port, path = self.ports[source].paths[self.ports[target].address]
        for packet in path.set(LinkState(**state)):
            self._send(port, packet)

    def silence(self, name: str) -> None:
        self.ports[name].silent = True

    def reset(self, first: str, second: str) -> None:
        """Begin to reset the connections between two machines; `resets` tells when they are
        done."""
        self.resets.begin(self.ports[first], self.ports[second])
        self._forget(lambda entry: self.resets.is_doomed(entry[5]))

    def counters(self) -> dict[str, Any]:
        """Return packets delivered, and dropped for each direction that dropped any."""
        dropped = {
            f"{port.name}->{target.name}": path.dropped
            for port in self.ports.values()
            for target, path in port.paths.values()
            if path.dropped
        }
        return {"forwarded": self.forwarded, "dropped": dropped}

    # --- packets

    def next_delivery(self) -> float | None:
        """Return when the next packet under way is to be delivered."""
        return self._heap[0][0] if self._heap else None

    def take_all(self) -> None:
        """Move what was sent before now, so that the next order applies only to later packets."""
        for tun in list(self.tuns):
            for _ in range(netns.QUEUE_LENGTH // BATCH):
                if not self.take(tun):
                    break

    def take(self, tun: int) -> bool:
        """Move some of what a machine has sent. Return whether there may be more."""
        port = self.tuns.get(tun)
        if port is None:
            return False
        size, paths, read, write = port.size, port.paths, os.read, os.write
        for _ in range(BATCH):
            try:
                packet = read(tun, size)
            except OSError:
                return False
            route = paths.get(packet[16:20])
            if route is None or port.silent or packet[0] >> 4 != 4:
                continue
            target, path = route
            if self.resets.doomed and self.resets.takes(packet, port):
                continue
            if path.is_plain and not target.silent:
                with suppress(OSError):
                    write(target.tun, packet)
                    self.forwarded += 1
            else:
                delivery = path.delivery_time(packet, time.monotonic())
                if delivery is not None:
                    self._number += 1
                    heapq.heappush(self._heap, (delivery, self._number, port, target, path, packet))
        return True

    def deliver(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, _, source, target, path, packet = heapq.heappop(self._heap)
            path.arrived()
            if not source.silent:
                self._send(target, packet)

    def write(self, port: Port, packet: bytes) -> None:
        with suppress(OSError):
            os.write(port.tun, packet)

    def _send(self, port: Port, packet: bytes) -> None:
        if not port.silent:
            self.write(port, packet)
            self.forwarded += 1

    def _forget(self, is_meant: Callable[[UnderWay], bool]) -> None:
        """Give up packets under way."""
        self._heap = [entry for entry in self._heap if not is_meant(entry)]
        heapq.heapify(self._heap)
        for port in self.ports.values():
            for _, path in port.paths.values():
                path.waiting = 0
        for _, _, _, _, path, _ in self._heap:
            path.waiting += 1

    def _path(self, source: str, target: str) -> Path:
        return Path(Random(f"{self._seed}/{source}->{target}"))


def _open_tun(namespace: str, address: str, mtu: int) -> int:
    with netns.inside(namespace):
        tun = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            flags = struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(tun, TUNSETIFF, flags)
            netns.configure(INTERFACE, address, NETMASK, mtu)
        except OSError:
            os.close(tun)
            raise
    return tun


class Control:
    """The harness's orders, one line each, and the answers."""

    def __init__(self, switch: Switch, log: BinaryIO) -> None:
        self._switch = switch
        self._log = log
        self._unparsed = b""
        self.is_resetting = False
        self._orders: dict[str, Callable[..., Any]] = {
            "attach": switch.attach,
            "link": switch.set_link,
            "silence": switch.silence,
            "counters": switch.counters,
        }

    def read(self) -> bool:
        """Carry out the orders that have arrived. Return False if the harness has closed the
        connection."""
        data = os.read(CONTROL, 65536)
        self._switch.take_all()
        self._switch.deliver()
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def finish_reset(self) -> None:
        """Answer a reset when it is done, or takes too long."""
        if self.is_resetting and self._switch.resets.is_over():
            self.is_resetting = False
            self._answer({"ignored": self._switch.resets.end()})

    def _obey(self, order: dict[str, Any]) -> None:
        row = json.dumps({"time_ns": time.monotonic_ns(), **order})
        self._log.write(row.encode() + b"\n")
        self._log.flush()
        name = order.pop("order")
        try:
            if name == "reset":
                self._switch.reset(**order)
                self.is_resetting = True
                return
            result = self._orders[name](**order)
        except Exception as error:  # the harness has to know about any failure
            self._answer({"error": f"{name}: {type(error).__name__}: {error}"})
        else:
            self._answer({"result": result})

    def _answer(self, answer: dict[str, Any]) -> None:
        os.write(CONTROL, json.dumps(answer).encode() + b"\n")


def run(switch: Switch, control: Control) -> None:
    """Move packets until the harness has closed the connection."""
    switch.poll.register(CONTROL, select.POLLIN)
    while True:
        next_delivery = switch.next_delivery()
        if control.is_resetting:
            next_delivery = min(next_delivery or switch.resets.next_try, switch.resets.next_try)
        ready = switch.poll.poll(
            None if next_delivery is None else max(0.0, 1000 * (next_delivery - time.monotonic()))
        )
        for descriptor, _ in ready:
            if descriptor != CONTROL:
                switch.take(descriptor)
            elif not control.read():
                return
        switch.deliver()
        if control.is_resetting:
            switch.resets.probe_again()
            control.finish_reset()


def main() -> int:
    parent, seed, log_path = sys.argv[1:]
    if not tie_to(int(parent)):
        return EXIT_ORPHAN
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(log_path, "ab") as log:
        switch = Switch(seed)
        with suppress(ConnectionError):
            run(switch, Control(switch, log))
    return 0


if __name__ == "__main__":
    sys.exit(main())
