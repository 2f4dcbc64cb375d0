"""The simulator's disk model against a real one: ext4 on a loop device whose power is cut.

The same random calls go to `SimDisk` and to a directory of a volume, several sequences at a time in
directories of their own, their calls mixed; then one cut. What ext4 left must be among what the
model allows: if not, the model is too kind, and a store that passes it may lose more for real.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketbed.chaos.backends.process.disk.volume import Volume
from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.host.janitor.record import Ledger
from rocketbed.world.real import RealDisk
from tests.support.disk_calls import SEQUENCES, Call, perform
from tests.support.sim.disk_outcomes import refusal

pytestmark = pytest.mark.slow

VOLUME_SIZE = 64 << 20
BATCHES = 800
"""Each of 1 to 8 sequences."""


async def play(
    sequences: list[list[Call]], order: Random, volume: Path
) -> tuple[list[SimDisk], list[list[str]]]:
    """Run all sequences on both sides, mixed; the models, and what was done in each."""
    real = RealDisk()
    models = [SimDisk() for _ in sequences]
    done: list[list[str]] = [[] for _ in sequences]
    waiting = [number for number, calls in enumerate(sequences) for _ in calls]
    order.shuffle(waiting)
    at = [0] * len(sequences)
    for step, number in enumerate(waiting):
        call = sequences[number][at[number]]
        at[number] += 1
        fill = bytes([1 + step % 255])
        try:
            await perform(models[number], "/", call, fill)
        except OSError as expected:
            with pytest.raises(type(expected)):
                await perform(real, str(volume / str(number)), call, fill)
        else:
            await perform(real, str(volume / str(number)), call, fill)
            done[number].append(f"{call} fill {fill.hex()}")
    return models, done


def files_below(base: Path) -> tuple[dict[str, bytes], set[str]]:
    """Files and directories below a directory, named as the model names them."""
    files: dict[str, bytes] = {}
    directories: set[str] = set()
    for place, below, inside in os.walk(base):
        at = "/" + os.path.relpath(place, base).replace(".", "", 1).lstrip("/")
        directories.update(os.path.join(at, name) for name in below)
        for name in inside:
            files[os.path.join(at, name)] = (Path(place) / name).read_bytes()
    return files, directories


def sync_directory(path: Path) -> None:
    """With ext4 this commits the whole journal."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    with Ledger.begin(tmp_path_factory.mktemp("runs")) as run:
        volume = Volume.create(run.directory / "disk", run=run, size=VOLUME_SIZE)
        yield volume
        volume.destroy()


def check(volume: Volume, base: Path, sequences: list[list[Call]], seed: int) -> int:
    """Run one batch and cut the power; how many sequences came back other than they were."""
    for number in range(len(sequences)):
        (base / str(number)).mkdir(parents=True)
    sync_directory(base)
    try:
        models, done = trio.run(play, sequences, Random(seed), base)
    finally:
        volume.power_cut()
        volume.remount()
    changed = 0
    for number, (model, calls) in enumerate(zip(models, done, strict=True)):
        files, directories = files_below(base / str(number))
        reason = refusal(model.image().namespace(), files, directories)
        assert not reason, f"sequence {number}: {reason}\n" + "\n".join(calls)
        changed += files != {path: model.contents(path) for path in model.paths()}
    shutil.rmtree(base)
    return changed


@pytest.mark.ci
def test_ext4_outcomes_are_allowed_by_the_model(volume: Volume) -> None:
    counts = Counter[str]()

    @settings(max_examples=BATCHES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(sequences=SEQUENCES, seed=st.integers(0, 2**32))
    def run(sequences: list[list[Call]], seed: int) -> None:
        counts["batches"] += 1
        counts["sequences"] += len(sequences)
        base = volume.path / f"batch-{counts['batches']}"
        counts["changed"] += check(volume, base, sequences, seed)

    began = time.monotonic()
    run()
    per_minute = counts["sequences"] / (time.monotonic() - began) * 60
    print(
        f"{counts['sequences']} sequences, {per_minute:.0f} a minute, {counts['changed']} changed"
    )
    assert counts["changed"] > counts["sequences"] // 20
