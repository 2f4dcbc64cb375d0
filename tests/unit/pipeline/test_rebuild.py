"""Queues and index of the parallel rebuild, file by file those of the independent reader's."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.jobs.rebuild import Shape, write_runs
from pipeline.jobs.rebuild_blobs import BATCH, INDEX, QUEUE, BlobWriter, Run, batch_of
from pipeline.jobs.rebuild_dispatch import SplitDispatch
from pipeline.jobs.rebuild_files import Written
from pipeline.jobs.rebuild_plan import index_names, index_pieces, uneven_queues
from pipeline.reading import read_ends
from pipeline.splits import Replica, plan_splits
from rocketbed.inspect import Settings, open_directory
from rocketbed.inspect import rebuild as plain_rebuild
from rocketbed.inspect.consumequeue import UNIT
from rocketbed.inspect.dispatch import Dispatcher
from tests.unit.inspect_support import SETTINGS, files_below, unpack

PARTS = ("consumequeue", "batchconsumequeue", "index")


class Built:
    """What the two passes made of a store, without Spark."""

    def __init__(self, root: Path, out: Path, settings: Settings, split_bytes: int) -> None:
        directory = open_directory(root, settings)
        layout = directory.index_layout
        assert layout is not None
        out.mkdir()
        sizes = directory.sizes
        shape = Shape(
            Dispatcher(directory), sizes.queue_segment, sizes.batch_queue_segment, layout, str(out)
        )
        directory.close()
        (out / "blobs").mkdir()
        self.runs: list[Run] = []
        for replica, end in read_ends([Replica("b", "r", str(root))], read_uncommitted=True):
            for split in plan_splits([replica], split_bytes=split_bytes, end=end):
                with BlobWriter(str(out / "blobs")) as blobs:
                    one = SplitDispatch(
                        shape.dispatcher, queue_segment=shape.queue_segment, blobs=blobs
                    )
                    self.runs += one.run(split)
        pieces = index_pieces([run for run in self.runs if run.kind == INDEX], layout)
        queues = [run for run in self.runs if run.kind in (QUEUE, BATCH)]
        self.files = self._write([*queues, *pieces], shape, whole_queues=False)
        plain = [file for file in self.files if file.path.startswith("consumequeue")]
        self.uneven = uneven_queues(plain, shape.queue_segment // UNIT.size)
        again = [run for run in queues if run.path in self.uneven]
        self.again = self._write(again, shape, whole_queues=True)
        index = [file for file in self.files if file.path.startswith("index")]
        for file, name in index_names(index):
            os.rename(out / file.path, out / "index" / name)

    @staticmethod
    def _write(runs: Sequence[Run], shape: Shape, *, whole_queues: bool) -> list[Written]:
        def key(run: Run) -> tuple[str, int, int, str, int]:
            return run.path, 0 if whole_queues else run.file, run.at, run.blob, run.position

        if not runs:
            return []
        batches = write_runs(
            iter([batch_of(sorted(runs, key=key))]), shape, whole_queues=whole_queues
        )
        return [Written(**row) for batch in batches for row in batch.to_pylist()]


def both(
    root: Path, place: Path, settings: Settings = SETTINGS, split_bytes: int = 1500
) -> tuple[Built, dict[str, dict[str, bytes]]]:
    """Build in both ways and compare every file; what was built, and the files by part."""
    built = Built(root, place / f"ours-{split_bytes}", settings, split_bytes)
    directory = open_directory(root, settings)
    plain_rebuild(directory, str(place / f"theirs-{split_bytes}"))
    directory.close()
    files = {}
    for part in PARTS:
        theirs = dict(files_below(place / f"theirs-{split_bytes}", part))
        assert dict(files_below(place / f"ours-{split_bytes}", part)) == theirs
        files[part] = theirs
    return built, files


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_real_stores(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    _, files = both(root, tmp_path, Settings(), 20_000)
    for part in ("consumequeue", "batchconsumequeue"):
        assert files[part] == dict(files_below(root, part))
    assert sorted(files["index"].values()) == sorted(dict(files_below(root, "index")).values())
    assert files["consumequeue"]
    assert files["index"]
