"""Episodes of trouble in a cluster: each a fault and what an operator does about it.

An episode is a few steps with times of their own, begun at any time. Those of `FIRST` end or stop a
machine of the cluster, and no other such episode overlaps them; those of `SECOND` may happen at any
time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from rocketbed.chaos.plan.damage import DERIVED, FIELDS, KINDS
from rocketbed.chaos.plan.marks import RUNNING, STARTING, STOPPING
from rocketbed.chaos.plan.plan import Background, Shape
from rocketbed.chaos.plan.units import show_duration

START_S: Final = 0.5
SETTLE_S: Final = 2.0
"""Pause after a start, and after a change of the master, until the next fault of a machine."""
SYNCS: Final = 25
"""Syncs that a start and a stop may take together; counts if disks are slow."""
WITHIN_S: Final = 4.0
"""Time that a crash point waits for its event."""


@dataclass(slots=True)
class Episode:
    length_s: float = 0.0
    steps: list[tuple[float, str]] = field(default_factory=list)
    """(seconds from the beginning, text of the step without its trigger); a step that follows
    another has its trigger in its text (`after ...`)."""

    def after(self, label: str, seconds: float, text: str) -> None:
        """Add a step that is due `seconds` after the step with this label."""
        self.steps.append((0, f"after {label}+{show_duration(seconds)} {text}"))

    def at(self, moment: float) -> list[str]:
        """Return the texts of the steps for an episode that begins at this moment."""
        lines = []
        for seconds, text in self.steps:
            if text.startswith("after "):
                lines.append(text)
            else:
                lines.append(f"at {show_duration(round(moment + seconds, 3))} {text}")
        return lines


class Maker:
    """Draws episodes for one cluster."""

    def __init__(
        self, random: Random, shape: Shape, background: Background, *, prefix: str = "e"
    ) -> None:
        self.random = random
        self._prefix = prefix
        self.shape = shape
        self.background = background
        slowest_s = max(background.disk_ms.values(), default=1.0) / 1000
        self.start_s = round(START_S + SYNCS * slowest_s, 3)
        """Time until a node that was started certainly serves."""
        self.settle_s = round(SETTLE_S + SYNCS * slowest_s, 3)
        """Time until all nodes follow a new master."""
        self._labels = 0

    @property
    def alone(self) -> bool:
        """True if a group is a single node."""
        return self.shape.brokers == 1

    def label(self) -> str:
        self._labels += 1
        return f"{self._prefix}{self._labels}"

    def group(self) -> str:
        """Return the suffix that names a random group in a target; empty if there is only one
        group."""
        groups = list(self.shape.group_nodes())
        return f":{self.random.choice(groups)}" if len(groups) > 1 else ""

    def member(self, group: str) -> str:
        """Return as target the leader in half of the cases, or a follower."""
        if self.alone or self.random.random() < 0.5:
            return f"leader{group}"
        return f"follower:any{group}"

    def seconds(self, low: float, high: float) -> float:
        """Draw a time, more often short than long."""
        return round(low * math.pow(high / low, self.random.random()), 3)

    def text(self, low: float, high: float) -> str:
        return show_duration(self.seconds(low, high))

    def power(self, share: float) -> str:
        """Return the word that makes a crash point a power cut, in a share of the cases; never if
        that could take the last machine that may lead."""
        cut = self.random.random() < share
        may = not self.shape.failover or self.shape.flush == "sync"
        return " powercut" if cut and may else ""

    def recover(self, episode: Episode, label: str, target: str, group: str, *, lost: bool) -> None:
        """Restart what the step with this label ended, perhaps after a promotion; `lost`: its log
        may be shorter now."""
        down = self.seconds(0.1, 3.0)
        is_leader = target.startswith("leader")
        by_hand = is_leader and not (self.alone or self.shape.failover)
        promote = by_hand and (lost or self.random.random() < 0.4)
        if promote:
            episode.after(label, down, f"promote follower:longest{group}")
            down = round(down + self.seconds(0.2, 3.0), 3)
        episode.after(label, down, f"restart @{label}")
        settles = promote or (lost and self.shape.failover)
        episode.length_s += down + (self.settle_s if settles else self.start_s)


def kill(maker: Maker) -> Episode:
    """SIGKILL; in one case of three once more during the recovery."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    episode.steps.append((0, f"kill {target} as {label}"))
    if maker.random.random() < 0.33:
        first = maker.seconds(0.05, 1.0)
        killed_s = round(first + maker.seconds(0.002, 0.3), 3)
        episode.after(label, first, f"restart @{label}")
        episode.after(label, killed_s, f"kill @{label}")
        back = round(killed_s + maker.seconds(0.05, 1.0), 3)
        episode.after(label, back, f"restart @{label}")
        episode.length_s = back + maker.start_s
    else:
        maker.recover(episode, label, target, group, lost=False)
    return episode


