"""Episodes for groups with automatic failover.

The operator makes no promotion. A machine's directory is not damaged, and its disk does not lie,
since the policy `fsync` depends on what a disk reports as synced. Under the policy `memory` only
one machine at a time loses its power, and under either a directory is lost only while another
machine that may lead is up (`Actions` sees to that), or no node could be elected (replication.md
7.7).
"""

from collections.abc import Callable, Mapping
from typing import Final

from rocketbed.chaos.plan import episodes as classic
from rocketbed.chaos.plan.episodes import Episode, Maker
from rocketbed.chaos.plan.marks import STARTING
from rocketbed.chaos.plan.units import show_duration


def powercut(maker: Maker) -> Episode:
    """A power cut of one machine; under the policy `fsync` also of all of them."""
    group, label, episode = maker.group(), maker.label(), Episode()
    if maker.shape.flush == "sync" and maker.random.random() < 0.25:
        down = maker.seconds(0.1, 2.0)
        episode.steps.append((0, f"powercut leader{group} as {label}"))
        episode.steps.append((0, f"powercut follower:all{group} for {show_duration(down)}"))
        back = maker.seconds(0.1, 3.0)
        episode.after(label, back, f"restart @{label}")
        episode.length_s = max(down, back) + maker.settle_s
        return episode
    target = maker.member(group)
    episode.steps.append((0, f"powercut {target} as {label}"))
    maker.recover(episode, label, target, group, lost=True)
    return episode


def crash_recovery(maker: Maker) -> Episode:
    """A kill or a power cut, then a crash point in the recovery, or in the truncation that follows
    it."""
    group, label, episode = maker.group(), maker.label(), Episode()
    target, random = maker.member(group), maker.random
    back = maker.seconds(0.1, 3.0)
    point = f"store-event {int(maker.seconds(1, 40))}"
    if random.random() < 0.4:
        point = f"mark {random.choice((*STARTING, 'store.cut_*'))}"
    power = maker.power(0.5)
    lasting = f"within 4s for {maker.text(0.05, 1.0)}"
    verb = random.choice(("kill", "powercut"))
    episode.steps.append((0, f"{verb} {target} as {label}"))
    episode.after(label, back, f"restart @{label}")
    episode.after(label, back, f"crash @{label} at {point}{power} {lasting}")
    episode.length_s = back + 4.0 + maker.settle_s
    return episode


def lost_directory(maker: Maker) -> Episode:
    """A machine that comes back with an empty directory, under its number."""
    down = maker.seconds(0.1, 3.0)
    step = f"wipe {maker.member(maker.group())} for {show_duration(down)}"
    return Episode(down + maker.settle_s, [(0, step)])


def deposed(maker: Maker) -> Episode:
    """A leader that is cut off while another one is elected, and writes on. The extra end of its
    log is truncated when it is back, and in half of the cases it dies doing that."""
    group, label, episode = maker.group(), maker.label(), Episode()
    random, lasts = maker.random, maker.seconds(0.8, 5.0)
    # Its clients stay on its side: they continue to send to it and read from it.
    ends = random.choice((",ns:all", ",ns:all", ",ns:all", ",ns:all one-way", ""))
    verb = f"partition leader{group} -> others{ends}"
    if random.random() < 0.2:
        verb = f"isolate leader{group}"
    episode.steps.append((0, f"{verb} for {show_duration(lasts)} as {label}"))
    if random.random() < 0.5:
        point = random.choice(
            ("mark store.cut_*", "mark store.cut_*", f"store-event {random.randint(1, 40)}")
        )
        power = maker.power(0.5)
        lasting = f"within {show_duration(classic.WITHIN_S)} for {maker.text(0.05, 1.0)}"
        episode.after(label, lasts, f"crash @{label} at {point}{power} {lasting}")
        episode.length_s = classic.WITHIN_S
    episode.length_s += lasts + maker.settle_s
    return episode


def partition(maker: Maker) -> Episode:
    """Cut links, one way or both, with those to the controllers, or these alone."""
    group, random = maker.group(), maker.random
    way = " one-way" if random.random() < 0.3 else ""
    lasting = f"for {maker.text(0.1, 8.0)}"
    target = random.choice((f"leader{group}", f"leader{group}", f"follower:any{group}", "rand:1"))
    choice = random.random()
    if choice < 0.15:
        return Episode(0, [(0, f"isolate {target} {lasting}")])
    if choice < 0.3:
        return Episode(0, [(0, f"partition ns:any -> all{way} {lasting}")])
    second = random.choice(("others", "others,ns:all", "others,ns:all", "ns:all", "ns:any"))
    if choice < 0.4 and second == "others":
        return Episode(0, [(0, f"partition follower:all{group} -> leader{group}{way} {lasting}")])
    return Episode(0, [(0, f"partition {target} -> {second}{way} {lasting}")])


def lost_packets(maker: Maker) -> Episode:
    """Packet loss so high that connections are given up and replaced repeatedly; packets of an old
    connection may arrive after those of the next one, even after it has ended."""
    length = maker.seconds(1.0, 4.0)
    step = f"link leader{maker.group()} -> others loss 70% for {show_duration(length)}"
    return Episode(length, [(0, step)])


def handover(maker: Maker) -> Episode:
    """An operator who asks the leader to hand over."""
    length = maker.seconds(0.1, 2.0)
    return Episode(length, [(0, f"handover leader{maker.group()}")])


FIRST: Final[Mapping[str, Callable[[Maker], Episode]]] = {
    "kill": classic.kill,
    "stop": classic.stop,
    "powercut": powercut,
    "crash": classic.crash,
    "crash-recovery": crash_recovery,
    "pause": classic.pause,
    "wipe": lost_directory,
    "deposed": deposed,
    "disk-sick": classic.disk_sick,
    "settings": classic.settings,
}
"""Classes whose episodes do not overlap, as each ends or stops a machine."""
RARE: Final[Mapping[str, Callable[[Maker], Episode]]] = {"read-only": classic.read_only}
"""The same; a seed has at most one of them, after the first lane has ended."""
SECOND: Final[Mapping[str, Callable[[Maker], Episode]]] = {
    "partition": partition,
    "handover": handover,
    **{
        name: classic.SECOND[name]
        for name in (
            *("links", "resets", "slow-disk", "crowd", "hostile", "clocks", "slow-cpu"),
            *("nameservers", "clients", "twin"),
        )
    },
}
"""Classes whose episodes may happen at any time."""
