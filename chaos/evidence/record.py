"""Directory in which a run leaves its evidence for the judge; the same from every backend.

    run.json        this record
    history.rbh     what clients saw and what was done to nodes (`chaos.evidence.history`)
    ends.rbt        written and durable end of each log over time (`chaos.evidence.trace`)
    acks.rbt        acknowledgements of slaves, if links were tapped: the `written` of a trace
    stores/NODE/    each node's store at the end
    images/NODE-N/  a store as a power cut or a kill left it, before its node restarted

It contains no judgement. A part that a backend could not observe is absent, not empty.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rocketbed.inspect.properties import DELAY_LEVELS_DEFAULT

FORMAT = 1
RUN_FILE = "run.json"
HISTORY_FILE = "history.rbh"
TRACE_FILE = "ends.rbt"
ACKS_FILE = "acks.rbt"
STORES = "stores"
IMAGES = "images"


class RecordError(Exception):
    """A run directory that cannot be read; the message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Promise of an acknowledgement (code 0), by the configuration in force."""

    flush: Literal["sync", "async"] = "async"
    """`sync` if each copy that counts must be on disk."""
    replication: Literal["sync", "async"] = "async"
    copies: int = 1
    """`inSyncReplicas`: nodes that hold the message, the master among them; 1 with async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expectations of the scenario beyond the promise."""

    loss: Literal["bound", "none"] = "bound"
    """`bound`: what the configuration and the faults allow; `none`: no acknowledged message."""
    rto_s: float | None = None
    """Longest time without an acknowledgement for a producer that sends."""
    progress: tuple[int, float] | None = None
    """Minimum acknowledgements in any window of this many seconds of the fault phase."""
    turn_s: float | None = None
    """Longest time without an acknowledgement around a planned change of the leader."""
    checks: tuple[str, ...] = ()
    """Ids of checks that must run; a run without one of them does not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A store copied in the middle of the run."""

    node: str
    number: int
    """Counted for each node from 1."""
    time_ns: int
    cause: str
    """Cause: `powercut`, `kill`, `crash` or `stop`."""
    directory: str
    """Relative to the run's directory."""
    written: int | None = None
    """End of the log's written bytes just before (disk layer); None if unobserved."""
    durable: int | None = None
    """End of the flushed bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A process that ended although no step had asked for it."""

    node: str
    time_ns: int
    reason: str
    cause: str = ""
    """Fault that permits it; empty if none does."""
    cause_ns: int = 0
    """Begin of that fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Something that the recovery phase waited for in vain."""

    what: str
    """Kind: `leader`, `in-sync`, `producers`, `drain`, `replicas-equal` or `stop`."""
    subject: str
    """Node, group or client."""
    reason: str


UNREAD = "final reader"
"""Subject of a stall if the final reader did not read everything, dead letters included."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """`run.json`. Times in nanoseconds of the run's clock, which the history uses too."""

    scenario: str
    backend: str
    seed: int
    promise: Promise
    groups: dict[str, list[str]]
    """Broker name -> its nodes."""
    expect: Expectation = Expectation()
    leaders: dict[str, str] = field(default_factory=dict)
    """Broker name -> the node that was master at the end."""
    ids: dict[str, int] = field(default_factory=dict)
    """Node -> its broker id at the end."""
    stores: dict[str, str] = field(default_factory=dict)
    """Node -> its store at the end, relative."""
    stopped_cleanly: list[str] = field(default_factory=list)
    """Nodes whose last process ended by a SIGTERM that it obeyed."""
    images: list[Image] = field(default_factory=list)
    crashes: list[Crash] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Steps that this backend could not do, each with its reason."""
    steps: list[str] = field(default_factory=list)
    """Steps that were carried out, with times and names: the concrete plan."""
    consumer_groups: dict[str, int] = field(default_factory=dict)
    """Names of the consumer groups that read everything, or should have -> their number in the
    history."""
    filters: dict[str, list[str]] = field(default_factory=dict)
    """Groups with a tag filter -> their tags."""
    followers: dict[str, int] = field(default_factory=dict)
    """Readers that follow queues by offsets of their own -> the last process of each."""
    listeners: dict[str, int] = field(default_factory=dict)
    """Listener groups -> their number in the history."""
    ordered_listeners: list[int] = field(default_factory=list)
    """Listener groups that process each queue in order."""
    listener_tries: int = 0
    """Calls for a message before it becomes a dead letter."""
    delay_levels: str = DELAY_LEVELS_DEFAULT
    """`messageDelayLevel` of the nodes."""
    indexed: bool = True
    """True if nodes kept an index of keys all along (`messageIndexEnable`)."""
    ordered_topics: list[str] = field(default_factory=list)
    """Topics whose messages of one key must be delivered in the producer's order."""
    shared_topics: list[str] = field(default_factory=list)
    """Topics with other writers too, whose bodies are in no row."""
    topics: dict[str, int] = field(default_factory=dict)
    """Topics that were created before the load began -> their queues."""
    recovery_ns: int = 0
    """Time at which the last fault was over."""
    stop_ns: int = 0
    """Time at which the stop of the nodes began, one after the other; 0 if unknown."""
    end_ns: int = 0
    digest: str = ""
    """The simulation's digest; empty elsewhere."""
    marks: dict[str, int] = field(default_factory=dict)
    """Named points of the code that were reached, with counts."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the report only: versions, machine, background faults."""

    @property
    def reserved_ns(self) -> int | None:
        """Age below which no message may expire, by the run's clock; None if none may expire."""
        reserved: int | None = self.facts.get("retention_ns")
        return reserved

    @property
    def nodes(self) -> list[str]:
        return [node for nodes in self.groups.values() for node in nodes]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write `run.json`. Raises `OSError`."""
        row = {"format": FORMAT, **asdict(self)}
        with open(os.path.join(directory, RUN_FILE), "w", encoding="utf-8") as file:
            json.dump(row, file, indent=1)
            file.write("\n")


def read_record(directory: str | os.PathLike[str]) -> RunRecord:
    """Read `run.json`. Raises `RecordError`."""
    path = os.path.join(directory, RUN_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            row = json.load(file)
        if row.pop("format") != FORMAT:
            raise RecordError(f"{path} was written by another version of rocketbed")
        row["promise"] = Promise(**row["promise"])
        row["expect"] = Expectation(**with_tuples(row.get("expect", {})))
        row["images"] = [Image(**image) for image in row["images"]]
        row["crashes"] = [Crash(**crash) for crash in row["crashes"]]
        row["stalls"] = [Stall(**stall) for stall in row["stalls"]]
        return RunRecord(**row)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordError(f"{path} cannot be used: {error}") from error


def with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of JSON with its lists as tuples, as frozen dataclasses have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
