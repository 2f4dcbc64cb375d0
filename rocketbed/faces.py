"""What `rocketbed.blocking` and `rocketbed.aio` have in common: how their clients are made."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from rocketbed.client.admin import TIMEOUT_S as ADMIN_TIMEOUT_S
from rocketbed.client.admin import Admin
from rocketbed.client.allocate import Allocation, AllocationName
from rocketbed.client.consumer import HOLD_S, Consumer
from rocketbed.client.linger import BATCH_BYTES
from rocketbed.client.packing import ABOVE, Codec
from rocketbed.client.producer import MEMORY_MAX, RETRIES, TIMEOUT_S, Producer
from rocketbed.client.select import Choice, QueueSelector
from rocketbed.client.tracing import Tracing
from rocketbed.portal import Portal

C = TypeVar("C")


class Face(Generic[C]):
    """A client, or a part of one, behind a portal."""

    def __init__(self, portal: Portal, client: C) -> None:
        self._portal = portal
        self._client = client


class ProducerFace(Face[Producer]):
    """A producer in the real world."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str],
        group: str = "rocketbed_producer",
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        retry_unknown: bool = True,
        retry_unsafe: bool = False,
        select: Choice | QueueSelector = "round_robin",
        compress: Codec | None = None,
        compress_above: int = ABOVE,
        linger_s: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        memory_max: int = MEMORY_MAX,
        tracing: Tracing | None = None,
    ) -> None:
        """As `rocketbed.Producer`."""
        client = Producer(
            nameservers=nameservers,
            group=group,
            timeout_s=timeout_s,
            retries=retries,
            retry_unknown=retry_unknown,
            retry_unsafe=retry_unsafe,
            select=select,
            compress=compress,
            compress_above=compress_above,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            memory_max=memory_max,
            tracing=tracing,
        )
        super().__init__(Portal(client), client)


class ConsumerFace(Face[Consumer]):
    """A consumer in the real world."""

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str],
        group: str,
        auto_commit_s: float | None = None,
        hold_s: float = HOLD_S,
        allocation: AllocationName | Allocation = "average",
        ordered: bool = False,
        broadcast: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """As `rocketbed.Consumer`."""
        client = Consumer(
            nameservers=nameservers,
            group=group,
            auto_commit_s=auto_commit_s,
            hold_s=hold_s,
            allocation=allocation,
            ordered=ordered,
            broadcast=broadcast,
            tracing=tracing,
        )
        super().__init__(Portal(client), client)


class AdminFace(Face[Admin]):
    """An administrator in the real world."""

    def __init__(
        self, *, nameservers: str | Sequence[str], timeout_s: float = ADMIN_TIMEOUT_S
    ) -> None:
        """As `rocketbed.Admin`."""
        client = Admin(nameservers=nameservers, timeout_s=timeout_s)
        super().__init__(Portal(client), client)