def stop(maker: Maker) -> Episode:
    """SIGTERM; in half of the cases a power cut or SIGKILL during the shutdown."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    if target.startswith("follower") and maker.shape.brokers > 2:
        target = f"leader{group}"
    if maker.random.random() < 0.5:
        power = maker.power(0.7)
        point = f"store-event {maker.random.randint(1, 30)}"
        if maker.random.random() < 0.4:
            point = f"mark {maker.random.choice(STOPPING)}"
        episode.steps.append((0, f"crash {target} at {point}{power} as {label}"))
        episode.steps.append((maker.seconds(0.001, 0.05), f"stop {target}"))
        maker.recover(episode, label, target, group, lost=bool(power))
    else:
        episode.steps.append((0, f"stop {target} as {label}"))
        maker.recover(episode, label, target, group, lost=False)
    episode.length_s += 1.0
    return episode


def powercut(maker: Maker) -> Episode:
    """A power cut of one machine, or of all of them at once."""
    group, label, episode = maker.group(), maker.label(), Episode()
    if maker.random.random() < 0.25 and not maker.alone:
        down = maker.seconds(0.1, 1.0)
        # The master stays down until a follower has taken its place. If it came back, it would
        # append to its shortened log, whose length would then say nothing about what it lost.
        episode.steps.append((0, f"powercut leader{group} as {label}"))
        episode.steps.append((0, f"powercut follower:all{group} for {show_duration(down)}"))
        back = round(down + 1.5, 3)
        promote = f"promote follower:longest{group}"
        episode.after(label, back, f"{promote}")
        restarted_s = round(back + maker.seconds(1.0, 2.0), 3)
        episode.after(label, restarted_s, f"restart @{label}")
        episode.length_s = restarted_s + maker.settle_s
        return episode
    target = maker.member(group)
    episode.steps.append((0, f"powercut {target} as {label}"))
    maker.recover(episode, label, target, group, lost=True)
    return episode


def crash(maker: Maker) -> Episode:
    """Death within an operation: at the n-th change of a disk, or at a mark."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    power = maker.power(0.6)
    event = int(maker.seconds(1, 60))
    point = f"store-event {event}"
    if maker.random.random() < 0.5:
        point = f"mark {maker.random.choice(RUNNING)}"
    within = f"within {show_duration(WITHIN_S)}"
    episode.steps.append((0, f"crash {target} at {point}{power} {within} as {label}"))
    maker.recover(episode, label, target, group, lost=bool(power))
    episode.length_s += WITHIN_S
    return episode


