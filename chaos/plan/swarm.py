"""Background faults: the disks, links and processors of a run, drawn from its seed.

Bugs wait for odd machines as much as for faults: an acknowledgement before the flush shows only
where disks are slow. So each seed has its own, and most seeds have some machine out of the ordinary
(chaos.md 5.9 no. 3).
"""

from random import Random
from typing import Final

from rocketbed.chaos.plan.plan import Background, CutMode, Shape

DISK_MS: Final = (0.3, 1.0, 5.0, 50.0, 300.0)
DISK_WEIGHTS: Final = (2, 4, 3, 2, 1)
LINK_MS: Final = (0.1, 0.1, 1.0, 20.0)
CUT_MODES: Final[tuple[CutMode, ...]] = ("random",) * 3 + ("strict", "prefix", "reorder")
"""The harshest mode is the most likely: only it tears a record in its middle."""


def swarm_background(shape: Shape, seed: str) -> Background:
    """Draw background faults for a cluster. The same seed gives the same."""
    random = Random(seed)
    nodes = shape.nodes
    disk_ms: dict[str, float] = {}
    common = random.choices(DISK_MS, DISK_WEIGHTS)[0]
    for node in nodes:
        disk_ms[node] = common
        if random.random() < 0.5:
            disk_ms[node] = random.choices(DISK_MS, DISK_WEIGHTS)[0]
    link_ms = random.choice(LINK_MS)
    slowness: dict[str, float] = {}
    if random.random() < 0.25:
        slowness[random.choice(nodes)] = random.choice((3.0, 10.0))
    return Background(
        disk_ms=disk_ms,
        cut_mode=random.choice(CUT_MODES),
        link_ms=link_ms,
        link_jitter_ms=round(link_ms * random.choice((0.1, 1.0, 3.0)), 3),
        slowness=slowness,
        cold_share=random.choice((0.0, 0.0, 0.1, 0.5)),
    )
