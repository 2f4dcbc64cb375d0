"""Queues and index of the parallel rebuild, file by file those of the independent reader's."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy
import pytest
from click.testing import CliRunner

from rocketbed.cli.pipeline.rebuild import rebuild
from rocketbed.cli.pipeline.retention import retention
from rocketbed.inspect import Settings, open_directory
from rocketbed.inspect import rebuild as plain_rebuild
from rocketbed.inspect.consumequeue import UNIT
from rocketbed.inspect.dispatch import Dispatcher, indexes_tags
from rocketbed.pipeline.files.corrupt import DataLost
from rocketbed.pipeline.files.reading import read_ends
from rocketbed.pipeline.files.splits import Replica, plan_splits
from rocketbed.pipeline.jobs.rebuild.blobs import (
    BATCH,
    DAMAGE,
    INDEX,
    KEYS,
    QUEUE,
    SPLIT,
    BlobWriter,
    Run,
    batch_of,
)
from rocketbed.pipeline.jobs.rebuild.dispatch import SplitDispatch
from rocketbed.pipeline.jobs.rebuild.files import Written
from rocketbed.pipeline.jobs.rebuild.job import Shape, write_runs
from rocketbed.pipeline.jobs.rebuild.plan import index_names, index_pieces, uneven_queues
from tests.support.own_store import write as write_own
from tests.support.stores import (
    SEGMENT,
    SETTINGS,
    STORE_MS,
    Spec,
    files_below,
    flip,
    segment_of,
    unpack,
    write_log,
)

PARTS = ("consumequeue", "batchconsumequeue", "index")


class Built:
    """Result of the two passes over a store, without Spark."""

    def __init__(self, root: Path, out: Path, settings: Settings, split_bytes: int) -> None:
        directory = open_directory(root, settings)
        layout = directory.index_layout
        assert layout is not None
        out.mkdir()
        sizes = directory.sizes
        shape = Shape(
            Dispatcher(directory),
            sizes.queue_segment,
            sizes.batch_queue_segment,
            layout,
            indexes_tags(directory),
            str(out),
        )
        directory.close()
        (out / "blobs").mkdir()
        self.runs: list[Run] = []
        for replica, end in read_ends([Replica("b", "r", str(root))], read_uncommitted=True):
            for split in plan_splits([replica], split_bytes=split_bytes, end=end):
                with BlobWriter(str(out / "blobs")) as blobs:
                    dispatch = SplitDispatch(
                        shape.dispatcher,
                        queue_segment=shape.queue_segment,
                        with_tags=shape.with_tags,
                        blobs=blobs,
                    )
                    self.runs += dispatch.run(split)
        pieces = index_pieces([run for run in self.runs if run.kind == INDEX], layout)
        queues = [run for run in self.runs if run.kind in (QUEUE, BATCH)]
        self.files = self._write([*queues, *pieces], shape, whole_queues=False)
        plain = [file for file in self.files if file.path.startswith("consumequeue")]
        self.uneven = uneven_queues(plain, shape.queue_segment // UNIT.size)
        uneven_runs = [run for run in queues if run.path in self.uneven]
        self.uneven_files = self._write(uneven_runs, shape, whole_queues=True)
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


async def test_a_store_of_the_node(tmp_path: Path) -> None:
    """Not only the reader's rules: the very files that the node wrote while it served."""
    root = tmp_path / "store"
    await write_own(root)
    _, files = both(root, tmp_path, Settings(), 700)
    for part in PARTS[:2]:
        assert files[part] == dict(files_below(root, part))
    index = sorted(files_below(root, "index"))
    assert [data for _, data in sorted(files["index"].items())] == [data for _, data in index]
    assert all(files.values())


def keyed(number: int, **fields: object) -> Spec:
    """A message with a unique key, some keys and a tag."""
    properties = (
        ("UNIQ_KEY", f"0A0B{number:08X}"),
        ("KEYS", " ".join(f"k{number % 7}-{word}" for word in range(number % 4))),
        ("TAGS", f"tag{number % 3}"),
    )
    base = Spec(f"topic-{number % 3}", number % 2, b"x" * (number * 13 % 200), properties)
    return replace(base, **fields)  # type: ignore[arg-type]