def crash_recovery(maker: Maker) -> Episode:
    """A kill, then a crash point in the recovery that follows."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    back = maker.seconds(0.1, 1.0)
    point = f"store-event {int(maker.seconds(1, 25))}"
    if maker.random.random() < 0.4:
        point = f"mark {maker.random.choice(STARTING)}"
    # A master that may have lost its end comes back only after a promotion.
    may_lose = maker.alone or target.startswith("follower")
    power = " powercut" if may_lose and maker.random.random() < 0.5 else ""
    lasting = f"within 2s for {maker.text(0.05, 1.0)}"
    episode.steps.append((0, f"kill {target} as {label}"))
    episode.after(label, back, f"restart @{label}")
    episode.after(label, back, f"crash @{label} at {point}{power} {lasting}")
    episode.length_s = back + 2.0 + maker.start_s
    return episode


def pause(maker: Maker) -> Episode:
    """SIGSTOP for a while."""
    target, seconds = maker.member(maker.group()), maker.seconds(0.05, 6.0)
    return Episode(seconds + 0.5, [(0, f"pause {target} for {show_duration(seconds)}")])


def disk_sick(maker: Maker) -> Episode:
    """An error of the disk, which has to end the node; the operator starts it again."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    kind = maker.random.choice(
        ("eio-fsync once", "eio-fsync once", "eio-write once", "eio-read once", "full")
    )
    length = 1.0
    if kind == "full":
        length = maker.seconds(0.5, 3.0)
        size = maker.random.choice((0, 512, 8192, 65536))
        kind = f"full after {size}B for {show_duration(length)}"
    else:
        kind = f"{kind} for {show_duration(length)}"
    back = round(length + maker.seconds(0.1, 1.0), 3)
    episode.steps.append((0, f"disk {target} {kind} as {label}"))
    episode.after(label, back, f"restart @{label}")
    episode.length_s = back + maker.start_s
    return episode


def read_only(maker: Maker) -> Episode:
    """A file system that takes no writes for a while; the operator starts the node again."""
    group, label, episode = maker.group(), maker.label(), Episode()
    length = maker.seconds(0.3, 3.0)
    back = round(length + maker.seconds(0.1, 1.0), 3)
    step = f"disk {maker.member(group)} read-only for {show_duration(length)} as {label}"
    episode.steps.append((0, step))
    episode.after(label, back, f"restart @{label}")
    episode.length_s = back + maker.start_s
    return episode


def lying_disk(maker: Maker) -> Episode:
    """A disk that only claims to sync, and then a power cut; a node that misses synced data has to
    report it, and is replaced."""
    if maker.alone:  # no copy could replace its log
        return powercut(maker)
    group, label, episode = maker.group(), maker.label(), Episode()
    target = maker.member(group)
    length = maker.seconds(0.3, 3.0)
    cut, cut_label = round(length * 0.9, 3), maker.label()
    step = f"disk {target} lost-fsync for {show_duration(length)} as {label}"
    episode.steps.append((0, step))
    episode.after(label, cut, f"powercut @{label} as {cut_label}")
    maker.recover(episode, cut_label, target, group, lost=True)
    episode.after(cut_label, episode.length_s, f"repair @{cut_label}")
    episode.length_s += cut + maker.settle_s
    return episode


def damage(maker: Maker) -> Episode:
    """Damage of a store while its node is down; nodes that report damage are replaced."""
    group, label, episode, random = maker.group(), maker.label(), Episode(), maker.random
    target = maker.member(group)
    kind = random.choice(KINDS)
    # The log of a single node has no copy to replace it.
    where = random.choice(DERIVED if maker.alone else (*DERIVED, "mark", "flushed", *["log"] * 5))
    if kind == "flip" and not maker.alone:
        where = random.choice((*FIELDS, "topic", where))
    harm = kind if kind == "stray" else f"{kind} {where}"
    last = " last" if random.random() < 0.5 else ""
    end = random.choice((" stop", " kill"))
    episode.steps.append((0, f"damage {target} {harm}{last}{end} as {label}"))
    maker.recover(episode, label, target, group, lost=True)
    episode.after(label, episode.length_s, f"repair @{label}")
    episode.length_s += maker.settle_s
    return episode


def settings(maker: Maker) -> Episode:
    """A restart with another limit, and later one with the usual limit."""
    label, episode = maker.label(), Episode()
    size = maker.random.choice((512, 2048))
    back = maker.seconds(0.5, 4.0)
    target = maker.member(maker.group())
    episode.steps.append((0, f"restart {target} set maxMessageSize={size} as {label}"))
    episode.after(label, back, f"restart @{label} set maxMessageSize=")
    episode.length_s = back + 2 * maker.start_s
    return episode


