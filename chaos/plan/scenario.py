"""Scenarios as Python functions: steps by calls, chance by the scenario's own stream.

    def sync_failover(sc: Scenario) -> None:
        sc.cluster(brokers=3, flush="sync", repl="sync", min_isr=2, segment=1 * MiB)
        k = sc.at(8 * s).kill("leader", label="k")
        sc.after(k, 1 * s).promote("follower:longest")
        sc.after(k, 5 * s).restart("@k")
        sc.every(7 * s, jitter=2 * s).partition("rand:1", "others", for_=3 * s, one_way=sc.coin())
        sc.recovery(at=60 * s, drain=30 * s)

The function is called once for each seed and must draw only from `sc` (`coin`, `pick`, `between`),
so that function and seed give one plan. Conditions are texts (`sc.when("isr<2")`), since a plan is
data that is saved, shrunk and run elsewhere: a function cannot be.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final, Literal, TypeVar

from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan.check import check_plan
from rocketbed.chaos.plan.check_names import check_id
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import BACKENDS, Family, shorten
from rocketbed.chaos.plan.plan import (
    MIB,
    Background,
    Consumers,
    CutMode,
    Listeners,
    Plan,
    Producers,
    Shape,
)
from rocketbed.chaos.plan.step import After, At, Every, Step, Trigger, parse_step
from rocketbed.chaos.plan.swarm import swarm_background
from rocketbed.chaos.plan.verb_methods import Handle, VerbMethods, seconds_of

T = TypeVar("T")

s: Final = 1.0
"""Seconds: `8 * s`."""
ms: Final = 0.001
KiB: Final = 1 << 10
MiB: Final = MIB


class Scenario:
    """Builder of one plan. Its names are those of a TOML file."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._seed = seed
        self._random = Random(f"{name}/{seed}/scenario")
        self._shape = Shape()
        self._producers = Producers()
        self._consumers = Consumers()
        self._listeners = Listeners()
        self._background: Callable[[Shape], Background] = lambda shape: Background()
        self._expect = Expectation()
        self._faults_s, self._recovery_s = 60.0, 30.0
        self._steps: list[Step] = []

    # --- the cluster and its load

    def cluster(
        self,
        *,
        brokers: int = 3,
        groups: int = 1,
        nameservers: int = 2,
        flush: Literal["sync", "async"] = "async",
        repl: Literal["sync", "async"] = "sync",
        min_isr: int = 2,
        failover: bool = False,
        segment: int = MiB,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Set nodes of a group, groups, and what an acknowledgement promises; `settings` are
        further lines of `broker.conf`."""
        self._shape = Shape(
            brokers=brokers,
            groups=groups,
            nameservers=nameservers,
            flush=flush,
            repl=repl,
            min_isr=min_isr,
            failover=failover,
            segment=segment,
            settings=dict(settings or {}),
        )

    def producers(
        self,
        count: int = 4,
        *,
        rate: float = 50.0,
        in_flight: int = 4,
        topics: int = 1,
        queues: int = 4,
        body: tuple[int, int] = (64, 1800),
        keys: int = 64,
        batch: float = 0.1,
        ordered: bool = False,
        timeout: float = 3.0,
        oneway: float = 0.0,
        properties: float = 0.0,
        burst: int = 0,
        large: int = 0,
        late: int = 0,
        deleted: int = 0,
        changes: int = 0,
        settings: int = 0,
        batch_queues: int = 0,
        stay: float = 0.0,
    ) -> None:
        """Set the programs that send: messages a second of each, sizes of bodies in bytes, and so
        on."""
        self._producers = Producers(
            count=count,
            rate=float(rate),
            in_flight=in_flight,
            topics=topics,
            queues=queues,
            body=(int(body[0]), int(body[1])),
            keys=keys,
            batch=float(batch),
            ordered=ordered,
            timeout_s=seconds_of(timeout),
            oneway=float(oneway),
            properties=float(properties),
            burst=burst,
            large=int(large),
            late=late,
            deleted=deleted,
            changes=changes,
            settings=settings,
            batch_queues=batch_queues,
            stay_s=seconds_of(stay),
        )

    def consumers(
        self,
        count: int = 2,
        *,
        mode: Literal["group", "pull", "mixed"] = "mixed",
        members: int = 1,
        filtered: float = 0.0,
        rewinds: float = 0.0,
    ) -> None:
        """Set the programs that read while faults go on; see `plan.Consumers`."""
        self._consumers = Consumers(
            count=count, mode=mode, members=members, filtered=filtered, rewinds=rewinds
        )

    def listeners(
        self,
        count: int = 2,
        *,
        rate: float = 4.0,
        delayed: float = 0.5,
        refused: float = 0.2,
        queues: int = 4,
    ) -> None:
        """Set the programs with a function for each message; see `plan.Listeners`."""
        self._listeners = Listeners(
            count=count, rate=float(rate), delayed=delayed, refused=refused, queues=queues
        )

    def background(
        self,
        *,
        disk: Mapping[str, float] | None = None,
        cut: CutMode = "random",
        link: float = 0.1 * ms,
        link_jitter: float = 0.1 * ms,
        slowness: Mapping[str, float] | None = None,
        cold_share: float = 0.0,
    ) -> None:
        """Set the background faults: seconds of a sync by node, the mode of power cuts, links."""
        background = Background(
            disk_ms={node: round(seconds * 1000, 3) for node, seconds in (disk or {}).items()},
            cut_mode=cut,
            link_ms=round(link * 1000, 3),
            link_jitter_ms=round(link_jitter * 1000, 3),
            slowness=dict(slowness or {}),
            cold_share=cold_share,
        )
        self._background = lambda shape: background

    def swarm(self) -> None:
        """Draw the background faults from the seed."""
        seed = f"{self._name}/{self._seed}/weather"
        self._background = lambda shape: swarm_background(shape, seed)

    def recovery(self, *, at: float = 60.0, drain: float = 30.0) -> None:
        """Set when all faults end, and how long the healed cluster is watched."""
        self._faults_s, self._recovery_s = seconds_of(at), seconds_of(drain)

    def expect(
        self,
        *,
        loss: Literal["bound", "none"] = "bound",
        rto: float | None = None,
        progress: tuple[int, float] | None = None,
        turn: float | None = None,
        checks: Iterable[str] = (),
    ) -> None:
        """Set what is promised beyond the checks that always run; `checks` names, by id, further
        checks that have to run."""
        self._expect = Expectation(
            loss=loss,
            rto_s=None if rto is None else seconds_of(rto),
            progress=None if progress is None else (progress[0], seconds_of(progress[1])),
            turn_s=None if turn is None else seconds_of(turn),
            checks=tuple(map(check_id, checks)),
        )

    # --- steps

    def at(self, seconds: float) -> "Verbs":
        """Return verbs of a step at a time since the load began."""
        return Verbs(self, At(seconds_of(seconds)))

    def after(self, step: Handle | str, seconds: float = 0.0) -> "Verbs":
        """Return verbs of a step some time after another step was done."""
        return Verbs(self, After(str(step).removeprefix("@"), seconds_of(seconds)))

    def every(self, seconds: float, *, jitter: float = 0.0, until: float | None = None) -> "Verbs":
        """Return verbs of a step that is repeated."""
        end = None if until is None else seconds_of(until)
        return Verbs(self, Every(seconds_of(seconds), seconds_of(jitter), end))

    def when(self, condition: str) -> "Verbs":
        """Return verbs of a step that is due once a condition holds: `isr<2`, `lag>64KiB`,
        `acked>=1000`, `down==1`, `t>5s`."""
        if not isinstance(condition, str):
            raise ScenarioError(
                "when() takes a string such as 'isr<2': a plan is data, and a"
                " function cannot be saved"
            )
        return Verbs(self, parse_step(f"when {condition.replace(' ', '')} heal").trigger)

    def step(self, text: str) -> Handle:
        """Add a step as text: `at 8s kill leader as k`."""
        return self._add(parse_step(text))

    # --- chance

    def coin(self, share: float = 0.5) -> bool:
        """Return true with this probability."""
        return self._random.random() < share

    def pick(self, choices: Sequence[T]) -> T:
        """Return a random one of the choices."""
        return self._random.choice(choices)

    def between(self, low: float, high: float) -> float:
        """Return a random number, an integer if both bounds are."""
        if isinstance(low, int) and isinstance(high, int):
            return self._random.randint(low, high)
        return round(self._random.uniform(low, high), 6)

    # --- the end

    def plan(self) -> Plan:
        """Return the whole plan, checked. Raises `ScenarioError`."""
        used = {step.trigger.label for step in self._steps if isinstance(step.trigger, After)}
        text = " ".join(f"{step.target},{step.second}" for step in self._steps)
        steps = tuple(
            replace(step, label="")
            if step.label.startswith("_")
            and step.label not in used
            and f"@{step.label}" not in text
            else step
            for step in self._steps
        )
        plan = Plan(
            name=self._name,
            seed=self._seed,
            shape=self._shape,
            producers=self._producers,
            consumers=self._consumers,
            listeners=self._listeners,
            background=self._background(self._shape),
            steps=steps,
            faults_s=self._faults_s,
            recovery_s=self._recovery_s,
            expect=self._expect,
        )
        check_plan(plan)
        return plan

    def _add(self, step: Step) -> Handle:
        if not step.label:
            step = replace(step, label=f"_{len(self._steps) + 1}")
        self._steps.append(parse_step(str(step)))
        return Handle(step.label)


class Verbs(VerbMethods[Handle]):
    """Verbs of a step, after its trigger."""

    def __init__(self, scenario: Scenario, trigger: Trigger) -> None:
        self._scenario = scenario
        self._trigger = trigger

    def _take(self, step: Step) -> Handle:
        return self._scenario._add(step)


def family(
    function: Callable[[Scenario], None],
    *,
    name: str = "",
    backends: Sequence[str] = BACKENDS,
    seeds: Mapping[str, int] | None = None,
    needs: Sequence[str] = (),
    source: str = "",
) -> Family:
    """Return a Python scenario as a family, with `plan(seed)`."""
    chosen = name or function.__name__.replace("_", "-")

    def make(seed: int, backend: str, quick: bool) -> Plan:
        scenario = Scenario(chosen, seed)
        function(scenario)
        plan = scenario.plan()
        return shorten(plan) if quick else plan

    lines = (inspect.getdoc(function) or "").splitlines()
    return Family(
        name=chosen,
        description=lines[0] if lines else "",
        backends=tuple(backends),
        seeds=dict(seeds or {}),
        needs=tuple(needs),
        source=source or inspect.getsourcefile(function) or "",
        make=make,
    )
