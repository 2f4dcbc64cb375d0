"""A plan: everything that a run will do. Plain data, so that it can be saved and shrunk.

A scenario is a family; with a seed it becomes one plan, and the same seed always the same one.
Source: chaos.md 4.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan.step import Step

KIB = 1 << 10
MIB = 1 << 20
GROUPS = "bcdefgh"
"""Names of the broker groups; the nodes of group `b` are `b1`, `b2`, ..."""

CutMode = Literal["random", "strict", "prefix", "reorder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    brokers: int = 3
    """Nodes of a group: a master and its slaves."""
    groups: int = 1
    """Broker groups: `b1`, `b2`, ... and `c1`, `c2`, ..."""
    nameservers: int = 2
    """Nameservers: `ns1`, `ns2`, ..."""
    flush: Literal["sync", "async"] = "async"
    """`flushDiskType`."""
    repl: Literal["sync", "async"] = "sync"
    """Whether a send waits for replicas."""
    min_isr: int = 2
    """`inSyncReplicas` under sync replication; not above `brokers`."""
    failover: bool = False
    """Whether failover is automatic: controllers beside the nameservers elect leaders."""
    segment: int = MIB
    """Bytes of a commit-log file."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further lines of every node's `broker.conf`."""

    @property
    def copies(self) -> int:
        """Nodes that hold a message before it is acknowledged."""
        return min(self.min_isr, self.brokers) if self.repl == "sync" else 1

    def group_nodes(self) -> dict[str, list[str]]:
        return {
            group: [f"{group}{number + 1}" for number in range(self.brokers)]
            for group in GROUPS[: self.groups]
        }

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.group_nodes().values() for node in nodes]

    @property
    def nameserver_names(self) -> list[str]:
        return [f"ns{number + 1}" for number in range(self.nameservers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    count: int = 4
    """Producers."""
    rate: float = 50.0
    """Messages a second of each, while it is not held up."""
    in_flight: int = 4
    """Sends of each that may be under way."""
    topics: int = 1
    """Topics, which all producers share."""
    queues: int = 4
    """Queues of each topic."""
    body: tuple[int, int] = (64, 1800)
    """Sizes, bytes; the lower bound is raised to the size of the writer's mark."""
    keys: int = 64
    """Different keys."""
    batch: float = 0.1
    """Share of sends that are batches."""
    prefix: str = "load"
    """Topics are called `load-1`, `load-2`, ..."""
    ordered: bool = False
    """Send the messages of one key to one queue, one after the other."""
    timeout_s: float = 3.0
    """Limit of one send."""
    oneway: float = 0.0
    """Share of single sends that are one-way."""
    properties: float = 0.0
    """Share of messages with an application property; of delayed ones all, if any."""
    burst: int = 0
    """Operations that each begins at once, now and then, whatever `in_flight` says."""
    large: int = 0
    """Now and then a body of up to this many bytes; 0: never."""
    late: int = 0
    """How many of the topics are created only while the faults go on."""
    deleted: int = 0
    """How many of the topics that exist at the beginning are deleted while the faults go on; most
    of them are created again."""
    changes: int = 0
    """How often a topic is changed while the faults go on: more queues, or closed for a while."""
    settings: int = 0
    """How often a setting of a running node is changed while the faults go on."""
    batch_queues: int = 0
    """How many of the topics, the first ones, have `queue.type=BatchCQ`."""
    stay_s: float = 0.0
    """How long a client, a reader too, stays before it closes and starts again, on average; 0: to
    the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """Programs that read during the fault phase."""

    count: int = 2
    """Consumers, in groups of `members`."""
    mode: Literal["group", "pull", "mixed"] = "mixed"
    """`group`: poll and commit; `pull`: follow each queue by offsets of its own."""
    members: int = 1
    """Consumers of each group, which share its queues."""
    filtered: float = 0.0
    """Share of groups that subscribe to one or two of the three tags."""
    rewinds: float = 0.0
    """Chance that a member goes back in one queue after a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Programs that have a function called for each message of a topic of their own."""

    count: int = 0
    """Members of each of two groups, one of which has each queue in order; 0: no listeners."""
    rate: float = 4.0
    """Messages a second to that topic."""
    delayed: float = 0.5
    """Share of them that wait for one of the first delay levels."""
    refused: float = 0.2
    """Share of them that the function refuses: once, twice or always."""
    queues: int = 4
    """Queues of that topic."""
    greedy: float = 0.0
    """Share of the lives of an ordered member in which it claims every queue, despite other
    members: only the brokers' locks then share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Background faults: slow disks, links and machines. In effect where the backend can."""

    disk_ms: Mapping[str, float] = field(default_factory=dict)
    """Node -> time of a sync; 1 ms if absent."""
    cut_mode: CutMode = "random"
    """What of the unflushed data survives a power cut."""
    link_ms: float = 0.1
    """Delay of a link, one way."""
    link_jitter_ms: float = 0.1
    """How much that delay varies."""
    slowness: Mapping[str, float] = field(default_factory=dict)
    """Node -> factor on processor time."""
    cold_share: float = 0.0
    """Share of reads that miss the page cache."""
    wall_rate: int = 1
    """Seconds of wall time in one second of the run, so that hours of retention pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    name: str
    seed: int
    shape: Shape = Shape()
    producers: Producers = Producers()
    consumers: Consumers = Consumers()
    listeners: Listeners = Listeners()
    background: Background = Background()
    steps: tuple[Step, ...] = ()
    faults_s: float = 60.0
    """When all faults end and are healed."""
    recovery_s: float = 30.0
    """How long the healed cluster is written to and watched before it has to be in order."""
    broken: str = ""
    """Machines without power in the recovery phase, as a target: the others have to do without
    them."""
    expect: Expectation = field(default_factory=Expectation)
    needs: tuple[str, ...] = ()
    """Capabilities without which the run would prove nothing: it is skipped as a whole."""
    quick: bool = False
    """Whether it is the scenario's shortened form."""
