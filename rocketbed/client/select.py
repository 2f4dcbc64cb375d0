"""Choice of the queue of a message (wire.md 6.8). Pure: the caller passes the time.

There are three selectors, each of which takes turns among the queues that it finds best:
`RoundRobin`; `LeastLatency`, the queues of the broker with the lowest recent latency;
`FaultIsolation`, which avoids brokers for a while after a slow or failed send (RocketMQ:
`MQFaultStrategy`). Hash keys are independent of these: a key always gives the same queue.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from rocketbed.wire.bodies import MessageQueue
from rocketbed.wire.javahash import java_hash

FAILURE_MS: Final = 10_000.0
"""Latency for which a failed send counts, milliseconds (wire.md 6.8, 5.x)."""

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
"""Half-life of a broker's mean without sends, seconds, so that it is tried again: after a failure,
and beside a broker of 1 ms, that takes 40 s."""

Choice = Literal["round_robin", "least_latency", "fault_isolation"]


class QueueSelector(Protocol):
    """Chooses among queues and learns from the results."""

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """Return one of `queues` (at least one), if possible not on the broker `avoid`."""
        ...

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Record the end of a send to this broker."""
        ...


def make_selector(choice: Choice, start: int) -> QueueSelector:
    """Return a selector by name; `start` is any number, so that clients do not all begin alike."""
    if choice == "round_robin":
        return RoundRobin(start)
    if choice == "least_latency":
        return LeastLatency(start)
    if choice == "fault_isolation":
        return FaultIsolation(start)
    raise ValueError(f"unknown queue selector: {choice}")


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of a key by Java's string hash, as `SelectMessageQueueByHash`."""
    value = abs(java_hash(key))
    return queues[(0 if value == 1 << 31 else value) % len(queues)]


class RoundRobin:
    """Queues in turn, counted for each topic, because a program that alternates between two topics
    would otherwise reach only every second queue of either."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._next: dict[str, int] = {}

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """Return the next queue, or the next one that is not on `avoid`."""
        return self.turn(not_on(queues, avoid))

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Ignore the result."""

    def turn(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the next of these queues, all of one topic."""
        number = self._next.get(queues[0].topic, self._start)
        self._next[queues[0].topic] = (number + 1) & 0x7FFFFFFF
        return queues[number % len(queues)]


def not_on(queues: Sequence[MessageQueue], avoid: str | None) -> Sequence[MessageQueue]:
    """Return the queues that are not on a broker; all of them if none remains."""
    if avoid is None:
        return queues
    return [queue for queue in queues if queue.broker_name != avoid] or queues


class LeastLatency(RoundRobin):
    """Queues of the broker with the lowest mean latency; a broker without sends goes first."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._means: dict[str, tuple[float, float]] = {}
        """Broker -> mean latency in milliseconds, time of the last send."""

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """Return a queue of the fastest broker, in turn."""
        candidates = not_on(queues, avoid)
        best = min(self.mean_ms(queue.broker_name, now_s) for queue in candidates)
        return self.turn([q for q in candidates if self.mean_ms(q.broker_name, now_s) <= best])

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Add a latency to the mean; a failure counts as ten seconds."""
        latency_ms = max(latency_ms, FAILURE_MS) if failed else latency_ms
        old = self.mean_ms(broker_name, now_s) if broker_name in self._means else latency_ms
        mean = old + (latency_ms - old) * (1.0 if failed else LATENCY_WEIGHT)
        self._means[broker_name] = (mean, now_s)

    def mean_ms(self, broker_name: str, now_s: float) -> float:
        """Return a broker's mean, faded by the time since its last send; 0 without sends."""
        mean, at = self._means.get(broker_name, (0.0, now_s))
        return float(mean * 0.5 ** (max(now_s - at, 0.0) / LATENCY_FADE_S))


class FaultIsolation(RoundRobin):
    """Queues in turn, without those of brokers that are avoided (`sendLatencyFaultEnable`)."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._alone_until: dict[str, float] = {}
        self._unreachable: dict[str, bool] = {}

    def choose(
        self, queues: Sequence[MessageQueue], avoid: str | None, now_s: float
    ) -> MessageQueue:
        """Choose among brokers not avoided, then among those whose last send worked, then among
        all."""
        candidates = not_on(queues, avoid)
        reachable = [q for q in candidates if not self._unreachable.get(q.broker_name, False)]
        available = [q for q in reachable if self._alone_until.get(q.broker_name, 0.0) <= now_s]
        return self.turn(available or reachable or candidates)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, now_s: float) -> None:
        """Avoid the broker for the time in the table."""
        if failed:
            latency_ms = FAILURE_MS
        alone_s = next((alone for least, alone in ISOLATION if latency_ms >= least), 0.0)
        self._alone_until[broker_name] = now_s + alone_s
        self._unreachable[broker_name] = failed
