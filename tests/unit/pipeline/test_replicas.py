"""The option `path`: what its directories are called, and topics that none of them has."""

import re
import shutil
from pathlib import Path

import pytest

from rocketbed.pipeline.files.paths import parse_paths
from rocketbed.pipeline.files.replicas import check_topics
from rocketbed.pipeline.option_table import OptionError
from tests.support.logs import Log, Message, rows


@pytest.mark.parametrize(
    ("roots", "names"),
    [
        (["a/store"], ["store"]),
        (["a/store", "b/store"], ["a-store", "b-store"]),
        (["a/store", "b/other"], ["store", "other"]),
        (["x/a/store", "y/a/store", "y/b/other"], ["x-a-store", "y-a-store", "y-b-other"]),
        (["a/store", "n/m=b/store"], ["store", "n"]),
        (["store/0=a/store", "b/store"], ["store", "b-store"]),
        (["b/store", "store=a/store", "b-store/1=c/d"], ["{}-b-store", "store", "b-store"]),
    ],
)
def test_names_use_as_much_of_the_path_as_needed(
    roots: list[str], names: list[str], tmp_path: Path
) -> None:
    items = []
    for root in roots:
        name, separator, path = root.rpartition("=")
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        items.append(f"{name}{separator}{tmp_path / path}")
    replicas = parse_paths(",".join(items))
    assert [one.broker for one in replicas] == [name.format(tmp_path.name) for name in names]
    listed = ",".join(f"{one.broker}/{one.name}={one.root}" for one in replicas)
    assert parse_paths(listed) == replicas


def test_unnamed_directory_without_a_free_name_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"/store would be called store, .* broker/replica=/store"
    ):
        parse_paths("store/0=/u/store,/store")


@pytest.mark.parametrize("before", ["", "n/0=", "n="])
def test_directory_may_have_a_comma_in_its_name(before: str, tmp_path: Path) -> None:
    for name in ("a,b,c", "d", "a"):
        (tmp_path / name).mkdir()
    replicas = parse_paths(f"{before}{tmp_path}/a,b,c, m/1={tmp_path}/d,{tmp_path}/x")
    assert [one.root for one in replicas] == [f"{tmp_path}/{name}" for name in ("a,b,c", "d", "x")]
    assert [one.broker for one in replicas][1:] == ["m", "x"]


def test_repeated_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="two stores have the same name"):
        parse_paths(f"{tmp_path},{tmp_path}/")


def test_a_topic_that_no_store_has_is_named(tmp_path: Path) -> None:
    for store, topic in (("a", "T"), ("b", "U"), ("c", "")):
        (tmp_path / store / "consumequeue" / topic).mkdir(parents=True)
    stores = parse_paths(",".join(str(tmp_path / name) for name in "ab"))
    check_topics(stores, {"T", "U"})
    check_topics(stores, None)
    with pytest.raises(OptionError, match=r"no store of the path has t, x; topics there: T, U"):
        check_topics(stores, {"t", "x", "T"})
    check_topics(stores, None, re.compile("[A-T]"))
    with pytest.raises(OptionError, match=r"topicsPattern: no store .* has a topic that matches X"):
        check_topics(stores, None, re.compile("X.*"))
    check_topics(parse_paths(str(tmp_path / "c")), {"x"})  # a log whose queues are lost


@pytest.mark.parametrize("folder", ["", "consumequeue"])
@pytest.mark.parametrize("file", ["", "0" * 20])
def test_empty_log_is_reported_and_has_no_topics(
    folder: str, file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path / "store")
    (log.root / folder).mkdir(exist_ok=True)
    if file:
        (log.root / "commitlog" / file).write_bytes(bytes(4096))  # prepared, nothing in it
    assert rows(log.root) == []
    assert f"{log.root}: the log is empty" in caplog.text
    with pytest.raises(OptionError, match="has Nope; topics there: none, nothing is stored yet"):
        rows(log.root, topics="Nope")


def test_start_beyond_every_end_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gave no rows, in silence."""
    short = Log(tmp_path / "short").append([Message()])
    long = Log(tmp_path / "long").append([Message(), Message()])
    both = f"a={short.root},b={long.root}"
    assert len(rows(both, startOffset=short.end)) == 1
    assert rows(both, startOffset=long.end) == []  # nothing new
    assert not caplog.records
    for view in ("records", "blocks"):
        caplog.clear()
        assert rows(both, startOffset=long.end + 1, view=view) == []
        assert [record.getMessage() for record in caplog.records] == [
            f"startOffset={long.end + 1} is behind {long.end}, the end of all that is read, so"
            " there are no rows"
        ]
    caplog.clear()
    assert rows(Log(tmp_path / "empty").root, startOffset=7) == []
    assert "startOffset" not in caplog.text


def test_empty_replica_limits_the_others_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full, empty = Log(tmp_path / "full").append([Message()]), Log(tmp_path / "empty")
    both = f"b/0={full.root},b/1={empty.root}"
    assert rows(both) == []
    assert f"{empty.root}: the log is empty, so nothing is read of 0 of b either" in caplog.text
    assert len(rows(both, topics="T", readUncommitted=True)) == 1
    assert rows(full.root, topics="T")
    (full.root / "consumequeue").rename(tmp_path / "queues")
    assert rows(full.root, topics="Nope") == []  # unknown without queues


def test_batch_queue_and_table_topics_are_known(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message(), Message(topic="Gone")])
    (log.root / "batchconsumequeue" / "Batch" / "0").mkdir(parents=True)
    (log.root / "consumequeue" / ".DS_Store").write_bytes(b"no topic")
    shutil.rmtree(log.root / "consumequeue" / "Gone")
    with pytest.raises(OptionError, match=r"has Gone; topics there: Batch, T\. For records of a"):
        rows(log.root, topics="Gone")
    (log.root / "config").mkdir()
    (log.root / "config" / "topics.json").write_text('{"topicConfigTable":{"Gone":{}}}')
    assert [row["topic"] for row in rows(log.root, topics="Gone,Batch")] == ["Gone"]
    with pytest.raises(OptionError, match=r"has \.DS_Store; topics there: Batch, Gone, T"):
        rows(log.root, topics=".DS_Store")


def test_unknowable_topics_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path / "store", has_queues=False).append([Message()])
    (log.root / "consumequeue").mkdir()
    assert rows(log.root, topics="Nope") == []
    assert f"{log.root}: neither queues nor config/topics.json say" in caplog.text


def test_store_reached_by_two_paths_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "store").append([Message()])
    (tmp_path / "link").symlink_to(log.root)
    for path in (f"{log.root},{tmp_path}/link", f"a/0={log.root},b/0={log.root}"):
        with pytest.raises(OptionError, match=r"are one store: give it once"):
            rows(path)
