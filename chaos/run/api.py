"""The seam between a plan and the place it runs in: what a backend can do to a cluster.

The conductor (`chaos.run.conductor`) knows plans, roles and labels; a backend knows processes,
disks and links. Times are seconds as arguments and nanoseconds of the run's clock in records. Nodes
are given by name: targets are resolved before.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from rocketbed.chaos.evidence.history import HistoryWriter
from rocketbed.chaos.evidence.record import Image
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.plan.damage import Damage, Hit
from rocketbed.chaos.plan.verbs import DiskKind, RegisterFault
from rocketbed.chaos.run.links import LinkState
from rocketbed.world.api import Address, World

Program = Callable[[World], Awaitable[None]]
"""A client; called with the world of its machine."""
State = Literal["running", "paused", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A node's report of its state. Offsets in bytes of the log."""

    written: int
    flushed: int
    confirmed: int
    """End of what `inSyncReplicas` copies hold; `written` if none are required."""
    dispatched: int
    """End of the messages that are in queues and index."""
    in_sync: int
    """Copies that keep up, including the master; 0 on a slave."""
    is_master: bool
    is_following: bool
    """True for a slave that is connected and has the same log."""
    refused: int = 0
    """Sends that it has refused since its start, with or without an answer."""
    disk_used: float | None = None
    """Used share of its disk; None if it does not say. For the live page, not in the history."""
    group: str = ""
    """Its part in a group with failover, in its own words. Not in the history either."""
    unmade: str = ""
    """Topics whose queues it still has to rebuild; if it stops now, its next start does. Not in the
    history either."""

    def as_row(self) -> dict[str, Any]:
        """Return the fields as they are in the history; the inverse of `of_row`."""
        row = asdict(self)
        del row["disk_used"], row["group"], row["unmade"]
        return {key.removeprefix("is_"): value for key, value in row.items()}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Sample":
        names = {field.name: field.name.removeprefix("is_") for field in fields(cls)}
        return cls(**{name: row[key] for name, key in names.items() if key in row})


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """The master of a group according to its controller."""

    node: str
    epoch: int
    """Rises with each election."""
    start: int | None
    """Offset of the log where this mastership begins; None until its node reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFault:
    """A fault of a node's disk, until it is healed."""

    kind: DiskKind
    seconds: float = 0.0
    """Delay of each sync for `slow-fsync`; how long all syncs are held for `hang`."""
    once: bool = False
    """For the errors: fail only once."""
    after: int = 0
    """For `full`: bytes that still fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """Point within a node's work at which it dies; with neither event nor mark the point is
    removed."""

    event: int | None = None
    """Die at the n-th change of its disk from now."""
    mark: str | None = None
    """Die at the next mark whose name matches this pattern."""
    power: bool = False
    """A power cut rather than SIGKILL."""


@dataclass(slots=True)
class Collected:
    """Results that a backend hands over at the end."""

    stores: dict[str, str]
    """Node -> store directory, relative to the run's directory."""
    images: list[Image]
    trace: Trace
    acks: Trace | None = None
    """Ends that slaves acknowledged, as `written`; None if they were not tapped."""
    digest: str = ""
    marks: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """A place where clusters run. Used by one run, as an async context manager."""

    name: str
    wall_rate: int
    """Seconds of its nodes' wall time in one second of the run."""
    world: World
    """Machine of the conductor and the final reader."""
    history: HistoryWriter
    """The run's history. The backend also writes to it: `exit` and `recovered` of nodes."""

    @property
    def elects(self) -> bool:
        """True if a controller chooses masters; else the conductor does."""

    def now_ns(self) -> int:
        """Return nanoseconds since the run began."""

    def lacks(self, capability: str) -> str | None:
        """Return why a capability (`chaos.plan.verbs`) is missing here; None if it is not."""

    def nameservers(self) -> str:
        """Return the addresses for nodes and clients, `host:port;host:port`."""

    def address(self, node: str) -> Address:
        """Return the address of a node or nameserver for clients."""

    def state(self, name: str) -> State:
        """Return the state of a node or nameserver."""

    async def settled(self, name: str) -> None:
        """Wait until the end of a node that is down is in the history."""

    def ends(self, name: str) -> int:
        """Return how often a node has ended, for whatever reason."""

    def end_reason(self, name: str) -> str:
        """Return why a node that is down ended on its own (`Error: text`); empty if a signal ended
        it."""

    async def start(self, name: str, settings: Mapping[str, str], *, stale: bool = False) -> None:
        """Start a node with these lines of `broker.conf` (a nameserver: none); does not wait.

        With `stale` a nameserver starts with the table it had when it ended.
        """

    async def kill(self, name: str) -> None:
        """Send SIGKILL and wait until the node is dead. No effect on a node that is down."""

    async def stop(self, name: str, timeout_s: float = 60.0) -> bool:
        """Send SIGTERM. Return whether the node ended in time; else it is killed."""

    async def pause(self, name: str) -> None:
        """Send SIGSTOP."""

    async def resume(self, name: str) -> None:
        """Send SIGCONT."""

    async def power_cut(self, name: str, mode: str) -> None:
        """Lose what is not synced, with no sign to the peers."""

    async def crash(self, name: str, point: CrashPoint) -> None:
        """Set a crash point, for a node that is down after its next start; returns at once."""

    async def twin(self, name: str) -> bool:
        """Start a second process on a running node's store, and wait until it has given up.

        Writes a NODE event `twin`: `changes` it made to the directory, `reason` of its end. Return
        False if the node does not serve.
        """

    async def wipe(self, name: str) -> None:
        """Kill a node and give it an empty disk."""

    async def damage(self, name: str, damage: Damage) -> Hit:
        """Damage the store of a node that is down."""

    def reported(self, name: str) -> str:
        """Return a node's report of damage to its log since its last start; empty for none."""

    def refuses(self, name: str) -> str:
        """Return why a slave follows no master until its directory is emptied, in its own words;
        empty if it does not report that."""

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction between two machines (nodes, nameservers, clients, `harness`)."""

    async def reset(self, first: str, second: str) -> None:
        """Reset all connections between two machines."""

    async def set_disk(self, name: str, faults: Sequence[DiskFault]) -> None:
        """Set the faults of a disk, in place of those before."""

    async def set_clock(self, name: str, *, jump_s: float = 0.0, drift: float = 0.0) -> None:
        """Move a machine's wall clock, and let it drift by this share from now on."""

    async def set_cpu(self, name: str, slowness: float) -> None:
        """Multiply the processor time that a machine's work takes."""

    async def observe(self, name: str) -> Sample | None:
        """Return a node's sample; None if it does not answer."""

    async def elected(self, group: str) -> Elected | None:
        """Return the master of a group according to its controller; None without a master or an
        answer."""

    async def has_spare(self, node: str) -> bool:
        """Return whether another running member of its group may lead, so that this node's data can
        be lost; true also if that is unknown."""

    async def election(self) -> None:
        """Wait until there may be another master, for an unspecified time."""

    async def copy_register(self, name: str) -> bool:
        """Keep a copy of a nameserver's register of groups. Return False if it has none."""

    async def lose_register(self, name: str, fault: RegisterFault) -> bool:
        """Put its newest register aside, replaced as the fault says, whether its nameserver runs or
        is down. Return False if it has none."""

    async def return_register(self, name: str) -> None:
        """Restore the register that was put aside last, while its nameserver is down."""

    def start_client(self, name: str, program: Program) -> None:
        """Start or restart a program on a machine of its own (`name`)."""

    async def kill_client(self, name: str) -> None:
        """Kill a client, as seen from outside: connections reset, no clean-up."""

    async def pause_client(self, name: str, *, resume: bool = False) -> None:
        """Pause a client's machine, or let it go on."""

    def client_state(self, name: str) -> State:
        """Return the state of a client; down if it has ended."""

    async def collect(self, directory: Path) -> Collected:
        """Hand over stores, images and trace. All nodes have ended."""
