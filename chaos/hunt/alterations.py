"""What could be wrong in a recorded run: rows taken away or changed, tables, files and bits."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.history import (
    FINAL_READER,
    Function,
    Outcome,
    Row,
    read_history,
)
from rocketbed.chaos.hunt.alteration import Alteration, replace_rows
from rocketbed.chaos.hunt.alterations_told import TOLD, UNSAFE
from rocketbed.chaos.record import HISTORY_FILE, TRACE_FILE, RunRecord

BEYOND: Final = 1_000_000
LATE_NS: Final = 3600 * 10**9
SLOW_NS: Final = 5 * 10**9
TIMEOUT_NS: Final = 3 * 10**9
COMMITTED_NS: Final = 10 * 10**9
"""So long after a delivery its member has committed it."""
READS: Final = (Function.GOT, Function.DELIVER)
Change = Callable[[Row], Row | None]
"""The row to be written instead; None for none."""


# --- history


def _rows(change: Change, path: Path) -> bool:
    """Replace rows one by one; whether any is another one now."""
    return replace_rows(lambda rows: filter(None, map(change, rows)), path)


def _first(is_meant: Callable[[Row], bool], change: Change) -> Change:
    """Change the first row that is meant, only."""
    done = False

    def changed(row: Row) -> Row | None:
        nonlocal done
        if done or not is_meant(row):
            return row
        done = True
        return change(row)

    return changed


def _each(is_meant: Callable[[Row], bool], change: Change) -> Change:
    return lambda row: change(row) if is_meant(row) else row


def _is(*functions: Function, outcome: Outcome | None = None) -> Callable[[Row], bool]:
    return lambda row: row.function in functions and outcome in (None, row.outcome)


def _every_second(function: Function) -> Change:
    """Every second answer to this question did not come."""
    seen = 0

    def changed(row: Row) -> Row:
        nonlocal seen
        seen += row.function == function
        is_meant = row.function == function and seen % 2
        return row._replace(outcome=Outcome.INFO) if is_meant else row

    return changed


def _low_between() -> Change:
    """A queue's end is one too low wherever it has risen since a node told it: it never falls."""
    told: dict[tuple[int, ...], int] = {}

    def changed(row: Row) -> Row:
        if row.function != Function.BOUNDS or row.process == FINAL_READER:
            return row
        place = row.node, row.topic, row.queue
        low = row._replace(value=max(row.value - 1, told.get(place, 0)))
        told[place] = low.value
        return low

    return changed


SENT_OK: Final = _is(Function.SEND, outcome=Outcome.OK)


def _gone(_row: Row) -> None:
    return None


def _plus(name: str, much: int = 1) -> Change:
    return lambda row: row._replace(**{name: getattr(row, name) + much})


def _of_group(path: Path, record: RunRecord, *, from_share: float) -> bool:
    """A group's deliveries and commits are gone, from a share of the run's time on."""
    numbers = sorted(record.consumer_groups.values())
    if not numbers:
        return False

    def change(row: Row) -> Row | None:
        meant = _is(Function.DELIVER, Function.COMMIT_OFFSET)(row) and row.operation == numbers[0]
        return None if meant and row.returned_ns >= from_share * record.calm_ns else row

    return _rows(change, path)


def _of_followers(path: Path, record: RunRecord) -> bool:
    followers = set(record.followers.values())
    return _rows(
        _each(lambda row: row.function == Function.GOT and row.process in followers, _gone),
        path,
    )


def _last_delivery(change: Change, path: Path, _record: RunRecord) -> bool:
    """Of the last acknowledged message that a group got; no loss came after that."""
    rows = list(read_history(path / HISTORY_FILE).columns.rows())
    given = {row.value for row in rows if row.function == Function.DELIVER}
    sent = ((row.returned_ns, row.value) for row in rows if SENT_OK(row) and row.value in given)
    value = max(sent, default=(0, BEYOND))[1]
    return _rows(
        _each(lambda row: row.function == Function.DELIVER and row.value == value, change),
        path,
    )


def _nobody_answered(path: Path, record: RunRecord) -> bool:
    """No send was acknowledged in half of the storm: all timed out."""
    begin = int(record.facts.get("zero_ns", 0))
    storm_ns = record.calm_ns - begin

    def change(row: Row) -> Row:
        share = (row.invoked_ns - begin) / max(storm_ns, 1)
        if not SENT_OK(row) or not 0.3 <= share < 0.8:
            return row
        unknown = {"queue": -1, "queue_offset": -1, "physical_offset": -1, "node": 0, "status": -1}
        return row._replace(
            outcome=Outcome.INFO, returned_ns=row.invoked_ns + TIMEOUT_NS, **unknown
        )

    return _rows(change, path)


