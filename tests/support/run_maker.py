"""Small run directories made to measure: logs, a history, traces and images, all true by default.

A test changes one thing and looks at which check finds it. Message `v` is sent at `v` times 10 ms
to queue `v % 2` of the topic, answered 5 ms later, and is in the log in this order.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.checks.result import CheckResult
from rocketbed.chaos.evidence.history import FINAL_READER, Function, HistoryWriter, Outcome, Row
from rocketbed.chaos.evidence.record import (
    ACKS_FILE,
    HISTORY_FILE,
    IMAGES,
    STORES,
    TRACE_FILE,
    Image,
    Promise,
    RunRecord,
)
from rocketbed.chaos.evidence.trace import Trace
from rocketbed.chaos.evidence.workload import Writer, body_crc, encode_body, label_crc
from tests.support.stores import Spec, build

MS = 1_000_000
SECOND = 1000 * MS
COUNT = 24
TOPIC = "Trial"
NODES = ("b1", "b2", "b3")
GROUP = 1
"""The consumer group of the run."""
END_NS = 100 * SECOND


TOLD_TOPIC = "told"
"""The topic of listeners."""


def body_of(value: int, *, operation: int | None = None) -> bytes:
    return encode_body(Writer(value, value if operation is None else operation, 1, value), 64)


def label_of(value: int) -> int:
    return label_crc("t", [f"v{value}"], {})


def write_table(store: Path, name: str, table: dict[str, Any]) -> None:
    """A file of a node's `config`."""
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / name).write_text(json.dumps(table))


def spec_of(value: int, **changes: Any) -> Spec:
    properties = (
        ("UNIQ_KEY", f"7F00000100002A9F{value:016X}"),
        ("KEYS", f"v{value}"),
        ("TAGS", "t"),
    )
    spec = Spec(TOPIC, queue_id=value % 2, body=body_of(value), properties=properties)
    return replace(spec, **changes)


@dataclass
class Sent:
    """A row of a send; a field that is None has its value in the log."""

    value: int
    outcome: Outcome = Outcome.OK
    queue: int | None = None
    queue_offset: int | None = None
    physical: int | None = None
    invoked_ns: int | None = None
    returned_ns: int | None = None
    operation: int | None = None
    body: bytes | None = None
    status: int = -1


@dataclass
class ImageMaker:
    node: str
    cause: str
    time_ns: int
    specs: list[Spec]
    written: int | None = None
    durable: int | None = None
    harm: Callable[[Path], None] | None = None
    clean: bool = False


@dataclass
class Written:
    """Places of the messages in the final log."""

    offsets: list[int]
    values: list[int]
    places: dict[int, tuple[int, int, int]]
    """Value -> queue, queue offset, physical offset."""


