"""Errors in the files that a run kept: directories, and files of the record."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rocketbed.chaos.evidence.record import HISTORY_FILE, TRACE_FILE, RunRecord
from tests.mutation.alterations.alteration import BEYOND, Alteration


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
    is_changed = False
    for store in places(path, record):
        for place in (store / "config" / name, store / "config" / f"{name}.bak"):
            if not place.exists():
                continue
            table = change(json.loads(place.read_text(encoding="utf-8")))
            is_changed = True
            place.unlink()
            if table is not None:
                place.write_text(json.dumps(table), encoding="utf-8")
    return is_changed


def _unkept(path: Path, record: RunRecord) -> bool:
    """Drop everything kept of the last of several nodes, and the record that it had anything."""
    name, place = max(record.stores.items())
    shutil.rmtree(path / place)
    stores = {node: one for node, one in record.stores.items() if node != name}
    replace(record, stores=stores).save(path)
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


def _gone_then(name: str, path: Path, record: RunRecord) -> bool:
    """Delete a file or a folder of every image."""
    places = [image / name for image in _images(path, record) if (image / name).exists()]
    for place in places:
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
    return bool(places)


def _patch(folder: str, change: Callable[[bytearray], None], path: Path, record: RunRecord) -> bool:
    """Change the first file of a folder of each last master."""
    is_changed = False
    for store in _masters(path, record):
        for place in _files(store, folder)[:1]:
            data = bytearray(place.read_bytes())
            before = bytes(data)
            change(data)
            place.write_bytes(data)
            is_changed = is_changed or bytes(data) != before
    return is_changed


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


KEPT: Final = (
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
        "no topic may be read",
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
    Alteration("mark-gone-then", "no image has a mark", partial(_gone_then, "rocketbed.ckpt")),
    Alteration("queues-gone-then", "no image has queues", partial(_gone_then, "consumequeue")),
    Alteration("index-gone-then", "no image has an index", partial(_gone_then, "index")),
    Alteration("abort-there", "the abort file is there after a clean stop", _add_abort),
)
