"""Plans from a seed: background faults, load and faults, within what a careful operator would
survive.

Two lanes run side by side. In the first, one machine after the other ends or is paused, each such
episode with all that an operator does about it, and none begins before the last one is over. In the
second, links, disks, clocks, nameservers and clients fail meanwhile. Each class of faults is
missing from half of the seeds: rare combinations need absence as much as presence.

The limits of the fault model (chaos.md 4.5 no. 3, in words of classic mode): the operator never
abandons the longest log, as messages lost that way would be the operator's fault and not the
node's. So a node that may have lost the end of its log comes back only after the longest follower
was promoted; there is no promotion while a follower is down; a disk is lost only while the others
run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan import failover_episodes
from rocketbed.chaos.plan.check import BATCH_BODY_MAX
from rocketbed.chaos.plan.damage import APPEND_CRC
from rocketbed.chaos.plan.episodes import FIRST, RARE, SECOND, Episode, Maker, final_loss
from rocketbed.chaos.plan.plan import Background, Consumers, Listeners, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.plan.swarm import swarm_background

Class = Callable[[Maker], Episode]
Lane = Mapping[str, Class]
LANES: Final[tuple[Lane, ...]] = (FIRST, SECOND, RARE)
FAILOVER_LANES: Final[tuple[Lane, ...]] = (
    failover_episodes.FIRST,
    failover_episodes.SECOND,
    failover_episodes.RARE,
)
"""The same for nodes with automatic failover: some classes differ."""
GENERATED: Final[tuple[str, ...]] = tuple(
    dict.fromkeys(name for lane in (*LANES, *FAILOVER_LANES) for name in lane)
)
"""Names of the classes of faults."""
FAULTS_S: Final = 30.0
RECOVERY_S: Final = 30.0
MARGIN_S: Final = 1.0
"""Time between the last episode and the end of all faults."""
GAP_S: Final = 0.8
"""Shortest usual gap; the long ones are rare and long (Pareto, exponent 1.3)."""

TINY: Final = 1 << 13
"""A segment that holds a dozen messages, so that its end is met often and in every way."""
LARGE: Final = 1 << 18
"""Bytes of the largest body, in most seeds that have large ones."""
RETENTION: Final = {
    "fileReservedTime": "1",
    "deleteWhen": ";".join(map(str, range(24))),
    "cleanResourceInterval": "1000",
}
"""Expired segments are deleted at any hour, within a second."""
WALL_RATE: Final = 120
"""An hour is 30 seconds: no slave is away for so long, and at the end each queue has messages."""
SLOW_WALL_RATE: Final = 60
"""The rate for slow disks, where a recovery takes 20 seconds."""
CHORE_SHARE: Final = 0.2
"""Share of each chore, in the seeds that may have any."""
BATCH_QUEUE_SHARE: Final = 0.08
MANY_SHARE: Final = 0.05
"""Share of the seeds with fast disks and links in which topics neither come nor go, and clients
stay."""
MANY_TOPICS: Final = (200, 300)
MANY_DISK_MS: Final = 5.0
"""Slowest disk for so many topics, as a node that stops syncs every queue."""
PROPERTIES_SHARE: Final = 0.3
SETTINGS_SHARE: Final = 0.15
LISTENER_SHARE: Final = 0.25
DELAYS: Final = "1s 2s 3s 4s 5s 6s"
RARE_SHARE: Final = 0.3
RECORD_BYTES: Final = 250
"""Bytes of a message's record besides its body."""
FILE_SYNCS: Final = 3
"""Syncs for each file of the log: its end, the next file created ahead, their folder."""
SLOW_DISK_MS: Final = 100.0
SLOW_LINK_MS: Final = 10.0
"""From here on producers wait longer, or they would time out even without faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    faults_s: float = FAULTS_S
    recovery_s: float = RECOVERY_S
    classes: tuple[str, ...] = field(default_factory=lambda: tuple(GENERATED))
    rate: tuple[float, float] = (8.0, 20.0)
    """Range for the messages a second of all producers together."""
    failover: float = 0.0
    """Share of seeds whose groups have automatic failover."""


def generate(seed: int, wishes: Generate | None = None, *, name: str = "soak-swarm") -> Plan:
    """Return the plan of a seed; the same arguments give the same plan."""
    request = wishes or Generate()
    random = Random(f"{name}/{seed}/generate")
    shape = draw_shape(random)
    if (
        request.failover
        and (chance := Random(f"{name}/{seed}/failover")).random() < request.failover
    ):
        shape = draw_failover(chance, shape)
    background = swarm_background(shape, f"{name}/{seed}/weather")
    if not _is_quick(background):
        # A slave's sync may take longer than the usual time that a master waits for slaves.
        shape = replace(shape, settings={**shape.settings, "slaveTimeout": "3000"})
    producers = draw_producers(random, request.rate, shape, background)
    extras = Random(f"{name}/{seed}/extras")
    shape, producers = draw_extras(extras, shape, producers, background)
    broken = _draw_broken(extras, shape)
    # A nameserver that is down cannot forget a topic, and a slave that comes back at the very end
    # may not have copied its master's latest tables when the run stops.
    if not broken:
        producers = draw_chores(Random(f"{name}/{seed}/chores"), producers, background)
        producers = draw_settings(Random(f"{name}/{seed}/settings"), producers, background)
    producers = draw_topics(Random(f"{name}/{seed}/topics"), producers, background)
    producers = draw_properties(Random(f"{name}/{seed}/properties"), producers)
    consumers = _draw_consumers(random.choice((1, 2, 2, 3)), f"{name}/{seed}/consumers")
    if producers.topics > MANY_TOPICS[0]:
        consumers = replace(consumers, count=2, members=1)
    listeners = _draw_listeners(Random(f"{name}/{seed}/listeners"), producers)
    may_expire = not (
        listeners.count or producers.large or producers.ordered or producers.deleted or broken
    )
    if extras.random() < 0.2 and may_expire:
        shape = replace(shape, segment=min(shape.segment, 1 << 15))
        shape = replace(shape, settings={**shape.settings, **RETENTION})
        rate = WALL_RATE if _is_quick(background) else SLOW_WALL_RATE
        background = replace(background, wall_rate=rate)
        # A wall clock that jumps makes messages old, and it would be unknown which ones.
        classes = tuple(name for name in request.classes if name != "clocks")
        request = replace(request, classes=classes)
    if listeners.count:
        shape = replace(shape, settings={**shape.settings, "messageDelayLevel": DELAYS})
    return Plan(
        name=name,
        seed=seed,
        shape=shape,
        producers=producers,
        consumers=consumers,
        listeners=listeners,
        background=background,
        steps=tuple(
            map(parse_step, _draw_steps(random, seed, Maker(random, shape, background), request))
        ),
        faults_s=request.faults_s,
        recovery_s=request.recovery_s,
        broken=broken,
        expect=Expectation(loss="none", checks=("nothing-lost",))
        if shape.failover
        else Expectation(),
    )


def _draw_consumers(count: int, seed: str) -> Consumers:
    random = Random(seed)
    members = random.choice((1, 1, 2, 3))
    return Consumers(
        count=count + 2 * (members - 1),
        mode="mixed",
        members=members,
        filtered=random.choice((0.0, 0.5, 1.0)),
        rewinds=random.choice((0.0, 0.05)),
    )


def _draw_listeners(random: Random, load: Producers) -> Listeners:
    """Draw listeners, in a part of the seeds."""
    if random.random() > LISTENER_SHARE or load.topics > MANY_TOPICS[0]:
        return Listeners()
    return Listeners(
        count=random.randint(1, 2),
        rate=round(random.uniform(1.0, 4.0), 2),
        delayed=random.choice((0.2, 0.5, 1.0)),
        refused=random.choice((0.0, 0.1, 0.2)),
        queues=random.choice((1, 4)),
    )


def draw_steps(name: str, plan: Plan, wishes: Generate | None = None) -> list[str]:
    """Draw steps, as texts, for a given cluster and background faults; times count from 0.

    The same name, seed of the plan and wishes give the same steps.
    """
    random = Random(f"{name}/{plan.seed}/generate")
    maker = Maker(random, plan.shape, plan.background)
    return _draw_steps(random, plan.seed, maker, wishes or Generate())


def draw_shape(random: Random) -> Shape:
    """Draw a cluster: mostly three nodes, every mix of promises, segments small enough to be
    many."""
    brokers, groups = random.choices(((3, 1), (2, 1), (1, 1), (2, 2)), (6, 2, 2, 1))[0]
    settings: dict[str, str] = {}
    if random.random() < 0.3:
        settings["flushIntervalCommitLog"] = random.choice(("100", "2000"))
    if random.random() < 0.3:
        settings |= {"rbMaxConnections": "64", "rbMaxHaConnections": "8"}
    if random.random() < 0.3:
        settings[APPEND_CRC] = "true"
    segment = random.choice((TINY, 1 << 15, 1 << 16, 1 << 16, 1 << 18, 1 << 20))
    if segment == TINY:
        settings["maxMessageSize"] = str(TINY // 4)
    return Shape(
        brokers=brokers,
        groups=groups,
        nameservers=random.choice((1, 2, 2, 3)),
        flush="sync" if random.random() < 0.5 else "async",
        repl="sync" if random.random() < 0.7 else "async",
        min_isr=3 if brokers == 3 and random.random() < 0.15 else 2,
        segment=segment,
        settings=settings,
    )


def draw_failover(random: Random, shape: Shape) -> Shape:
    """Return the same cluster with automatic failover."""
    brokers = random.choice((3, 3, 3, 4, 5)) if shape.groups == 1 else 3
    return replace(shape, brokers=brokers, repl="sync", min_isr=2, failover=True)


def draw_producers(
    random: Random, rate: tuple[float, float], shape: Shape, background: Background
) -> Producers:
    """Draw a light load: faults need a variety of moments, not many messages."""
    count = random.choice((1, 2, 2, 4))
    small = random.choice((64, 64, 400))
    large = random.choice((small + 8, 700, 1800, 4096, 4096))
    if shape.segment == TINY:
        small, large = 64, random.choice((72, 300))
    may_batch = large < BATCH_BODY_MAX and shape.segment != TINY
    return Producers(
        count=count,
        rate=round(random.uniform(*rate) / count, 2),
        in_flight=random.choice((1, 4, 8)),
        topics=random.choice((1, 1, 2)),
        queues=random.choice((1, 4)),
        body=(small, large),
        keys=random.choice((4, 64)),
        batch=random.choice((0.0, 0.1, 0.5)) if may_batch else 0.0,
        ordered=random.random() < 0.2,
        timeout_s=random.choice((1.0, 3.0)) if _is_quick(background) else 5.0,
    )


def draw_extras(
    random: Random, shape: Shape, load: Producers, background: Background
) -> tuple[Shape, Producers]:
    """Draw rare load, and limits that it reaches, each in a part of the seeds."""
    settings = dict(shape.settings)
    is_tiny = shape.segment == TINY
    if random.random() < 0.3 and _is_quick(background):
        # A slow disk would lag ever further, since late sends are repeated.
        burst = replace(load, burst=random.choice((10, 40)))
        load = burst if _keeps_up(shape, burst, background) else replace(load, burst=10)
        settings["rbDispatchRing"] = random.choice(("4", "16", "64"))
    if random.random() < 0.25:
        load = replace(load, oneway=random.choice((0.1, 0.5)))
    if random.random() < 0.2 and not load.ordered:
        late = random.randint(1, 3)
        load = replace(load, late=late, topics=load.topics + late)
    if random.random() < 0.2:
        load = replace(load, stay_s=round(random.uniform(2.0, 15.0), 1))
    if random.random() < 0.1 and not is_tiny and _is_quick(background):
        large = random.choice((LARGE, LARGE, 4 << 20))
        settings["maxMessageSize"] = str(large + LARGE // 4)
        shape = replace(shape, segment=max(shape.segment, 2 * large))
        load = replace(load, large=large)
    return replace(shape, settings=settings), load


def draw_chores(random: Random, load: Producers, background: Background) -> Producers:
    """Draw topics that are deleted or changed under load, in a part of the seeds; not if a slave
    takes minutes to make its queues durable, and so to confirm the change."""
    is_deleted, is_changed = (random.random() < CHORE_SHARE for _ in range(2))
    if load.ordered or not _is_quick(background):
        return load
    if is_deleted:
        count = random.choice((1, 1, 2))
        load = replace(load, deleted=count, topics=load.topics + count)
    return replace(load, changes=random.randint(1, 3)) if is_changed else load


def draw_settings(random: Random, load: Producers, background: Background) -> Producers:
    """Draw changes of settings of running nodes, in a part of the seeds."""
    is_drawn, count = random.random() < SETTINGS_SHARE, random.randint(1, 4)
    return replace(load, settings=count) if is_drawn and _is_quick(background) else load


def draw_topics(random: Random, load: Producers, background: Background) -> Producers:
    """Draw topics of another kind, or hundreds of topics, in a small part of the seeds."""
    if random.random() < BATCH_QUEUE_SHARE:
        load = replace(load, batch_queues=1, topics=load.topics + 1)
    is_fast = max(background.disk_ms.values(), default=1.0) <= MANY_DISK_MS and _is_quick(
        background
    )
    if random.random() < MANY_SHARE and is_fast and not (load.late or load.deleted or load.stay_s):
        # Clients that restart, or are far away, would ask for all of them one by one.
        load = replace(load, topics=load.topics + random.randint(*MANY_TOPICS), queues=1)
    return load


def draw_properties(random: Random, load: Producers) -> Producers:
    """Draw application properties, in a part of the seeds."""
    return replace(load, properties=0.5) if random.random() < PROPERTIES_SHARE else load


def _draw_broken(random: Random, shape: Shape) -> str:
    """Draw the nodes that stay without power while the others are healed: none, in most seeds, and
    never so many that no promise could be kept."""
    choice = random.random()
    group = f":{random.choice(list(shape.group_nodes()))}" if shape.groups > 1 else ""
    if choice < 0.15 and shape.brokers > shape.copies:
        return f"follower:any{group}"
    if 0.25 <= choice < 0.3 and shape.failover and shape.brokers > shape.copies:
        return f"leader{group}"
    return "ns:any" if 0.15 <= choice < 0.25 and shape.nameservers > 1 else ""


def _is_quick(background: Background) -> bool:
    """Return whether every disk and link responds within a second."""
    slowest_ms = max(background.disk_ms.values(), default=1.0)
    return background.link_ms < SLOW_LINK_MS and slowest_ms < SLOW_DISK_MS


def _keeps_up(shape: Shape, load: Producers, background: Background) -> bool:
    """Return whether each disk syncs the files of the log as fast as bursts fill them."""
    bytes_each = sum(load.body) / 2 + RECORD_BYTES
    files = load.count * load.rate * load.burst * bytes_each / shape.segment
    return files * FILE_SYNCS * max(background.disk_ms.values(), default=1.0) < 1000


def _draw_steps(random: Random, seed: int, maker: Maker, request: Generate) -> list[str]:
    ends = request.faults_s - MARGIN_S
    last: Episode | None = None
    lanes = FAILOVER_LANES if maker.shape.failover else LANES
    if seed % 2 and not maker.alone and "wipe" in request.classes and lanes is LANES:
        last = final_loss(maker)
    elif seed % 2 and "links" in request.classes and lanes is FAILOVER_LANES:
        last = failover_episodes.lost_packets(maker)
    if last is not None:
        ends -= last.length_s
    rare = _rare_episode(seed, maker, request, is_last=last is None)
    ends -= rare.length_s
    busy, meanwhile = lanes[:2]
    first = _lane(random, maker, _some(random, busy, request), ends, is_busy=True)
    second = _lane(random, maker, _some(random, meanwhile, request), ends, is_busy=False)
    lines = first + second + rare.at(ends)
    if last is not None:
        lines += last.at(ends + rare.length_s)
    return lines


def _rare_episode(seed: int, maker: Maker, request: Generate, *, is_last: bool) -> Episode:
    """Draw one episode of a rare class in a third of the seeds, an empty one in the others.

    A second master only if no loss of the first one follows: if slow disks kept the second one from
    being stopped, that loss would make the operator's error the truth.
    """
    random = Random(f"{seed}/rare")
    lane = (FAILOVER_LANES if maker.shape.failover else LANES)[2]
    names = [name for name in lane if name in request.classes and (is_last or name != "double")]
    if not names or random.random() > RARE_SHARE:
        return Episode()
    episode = lane[random.choice(names)](Maker(random, maker.shape, maker.background, prefix="r"))
    return episode if episode.length_s < request.faults_s / 2 else Episode()


def _some(random: Random, lane: Lane, request: Generate) -> list[Class]:
    """Draw the classes of this seed: each of them with probability one half, at least one."""
    allowed = [lane[name] for name in lane if name in request.classes]
    chosen = [draw for draw in allowed if random.random() < 0.5]
    return chosen or ([random.choice(allowed)] if allowed else [])


def _lane(
    random: Random, maker: Maker, classes: list[Class], ends: float, *, is_busy: bool
) -> list[str]:
    """Draw episodes one after the other (`is_busy`), or each at its own time."""
    lines: list[str] = []
    moment = random.uniform(0.5, 3.0)
    while classes and moment < ends:
        episode = random.choice(classes)(maker)
        if moment + episode.length_s <= ends:
            lines += episode.at(moment)
            if is_busy:
                moment += episode.length_s
        moment += min(GAP_S * random.paretovariate(1.3), 10.0)
    return lines