class RunMaker:
    """A run; `judge` writes it and judges it."""

    def __init__(self, path: Path, *, nodes: tuple[str, ...] = NODES) -> None:
        self.path = path
        self.nodes = nodes
        self.specs = [spec_of(value) for value in range(COUNT)]
        """The log of every node, if `logs` has no other for it."""
        self.logs: dict[str, list[Spec]] = {}
        self.sends = [Sent(value) for value in range(COUNT)]
        self.events: list[tuple[int, Function, str, str, dict[str, Any]]] = [
            (
                0,
                Function.NODE,
                node,
                "start",
                {"role": "master" if not number else "slave", "id": number},
            )
            for number, node in enumerate(nodes)
        ]
        self.rows: list[Callable[[RunMaker, Written, Ids], Iterable[Row]]] = []
        self.read_values: list[int] | None = None
        """What the final reader gets; None: all of the final log."""
        self.delivered: list[int] | None = None
        self.committed: dict[int, int] | None = None
        """By queue; None: its end."""
        self.images: list[ImageMaker] = []
        self.trace: Trace | None = None
        self.acks: Trace | None = None
        self.after: list[Callable[[Path], None]] = []
        """Harm done to the directories when they are written."""
        self.record = RunRecord(
            scenario="made",
            backend="sim",
            seed=7,
            promise=Promise(replication="sync", copies=2),
            groups={"b": list(nodes)},
            leaders={"b": "b1"},
            stopped_cleanly=list(nodes),
            recovery_ns=50 * SECOND,
            end_ns=END_NS,
        )

    def store(self, node: str) -> Path:
        return self.path / STORES / node

    def event(self, time_ns: int, node: str, event_name: str, **fields: Any) -> None:
        """A NODE event."""
        self.events.append((time_ns, Function.NODE, node, event_name, fields))

    def strike(self, time_ns: int, node: str, fault: str, **fields: Any) -> None:
        """A NEMESIS event."""
        self.events.append(
            (time_ns, Function.NEMESIS, node, fault, {"step": f"{fault} {node}", **fields})
        )

    def write(self) -> Written:
        """Write everything."""
        self.path.mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            specs = self.logs.get(node, self.specs)
            build(self.store(node), specs)
            write_table(
                self.store(node),
                "topics.json",
                {"topicConfigTable": {TOPIC: {"readQueueNums": 16, "perm": 6}}},
            )
            self.record.stores[node] = f"{STORES}/{node}"
        written = self._built()
        for number, image in enumerate(self.images, start=1):
            self._write_image(number, image)
        for harm in self.after:
            harm(self.path)
        self._write_history(written)
        if self.trace is not None:
            self.trace.save(self.path / TRACE_FILE)
        if self.acks is not None:
            self.acks.save(self.path / ACKS_FILE)
        self.record.save(self.path)
        return written

    def judge(self, **arguments: Any) -> Judgement:
        """Write and judge."""
        self.write()
        return judge_run(self.path, **arguments)

    def _built(self) -> Written:
        leader = next(iter(self.record.leaders.values()), "b1")
        specs = self.logs.get(leader, self.specs)
        scratch = self.path / "scratch"
        offsets = build(scratch, specs) if specs else []
        shutil.rmtree(scratch, ignore_errors=True)
        following = {0: 0, 1: 0}
        places: dict[int, tuple[int, int, int]] = {}
        values: list[int] = []
        for spec, offset in zip(specs, offsets, strict=True):
            value = int.from_bytes(spec.body[4:12], "big")
            queue_offset = following[spec.queue_id]
            if spec.queue_offset is not None:
                queue_offset = spec.queue_offset
            following[spec.queue_id] = queue_offset + 1
            places.setdefault(value, (spec.queue_id, queue_offset, offset))
            values.append(value)
        return Written(offsets, values, places)

    def _write_image(self, number: int, image: ImageMaker) -> None:
        directory = self.path / IMAGES / f"{image.node}-{number}"
        build(directory, image.specs, clean=image.clean)
        if image.harm is not None:
            image.harm(directory)
        self.record.images.append(
            Image(
                node=image.node,
                number=number,
                time_ns=image.time_ns,
                cause=image.cause,
                directory=f"{IMAGES}/{image.node}-{number}",
                written=image.written,
                durable=image.durable,
            )
        )

    def _write_history(self, written: Written) -> None:
        now = [0]
        with HistoryWriter(self.path / HISTORY_FILE, lambda: now[0]) as writer:
            ids = Ids(writer)
            rows = list(self._send_rows(written, ids))
            rows += self._read_rows(written, ids)
            for more in self.rows:
                rows += more(self, written, ids)
            # Unanswered requests come last, as in a run.
            order = sorted(rows, key=lambda row: (row.returned_ns < 0, row.returned_ns, row.number))
            for row in order:
                writer.write(row)
            for time_ns, function, node, kind, fields in sorted(
                self.events, key=lambda event: event[0]
            ):
                now[0] = time_ns
                writer.event(function, node, kind, fields)

    def _send_rows(self, written: Written, ids: "Ids") -> Iterable[Row]:
        for send in self.sends:
            body = body_of(send.value) if send.body is None else send.body
            truth = written.places.get(send.value, (send.value % 2, -1, -1))
            begun = send.value * 10 * MS if send.invoked_ns is None else send.invoked_ns
            yield ids.row(
                Function.SEND,
                process=1,
                queue=truth[0] if send.queue is None else send.queue,
                value=send.value,
                operation=send.value if send.operation is None else send.operation,
                invoked_ns=begun,
                returned_ns=begun + 5 * MS if send.returned_ns is None else send.returned_ns,
                outcome=send.outcome,
                status=send.status,
                queue_offset=truth[1] if send.queue_offset is None else send.queue_offset,
                physical_offset=truth[2] if send.physical is None else send.physical,
                length=len(body),
                body_crc=body_crc(body),
                label_crc=label_of(send.value),
            )

    def _read_rows(self, written: Written, ids: "Ids") -> list[Row]:
        rows: list[Row] = []
        values_read = written.values if self.read_values is None else self.read_values
        delivered = written.values if self.delivered is None else self.delivered
        time_ns = 90 * SECOND
        for queue in (0, 1):
            values = [value for value in values_read if written.places[value][0] == queue]
            rows += ids.pull(
                FINAL_READER, queue, 0, [(v, written.places[v][1]) for v in values], time_ns
            )
            end = max(
                (written.places[v][1] + 1 for v in written.values if written.places[v][0] == queue),
                default=0,
            )
            if self.committed is not None:
                end = self.committed.get(queue, end)
            rows.append(ids.commit(queue, end, 89 * SECOND))
        for value in delivered:
            rows.append(ids.deliver(value, *written.places[value][:2], 80 * SECOND + value * MS))
        return rows


