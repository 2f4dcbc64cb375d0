"""Course of a run, node by node and second by second, as plain data for the charts.

Times are seconds of the scenario (0 is the begin of the load), so that they read like the steps.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketbed.chaos.checks.evidence import SENDS
from rocketbed.chaos.evidence.history import Event, Function, History, Outcome
from rocketbed.chaos.evidence.lag import Lag
from rocketbed.chaos.evidence.record import RunRecord

At = Callable[[int], float]
"""Converts nanoseconds of the run to seconds of the scenario."""
OUTCOMES = {Outcome.OK: "ok", Outcome.WEAK: "weak", Outcome.FAIL: "fail", Outcome.INFO: "unknown"}
SAMPLED = ("written", "flushed", "confirmed", "dispatched")


@dataclass(slots=True)
class Bar:
    """A period in one row of the timeline."""

    begin_s: float
    end_s: float
    kind: str
    """Kind: `master`, `slave`, `recovering`, `down`, `paused`; for a fault its verb."""
    label: str = ""


@dataclass(slots=True)
class Tick:
    time_s: float
    kind: str
    """Kind: `kill`, `powercut`, `crash`, `stop`, `promote`, `cut` or `finding`."""
    label: str = ""


@dataclass(slots=True)
class Story:
    end_s: float
    recovery_s: float
    roles: dict[str, list[Bar]] = field(default_factory=dict)
    ticks: dict[str, list[Tick]] = field(default_factory=dict)
    faulted: dict[str, list[Bar]] = field(default_factory=dict)
    """Steps with their duration, by machine; instantaneous ones have none."""
    samples: dict[str, list[tuple[float, int, int, int, int]]] = field(default_factory=dict)
    """Node -> time, written, flushed, confirmed, dispatched."""
    sends: list[tuple[float, float, str]] = field(default_factory=list)
    """Time, latency in seconds, outcome."""
    lag: list[tuple[float, int]] = field(default_factory=list)
    """Time, and the lag of the slowest reader from then on, in messages."""
    outages: list[tuple[str, float, float]] = field(default_factory=list)


def story_of(record: RunRecord, history: History) -> Story:
    """Combine a run's record and history."""
    zero_ns = int(record.facts.get("zero_ns", 0))

    def at(time_ns: int) -> float:
        return (time_ns - zero_ns) / 1e9

    story = Story(
        end_s=at(record.end_ns), recovery_s=at(record.recovery_ns) if record.recovery_ns else 0.0
    )
    _add_roles(story, record, history.events, at)
    _add_faults(story, history.events, at)
    _add_lag(story, record, history, at)
    for event in history.events:
        if event.kind == "sample":
            written, flushed, confirmed, dispatched = map(event.fields.__getitem__, SAMPLED)
            sample = at(event.time_ns), written, flushed, confirmed, dispatched
            story.samples.setdefault(event.node, []).append(sample)
    for row in history.columns.rows():
        if row.function in SENDS and row.invoked_ns >= 0:
            end_ns = row.returned_ns if row.returned_ns >= 0 else record.end_ns
            latency_s = (end_ns - row.invoked_ns) / 1e9
            story.sends.append((at(row.invoked_ns), latency_s, OUTCOMES[Outcome(row.outcome)]))
    for name, begin_ns, end_ns in record.facts.get("outages", []):
        story.outages.append((name, at(begin_ns), at(end_ns)))
    return story


def _add_roles(story: Story, record: RunRecord, events: list[Event], at: At) -> None:
    """Add bars for the roles of each node, from its starts, recoveries, promotions and ends."""
    open_bars: dict[str, tuple[float, str]] = {}
    roles: dict[str, str] = {}

    def switch(node: str, time_s: float, kind: str) -> None:
        if node in open_bars:
            begin_s, previous = open_bars[node]
            if time_s > begin_s:
                story.roles.setdefault(node, []).append(Bar(begin_s, time_s, previous))
        open_bars[node] = time_s, kind

    story.roles |= {node: [] for node in record.nodes}
    story.ticks |= {node: [] for node in record.nodes}
    for event in events:
        node, time_s = event.node, at(event.time_ns)
        if event.function != Function.NODE or node not in story.roles:
            continue
        if event.kind == "start":
            roles[node] = "master" if event.fields.get("id") == 0 else "slave"
            switch(node, time_s, "recovering")
        elif event.kind == "recovered":
            switch(node, time_s, roles.get(node, "slave"))
        elif event.kind == "exit":
            switch(node, time_s, "down")
            cause = str(event.fields.get("cause", "stop"))
            if time_s < story.end_s and cause != "stop":
                story.ticks[node].append(Tick(time_s, cause, f"{cause} of {node}"))
        elif event.kind == "promote":
            story.ticks[node].append(Tick(time_s, "promote", f"{node} promoted"))
        elif event.kind == "cut":
            story.ticks[node].append(Tick(time_s, "cut", f"{node} truncated its log"))
    for node in list(open_bars):
        switch(node, story.end_s, "")


def _add_lag(story: Story, record: RunRecord, history: History, at: At) -> None:
    ids = {name: number for number, name in history.nodes.items()}
    groups = {
        ids[node]: ids[group]
        for group, nodes in record.groups.items()
        for node in nodes
        if node in ids and group in ids
    }
    topics = {name: number for number, name in history.topics.items()}
    leaving = [event for event in history.events if event.kind == "topic_leaving"]
    lag = Lag(groups)
    for row in history.columns.rows():
        while leaving and leaving[0].time_ns <= row.returned_ns:
            lag.remove_topic(topics.get(leaving.pop(0).fields["topic"], 0))
        lag.add(row)
        if lag.messages != (story.lag[-1][1] if story.lag else 0):
            story.lag.append((at(row.returned_ns), lag.messages))


def _add_faults(story: Story, events: list[Event], at: At) -> None:
    ends: dict[str, float] = {}
    for event in events:
        if event.function == Function.NEMESIS and event.kind == "heal":
            ends[str(event.fields.get("step", ""))] = at(event.time_ns)
    faulted: dict[str, list[Bar]] = defaultdict(list)
    for event in events:
        step = str(event.fields.get("step", ""))
        if event.function != Function.NEMESIS or event.kind in ("heal", "struck", "missed"):
            continue
        begin_s = at(int(event.fields.get("began_ns", event.time_ns)))
        has_duration = event.fields.get("for_s") is not None
        end_s = ends.get(step, story.recovery_s) if has_duration else begin_s
        bar = Bar(begin_s, max(begin_s, end_s), event.kind, step)
        for name in event.fields.get("targets", []):
            faulted[name].append(bar)
    story.faulted = dict(faulted)
