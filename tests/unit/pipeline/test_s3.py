"""Stores in an S3 server of the test's own give what the same files here give."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbed.pipeline.errors import PipelineError
from rocketbed.pipeline.files.corrupt import DataLost, RocketbedCorrupt
from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.reading import Plan
from rocketbed.pipeline.files.remote import BLOCK, RemoteStorage, storage_of
from rocketbed.pipeline.files.replicas import log_files
from rocketbed.pipeline.files.storage import StorageError
from rocketbed.pipeline.jobs.common import WrongUsage
from rocketbed.pipeline.jobs.export.manifest import Manifest, Part
from rocketbed.pipeline.jobs.export.place import Place
from rocketbed.pipeline.option_table import OptionError
from rocketbed.pipeline.options import Options
from rocketbed.pipeline.schema import arrow_schema
from tests.support.logs import Log, Message, healthy, messages, reasons, rows, same
from tests.support.s3 import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("view", ["records", "consumequeue", "blocks", "files"])
def test_every_view_is_the_same(s3: S3Server, tmp_path: Path, view: str) -> None:
    log = healthy(tmp_path)
    location = s3.put(log.root, f"same-{view}")
    actual_rows = rows(location, view=view, **s3.options)
    assert same(actual_rows) == same(rows(log.root, view=view))
    if view == "files":
        assert actual_rows[0]["path"] == f"{location}/commitlog/{0:020d}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "index", "walk", "scan"])
def test_splits_find_their_records(s3: S3Server, tmp_path: Path, mode: str) -> None:
    log = healthy(tmp_path)
    location = s3.put(log.root, f"splits-{mode}")
    actual_rows = rows(location, splitBytes=700, syncMode=mode, **s3.options)
    assert same(actual_rows) == same(rows(log.root))


def test_damage_is_found_there_too(s3: S3Server, tmp_path: Path) -> None:
    log = healthy(tmp_path)
    log.flip(log.offsets[3] + 90)
    log.write(log.offsets[20], bytes(log.sizes[20]))
    log.write(log.offsets[-1] + 60, bytes(log.sizes[-1] - 60))
    log.close()
    location = s3.put(log.root, "damage")
    actual_rows = rows(location, **s3.options)
    assert same(actual_rows) == same(rows(log.root))
    assert [why for _, why in reasons(actual_rows)] == ["crc_mismatch", "bad_magic", "torn_tail"]
    with pytest.raises(RocketbedCorrupt, match=f"{location}/commitlog/"):
        rows(location, mode="FAILFAST", **s3.options)


def test_bucket_under_two_schemes_is_one_store(s3: S3Server, tmp_path: Path) -> None:
    """Every row was there twice."""
    location = s3.put(Log(tmp_path / "store").append(messages(3)).root, "twice/store")
    same_location = location.replace("s3a://", "s3://")
    with pytest.raises(OptionError, match="are one store: give it once"):
        rows(f"a={location},c={same_location}", **s3.options)


@pytest.mark.slow
def test_names_topics_and_what_is_missing(s3: S3Server, tmp_path: Path) -> None:
    log = healthy(tmp_path)
    s3.put(log.root, "a/store")
    s3.put(log.root, "b/store")
    both = f"s3a://{BUCKET}/[ab]/store"
    assert {row["broker"] for row in rows(both, **s3.options)} == {"a-store", "b-store"}
    assert rows(both, topics="Only", **s3.options) == []
    assert len(rows(f"s3://{BUCKET}/a/store", topics="topic-1", **s3.options)) == 20
    with pytest.raises(OptionError, match="has Nope; topics there: Only, topic-0"):
        rows(both, topics="Nope", **s3.options)
    listed = tmp_path / "stores.txt"
    listed.write_text(f"g/0=s3a://{BUCKET}/a/store\ng/1=s3a://{BUCKET}/b/store\n")
    assert {row["replica"] for row in rows(listed, **s3.options)} == {"0", "1"}
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "stores.txt").write_text("../a/store\n../[b]/./store\n")
    listed_there = s3.put(tmp_path / "lists", "lists") + "/stores.txt"
    assert {row["broker"] for row in rows(listed_there, **s3.options)} == {"a-store", "b-store"}
    with pytest.raises(StorageError, match="view=index reads local directories only, not s3a:"):
        rows(both, view="index", **s3.options)


def test_a_file_that_goes_meanwhile(s3: S3Server, tmp_path: Path) -> None:
    log = healthy(tmp_path)
    location = s3.put(log.root, "vanish")
    options = {"path": location, **s3.options}
    plan = Plan.of(Options.parse(options))
    schema = arrow_schema("records", ["physical_offset"], "_corrupt")
    splits = plan.splits()
    s3.file_system().delete_file(f"{BUCKET}/vanish/commitlog/{4096:020d}")
    with pytest.raises(DataLost, match=r"4096 on is gone: the file was deleted"):
        [list(plan.read(split, schema)) for split in splits]
    with s3.file_system().open_output_stream(f"{BUCKET}/vanish/commitlog/{0:020d}") as file:
        file.write(log.path(0).read_bytes()[:2000])
    with pytest.raises(DataLost, match="it had 4096 bytes, it has 2000"):
        list(plan.read(splits[0], schema))


@pytest.mark.parametrize("how", ["deleted", "cut", "replaced"])
def test_file_that_changes_during_a_read(s3: S3Server, tmp_path: Path, how: str) -> None:
    """pyarrow takes a short answer for a whole one."""
    log = Log(tmp_path / "store", segment=1 << 20).append(messages(2000))
    location = s3.put(log.root, f"middle-{how}")
    (replica,) = parse_paths(location, tuple(sorted(s3.options.items())))
    name = f"{BUCKET}/middle-{how}/commitlog/{0:020d}"
    with replica.segment(log_files(replica)[0], window=64 << 10) as segment:
        assert segment.window(0).length == 64 << 10
        data = log.path(0).read_bytes()
        if how == "deleted":
            s3.file_system().delete_file(name)
        else:
            with s3.file_system().open_output_stream(name) as file:
                file.write(data[: 100 << 10] if how == "cut" else data[::-1] + b"x")
        pattern = {
            "deleted": "the file was deleted",
            "cut": "it had 1048576 bytes, it has 102400",
            "replaced": "it was replaced while it was read",
        }
        with pytest.raises(DataLost, match=pattern[how]):
            segment.window(64 << 10)


@pytest.mark.slow
def test_a_prepared_file_and_bytes_far_behind(s3: S3Server, tmp_path: Path) -> None:
    """A hole of a local file is zeros in S3."""
    log = Log(tmp_path / "store", segment=32 << 20).append([Message()] * 3)
    log.write(32 << 20, bytes(8))
    location = s3.put(log.root, "prepared")
    assert len(rows(location, **s3.options)) == 3
    far = (20 << 20) + 7
    log.write(far, Message().encode(far, 3))
    location = s3.put(log.root, "prepared")
    actual_rows = rows(location, **s3.options)
    assert same(actual_rows) == same(rows(log.root))
    assert reasons(actual_rows) == [(log.end, "bad_magic")]
    pool = RemoteStorage("s3a", BUCKET, tuple(sorted(s3.options.items()))).pool()
    path = f"{location}/commitlog/{0:020d}"
    data = log.path(0).read_bytes()
    for position, size in ((far, 36), (BLOCK - 5, 10), (0, 3 * BLOCK), (len(data) - 3, 99)):
        assert pool.read(path, position, size) == data[position : position + size]
    assert pool.read(path, len(data) + BLOCK, 5) == b""
    assert pool.read(f"{path}0", 0, 5) == b""
    assert pool.first_data(path, log.end, len(data)) == far + 3  # its length is below 256
    assert pool.first_data(path, far + 200, len(data)) is None
    pool.close()


def test_the_environment_says_where(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3.put(healthy(tmp_path).root, "environment")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["fs.s3a.endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert len(rows(location)) == 60


def test_missing_server(tmp_path: Path) -> None:
    options = {"fs.s3a.endpoint": "http://127.0.0.1:1", "fs.s3a.endpoint.region": "us-east-1"}
    (replica,) = parse_paths("s3a://gone/store", tuple(options.items()))
    assert replica.storage == storage_of("s3a://gone/store", tuple(options.items()))
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        rows("s3a://gone/store", **options, **{"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s"})


def test_the_manifest_of_an_export(s3: S3Server, tmp_path: Path) -> None:
    settings = tuple(sorted(s3.options.items()))
    request = {"columns": ["topic"], "source": "logs"}

    def opened(name: str) -> Manifest:
        return Manifest(Place.of(f"s3a://{BUCKET}/{name}", settings), request)

    first = opened("export")
    second = opened("export")
    part = Part("part=b-0-9", "b", 0, 9)
    first.begin(part)
    assert opened("export").pending == [part]
    with pytest.raises(PipelineError, match="was changed by another export meanwhile"):
        second.begin(part)
    first.end(part)
    repeated = opened("export")
    assert (repeated.parts, repeated.pending) == ([part], [])
    s3.put(healthy(tmp_path).root, "theirs")
    with pytest.raises(WrongUsage, match="holds commitlog and no _rocketbed_manifest"):
        opened("theirs")