class Ids:
    """Makes rows with the history's ids."""

    def __init__(self, writer: HistoryWriter) -> None:
        self.topic = writer._name_id("topic", TOPIC)
        self.told_topic = writer._name_id("topic", TOLD_TOPIC)
        self.node = writer.node_id("b")
        self.b1, self.b2 = map(writer.node_id, ("b1", "b2"))
        self._next = 0

    def row(self, function: Function, **fields: Any) -> Row:
        """A row of the topic; what is not said is unknown."""
        self._next += 1
        values: dict[str, Any] = dict.fromkeys(Row._fields, -1)
        values |= {
            "number": self._next,
            "function": function,
            "topic": self.topic,
            "node": self.node,
            "attempt": 0,
            "length": 0,
            "outcome": Outcome.OK,
            **fields,
        }
        return Row(**values)

    def pull(
        self,
        process: int,
        queue: int,
        offset_asked: int,
        messages: list[tuple[int, int]],
        time_ns: int,
        *,
        end_told: int | None = None,
    ) -> list[Row]:
        """A pull and what it returned."""
        last = messages[-1][1] + 1 if messages else offset_asked
        pull = self.row(
            Function.PULL,
            process=process,
            queue=queue,
            queue_offset=offset_asked,
            physical_offset=last if end_told is None else end_told,
            invoked_ns=time_ns,
            returned_ns=time_ns,
        )
        return [pull] + [
            self.row(
                Function.GOT,
                process=process,
                queue=queue,
                value=value,
                operation=pull.number,
                queue_offset=offset,
                physical_offset=offset_asked,
                invoked_ns=time_ns,
                returned_ns=time_ns,
                body_crc=body_crc(body_of(value)),
                label_crc=label_of(value),
            )
            for value, offset in messages
        ]

    def deliver(
        self, value: int, queue: int, offset: int, time_ns: int, *, process: int = 5
    ) -> Row:
        """A message given to the group."""
        return self.row(
            Function.DELIVER,
            process=process,
            queue=queue,
            value=value,
            operation=GROUP,
            queue_offset=offset,
            invoked_ns=time_ns,
            returned_ns=time_ns,
            body_crc=body_crc(body_of(value)),
            label_crc=label_of(value),
        )

    def commit(self, queue: int, offset: int, time_ns: int) -> Row:
        """A position of the group."""
        return self.row(
            Function.COMMIT_OFFSET,
            process=5,
            queue=queue,
            operation=GROUP,
            queue_offset=offset,
            invoked_ns=time_ns,
            returned_ns=time_ns,
        )


def violated(judgement: Judgement) -> set[str]:
    """Ids of the checks that are violated."""
    return {result.id for result in judgement.findings}


def results(judgement: Judgement) -> dict[str, CheckResult]:
    """Results by check id."""
    return {result.id: result for result in judgement.results}
