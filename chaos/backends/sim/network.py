"""A network in memory, with TCP's semantics rather than packets.

Bytes of one direction stay in order. Each send is delivered after the link's latency and a drawn
jitter, and now and then in two pieces, so that programs cannot rely on frame boundaries. A
receiver's window holds 256 KiB, beyond which the sender waits. A cut link holds bytes back and
delivers them in order once it is healed, as retransmission would. With packet loss, the older of
two connections may be the later one: each makes up for its own loss, before it is accepted too, and
what was sent on a connection that its dialler gave up still arrives, before its end. A killed
process resets its connections; a powerless host sends nothing, so its peers stay half open until
they send to its next incarnation. A paused process still accepts: the kernel shakes hands, not the
process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketbed.chaos.backends.sim.clock import MICROSECOND, SECOND, Timeline
from rocketbed.world.api import Address

if TYPE_CHECKING:
    from rocketbed.chaos.backends.sim.process import SimProcess
    from rocketbed.chaos.backends.sim.stream import SimListener, SimStream

SPLIT_SHARE = 0.2
"""Share of sends that arrive in two pieces."""
RETRANSMIT_NS = 200_000_000
"""First retransmission timeout of Linux's TCP."""
RETRANSMISSIONS_MAX = 6
FIRST_EPHEMERAL_PORT = 32_768


@dataclass(slots=True, kw_only=True)
class Link:
    """Direction between two hosts."""

    latency_ns: int = 100 * MICROSECOND
    jitter_ns: int = 100 * MICROSECOND
    cut: bool = False
    loss: float = 0.0
    """Share of transmissions that are lost and repeated `RETRANSMIT_NS` later, doubling."""
    rate: int | None = None
    """Bytes a second; None for no limit."""
    busy_until: int = 0
    """Time at which the last byte that was put on it has left, under a rate."""


class Network:
    """Links, listeners and connections of a simulation."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.addresses: dict[str, str] = {}
        """Host name -> IP address."""
        self.listeners: dict[Address, SimListener] = {}
        self.usual_link = Link()
        """Initial state of links."""
        self._links: dict[tuple[str, str], Link] = {}
        self.ends: dict[SimStream, None] = {}
        self.taps: dict[int, Callable[[str, bytes], None]] = {}
        """Port -> function called with each send of a dialler: its host's name and the bytes."""
        self._random = timeline.stream("network")
        self._next_port = FIRST_EPHEMERAL_PORT

    def add_host(self, name: str) -> str:
        address = f"10.0.{len(self.addresses) // 250}.{len(self.addresses) % 250 + 1}"
        self.addresses[name] = address
        return address

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            usual = self.usual_link
            link = Link(latency_ns=usual.latency_ns, jitter_ns=usual.jitter_ns)
            self._links[source, target] = link
        return link

    def between(self, source: str, target: str) -> Link:
        """Return the link from one host to another, by name; call `changed` after changes."""
        return self.link(self.addresses[source], self.addresses[target])

    def changed(self, source: str, target: str) -> None:
        """Release what a changed link held back."""
        link = self.between(source, target)
        self.timeline.record("link", source, target, link.cut)
        is_paced, link.busy_until = link.busy_until > self.timeline.now, 0
        for end in list(self.ends):
            if is_paced and self.link(end.local[0], end.remote[0]) is link:
                end.recall()
            end.pump()

    def reset(self, first: str, second: str) -> None:
        """Reset all connections between two hosts, as a firewall between them would."""
        pair = {self.addresses[first], self.addresses[second]}
        self.timeline.record("reset", first, second)
        for end in list(self.ends):
            if {end.local[0], end.remote[0]} == pair:
                end.break_off()

    def delay(self, source: str, target: str, size: int = 0) -> int:
        """Draw the time that a transmission of `size` bytes takes, nanoseconds."""
        link = self.link(source, target)
        delay = link.latency_ns + int(self._random.random() * link.jitter_ns)
        if link.loss:
            retransmission_ns = RETRANSMIT_NS
            for _ in range(RETRANSMISSIONS_MAX):
                if self._random.random() >= link.loss:
                    break
                delay += retransmission_ns
                retransmission_ns *= 2
        if link.rate is not None:
            start = max(self.timeline.now, link.busy_until)
            link.busy_until = start + size * SECOND // link.rate
            delay += link.busy_until - self.timeline.now
        return delay

    def split_point(self, size: int) -> int:
        """Return where to split a send of `size` bytes; `size` for no split."""
        if size > 1 and self._random.random() < SPLIT_SHARE:
            return self._random.randrange(1, size)
        return size

    def free_port(self, host: str) -> int:
        self._next_port += 1
        while (host, self._next_port) in self.listeners:
            self._next_port += 1
        return self._next_port

    def drop_process(self, process: "SimProcess", cause: str) -> None:
        """Close the listeners of a dead process. A killed one resets its peers, one that ended
        closes its streams, one without power sends nothing."""
        for listener in list(self.listeners.values()):
            if listener.process is process:
                listener.drop()
        for end in list(self.ends):
            if end.process is process:
                end.abandon(cause)