# --- directories


def _stores(path: Path, record: RunRecord) -> list[Path]:
    return [path / place for _, place in sorted(record.stores.items())]


def _masters(path: Path, record: RunRecord) -> list[Path]:
    return [path / record.stores[name] for name in sorted(record.leaders.values())]


def _images(path: Path, record: RunRecord) -> list[Path]:
    return [path / image.directory for image in record.images]


def _table(
    name: str,
    change: Callable[[Any], Any],
    path: Path,
    record: RunRecord,
    *,
    places: Callable[[Path, RunRecord], list[Path]] = _stores,
) -> bool:
    """Change a table of every node, and its backup; None deletes it."""
    found = False
    for store in places(path, record):
        for place in (store / "config" / name, store / "config" / f"{name}.bak"):
            if not place.exists():
                continue
            table = change(json.loads(place.read_text(encoding="utf-8")))
            found = True
            place.unlink()
            if table is not None:
                place.write_text(json.dumps(table), encoding="utf-8")
    return found


def _unkept(path: Path, record: RunRecord) -> bool:
    """Of the last node of several nothing was kept, and nobody says that it had anything."""
    name, place = max(record.stores.items())
    shutil.rmtree(path / place)
    kept = {node: one for node, one in record.stores.items() if node != name}
    replace(record, stores=kept).save(path)
    return True


def _no_offsets(_table: Any) -> Any:
    return {"offsetTable": {}}


def _no_readers(table: Any) -> Any:
    for row in table["topicConfigTable"].values():
        row["perm"] = 0
    return table


def _more_queues(table: Any) -> Any:
    for row in table["topicConfigTable"].values():
        row.update(readQueueNums=row["readQueueNums"] + 3, writeQueueNums=row["writeQueueNums"] + 3)
    return table


def _far_offsets(table: Any) -> Any:
    for row in table["offsetTable"].values():
        row.update({queue: offset + BEYOND for queue, offset in row.items()})
    return table


def _few_retries(table: Any) -> Any:
    for row in table["subscriptionGroupTable"].values():
        row["retryMaxTimes"] = 1
    return table


def _forbidden(table: Any) -> Any:
    groups = table["subscriptionGroupTable"]
    return {**table, "forbiddenTable": {name: {"load-1": 4} for name in groups}}


def _files(store: Path, folder: str) -> list[Path]:
    return sorted(place for place in (store / folder).rglob("*") if place.is_file())


def _delete(name: str, path: Path, record: RunRecord) -> bool:
    """Delete a file of every node."""
    places = [store / name for store in _stores(path, record) if (store / name).exists()]
    for place in places:
        place.unlink()
    return bool(places)


def _patch(folder: str, change: Callable[[bytearray], None], path: Path, record: RunRecord) -> bool:
    """Change the first file of a folder of each last master."""
    found = False
    for store in _masters(path, record):
        for place in _files(store, folder)[:1]:
            data = bytearray(place.read_bytes())
            before = bytes(data)
            change(data)
            place.write_bytes(data)
            found = found or bytes(data) != before
    return found


def _flip(at: int, data: bytearray) -> None:
    if at < len(data):
        data[at] ^= 1


def _zero(begin: int, end: int, data: bytearray) -> None:
    data[begin:end] = bytes(len(data[begin:end]))


def _delete_first(folder: str, path: Path, record: RunRecord) -> bool:
    places = [place for store in _masters(path, record) for place in _files(store, folder)[:1]]
    for place in places:
        place.unlink()
    return bool(places)


def _add_abort(path: Path, record: RunRecord) -> bool:
    clean = [path / record.stores[name] for name in record.stopped_cleanly if name in record.stores]
    for store in clean:
        (store / "abort").touch()
    return bool(clean)


def _cut_history(path: Path, _record: RunRecord) -> bool:
    place = path / HISTORY_FILE
    place.write_bytes(place.read_bytes()[:-20])
    return True


def _no_trace(path: Path, _record: RunRecord) -> bool:
    place = path / TRACE_FILE
    is_there = place.exists()
    place.unlink(missing_ok=True)
    return is_there


def _change(name: str, what: str, change: Callable[[], Change]) -> Alteration:
    """An alteration of rows; a change that counts is made anew for each run."""
    return Alteration(name, what, lambda path, _record: _rows(change(), path))


