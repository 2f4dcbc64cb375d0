"""Which queue a message goes to (wire.md 6.8). Pure: the caller says what time it is.

Three ways, all of them around in turn among what they find best: `RoundRobin`; `LeastLatency`, the
queues of the broker that answered fastest lately; `FaultIsolation`, which leaves brokers alone for
a while after a slow or failed send (RocketMQ: `MQFaultStrategy`). Hash keys are apart from these:
the same key always means the same queue.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.javahash import java_hash

FAILURE_MS: Final = 10_000.0
"""What a failed send counts as (wire.md 6.8, 5.x)."""

ISOLATION: Final = (
    (15_000.0, 30.0),
    (5_000.0, 10.0),
    (3_000.0, 6.0),
    (1_800.0, 5.0),
    (550.0, 2.0),
    (100.0, 0.0),
    (50.0, 0.0),
)
"""Latency of at least this many milliseconds -> seconds to avoid the broker (5.x)."""

LATENCY_WEIGHT: Final = 0.25
"""Weight of the newest latency in the moving mean."""
LATENCY_FADE_S: Final = 3.0
"""After this long without a send, half of a broker's mean is forgotten, so that it is tried again;
after a failure beside a broker of 1 ms that takes 40 s."""

Choice = Literal["round_robin", "least_latency", "fault_isolation"]


class QueueSelector(Protocol):
    """Chooses among queues and learns from the results."""

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """One of `queues` (at least one), if possible not on the broker `avoid`."""
        ...

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """A send to this broker ended."""
        ...


def make_selector(choice: Choice, start: int) -> QueueSelector:
    """A selector by name; `start` is any number, so that not all clients begin alike."""
    if choice == "round_robin":
        return RoundRobin(start)
    if choice == "least_latency":
        return LeastLatency(start)
    if choice == "fault_isolation":
        return FaultIsolation(start)
    raise ValueError(f"unknown queue selector: {choice}")


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a key: Java's string hash, as `SelectMessageQueueByHash`."""
    value = abs(java_hash(key))
    return queues[(0 if value == 1 << 31 else value) % len(queues)]


class RoundRobin:
    """One queue after the other, counted for each topic: a program that sends to two topics in
    turn would else reach only every second queue of either."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """The next queue, or the next one that is not on `avoid`."""
        return self.turn(others(queues, avoid))

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Makes no difference."""

    def turn(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The next in turn of these, which are all of one topic."""
        number = self._next.get(queues[0].topic, self._start)
        self._next[queues[0].topic] = (number + 1) & 0x7FFFFFFF
        return queues[number % len(queues)]


def others(queues: Sequence[MessageQueue], avoid: str | None) -> Sequence[MessageQueue]:
    """The queues that are not on a broker; all of them if none is left."""
    if avoid is None:
        return queues
    return [queue for queue in queues if queue.broker_name != avoid] or queues


class LeastLatency(RoundRobin):
    """The broker with the least mean latency; one that was not tried yet goes first."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._means: dict[str, tuple[float, float]] = {}
        """Broker -> mean latency in milliseconds, time of the last send."""

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """A queue of the fastest broker, in turn."""
        left = others(queues, avoid)
        best = min(self.mean_ms(queue.broker_name, now_s) for queue in left)
        return self.turn([q for q in left if self.mean_ms(q.broker_name, now_s) <= best])

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Take a latency into the mean; a failure counts as ten seconds."""
        latency_ms = max(latency_ms, FAILURE_MS) if failed else latency_ms
        old = self.mean_ms(broker_name, now_s) if broker_name in self._means else latency_ms
        mean = old + (latency_ms - old) * (1.0 if failed else LATENCY_WEIGHT)
        self._means[broker_name] = (mean, now_s)

    def mean_ms(self, broker_name: str, now_s: float) -> float:
        """A broker's mean, faded by the time since its last send; 0 when it was never tried."""
        mean, at = self._means.get(broker_name, (0.0, now_s))
        return float(mean * 0.5 ** (max(now_s - at, 0.0) / LATENCY_FADE_S))


class FaultIsolation(RoundRobin):
    """Round robin over brokers that are not left alone at the moment (`sendLatencyFaultEnable`)."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._alone_until: dict[str, float] = {}
        self._unreachable: dict[str, bool] = {}

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """First among brokers in order, then among those whose last send worked, then any."""
        left = others(queues, avoid)
        reachable = [q for q in left if not self._unreachable.get(q.broker_name, False)]
        available = [q for q in reachable if self._alone_until.get(q.broker_name, 0.0) <= now_s]
        return self.turn(available or reachable or left)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Leave the broker alone for as long as the table says."""
        if failed:
            latency_ms = FAILURE_MS
        alone_s = next((alone for least, alone in ISOLATION if latency_ms >= least), 0.0)
        self._alone_until[broker_name] = now_s + alone_s
        self._unreachable[broker_name] = failed
