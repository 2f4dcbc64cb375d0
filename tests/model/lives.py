"""Lives of one store: drawn work, then a clean stop, a kill or a power cut, and a start again.

    run_lives(7)

After each start and in between the store is asked everything (`answers.ask`), and in the end the
independent reader checks the directory.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.inspect import Severity, check_store, open_directory
from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.world.api import World
from tests.model.model import Model
from tests.model.store import ROOT, Life, Topics, settings

LIVES: Final = 5
ENDS: Final = ("clean", "kill", "power-random", "power-strict", "power-prefix", "power-reorder")


def run_lives(seed: int, *, lives: int = LIVES, **changes: Any) -> tuple[DiskImage, Model, str]:
    """Run all lives of a seed; return the last disk, the model of it, and a digest."""
    random = Random(f"lives/{seed}")
    config = settings(random, **changes)
    model = Model(segment=config.segment_size)
    image, boots, digests, end, power = DiskImage(), 1, [], "clean", False
    for number in range(lives):
        is_last = number == lives - 1
        power = end.startswith("power") or (power and not model.opened)
        model.opened = False
        end = "clean" if is_last else random.choice(ENDS)
        steps = 4 if is_last else random.randint(5, 25)
        life = Life(model, Random(f"{seed}/{number}"), steps, power=power)
        cause, _, mode = end.partition("-")
        run = run_solo(
            partial(life.main, stops=end == "clean"),
            config,
            image=image,
            boots=boots,
            seed=f"{seed}/{number}",
            crash_at=None if end == "clean" else random.randint(30, 400),
            kind=cause if cause == "power" else "kill",
            mode=mode or "random",
        )
        raise_wrong(life)
        assert run.outcome != "still running", f"hang: life {number}"
        if run.outcome == "ended" and end != "clean":
            end = "kill"  # its work was done before the event
        if model.closed and not model.opened:
            model.closed = None
        boots += end.startswith("power")
        image = run.image
        digests.append(run.digest)
    check_directory(image)
    return image, model, " ".join(digests)


def run_remade(seed: int) -> str:
    """Delete a topic, cut the log and let the topic's next message start there; then kill."""
    config = settings(Random(f"remade/{seed}"))
    model, image, digest = Model(segment=config.segment_size), DiskImage(), ""
    for number in range(3):
        life = Life(model, Random(f"remade/{seed}/{number}"), 0, power=False)
        is_last = number == 2
        main = partial(life.main, stops=True) if is_last else partial(_recreate, life=life)
        run = run_solo(main, config, image=image, seed=seed)
        raise_wrong(life)
        image, digest = run.image, digest + run.digest
    check_directory(image)
    return digest


async def _recreate(world: World, config: StoreConfig, *, life: Life) -> None:
    store = await MessageStore.open(world, config, Topics())
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        try:
            life.check_start(store, was_closed=False)
            for topic in ("D", "A", "A"):
                life.put_one(store, topic)
            await life.delete(store)
            await store.removal.cut(life.model.cut(1))
            life.model.was_cut()
            life.put_one(store, "D")
        except AssertionError as exc:
            life.wrong = exc
        nursery.cancel_scope.cancel()


def raise_wrong(life: Life) -> None:
    if life.wrong is not None:
        raise life.wrong


def check_directory(image: DiskImage, *, but: Sequence[str] = ()) -> None:
    """Check a directory by the independent reader after a clean stop, except some rules."""
    with tempfile.TemporaryDirectory(prefix="rocketbed-model-") as place:
        image.export(place)
        directory = open_directory(str(Path(place) / ROOT.lstrip("/")))
        try:
            for finding in check_store(directory).findings:
                if finding.severity >= Severity.TAIL and finding.rule not in but:
                    raise AssertionError(f"{finding.rule}: {finding.file}: {finding.text}")
        finally:
            directory.close()