ALTERATIONS: Final = (
    Alteration("group-gone", "nothing was delivered to a group", partial(_of_group, from_share=-1)),
    Alteration(
        "group-half",
        "a group stopped half-way through the storm",
        partial(_of_group, from_share=0.5),
    ),
    Alteration("followers-empty", "pulls of followers gave no messages", _of_followers),
    _change(
        "final-empty",
        "pulls of the final reader gave no messages",
        lambda: _each(
            lambda row: row.function == Function.GOT and row.process == FINAL_READER, _gone
        ),
    ),
    Alteration(
        "delivery-lost", "one message never came to a group", partial(_last_delivery, _gone)
    ),
    Alteration(
        "committed-early",
        "a group stored its position before one message came",
        partial(_last_delivery, _plus("returned_ns", COMMITTED_NS)),
    ),
    _change(
        "deliveries-late",
        "deliveries came an hour late",
        lambda: _each(_is(Function.DELIVER), _plus("returned_ns", LATE_NS)),
    ),
    _change(
        "pulls-late",
        "messages were pulled an hour late",
        lambda: _each(_is(Function.GOT, Function.PULL), _plus("returned_ns", LATE_NS)),
    ),
    _change(
        "labels", "tags or keys were rewritten", lambda: _each(_is(*READS), _plus("label_crc"))
    ),
    _change("bodies", "bodies were rewritten", lambda: _each(_is(*READS), _plus("body_crc"))),
    _change(
        "acknowledged-nowhere",
        "a message was acknowledged that is nowhere",
        lambda: _first(SENT_OK, _plus("value", BEYOND)),
    ),
    _change(
        "acknowledged-elsewhere",
        "an acknowledgement names another place",
        lambda: _first(SENT_OK, _plus("queue_offset")),
    ),
    _change(
        "refused-stored",
        "a refused message is there",
        lambda: _first(SENT_OK, lambda row: row._replace(outcome=Outcome.FAIL)),
    ),
    _change(
        "acknowledged-unsafe",
        "a send was told at once that slaves had not answered in time",
        lambda: _first(SENT_OK, lambda row: row._replace(**UNSAFE)),
    ),
    _change(
        "position-beyond",
        "a group committed beyond a queue's end",
        lambda: _first(
            _is(Function.COMMIT_OFFSET, outcome=Outcome.OK), _plus("queue_offset", BEYOND)
        ),
    ),
    _change(
        "commits-unanswered",
        "every second commit was not answered",
        lambda: _every_second(Function.COMMIT_OFFSET),
    ),
    _change(
        "searches-unanswered",
        "every second search by time was not answered",
        lambda: _every_second(Function.SEARCH_TIME),
    ),
    _change(
        "acknowledged-late",
        "acknowledgements took five seconds more",
        lambda: _each(SENT_OK, _plus("returned_ns", SLOW_NS)),
    ),
    Alteration(
        "storm-unanswered",
        "no send was acknowledged in half of the storm",
        _nobody_answered,
    ),
    _change(
        "positions-unread",
        "no commit was read back",
        lambda: _each(_is(Function.READ_OFFSET), _gone),
    ),
    _change(
        "commits-gone",
        "no group committed anything",
        lambda: _each(_is(Function.COMMIT_OFFSET), _gone),
    ),
    _change(
        "commits-unknown",
        "no commit was answered",
        lambda: _each(_is(Function.COMMIT_OFFSET), lambda row: row._replace(outcome=Outcome.INFO)),
    ),
    _change(
        "positions-forgotten",
        "nodes said that groups had committed nothing",
        lambda: _each(_is(Function.READ_OFFSET), lambda row: row._replace(queue_offset=0)),
    ),
    _change(
        "queries-failed",
        "every query by key failed",
        lambda: _each(
            _is(Function.QUERY_KEY), lambda row: row._replace(outcome=Outcome.INFO, queue_offset=-1)
        ),
    ),
    _change(
        "queries-empty",
        "queries by key found nothing",
        lambda: _each(_is(Function.QUERY_KEY), lambda row: row._replace(status=0, queue_offset=-1)),
    ),
    _change(
        "searches-gone",
        "no search by time was made",
        lambda: _each(_is(Function.SEARCH_TIME), _gone),
    ),
    _change(
        "searches-off",
        "searches by time gave the next message",
        lambda: _each(_is(Function.SEARCH_TIME), _plus("queue_offset")),
    ),
    _change(
        "searches-early",
        "searches by time gave the message before",
        lambda: _each(_is(Function.SEARCH_TIME), _plus("queue_offset", -1)),
    ),
    _change(
        "searches-empty",
        "searches by time found nothing",
        lambda: _each(_is(Function.SEARCH_TIME), lambda row: row._replace(queue_offset=-1)),
    ),
    _change(
        "bounds-low",
        "a queue's end was told one too low",
        lambda: _each(_is(Function.BOUNDS), _plus("value", -1)),
    ),
    _change(
        "bounds-low-between",
        "while a queue grew its end was told one too low",
        _low_between,
    ),
    _change(
        "bounds-late",
        "a queue's first message was told one too high",
        lambda: _each(_is(Function.BOUNDS), _plus("operation")),
    ),
    _change(
        "pull-bounds",
        "pulls told of empty queues",
        lambda: _each(_is(Function.PULL), lambda row: row._replace(value=0, operation=0)),
    ),
    _change(
        "positions-ahead",
        "nodes said more than groups had committed",
        lambda: _each(_is(Function.READ_OFFSET), _plus("queue_offset")),
    ),
    _change(
        "delivered-elsewhere",
        "deliveries name another queue",
        lambda: _each(_is(Function.DELIVER), _plus("queue", 100)),
    ),
    _change(
        "bounds-off",
        "a queue's end was told one too high",
        lambda: _each(_is(Function.BOUNDS), _plus("value")),
    ),
    _change(
        "offsets-off",
        "messages were pulled at the next one's place",
        lambda: _each(_is(Function.GOT), _plus("queue_offset")),
    ),
    Alteration("history-cut", "the history has no end", _cut_history),
    Alteration("trace-gone", "what was on disk when is not known", _no_trace),
    Alteration(
        "positions-gone",
        "consumerOffset.json is empty on every node",
        partial(_table, "consumerOffset.json", _no_offsets),
    ),
    Alteration(
        "positions-gone-then",
        "consumerOffset.json is empty in every image",
        partial(_table, "consumerOffset.json", _no_offsets, places=_images),
    ),
    Alteration(
        "positions-far",
        "stored positions are beyond their queues",
        partial(_table, "consumerOffset.json", _far_offsets),
    ),
    Alteration(
        "groups-gone",
        "subscriptionGroup.json is empty on every node",
        partial(
            _table, "subscriptionGroup.json", lambda table: {**table, "subscriptionGroupTable": {}}
        ),
    ),
    Alteration(
        "groups-retries",
        "groups have one retry on every node",
        partial(_table, "subscriptionGroup.json", _few_retries),
    ),
    Alteration(
        "groups-forbidden",
        "a topic is forbidden to groups in every image",
        partial(_table, "subscriptionGroup.json", _forbidden, places=_images),
    ),
    Alteration(
        "topics-unreadable",
        "nobody may read any topic",
        partial(_table, "topics.json", _no_readers),
    ),
    Alteration(
        "topics-wider",
        "topics have three more queues than were made",
        partial(_table, "topics.json", _more_queues),
    ),
    Alteration(
        "topics-gone",
        "topics.json is missing on every node",
        partial(_table, "topics.json", lambda _table: None),
    ),
    Alteration("store-unkept", "of a node no directory was kept", _unkept),
    Alteration(
        "log-bit", "one bit of the log is wrong", partial(_patch, "commitlog", partial(_flip, 200))
    ),
    Alteration(
        "log-zeros",
        "a record of the log is zeros",
        partial(_patch, "commitlog", partial(_zero, 0, 200)),
    ),
    Alteration(
        "queue-zeros",
        "a queue entry is zeros",
        partial(_patch, "consumequeue", partial(_zero, 0, 20)),
    ),
    Alteration(
        "queue-tag",
        "a tag code is another one",
        partial(_patch, "consumequeue", partial(_flip, 19)),
    ),
    Alteration("queue-gone", "a queue's file is missing", partial(_delete_first, "consumequeue")),
    Alteration(
        "index-bit", "an index header is wrong", partial(_patch, "index", partial(_flip, 23))
    ),
    Alteration("index-gone", "an index file is missing", partial(_delete_first, "index")),
    Alteration("log-gone", "a log segment is missing", partial(_delete_first, "commitlog")),
    Alteration(
        "checkpoint-gone", "the checkpoint is missing on every node", partial(_delete, "checkpoint")
    ),
    Alteration(
        "mark-gone",
        "the durable mark is missing on every node",
        partial(_delete, "rocketbed.ckpt"),
    ),
    Alteration("abort-there", "the abort file is there after a clean stop", _add_abort),
    *TOLD,
)
