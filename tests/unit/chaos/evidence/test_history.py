"""The history file: what is written is read, and a file that is not whole says so."""

from pathlib import Path

import msgpack
import pytest

from rocketbed.chaos.evidence.history import (
    UNKNOWN,
    Event,
    Function,
    History,
    HistoryWriter,
    Outcome,
    Row,
    read_history,
)
from rocketbed.chaos.evidence.workload import (
    BODY_SIZE_MIN,
    Writer,
    body_crc,
    decode_body,
    encode_body,
)


class Ticks:
    """A clock that moves by one each time it is asked."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def write_sample(path: Path, sends: int = 3000) -> None:
    with HistoryWriter(path, Ticks()) as writer:
        for number in range(sends):
            attempt = writer.begin(
                Function.SEND,
                process=1,
                topic="T",
                queue=number % 4,
                value=number,
                operation=number,
                length=100,
                body_crc=7,
            )
            attempt.finish(
                Outcome.OK,
                status=0,
                queue_offset=number // 4,
                physical_offset=number * 200,
                node="m",
            )
        writer.event(Function.NEMESIS, "m", "kill", {"signal": 9})


def test_rows_names_and_events_come_back(tmp_path: Path) -> None:
    path = tmp_path / "history"
    write_sample(path)
    history = read_history(path)
    assert history.cut is None
    rows = list(history.columns.rows())
    assert len(rows) == len(history.columns) == 3000
    row = rows[5]
    assert row == history.columns.row(5)
    assert (row.number, row.value, row.queue, row.queue_offset) == (5, 5, 1, 1)
    assert row.invoked_ns < row.returned_ns
    assert history.topic(row) == "T"
    assert history.nodes[row.node] == "m"
    assert history.events == [Event(6001, Function.NEMESIS, "m", "kill", {"signal": 9})]


def test_delivery_is_a_row_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with HistoryWriter(path, Ticks()) as writer:
        writer.begin(Function.PULL, process=1, topic="T", node="m").finish(Outcome.OK)
        writer.note(
            Function.GOT,
            process=1,
            topic="T",
            queue=3,
            value=40,
            operation=0,
            queue_offset=9,
            physical_offset=8,
            length=100,
            node="m",
            body_crc=7,
            label_crc=8,
        )
    history = read_history(path)
    pull, got = history.columns.rows()
    assert got == pull._replace(
        number=1,
        function=Function.GOT,
        queue=3,
        value=40,
        operation=0,
        invoked_ns=3,
        returned_ns=3,
        queue_offset=9,
        physical_offset=8,
        length=100,
        body_crc=7,
        label_crc=8,
    )
    assert history.topic(got) == "T"
    assert history.nodes[got.node] == "m"


def test_attempts_that_did_not_return_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with HistoryWriter(path, Ticks()) as writer:
        writer.begin(Function.SEND, process=1, topic="T", value=1, queue_offset=7)
        writer.begin(Function.SEND, process=2, topic="T", value=2).finish(Outcome.FAIL, status=1)
    first, second = read_history(path).columns.rows()
    assert (first.value, first.outcome) == (2, Outcome.FAIL)
    assert (second.value, second.outcome, second.returned_ns) == (1, Outcome.INFO, UNKNOWN)
    assert (first.queue_offset, second.queue_offset) == (UNKNOWN, 7)


def test_an_attempt_returns_once(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "history", Ticks()) as writer:
        attempt = writer.begin(Function.SEND, process=1)
        attempt.finish(Outcome.OK)
        with pytest.raises(KeyError):
            attempt.finish(Outcome.OK)


def test_a_history_is_never_written_over(tmp_path: Path) -> None:
    write_sample(tmp_path / "history", sends=1)
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path / "history", Ticks())


def test_an_empty_history_is_whole(tmp_path: Path) -> None:
    HistoryWriter(tmp_path / "history", Ticks()).close()
    history = read_history(tmp_path / "history")
    assert history.cut is None
    assert len(history.columns) == 0


def test_any_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "history"
    write_sample(path, sends=2500)
    data = path.read_bytes()
    whole = list(read_history(path).columns.rows())
    for size in [*range(60), *range(60, len(data), 997), len(data) - 1]:
        path.write_bytes(data[:size])
        history = read_history(path)
        assert history.cut
        assert list(history.columns.rows()) == whole[: len(history.columns)]


def test_any_flip_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "history"
    write_sample(path, sends=50)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert read_history(path).cut


def test_bytes_after_the_end_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "history"
    write_sample(path, sends=5)
    with open(path, "ab") as file:
        file.write(b"more")
    assert read_history(path).cut == "bytes follow the end mark"


def test_lost_blocks_are_noticed(tmp_path: Path) -> None:
    """Blocks that are missing as a whole leave good checksums; the end mark counts the rows."""
    path = tmp_path / "history"
    write_sample(path, sends=3000)
    data = path.read_bytes()
    first = 8 + 8 + int.from_bytes(data[8:12], "big")
    second = first + 8 + int.from_bytes(data[first : first + 4], "big")
    path.write_bytes(data[:first] + data[second:])
    assert "the end mark counts 3000" in (read_history(path).cut or "")


def test_rows_are_plain_msgpack(tmp_path: Path) -> None:
    """Another reader (Spark's) needs msgpack and this module's docstring only."""
    path = tmp_path / "history"
    write_sample(path, sends=1)
    data = path.read_bytes()
    entries = msgpack.unpackb(data[16:])
    kinds = [entry[0] if isinstance(entry[0], str) else "row" for entry in entries]
    assert kinds == ["name", "name", "row", "event", "end"]
    assert len(entries[2]) == len(Row._fields) == 19


def test_columns_can_be_taken_without_a_copy(tmp_path: Path) -> None:
    history = History()
    history.columns.extend([Row(*range(19))])
    assert memoryview(history.columns["value"]).tolist() == [5]


def test_bodies_name_their_writer() -> None:
    writer = Writer(value=1 << 60, operation=7, producer=3, sequence=99)
    for size in (BODY_SIZE_MIN, BODY_SIZE_MIN + 1, 1024):
        body = encode_body(writer, size)
        assert len(body) == size
        assert decode_body(body) == writer
    assert body_crc(b"123456789") == 1274296614
    with pytest.raises(ValueError, match="at least"):
        encode_body(writer, BODY_SIZE_MIN - 1)


def test_changed_body_names_no_message() -> None:
    body = encode_body(Writer(1, 2, 3, 4), 200)
    for at in range(len(body)):
        assert decode_body(body[:at] + bytes([body[at] ^ 8]) + body[at + 1 :]) is None
        assert decode_body(body[:at]) is None
    assert decode_body(body + b"x") is None
