"""Requests of a test's mark: the cluster, the number of seeds, promotion by an operator.

    @pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync", seeds=20)

Marks of module, class and function add up, the closest one wins. An unknown argument is an error
that names the nearest known one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args, get_origin

from rocketbed.chaos.plan.check import CAPABILITIES, check_plan
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Background, Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import unknown
from rocketbed.chaos.plan.swarm import swarm_background
from rocketbed.chaos.plan.units import parse_duration, parse_size

BACKENDS: Final = ("sim", "process", "docker")
LONGEST_S: Final = 3600.0
"""Simulated seconds that a body may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes(Shape):
    """Arguments of the mark `rocketbed`: the cluster, as in a plan, and its surroundings."""

    nameservers: int = 1
    queues: int = 4
    """Queues of each topic that the test creates."""
    background: Literal["plain", "swarm"] = "plain"
    """`swarm`: slow disks, slow links and the like, drawn from the seed."""
    failover: bool | Literal["auto"] = True  # type: ignore[assignment]
    """`auto`: failover is automatic; else whether an operator promotes a slave when a master stays
    down."""
    failover_after: float = 1.0
    """Seconds that a master is down before the operator promotes."""
    net: Literal["auto", "plain", "proxy", "switch"] = "auto"
    """Network between real machines: a proxy between processes; the switch between containers, if
    root; for tests that are plain functions one that other programs can reach."""
    seeds: int | Mapping[str, int] = 1
    """Number of seeds, or the number on each backend; a plain number counts in simulation."""

    @property
    def failover_s(self) -> float | None:
        """Seconds that a master is down before a slave is promoted; None: never."""
        by_hand = self.failover is True and self.brokers > 1
        return self.failover_after if by_hand else None

    def net_of(self, backend: str, *, is_open: bool) -> Literal["auto", "plain", "proxy", "switch"]:
        """Return the network between the machines of a backend; `is_open`: other programs connect
        too."""
        if self.net != "auto":
            return self.net
        if backend == "process":
            return "proxy"
        return "plain" if is_open else "auto"

    def seed_count(self, backend: str) -> int:
        """Return the number of seeds on a backend: one outside the simulation, unless specified."""
        if isinstance(self.seeds, int):
            return self.seeds if backend == "sim" else 1
        return self.seeds.get(backend, 1)

    def plan(self, name: str, seed: int, needs: tuple[str, ...] = ()) -> Plan:
        """Return the plan of one run, without clients and steps, as those are the body's.

        Raises `ScenarioError`.
        """
        same = {field.name: getattr(self, field.name) for field in fields(Shape)}
        shape = Shape(**{**same, "failover": self.failover == "auto"})
        swarm = self.background == "swarm"
        plan = Plan(
            name=name,
            seed=seed,
            shape=shape,
            producers=Producers(count=1, topics=1, queues=self.queues, batch=0.0),
            consumers=Consumers(count=0),
            background=swarm_background(shape, f"{name}/{seed}/weather") if swarm else Background(),
            faults_s=LONGEST_S,
            recovery_s=1.0,
            needs=needs,
        )
        check_plan(plan)
        return replace(plan, producers=replace(plan.producers, count=0, topics=0))


def read_wishes(marks: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Wishes:
    """Return the wishes in the arguments of the marks, the farthest first. Raises
    `ScenarioError`."""
    names = {field.name: None for field in fields(Wishes)}
    values: dict[str, Any] = {}
    for arguments, named in marks:
        if arguments:
            raise ScenarioError(
                f"the mark rocketbed takes named arguments only, not {arguments[0]!r}:"
                f" {', '.join(names)}"
            )
        for name in named:
            if name not in names:
                raise ScenarioError(unknown("argument of the mark rocketbed", name, names))
        values |= named
    try:
        wishes = Wishes(**{name: _plain(name, value) for name, value in values.items()})
        _check(wishes)
    except (ValueError, TypeError, AttributeError) as error:
        raise ScenarioError(f"the mark rocketbed: {error}") from None
    return wishes


def _plain(name: str, value: Any) -> Any:
    """Convert a value for a plan: sizes and times may be texts, settings numbers and
    booleans."""
    if name == "segment" and isinstance(value, str):
        return parse_size(value)
    if name == "failover_after":
        return parse_duration(value) if isinstance(value, str) else float(value)
    if name == "settings":
        return {
            key: str(entry).lower() if isinstance(entry, bool) else str(entry)
            for key, entry in value.items()
        }
    return value


def read_needs(names: Iterable[Any]) -> tuple[str, ...]:
    """Return capabilities of the mark `rb_needs`. Raises `ScenarioError` for one that does not
    exist.

    A longer name such as `disk.powercut.kernel` means the capability that it begins with.
    """
    needs: dict[str, None] = {}
    for name in names:
        matching = [
            capability
            for capability in CAPABILITIES
            if name == capability or str(name).startswith(f"{capability}.")
        ]
        if not matching:
            raise ScenarioError(unknown("capability", str(name), list(CAPABILITIES)))
        needs[max(matching, key=len)] = None
    return tuple(needs)


def read_backends(text: str) -> list[str]:
    """Parse `sim,process`. Raises `ScenarioError`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BACKENDS:
            raise ScenarioError(unknown("backend", name, list(BACKENDS)))
    if not names:
        raise ScenarioError(f"no backend given: one or more of {', '.join(BACKENDS)}")
    return list(dict.fromkeys(names))


def _check(wishes: Wishes) -> None:
    if wishes.failover not in (True, False, "auto"):
        raise ScenarioError(f"rocketbed(failover={wishes.failover!r}): True, False or 'auto'")
    for field in fields(Wishes):
        value = getattr(wishes, field.name)
        allowed = get_args(field.type) if get_origin(field.type) is Literal else ()
        if allowed and value not in allowed:
            words = ", ".join(allowed)
            raise ScenarioError(f"rocketbed({field.name}={value!r}): must be one of {words}")
        if field.type is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise ScenarioError(f"rocketbed({field.name}={value!r}): must be an integer")
    seeds = wishes.seeds if isinstance(wishes.seeds, Mapping) else {"sim": wishes.seeds}
    for backend, count in seeds.items():
        if backend not in BACKENDS:
            raise ScenarioError(unknown("backend in seeds", str(backend), list(BACKENDS)))
        check_count(f"rocketbed(seeds={wishes.seeds!r})", count)
    wishes.plan("check", 1)


def check_count(option: str, count: object) -> None:
    """Raise `ScenarioError` unless the value is a number of seeds."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ScenarioError(f"{option}: must be an integer, at least 1")