def wipe(maker: Maker) -> Episode:
    """A lost disk: a follower's, or the master's, after which a follower is promoted."""
    group, label = maker.group(), maker.label()
    if maker.alone:
        return powercut(maker)
    if maker.random.random() < 0.5:
        return _lose_master(maker, group, label)
    down = maker.seconds(0.1, 2.0)
    steps = [(0.0, f"wipe follower:any{group} for {show_duration(down)}")]
    return Episode(down + maker.settle_s, steps)


def promote(maker: Maker) -> Episode:
    """A planned change of the master."""
    group, label, episode = maker.group(), maker.label(), Episode()
    if maker.alone:
        return stop(maker)
    down = maker.seconds(0.1, 1.0)
    back = round(down + maker.seconds(0.1, 3.0), 3)
    episode.steps.append((0, f"stop leader{group} as {label}"))
    episode.after(label, down, f"promote follower:longest{group}")
    episode.after(label, back, f"restart @{label}")
    episode.length_s = back + maker.settle_s + maker.start_s
    return episode


def final_loss(maker: Maker) -> Episode:
    """Loss of the master's disk; every promised message has to be on the others."""
    episode = _lose_master(maker, maker.group(), maker.label())
    episode.length_s -= maker.settle_s
    return episode


def _lose_master(maker: Maker, group: str, label: str) -> Episode:
    episode = Episode()
    if maker.shape.flush == "sync" and maker.random.random() < 0.4:
        # Acknowledged messages are on the followers' disks, so they may lose their power too.
        episode.steps.append((0, f"powercut follower:all{group} for 300ms"))
    wait = maker.seconds(1.0, 2.0)
    back = round(wait + maker.seconds(0.3, 2.0), 3)
    episode.steps.append((0, f"wipe leader{group} as {label}"))
    episode.after(label, wait, f"promote follower:longest{group}")
    episode.after(label, back, f"restart @{label}")
    episode.length_s = back + maker.settle_s
    return episode


def partition(maker: Maker) -> Episode:
    """Cut links between nodes, one way or both."""
    way = " one-way" if maker.random.random() < 0.3 else ""
    target = maker.random.choice((f"leader{maker.group()}", "rand:1", "rand:minority"))
    if maker.alone:
        return nameservers(maker)
    if maker.random.random() < 0.2:
        return Episode(0, [(0, f"isolate rand:1 for {maker.text(0.2, 5.0)}")])
    return Episode(0, [(0, f"partition {target} -> others{way} for {maker.text(0.1, 8.0)}")])


def links(maker: Maker) -> Episode:
    target = maker.random.choice((f"leader{maker.group()}", "rand:1", "clients:producers"))
    kind = maker.random.choice(
        (
            f"delay {maker.text(0.005, 0.8)} jitter {maker.text(0.001, 0.2)}",
            f"loss {maker.random.choice((1, 5, 20))}%",
            f"rate {maker.random.choice((4, 32, 256))}KiB",
        )
    )
    second = "all" if target.startswith("clients") else "others"
    return Episode(0, [(0, f"link {target} -> {second} {kind} for {maker.text(0.5, 6.0)}")])


def resets(maker: Maker) -> Episode:
    """Connections that are reset, or nodes that are cut off one by one."""
    if maker.random.random() < 0.3:
        return Episode(0, [(0, f"swizzle all over {maker.text(0.5, 3.0)}")])
    second = maker.random.choice(("all", "clients:all", "ns:all"))
    return Episode(0, [(0, f"reset rand:1 -> {second}")])


def slow_disk(maker: Maker) -> Episode:
    target = maker.member(maker.group())
    if maker.random.random() < 0.2:
        return Episode(0, [(0, f"disk {target} hang {maker.text(0.2, 2.0)}")])
    fault = f"slow-fsync {maker.text(0.02, 0.6)} for {maker.text(0.5, 5.0)}"
    return Episode(0, [(0, f"disk {target} {fault}")])


def crowd(maker: Maker) -> Episode:
    """A lack of connections or descriptors."""
    target = maker.member(maker.group())
    if maker.random.random() < 0.4:
        return Episode(0, [(0, f"disk {target} no-descriptors for {maker.text(0.1, 3.0)}")])
    count = maker.random.choice((10, 100))
    return Episode(0, [(0, f"crowd {target} count {count} for {maker.text(0.5, 5.0)}")])


