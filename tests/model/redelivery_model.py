"""Messages that a broker is to deliver later, and damage to those that wait."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from rocketbed.chaos.backends.sim.disk import SimDisk
from tests.model.mending import edited
from tests.model.stage import SEGMENT, Stage

NODE: Final = "master"
GROUP, RETRIES, DEAD = "back", "%RETRY%back", "%DLQ%back"
RETRY_QUEUES: Final = 2
Key = tuple[str, bytes, int]
"""Topic, body and number of repetitions."""


@dataclass(slots=True)
class Expected:
    """A message that is to arrive."""

    topic: str
    queue: int | None
    """None for any queue of its topic."""
    body: bytes
    due_ms: int
    properties: dict[str, str]
    latest_ms: int = 0
    """Time of its arrival if the node had trouble meanwhile."""
    times: int = 0
    """Number of earlier deliveries."""
    physical: int = -1
    """Offset in the log while it waits."""
    is_damaged: bool = False

    @property
    def key(self) -> Key:
        return self.topic, self.body, self.times


@dataclass(slots=True)
class Model:
    expected: list[Expected] = field(default_factory=list)
    queues: dict[str, int] = field(
        default_factory=lambda: {"T": 3, "U": 4, RETRIES: RETRY_QUEUES, DEAD: 1}
    )
    number: int = 0


def flip_bodies(stage: Stage, model: Model, random: Random, *, is_repair: bool) -> None:
    """Invert a bit in the bodies of some waiting messages, or of all damaged ones."""
    now_ms = round(stage.simulation.timeline.now / 1e6) + 1_700_000_000_000
    if is_repair:
        chosen = [message for message in model.expected if message.is_damaged]
    else:
        late = [one for one in model.expected if one.due_ms > now_ms + 5000 and one.physical >= 0]
        chosen = random.sample(late, min(len(late), 2))
    host = stage.simulation.host(NODE)

    def flip(disk: SimDisk, message: Expected) -> None:
        start = message.physical // SEGMENT * SEGMENT
        path = f"/store/commitlog/{start:020d}"
        data = bytearray(disk.contents(path))
        data[data.index(message.body[1:], message.physical - start) - 1] ^= 4
        disk.replace_contents(path, bytes(data))

    for message in chosen:
        host.image = edited(host.image, partial(flip, message=message))
        message.is_damaged = not is_repair
        message.latest_ms = now_ms + 30_000  # after the next start has read it
