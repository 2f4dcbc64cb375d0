"""`rocketbed store` as a user meets it: output, exit statuses, what it refuses."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rocketbed.cli.store import store
from rocketbed.inspect.bodies import MissingCodec
from tests.support.stores import (
    QUEUE_SEGMENT,
    SEGMENT,
    Spec,
    build,
    copy,
    files_below,
    manifest,
    overwrite,
    segment_of,
    some,
    unpack,
)

SIZES = ["--set", "maxHashSlotNum=10", "--set", "maxIndexNum=20"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("killed", tmp_path_factory.mktemp("killed"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    build(root, some(40))
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(store, [str(argument) for argument in arguments])


def test_ls_shows_the_log_and_its_queues(killed: Path) -> None:
    result = run("ls", killed)
    assert result.exit_code == 0
    assert "log       0 to 1410024" in result.output
    assert "FxRoll/0" in result.output
    assert "lock      free" in result.output
    row = json.loads(run("ls", killed, "--json").output)
    assert row["log"] == {"min": 0, "end": 1410024, "torn": False, "damaged": False}
    bounds = {(q["topic"], q["queueId"]): (q["min"], q["max"]) for q in row["queues"]}
    rows = manifest("killed")["queues"]
    assert bounds == {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"]) for q in rows}
    assert row["indexLayout"] == {"slots": 100, "entries": 400}


def test_dump_gives_the_keys_of_the_manifest(killed: Path) -> None:
    result = run("dump", killed, "--json", "--limit", 0, "--scan")
    rows = [json.loads(line) for line in result.output.splitlines()]
    expected = manifest("killed")["stored"]
    assert len(rows) == len(expected)
    assert {tuple(row) for row in rows} == {tuple(expected[0])}


def test_dump_filters(killed: Path) -> None:
    def dump(*arguments: object) -> list[dict[str, object]]:
        result = run("dump", killed, "--json", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.output.splitlines()]

    assert len(dump()) == 100
    assert len(dump("--limit", 7)) == 7
    queue = dump("--topic", "FxRoll", "--queue", 0, "--offset", 540)
    assert [row["queueOffset"] for row in queue] == list(range(540, 546))
    assert [row["commitLogOffset"] for row in dump("--topic", "FxPlain", "--key", "key-2")] == [
        0x2717
    ]
    assert dump("--topic", "FxPlain", "--key", "nothing") == []
    every = dump("--limit", 0)
    times = sorted(int(str(row["storeTimestamp"])) for row in every)
    middle = times[len(times) // 2]
    before = dump("--limit", 0, "--end", middle)
    after = dump("--limit", 0, "--begin", middle + 1)
    assert len(before) + len(after) == len(every)
    assert {row["topic"] for row in dump("--topic", "FxTags")} == {"FxTags"}


def test_dump_as_a_table(killed: Path) -> None:
    lines = run("dump", killed, "--topic", "FxPlain", "--limit", 2).output.splitlines()
    assert len(lines) == 3
    assert "FxPlain/0  TagA  key-0" in lines[2]


def test_dump_shows_bodies_and_the_zone_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    build(root, [Spec(body=b"x" * 100), Spec(body=b"\xff\x00")])
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        _, text, binary = run("dump", root, *SIZES, "--body").output.splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text.endswith("  " + "x" * 100)
    assert binary.endswith("  0xff00")
    assert "2023-11-15 03:43:20.000+05:30" in text
    rows = run("dump", root, *SIZES, "--body", "--json").output.splitlines()
    first, second = map(json.loads, rows)
    assert first["body"] == "x" * 100
    assert second["bodyBase64"] == "/wA="
    assert "body" not in json.loads(run("dump", root, *SIZES, "--json").output.splitlines()[0])


def test_dump_finds_records_missing_from_queue_and_index(tmp_path: Path) -> None:
    root = tmp_path / "store"
    build(root, some(25), clean=False)
    queue = sorted((root / "consumequeue" / "T" / "0").iterdir())
    overwrite(queue[2], 40, bytes(QUEUE_SEGMENT - 40))
    sorted((root / "index").iterdir())[-1].unlink()
    rows = run("dump", root, *SIZES, "--topic", "T", "--queue", 0, "--json").output.splitlines()
    assert [json.loads(row)["queueOffset"] for row in rows] == list(range(25))
    rows = run("dump", root, *SIZES, "--topic", "T", "--key", "k24", "--json").output.splitlines()
    assert [json.loads(row)["queueOffset"] for row in rows] == [24]


def test_dump_continues_after_a_body_without_its_library(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(body: bytes, sys_flag: int) -> bytes:
        if len(body) % 2:
            raise MissingCodec("pip install 'rocketbed[zstd]'")
        return body

    monkeypatch.setattr("rocketbed.inspect.query.unpack_body", unpack)
    result = run("dump", killed, "--topic", "FxPlain", "--json")
    *lines, advice = result.output.splitlines()
    assert result.exit_code == 0
    assert advice == "pip install 'rocketbed[zstd]'"
    lengths = [json.loads(line)["bodyLength"] for line in lines]
    assert None in lengths
    assert any(lengths)
    assert "FxPlain/0" in run("dump", killed, "--topic", "FxPlain").output


def test_fsck_of_a_good_store(small: Path) -> None:
    result = run("fsck", small, *SIZES)
    assert result.exit_code == 0
    assert result.output.startswith("healthy\nlog 0 to ")


def test_fsck_of_a_torn_tail(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = build(root, some(5), clean=False)
    overwrite(segment_of(root, 0)[0], offsets[4] + 400, b"remains")
    result = run("fsck", root, *SIZES)
    assert result.exit_code == 1
    assert result.output.startswith("healthy after an unclean stop: the next start")
    assert "tail    log-end" in result.output
    assert "1. Start the broker: it repairs what it left." in result.output


def test_fsck_lists_a_torn_record_once(tmp_path: Path) -> None:
    """Unit and keys of the torn record point beyond the end of the log."""
    root = tmp_path / "store"
    offsets = build(root, some(5), clean=False)
    overwrite(segment_of(root, 0)[0], offsets[4] + 100, bytes(62))
    (root / "checkpoint").unlink()  # it says that all of the log was on disk
    result = run("fsck", root, *SIZES)
    assert result.exit_code == 1
    assert "(1 message of 1 queue lost: not on disk when it stopped)" in result.output
    assert "1. Start the broker" in result.output
    assert "rebuild" not in result.output
    assert result.output.count("  tail  ") == 1
    assert "findings in consumequeue/T/0 (1), index/" in result.output


def test_fsck_says_what_is_lost_and_how_to_get_it_back(small: Path) -> None:
    overwrite(segment_of(small, 0)[0], 1000, bytes(200))
    result = run("fsck", small, *SIZES)
    assert result.exit_code == 2
    verdict, _, _, *lines = result.output.splitlines()
    assert verdict == (
        "damaged: 2 messages of 1 queue lost, 324 bytes of the log missing or unreadable"
    )
    assert lines[:3] == [
        "Lost from this directory:",
        "  topic  queue  messages  queue offsets",
        "  T      0      2         6 to 7",
    ]
    options = f"{small} {' '.join(SIZES)}"
    assert f"1. Copy what the log lacks from a replica: rocketbed store heal {options} --from" in (
        result.output
    )
    assert f"2. Check again: rocketbed store fsck {options}\n" in result.output
    assert result.output.count("  damage  ") == 1


def test_fsck_counts_a_loss_at_the_end_of_a_queue(tmp_path: Path) -> None:
    """No later record of the queue shows the gap: only its units point to what is lost."""
    root = tmp_path / "store"
    offsets = build(root, [*some(4, queue_id=1), *some(4)])
    overwrite(segment_of(root, 0)[0], offsets[2] + 4, bytes(offsets[4] - offsets[2] - 4))
    row = json.loads(run("fsck", root, *SIZES, "--json").output)
    assert row["lost"] == [{"topic": "T", "queueId": 1, "first": 2, "last": 3, "count": 2}]
    assert row["unreadableBytes"] == offsets[4] - offsets[2]
    assert [finding["cause"] for finding in row["findings"] if finding["cause"] is None] == [None]


def test_fsck_command_for_damaged_queues_works(small: Path) -> None:
    overwrite(sorted((small / "consumequeue" / "T" / "0").iterdir())[0], 20, bytes(20))
    result = run("fsck", small, *SIZES)
    assert result.exit_code == 2
    command = f"1. Rebuild queues and index: rocketbed store rebuild {small} {' '.join(SIZES)}"
    assert f"{command} --in-place\n" in result.output
    assert "heal" not in result.output
    assert run("rebuild", small, *SIZES, "--in-place").exit_code == 0
    assert run("fsck", small, *SIZES).exit_code == 0


def test_fsck_commands_for_a_missing_queue_work(small: Path) -> None:
    (small / "abort").unlink(missing_ok=True)
    shutil.rmtree(small / "consumequeue" / "T")
    result = run("fsck", small, *SIZES)
    assert result.exit_code == 2
    command = f"touch {small}/abort && rm -f {small}/checkpoint"
    assert f"1. Let recovery read the whole log: {command}\n" in result.output
    assert f"2. Rebuild queues and index: rocketbed store rebuild {small} " in result.output
    subprocess.run(command, shell=True, check=True)
    assert run("rebuild", small, *SIZES, "--in-place").exit_code == 0
    assert run("fsck", small, *SIZES).exit_code == 0


def test_fsck_of_damage_in_json(small: Path) -> None:
    overwrite(segment_of(small, 0)[0], 1000, bytes(200))
    result = run("fsck", small, *SIZES, "--json")
    assert result.exit_code == 2
    row = json.loads(result.output)
    assert row["verdict"] == "damage"
    first = row["findings"][0]
    assert first["severity"] == "damage"
    assert first.keys() == {
        "rule",
        "severity",
        "file",
        "offset",
        "what",
        "advice",
        "count",
        "cause",
    }


@pytest.mark.parametrize("command", ["ls", "dump", "fsck"])
def test_directory_without_a_store(tmp_path: Path, command: str) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        result = run(command, path)
        assert result.exit_code == 3
        assert "not a store" in result.output
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert run(command, tmp_path).output.endswith(f"is in it; try {tmp_path}/store\n")
    (tmp_path / "commitlog").mkdir()
    result = run(command, tmp_path, "--set", "storeType=defaultRocksDB")
    assert result.exit_code == 3
    assert "RocksDB" in result.output


def test_settings_that_cannot_be_read(small: Path, tmp_path: Path) -> None:
    for setting, expected in (
        ("mappedFileSizeCommitLog=big", "mappedFileSizeCommitLog: 'big'"),
        ("messageDelayLevel=1s 2x", "'2x'"),
        ("nonsense", "expected KEY=VALUE"),
    ):
        result = run("ls", small, "--set", setting)
        assert result.exit_code == 64
        assert expected in result.output
    config = tmp_path / "broker.conf"
    config.write_text("# ours\nmaxHashSlotNum=10\nmaxIndexNum = 20\nbrokerName:a\n")
    assert run("fsck", small, "--config", config).exit_code == 0


def test_rebuild_elsewhere(killed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = dict(files_below(killed, "."))
    result = run("rebuild", killed, "--out", out)
    assert result.exit_code == 0
    assert "669 records: 669 entries in 26 queues, 1467 keys in 4 index files" in result.output
    assert dict(files_below(killed, ".")) == before
    assert dict(files_below(out, "consumequeue")) == dict(files_below(killed, "consumequeue"))
    repeated = run("rebuild", killed, "--out", out)
    assert repeated.exit_code == 1
    assert "give an empty directory" in repeated.output


def test_rebuild_in_place(killed: Path, tmp_path: Path) -> None:
    root = copy(killed, tmp_path / "store")
    queue = root / "consumequeue" / "FxPlain" / "0" / f"{0:020d}"
    overwrite(queue, 20, bytes(40))
    for path in (root / "index").iterdir():
        overwrite(path, 0, b"\xff" * 40)
    assert run("fsck", root, "--set", "maxHashSlotNum=100").exit_code == 2
    result = run("rebuild", root, "--in-place", "--set", "maxHashSlotNum=100")
    assert result.exit_code == 0, result.output
    assert run("fsck", root).exit_code == 0
    assert dict(files_below(root, "consumequeue")) == dict(files_below(killed, "consumequeue"))
    assert not [name for name in os.listdir(root) if name.startswith("rebuild")]


def test_rebuild_in_place_again_after_a_crash(killed: Path, tmp_path: Path) -> None:
    """A crash between moving the old queues away and putting the new ones in their place."""
    root = copy(killed, tmp_path / "store")
    (root / "rebuild.old").mkdir()
    (root / "rebuild.new" / "consumequeue").mkdir(parents=True)
    os.rename(root / "consumequeue", root / "rebuild.old" / "consumequeue")
    assert run("rebuild", root, "--in-place").exit_code == 0
    assert run("fsck", root).exit_code == 0
    assert not [name for name in os.listdir(root) if name.startswith("rebuild")]


def test_rebuild_refuses_a_store_in_use(small: Path) -> None:
    before = dict(files_below(small, "consumequeue"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(small / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        os.write(writer, b"held")
        signal.pause()
    try:
        assert os.read(reader, 4) == b"held"
        result = run("rebuild", small, "--in-place", *SIZES)
        assert result.exit_code == 1
        assert "in use" in result.output
        assert "held by process" in run("ls", small, *SIZES).output
        assert run("dump", small, *SIZES).exit_code == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert dict(files_below(small, "consumequeue")) == before
    assert run("rebuild", small, "--in-place", *SIZES).exit_code == 0


def test_rebuild_in_place_refuses_a_damaged_log(small: Path) -> None:
    overwrite(segment_of(small, 0)[0], 1000, bytes(200))
    before = dict(files_below(small, "."))
    result = run("rebuild", small, "--in-place", *SIZES)
    assert result.exit_code == 1
    assert "--force" in result.output
    after = dict(files_below(small, "."))
    after.pop("lock")
    assert after == before
    assert run("rebuild", small, "--in-place", "--force", *SIZES).exit_code == 0
    remaining = {
        finding["rule"]
        for finding in json.loads(run("fsck", small, *SIZES, "--json").output)["findings"]
        if finding["severity"] == "damage"
    }
    assert remaining == {"no-silent-damage", "queue-entry-places"}


def test_rebuild_elsewhere_reports_what_it_skipped(small: Path, tmp_path: Path) -> None:
    overwrite(segment_of(small, 0)[0], 1000, bytes(200))
    result = run("rebuild", small, "--out", tmp_path / "out", *SIZES)
    assert result.exit_code == 2
    assert "damage in the commit log" in result.output
    assert "2 when parts of the log were skipped" in " ".join(
        run("rebuild", "--help").output.split()
    )


def test_rebuild_wants_to_know_where(small: Path) -> None:
    assert run("rebuild", small).exit_code == 64
    assert run("rebuild", small, "--in-place", "--out", "x").exit_code == 64


def test_a_log_elsewhere(small: Path, tmp_path: Path) -> None:
    """storePathCommitLog may name another place, or several."""
    first, second = tmp_path / "one", tmp_path / "other"
    first.mkdir()
    second.mkdir()
    os.rename(small / "commitlog" / f"{0:020d}", first / f"{0:020d}")
    os.rename(small / "commitlog" / f"{SEGMENT:020d}", second / f"{SEGMENT:020d}")
    (small / "commitlog").rmdir()
    path = f"storePathCommitLog={first},{second}"
    assert run("fsck", small, *SIZES, "--set", path).exit_code == 0
    assert run("fsck", small, *SIZES).exit_code == 2
