"""However a log is cut into tasks, and whatever happened to it, its rows are the same."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.inspect import Scanned, open_directory
from tests.support.logs import Log, Message, rows

COLUMNS = ["physical_offset", "size", "topic", "body", "crc_ok", "_corrupt"]


@st.composite
def contents(draw: st.DrawFn) -> list[Message]:
    """Messages of all shapes; bodies may hold what looks like a record.

    Texts are ASCII and stay so when a byte is flipped: the independent reader takes any bytes for a
    topic, a column of strings cannot.
    """
    seed = draw(st.integers(0, 1 << 32))
    chance = random.Random(seed)
    messages = []
    for _ in range(draw(st.integers(0, 40))):
        body = chance.randbytes(chance.choice([0, 1, 30, 200, 900]))
        if chance.random() < 0.2:
            body = Message(body=body).encode(chance.randrange(10_000), 1)
        messages.append(
            Message(
                topic=chance.choice(["a", "bb", "ccc"]),
                body=body,
                sys_flag=chance.choice([0, 0, 0x10, 0x20, 0x30]),
                is_wide=chance.random() < 0.1,
                has_crc=chance.random() < 0.1,
                queue_id=chance.randrange(2),
                properties=chance.choice(["", "TAGS\x01x\x02"]),
            )
        )
    return messages


harms = st.lists(
    st.tuples(st.sampled_from(["flip", "zero"]), st.floats(0, 1, exclude_max=True)), max_size=3
)


def damaged(root: Path, content: list[Message], harm: list[tuple[str, float]]) -> Log:
    log = Log(root / "store").append(content)
    for kind, where in harm:
        at = int(where * log.end)
        if log.end and kind == "flip":
            log.flip(at)
        elif log.end:
            log.write(at, bytes(min(100, 4096 - at % 4096)))
    return log


def good(root: Path) -> list[int]:
    """Offsets of the good records by the independent reader."""
    opened = open_directory(root)
    offsets = [item.offset for item in opened.log.scan() if isinstance(item, Scanned)]
    opened.close()
    return offsets


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(contents(), harms, st.integers(1, 9000), st.sampled_from(["auto", "index", "walk"]))
def test_every_cut_gives_the_same_rows(
    content: list[Message], harm: list[tuple[str, float]], size: int, mode: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = damaged(Path(folder), content, harm)
        whole = rows(log.root, COLUMNS)
        assert rows(log.root, COLUMNS, splitBytes=max(size, 60), syncMode=mode) == whole
        assert rows(log.root, COLUMNS, batchRows=3) == whole
        check_cover(whole)
        offsets = [row["physical_offset"] for row in whole if row["_corrupt"] is None]
        assert offsets == good(log.root)
        if not harm:
            assert offsets == log.offsets


def check_cover(whole: list[dict[str, Any]]) -> None:
    """Rows follow one another without gap or overlap, but for fillers at the ends of files."""
    at = 0
    for row in whole:
        offset = row["physical_offset"]
        assert offset == at or (offset % 4096 == 0 and offset - at < 4096)
        at = offset + row["size"]


@settings(max_examples=40, deadline=None)
@given(contents(), harms)
def test_dropping_leaves_what_is_good(
    content: list[Message], harm: list[tuple[str, float]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = damaged(Path(folder), content, harm)
        good_rows = rows(log.root, ["physical_offset"], mode="DROPMALFORMED", splitBytes=700)
        assert [row["physical_offset"] for row in good_rows] == good(log.root)
