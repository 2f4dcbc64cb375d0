"""What happens to a group that fails over by itself: the episodes that fit it.

Nobody promotes. A machine's directory is not damaged, and its disk does not lie: what a disk said
to have kept is what the policy `fsync` stands on. Under the policy `memory` power is cut of one
machine at a time, and under either a directory is lost, while another one that may lead is up
(`Actions` sees to that), or nobody would be left to elect (replication.md 7.7).
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
    who = maker.member(group)
    episode.steps.append((0, f"powercut {who} as {label}"))
    maker.recover(episode, label, who, group, lost=True)
    return episode


def crash_recovery(maker: Maker) -> Episode:
    """A kill or a power cut, then a crash point in the recovery, or in the cut that follows it."""
    group, label, episode = maker.group(), maker.label(), Episode()
    who, random = maker.member(group), maker.random
    back = maker.seconds(0.1, 3.0)
    point = f"store-event {int(maker.seconds(1, 40))}"
    if random.random() < 0.4:
        point = f"mark {random.choice((*STARTING, 'store.cut_*'))}"
    power = maker.power(0.5)
    lasting = f"within 4s for {maker.text(0.05, 1.0)}"
    verb = random.choice(("kill", "powercut"))
    episode.steps.append((0, f"{verb} {who} as {label}"))
    episode.after(label, back, f"restart @{label}")
    episode.after(label, back, f"crash @{label} at {point}{power} {lasting}")
    episode.length_s = back + 4.0 + maker.settle_s
    return episode


def lost_directory(maker: Maker) -> Episode:
    """A machine comes back with an empty directory, under its number."""
    down = maker.seconds(0.1, 3.0)
    step = f"wipe {maker.member(maker.group())} for {show_duration(down)}"
    return Episode(down + maker.settle_s, [(0, step)])


def deposed(maker: Maker) -> Episode:
    """A leader that is cut off, or stands still, writes on while another one is made to lead; what
    it has beyond is cut when it is back, and in half of the cases it dies in that."""
    group, label, episode = maker.group(), maker.label(), Episode()
    random, lasts = maker.random, maker.seconds(0.8, 5.0)
    # Its clients stay on its side: they go on sending to it, and reading from it.
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
    """Links are cut, one way or both, with those to the controllers, or these alone."""
    group, random = maker.group(), maker.random
    way = " one-way" if random.random() < 0.3 else ""
    lasting = f"for {maker.text(0.1, 8.0)}"
    who = random.choice((f"leader{group}", f"leader{group}", f"follower:any{group}", "rand:1"))
    choice = random.random()
    if choice < 0.15:
        return Episode(0, [(0, f"isolate {who} {lasting}")])
    if choice < 0.3:
        return Episode(0, [(0, f"partition ns:any -> all{way} {lasting}")])
    other = random.choice(("others", "others,ns:all", "others,ns:all", "ns:all", "ns:any"))
    if choice < 0.4 and other == "others":
        return Episode(0, [(0, f"partition follower:all{group} -> leader{group}{way} {lasting}")])
    return Episode(0, [(0, f"partition {who} -> {other}{way} {lasting}")])


def lost_packets(maker: Maker) -> Episode:
    """So many packets are lost that connections are given up and made anew again and again; what
    was said on the old ones comes behind what is said on the new ones, after it has ended too."""
    length = maker.seconds(1.0, 4.0)
    step = f"link leader{maker.group()} -> others loss 70% for {show_duration(length)}"
    return Episode(length, [(0, step)])


def handover(maker: Maker) -> Episode:
    """An operator asks the leader to have another one lead."""
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
"""Classes whose episodes have a machine's life to themselves."""
RARE: Final[Mapping[str, Callable[[Maker], Episode]]] = {"read-only": classic.read_only}
"""The same; a seed has one of them at the most, when the first lane has ended."""
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
"""Classes whose episodes may happen meanwhile."""