def hostile(maker: Maker) -> Episode:
    """A peer that claims to be a slave, now and then while there is no real one."""
    group, seconds = maker.group(), maker.seconds(1.0, 8.0)
    episode = Episode(0, [(0, f"hostile leader{group} for {show_duration(seconds)}")])
    # Not drawn, as a draw would change all that follows in kept seeds.
    if not maker.alone and int(1000 * seconds) % 3 == 0:
        cut = show_duration(min(seconds, 2.0))
        episode.steps.append((0, f"partition leader{group} -> others for {cut}"))
    return episode


def clocks(maker: Maker) -> Episode:
    """A wall clock that jumps, or runs fast."""
    target = maker.member(maker.group())
    if maker.random.random() < 0.2:
        return Episode(0, [(0, f"clock {target} drift 5% for {maker.text(1.0, 10.0)}")])
    jump = maker.random.choice(("-2h", "-60s", "-1s", "50ms", "2s", "60s", "2h"))
    lasting = f" for {maker.text(0.5, 10.0)}" if maker.random.random() < 0.5 else ""
    return Episode(0, [(0, f"clock {target} jump {jump}{lasting}")])


def slow_cpu(maker: Maker) -> Episode:
    factor = maker.random.choice((5, 20, 100))
    return Episode(0, [(0, f"cpu rand:1 slow {factor} for {maker.text(0.5, 5.0)}")])


def nameservers(maker: Maker) -> Episode:
    """A nameserver that is paused, dies, or comes back with an old table."""
    label = maker.label()
    choice = maker.random.randrange(4)
    if choice == 0:
        return Episode(0, [(0, f"pause ns:any for {maker.text(0.5, 8.0)}")])
    if choice == 1:
        return Episode(0, [(0, f"kill ns:all for {maker.text(0.1, 3.0)}")])
    stale = " stale-table" if choice == 2 else ""
    restart = f"after {label}+{maker.text(0.1, 6.0)} restart @{label}{stale}"
    return Episode(0, [(0, f"kill ns:any as {label}"), (0, restart)])


def clients(maker: Maker) -> Episode:
    """Consumers or producers that die or are paused."""
    verb = maker.random.choice(("kill", "kill", "pause"))
    target = maker.random.choice(("clients:consumers", "clients:consumers", "clients:producers"))
    return Episode(0, [(0, f"{verb} {target} for {maker.text(0.05, 3.0)}")])


def twin(maker: Maker) -> Episode:
    """An operator who starts a node a second time."""
    return Episode(0, [(0, f"twin {maker.member(maker.group())}")])


def double(maker: Maker) -> Episode:
    """An operator who starts a slave as a second master."""
    if maker.alone:
        return Episode()
    lasts = maker.seconds(0.5, 6.0)
    step = f"double follower:any{maker.group()} for {show_duration(lasts)}"
    return Episode(lasts + maker.settle_s, [(0, step)])


FIRST: Final[Mapping[str, Callable[[Maker], Episode]]] = {
    "kill": kill,
    "stop": stop,
    "powercut": powercut,
    "crash": crash,
    "crash-recovery": crash_recovery,
    "pause": pause,
    "disk-sick": disk_sick,
    "damage": damage,
    "settings": settings,
    "wipe": wipe,
    "promote": promote,
}
"""Classes whose episodes do not overlap, as each ends or stops a machine."""
RARE: Final[Mapping[str, Callable[[Maker], Episode]]] = {
    "read-only": read_only,
    "lying-disk": lying_disk,
    "double": double,
}
"""The same; a seed has at most one of them, after the first lane has ended."""
SECOND: Final[Mapping[str, Callable[[Maker], Episode]]] = {
    "partition": partition,
    "links": links,
    "resets": resets,
    "slow-disk": slow_disk,
    "crowd": crowd,
    "hostile": hostile,
    "clocks": clocks,
    "slow-cpu": slow_cpu,
    "nameservers": nameservers,
    "clients": clients,
    "twin": twin,
}
"""Classes whose episodes may happen at any time."""
