"""What a backend can do to a cluster: the seam between a plan and the place it runs in.

The conductor (`chaos.run.conductor`) knows plans, roles and labels; a backend knows processes,
disks and links. Times are seconds where they are asked for and nanoseconds of the run's clock where
they are written down. Every node is named, never described: targets are resolved before.
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
"""A client: gets the world of its machine."""
State = Literal["running", "paused", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A node's own word for where it stands. Offsets in bytes of the log."""

    written: int
    flushed: int
    confirmed: int
    """What `inSyncReplicas` copies hold; `written` where nobody waits for copies."""
    dispatched: int
    """End of what queues and index know."""
    in_sync: int
    """Copies that keep up, the master among them; 0 on a slave."""
    is_master: bool
    is_following: bool
    """A slave that is connected and has the same log."""
    refused: int = 0
    """Sends that it has refused since its start, with an answer or without one."""
    disk_used: float | None = None
    """Share of its disk; None where it does not say. For the live page: in no history."""
    group: str = ""
    """Its part in a group with failover, in its own words. For the live page too."""
    unmade: str = ""
    """Topics whose queues it has to make again, which a stop now leaves to the next start. In no
    history either."""

    def as_row(self) -> dict[str, Any]:
        """Fields as the history has them; `of_row` is the way back."""
        row = asdict(self)
        del row["disk_used"], row["group"], row["unmade"]
        return {key.removeprefix("is_"): value for key, value in row.items()}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Sample":
        known = {one.name: one.name.removeprefix("is_") for one in fields(cls)}
        return cls(**{name: row[key] for name, key in known.items() if key in row})


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """Who is master of a group by its controller."""

    node: str
    epoch: int
    """Rises with each election."""
    start: int | None
    """Offset of the log where this mastership begins; None while its node does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFault:
    """What a node's disk does wrong, until it is mended."""

    kind: DiskKind
    seconds: float = 0.0
    """Delay of each sync for `slow-fsync`; how long all syncs are held for `hang`."""
    once: bool = False
    """For the errors: fails a single time."""
    after: int = 0
    """For `full`: bytes that still fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """Where within its own work a node dies; neither event nor mark: nowhere any more."""

    event: int | None = None
    """At the n-th change of its disk from now."""
    mark: str | None = None
    """At the next pass of a point whose name matches this pattern."""
    power: bool = False
    """A power cut rather than SIGKILL."""


@dataclass(slots=True)
class Collected:
    """What a backend hands over at the end."""

    stores: dict[str, str]
    """Node -> store directory, relative to the run's directory."""
    images: list[Image]
    trace: Trace
    acks: Trace | None = None
    """What slaves reported, as `written`; None where it was not tapped."""
    digest: str = ""
    marks: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """A place where clusters run. Used by one run, as an async context manager."""

    name: str
    wall_rate: int
    """Seconds of its nodes' wall time in one of the run."""
    world: World
    """The conductor's and the final reader's own machine."""
    history: HistoryWriter
    """Also written by the backend: `exit` and `recovered` of nodes."""

    @property
    def elects(self) -> bool:
        """Whether a controller decides who is master; else the conductor does."""

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""

    def lacks(self, capability: str) -> str | None:
        """Why a capability (`chaos.plan.verbs`) is missing here; None when it is not."""

    def nameservers(self) -> str:
        """What nodes and clients are given, `host:port;host:port`."""

    def address(self, node: str) -> Address:
        """Where clients find a node or nameserver."""

    def state(self, name: str) -> State:
        """The state of a node or nameserver."""

    async def settled(self, name: str) -> None:
        """Returns once the end of a node that is down stands in the history."""

    def ends(self, name: str) -> int:
        """How often a node has ended, for whatever reason."""

    def end_reason(self, name: str) -> str:
        """Why a node that is down ended by itself (`Error: text`); empty if a signal ended it."""

    async def start(self, name: str, settings: Mapping[str, str], *, stale: bool = False) -> None:
        """Start a node with these lines of `broker.conf` (a nameserver: none); does not wait.

        With `stale` a nameserver comes back with the table it had when it ended.
        """

    async def kill(self, name: str) -> None:
        """SIGKILL; returns when it is dead. What is down stays so."""

    async def stop(self, name: str, timeout_s: float = 60.0) -> bool:
        """SIGTERM; whether it ended by itself in time (else it is killed)."""

    async def pause(self, name: str) -> None:
        """SIGSTOP."""

    async def resume(self, name: str) -> None:
        """SIGCONT."""

    async def power_cut(self, name: str, mode: str) -> None:
        """Lose what is not on disk; peers hear nothing."""

    async def crash(self, name: str, point: CrashPoint) -> None:
        """Let it die there, after its next start if it is down; returns at once."""

    async def twin(self, name: str) -> bool:
        """Start a second process on a running node's store, and wait until it has given up.

        Writes a NODE event `twin`: `changes` it made to the directory, `reason` of its end. False
        when the node does not serve.
        """

    async def wipe(self, name: str) -> None:
        """Kill it and give it an empty disk."""

    async def damage(self, name: str, damage: Damage) -> Hit:
        """Damage the store of a node that is down."""

    def reported(self, name: str) -> str:
        """What a node said of damage to its log since its last start; empty for nothing."""

    def refuses(self, name: str) -> str:
        """Why a slave follows nobody until its directory is emptied, as it says itself; empty where
        it says nothing like that."""

    async def set_link(self, source: str, target: str, state: LinkState) -> None:
        """Set one direction between two machines (nodes, nameservers, clients, `harness`)."""

    async def reset(self, one: str, other: str) -> None:
        """Reset all connections between two machines."""

    async def set_disk(self, name: str, faults: Sequence[DiskFault]) -> None:
        """These faults and no others from now on."""

    async def set_clock(self, name: str, *, jump_s: float = 0.0, drift: float = 0.0) -> None:
        """Move a machine's wall clock, and let it drift by this share from now on."""

    async def set_cpu(self, name: str, slowness: float) -> None:
        """Factor on the processor time that a machine's work takes."""

    async def observe(self, name: str) -> Sample | None:
        """Where a node stands; None when it does not say."""

    async def elected(self, group: str) -> Elected | None:
        """The master of a group by its controller; None when there is none, or nobody says."""

    async def has_spare(self, node: str) -> bool:
        """Whether another member of its group that is up may lead, so that this one's bytes can be
        lost; true also where nobody can tell."""

    async def election(self) -> None:
        """Wait until there may be another master, for an unspecified time."""

    async def copy_register(self, name: str) -> bool:
        """Keep a copy of a nameserver's register of groups; False where it has none."""

    async def lose_register(self, name: str, fault: RegisterFault) -> bool:
        """Put its newest register aside, and what the fault says in its place, under a nameserver
        that runs or one that is down; False where it has none."""

    async def return_register(self, name: str) -> None:
        """Bring back the one that was put aside last, while its nameserver is down."""

    def start_client(self, name: str, program: Program) -> None:
        """Start a program on a machine of its own (`name`), or start it again."""

    async def kill_client(self, name: str) -> None:
        """SIGKILL, as far as it shows outside: connections reset, no clean-up."""

    async def pause_client(self, name: str, *, resume: bool = False) -> None:
        """Stop a client's machine, or let it go on."""

    def client_state(self, name: str) -> State:
        """The state of a client; one that has ended is down."""

    async def collect(self, directory: Path) -> Collected:
        """Hand over stores, images and trace. All nodes have ended."""