def test_plain_messages_at_every_split_size(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [keyed(number) for number in range(150)])
    for split_bytes in (300, 1500, 1 << 20):
        built, files = both(root, tmp_path, split_bytes=split_bytes)
        assert not built.uneven
        assert len(files["consumequeue"]) > 6
        assert len(files["index"]) > 10
    entries = sum(file.entries for file in built.files if file.path.startswith("consumequeue"))
    assert entries == 150


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sys_flag": 0x4}, "prepared"),
        ({"sys_flag": 0x8}, "committed"),
        ({"sys_flag": 0xC}, "rolled back"),
        ({"properties": ()}, "neither keys nor tags"),
        ({"properties": (("KEYS", "ключ zwölf"), ("TAGS", "été"))}, "beyond ASCII"),
        ({"properties": (("KEYS", "ключ"), ("UNIQ_KEY", "a"))}, "only keys beyond ASCII"),
        ({"properties": (("KEYS", " a  b "), ("KEYS", ""), ("TAGS", ""))}, "empty ones"),
        ({"properties": (("UNIQ_KEY", "x" * 2000),)}, "long"),
        ({"topic": "тема"}, "a topic beyond ASCII"),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "properties": (("DELAY", "3"),)}, "delayed"),
        ({"store_ms": 5}, "an old store time"),
    ],
)
def test_records_of_other_kinds(change: dict[str, object], text: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    specs = [keyed(number, **(change if number % 3 == 1 else {})) for number in range(40)]
    write_log(root, specs)
    built, files = both(root, tmp_path)
    assert not built.uneven, text
    assert files["consumequeue"], text


@pytest.mark.parametrize(
    "tags", [(), (("TAGS", "été"),), (("TAGS", ""),), (("TAGS", "t"), ("KEYS", "ключ"))]
)
def test_index_with_tags_is_built_with_tags(
    tags: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """RocketMQ 5.5.0 writes the tag's key after the other keys of its record."""
    root = tmp_path / "store"
    specs = [
        keyed(number, **({"properties": tags} if number % 4 == 1 else {})) for number in range(90)
    ]
    for number, sys_flag in ((7, 0x4), (11, 0x8), (15, 0xC)):
        specs[number] = replace(specs[number], sys_flag=sys_flag)
    write_log(root, specs)
    directory = open_directory(root, SETTINGS)
    plain_rebuild(directory, str(root), with_tags=True)
    directory.close()
    _, files = both(root, tmp_path)
    for part in PARTS:
        assert files[part] == dict(files_below(root, part))


def test_batch_queues_and_further_queues(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    table = {
        name: {"topicName": name, "attributes": {"queue.type": kind}}
        for name, kind in (("batch", "BatchCQ"), ("plain", "SimpleCQ"))
    }
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    specs = [
        spec
        for number in range(20)
        for spec in (
            Spec("batch", 1, properties=(("INNER_NUM", "3"), ("INNER_BASE", str(3 * number)))),
            Spec("batch", 0, properties=(("TAGS", "one"),)),
            Spec(
                "plain",
                properties=(
                    ("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b,other"),
                    ("INNER_MULTI_QUEUE_OFFSET", f"{number},{number + 7},0"),
                ),
            ),
            Spec("deleted", properties=(("KEYS", "gone"),)),
        )
    ]
    write_log(root, specs)
    built, files = both(root, tmp_path, replace(SETTINGS, enable_lmq=True))
    assert not built.uneven
    assert {name.partition("/")[0] for name in files["consumequeue"]} == {
        "plain",
        "%LMQ%a",
        "%LMQ%b",
    }
    assert {name.rpartition("/")[0] for name in files["batchconsumequeue"]} == {
        "batch/0",
        "batch/1",
    }
    split_reports = [json.loads(run.text) for run in built.runs if run.kind == SPLIT]
    assert sum(row["left_out"].get("deleted", 0) for row in split_reports) == 20


@pytest.mark.parametrize(
    ("offsets", "refused"),
    [
        ([0, 1, 2, 5, 6], 0),
        ([0, 1, 14, 15, 37], 0),
        ([13, 14, 15], 0),
        ([0, 1, 1, 2], 1),
        ([0, 12, 3, 13], 1),
        ([0, -5, 1, 2], 1),
        ([0, 1, 1 << 40, 2], 1),
        ([0, 1, (1 << 62), 2], 1),
        ([10, 11, 0, 1, 2], 3),
    ],
)
def test_queue_offsets_that_do_not_follow_one_another(
    offsets: list[int], refused: int, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    specs = [Spec("odd", queue_offset=slot, body=bytes(300)) for slot in offsets]
    mixed = [spec for number, odd in enumerate(specs) for spec in (odd, keyed(number))]
    write_log(root, mixed)
    built, files = both(root, tmp_path)
    is_even = offsets in ([13, 14, 15], list(range(offsets[0], offsets[0] + len(offsets))))
    assert built.uneven == (set() if is_even else {"consumequeue/odd/0"})
    file_reports = [json.loads(file.odd) for file in built.uneven_files if file.odd]
    assert sum(row["refused"]["count"] for row in file_reports) == refused
    assert any(name.startswith("odd/0/") for name in files["consumequeue"])


@pytest.mark.parametrize("position", [30, 100], ids=["its place", "its body"])
def test_damage_is_reported_and_built_around(position: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = write_log(root, [keyed(number, body=bytes(60)) for number in range(60)])
    path, within = segment_of(root, offsets[25])
    flip(path, within + position)
    directory = open_directory(root, SETTINGS)
    (hole,) = plain_rebuild(directory, str(tmp_path / "seen")).holes
    directory.close()
    for split_bytes in (700, 1 << 20):
        built, _ = both(root, tmp_path, split_bytes=split_bytes)
        damage_runs = [run for run in built.runs if run.kind == DAMAGE]
        assert [(run.at, run.at + run.items) for run in damage_runs] == [(offsets[25], offsets[26])]
        assert hole.startswith(f"{offsets[25]} to {offsets[26]}:")


def test_a_file_that_is_missing_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [keyed(number, body=bytes(200)) for number in range(60)])
    (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    built, files = both(root, tmp_path)
    (damage_run,) = [run for run in built.runs if run.kind == DAMAGE]
    assert (damage_run.at, damage_run.items, damage_run.text) == (
        SEGMENT,
        SEGMENT,
        "missing_segment",
    )
    assert built.uneven
    assert files["consumequeue"]


def test_a_file_that_vanishes_meanwhile_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [keyed(number) for number in range(60)])
    (split, *_) = plan_splits([Replica("b", "r", str(root))])
    os.unlink(split.path)
    directory = open_directory(root, SETTINGS)
    with BlobWriter(str(tmp_path)) as blobs:
        dispatch = SplitDispatch(
            Dispatcher(directory), queue_segment=200, with_tags=False, blobs=blobs
        )
        with pytest.raises(DataLost, match="the file was deleted"):
            list(dispatch.run(split))
    directory.close()


def test_truncated_staging_file_is_an_error(tmp_path: Path) -> None:
    with BlobWriter(str(tmp_path)) as blobs:
        run = blobs.add(numpy.zeros(5, KEYS), Run(INDEX))
    assert len(run.read()) == 5
    os.truncate(run.blob, 99)
    with pytest.raises(OSError, match="cut short"):
        run.read()


@pytest.mark.parametrize(
    ("command", "arguments", "expected_text"),
    [
        (rebuild, ["--split", "many"], "--split: a number of bytes"),
        (rebuild, ["--set", "maxIndexNum"], "--set maxIndexNum: expected KEY=VALUE"),
        (rebuild, ["--config", "nowhere.conf"], "nowhere.conf"),
        (rebuild, ["--store", "a"], "no output: give --out DIR"),
        (rebuild, ["--out", "here"], "no input: give --store DIR"),
        (retention, ["--now", "yesterday"], "--now: expected milliseconds since 1970"),
        (retention, ["--hours", "-1"], "--hours"),
    ],
)
def test_wrong_usage(command: click.Command, arguments: list[str], expected_text: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code != 0
    assert expected_text in done.output


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = write_log(root, [keyed(number, body=bytes(60)) for number in range(30)])
    path, within = segment_of(root, offsets[-1])
    flip(path, within + 100)
    built, _ = both(root, tmp_path)
    assert not [run for run in built.runs if run.kind == DAMAGE]
    assert sum(run.items for run in built.runs if run.kind == SPLIT) == 29


def test_index_file_begins_with_the_previous_files_time(tmp_path: Path) -> None:
    """Its first entry counts seconds from the end of the file before."""
    root = tmp_path / "store"
    properties = (("KEYS", "a b c d e f g"),)
    times = [STORE_MS + 1_000_000 * number for number in range(20)]
    write_log(root, [Spec(properties=properties, store_ms=at) for at in times])
    _, files = both(root, tmp_path, split_bytes=400)
    assert len(files["index"]) == -(-140 // 19)
