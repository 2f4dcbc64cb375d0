"""Both forms of the passes say the same, and planted anomalies are found in random histories.

The histories are made in memory: what a random run of producers, readers and a group would have
left, all true; then one thing is made wrong. No file is written, so that thousands are looked at.
"""

from array import array
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.chaos.checks import passes as numeric
from rocketbed.chaos.checks.check import Case
from rocketbed.chaos.checks.evidence import Evidence
from rocketbed.chaos.checks.keys import OFFSET_BITS, Queues
from rocketbed.chaos.checks.logs import Messages, NodeLog
from rocketbed.chaos.checks.registry import CHECKS
from rocketbed.chaos.checks.result import CheckResult, Verdict
from rocketbed.chaos.evidence.history import FINAL_READER, Function, History, Outcome, Row
from rocketbed.chaos.evidence.record import Promise, RunRecord
from rocketbed.inspect import StoreDirectory
from tests.support import plain_passes as plain

MS = 1_000_000
SIZE = 300
IN_MEMORY = {
    "lost-write",
    "loss-within-bound",
    "unseen-message",
    "phantom-write",
    "unknown-value",
    "duplicate",
    "retry-duplicate",
    "inconsistent-offset",
    "moved-write",
    "nonmonotonic-send",
    "nonmonotonic-poll",
    "poll-skip",
    "reader-goes-back",
    "reader-skip",
    "wrong-poll-position",
    "vanished-read",
    "future-read",
    "order-violation",
    "read-lag",
    "query-mismatch",
    "bound-error",
    "time-search",
    "group-skip",
    "redelivery",
    "offset-regress",
    "offset-overrun",
    "dense-queue-offsets",
}
small = st.integers(-1, 6)
columns = st.lists(small, max_size=12)


# --- the passes one by one


def both(name: str, *arguments: Any) -> tuple[Any, Any]:
    """Return the results of both forms, as lists."""
    outcomes = []
    passes: Any
    for passes in (plain, numeric):
        copies = [
            passes.column(array("q", value)) if isinstance(value, list) else value
            for value in arguments
        ]
        outcome = getattr(passes, name)(*copies)
        outcomes.append(outcome.tolist() if hasattr(outcome, "tolist") else outcome)
    return outcomes[0], outcomes[1]


def same(name: str, *arguments: Any) -> None:
    first, second = both(name, *arguments)
    assert first == second, name


@given(columns, columns)
def test_sets_agree(first: list[int], second: list[int]) -> None:
    for name in ("missing", "included"):
        same(name, first, second)
    same("repeated", first)
    same("neighbours", first)
    same("edges", first)
    same("non_negative", first)
    same("matching", first, (1, 3))
    same("above", first, 2)


@given(st.lists(st.tuples(small, small, small, small), max_size=12), columns)
def test_pairs_agree(rows: list[tuple[int, ...]], queries: list[int]) -> None:
    first, two, three, four = ([row[part] for row in rows] for part in range(4))
    for name in ("unequal", "below", "conflicts", "pack"):
        same(name, first, two)
    same("combine", first, two, three)
    same("lookup", queries, first, two, -7)
    same("overtaken", first, two, three, four)
    same("record_ends", first, two, three, four)
    same("between", first, two, queries)
    same("step", sorted(first), two, queries)
    same("staleness", first, two, three, four)
    keys = [queue << OFFSET_BITS | abs(offset) for queue, offset in zip(first, two, strict=True)]
    same("staleness", keys, three, keys, four)


@given(st.lists(st.tuples(small, small, st.integers(0, 1)), min_size=1, max_size=12))
def test_levels_agree(rows: list[tuple[int, ...]]) -> None:
    first_values, two, choices = ([row[part] for row in rows] for part in range(3))
    passes: Any
    for passes in (plain, numeric):
        levels = [passes.column(first_values), passes.column(two)]
        reached = passes.reached(levels, passes.column(first_values))
        assert list(reached) == [
            1 + (second >= first) for first, second in zip(first_values, two, strict=True)
        ]
        chosen = passes.choose(passes.column(choices), levels)
        pairs = zip(first_values, two, choices, strict=True)
        assert list(chosen) == [second if number else first for first, second, number in pairs]


# --- whole histories


class _NoDirectory:
    """A replacement of a directory whose log alone matters."""

    def config(self, name: str) -> None:
        return None


class RandomHistory:
    """A random history in which everything is right."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rows: list[Row] = []
        self.stored: list[tuple[int, int, int]] = []
        """Value, queue and queue offset, in the order of the log."""
        self.count = self.random.randint(4, 12)
        self.queues = self.random.randint(1, 3)
        self.ordered = self.random.random() < 0.5
        self._next = 0
        self._sends()
        self._reads()

    def row(self, function: Function, **fields: int) -> Row:
        self._next += 1
        values: dict[str, int] = dict.fromkeys(Row._fields, -1)
        values |= {"number": self._next, "function": function, "topic": 1, "node": 2}
        values |= {"outcome": Outcome.OK, "attempt": 0, "length": SIZE - 91}
        return Row(**(values | fields))

    def place(self, value: int) -> tuple[int, int, int]:
        for position, (stored_value, queue, offset) in enumerate(self.stored):
            if stored_value == value:
                return queue, offset, position * SIZE
        raise KeyError(value)

    def _sends(self) -> None:
        following = [0] * self.queues
        for value in range(self.count):
            begun = value * 10 * MS
            self.row_of_send = len(self.rows)
            outcome = Outcome.OK
            if self.random.random() < 0.15:
                outcome = self.random.choice([Outcome.INFO, Outcome.WEAK, Outcome.FAIL])
            is_stored = outcome in (Outcome.OK, Outcome.WEAK) or (
                outcome is Outcome.INFO and self.random.random() < 0.5
            )
            queue = self.random.randrange(self.queues)
            place = {"queue": queue}
            if is_stored:
                physical = len(self.stored) * SIZE
                self.stored.append((value, queue, following[queue]))
                if outcome is not Outcome.INFO:
                    place |= {"queue_offset": following[queue], "physical_offset": physical}
                following[queue] += 1
            self.rows.append(
                self.row(
                    Function.SEND,
                    process=1,
                    value=value,
                    operation=value,
                    invoked_ns=begun,
                    returned_ns=begun + 5 * MS,
                    outcome=outcome,
                    body_crc=value + 1000,
                    **place,
                )
            )

    def _reads(self) -> None:
        time_ns = 1000 * MS
        for queue in range(self.queues):
            values = [value for value, at, _ in self.stored if at == queue]
            step = self.random.randint(1, 3)
            for process in (7, FINAL_READER):
                for first in range(0, len(values), step):
                    part = values[first : first + step]
                    self.rows += self.pull(process, queue, first, part, time_ns)
                    time_ns += MS
            for value in values:
                self.rows.append(self.got(Function.DELIVER, value, 4, time_ns))
            self.rows.append(
                self.row(
                    Function.COMMIT_OFFSET,
                    process=8,
                    operation=4,
                    queue=queue,
                    queue_offset=len(values),
                    invoked_ns=time_ns,
                    returned_ns=time_ns,
                )
            )

    def pull(
        self, process: int, queue: int, offset_asked: int, values: list[int], time_ns: int
    ) -> list[Row]:
        pull = self.row(
            Function.PULL,
            process=process,
            queue=queue,
            queue_offset=offset_asked,
            physical_offset=offset_asked + len(values),
            invoked_ns=time_ns,
            returned_ns=time_ns,
        )
        return [pull] + [
            self.got(Function.GOT, value, pull.number, time_ns)._replace(
                process=process, physical_offset=offset_asked
            )
            for value in values
        ]

    def got(self, function: Function, value: int, operation: int, time_ns: int) -> Row:
        queue, offset, _ = self.place(value)
        return self.row(
            function,
            process=8,
            queue=queue,
            value=value,
            operation=operation,
            queue_offset=offset,
            invoked_ns=time_ns,
            returned_ns=time_ns,
            body_crc=value + 1000,
        )

    def evidence(self) -> Evidence:
        history = History(topics={1: "T"}, nodes={2: "b"})
        history.columns.extend(self.rows)
        record = RunRecord(
            scenario="random",
            backend="sim",
            seed=0,
            promise=Promise(),
            groups={"b": ["b1"]},
            leaders={"b": "b1"},
            ordered_topics=["T"] if self.ordered else [],
        )
        queues = Queues()
        messages = Messages()
        for position, (value, queue, offset) in enumerate(self.stored):
            messages.values.append(value)
            messages.operations.append(value)
            messages.sequences.append(value)
            messages.queues.append(queues.number(0, "T", queue))
            messages.offsets.append(offset)
            messages.physicals.append(position * SIZE)
            messages.sizes.append(SIZE)
            messages.crcs.append(value + 1000)
            messages.store_ms.append(position)
        directory = cast("StoreDirectory", _NoDirectory())
        node = NodeLog("b1", 0, directory, messages, array("q"), 0, len(self.stored) * SIZE)
        return Evidence(record, history, queues, [node])

    def check(self, *, in_plain: bool = False) -> list[CheckResult]:
        with plain.form(plain=in_plain):
            case = Case(self.evidence())
            results: list[CheckResult] = []
            for check in CHECKS:
                if IN_MEMORY.intersection(check.ids):
                    results += check.run(case)
            return results


def violated(results: list[CheckResult]) -> set[str]:
    return {result.id for result in results if result.verdict is Verdict.VIOLATED}


def shift_field(
    model: RandomHistory, function: Function, field: str, shift: int, limit: int
) -> None:
    rows = [number for number, row in enumerate(model.rows) if row.function == function]
    if rows:
        number = model.random.choice(rows)
        row = model.rows[number]
        model.rows[number] = row._replace(
            **{field: min(max(getattr(row, field) + shift, 0), limit)}
        )


def damage(model: RandomHistory) -> None:
    """Anything may be wrong; both forms have to see the same of it."""
    for _ in range(model.random.randint(1, 4)):
        kind = model.random.randrange(5)
        if kind == 0 and model.stored:
            model.stored.pop(model.random.randrange(len(model.stored)))
        elif kind == 1 and model.stored:
            model.stored.append(model.random.choice(model.stored))
        elif kind == 2 and model.rows:
            model.rows.pop(model.random.randrange(len(model.rows)))
        else:
            function = model.random.choice(
                [
                    Function.SEND,
                    Function.GOT,
                    Function.DELIVER,
                    Function.PULL,
                    Function.COMMIT_OFFSET,
                ]
            )
            field = model.random.choice(
                [
                    "value",
                    "queue_offset",
                    "physical_offset",
                    "queue",
                    "returned_ns",
                    "body_crc",
                    "outcome",
                    "operation",
                    "process",
                ]
            )
            shift = model.random.choice([-1, 1, 2])
            limit = 3 if field == "outcome" else 1 << 60
            shift_field(model, function, field, shift, limit)


def agree(seed: int) -> None:
    model = RandomHistory(seed)
    assert violated(model.check()) == set(), seed
    damage(model)
    rows = [[result.as_row() for result in model.check(in_plain=form)] for form in (False, True)]
    assert rows[0] == rows[1], seed


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_both_forms_agree_on_random_histories(seed: int) -> None:
    agree(seed)


@pytest.mark.slow
def test_both_forms_agree_on_ten_thousand() -> None:
    for seed in range(10_000):
        agree(seed)


def _ok(model: RandomHistory) -> int | None:
    rows = [
        number
        for number, row in enumerate(model.rows)
        if row.function == Function.SEND and row.outcome == Outcome.OK
    ]
    return model.random.choice(rows) if rows else None


def plant_loss(model: RandomHistory, number: int) -> str:
    value = model.rows[number].value
    model.stored = [entry for entry in model.stored if entry[0] != value]
    return "lost-write"


def plant_unseen(model: RandomHistory, number: int) -> str:
    value = model.rows[number].value
    model.rows = [
        row
        for row in model.rows
        if not (row.function == Function.GOT and row.value == value and row.process == FINAL_READER)
    ]
    return "unseen-message"


def plant_phantom(model: RandomHistory, number: int) -> str:
    model.rows[number] = model.rows[number]._replace(outcome=Outcome.FAIL)
    return "phantom-write"


def plant_unknown(model: RandomHistory, number: int) -> str:
    model.rows[number] = model.rows[number]._replace(body_crc=1)
    return "unknown-value"


def plant_duplicate(model: RandomHistory, number: int) -> str:
    value = model.rows[number].value
    queue = model.place(value)[0]
    end = sum(1 for entry in model.stored if entry[1] == queue)
    model.stored.append((value, queue, end))
    return "duplicate"


def plant_conflict(model: RandomHistory, number: int) -> str:
    row = model.rows[number]
    model.rows.append(row._replace(function=Function.GOT, value=900, physical_offset=0))
    return "inconsistent-offset"


def plant_move(model: RandomHistory, number: int) -> str:
    row = model.rows[number]
    model.rows[number] = row._replace(physical_offset=row.physical_offset + 7)
    return "moved-write"


def plant_vanished(model: RandomHistory, number: int) -> str:
    row = model.rows[number]
    model.rows.append(row._replace(function=Function.DELIVER, value=901, operation=4))
    return "vanished-read"


def plant_future(model: RandomHistory, number: int) -> str:
    row = model.rows[number]
    early = row.invoked_ns - 1
    model.rows.append(row._replace(function=Function.DELIVER, operation=4, returned_ns=early))
    return "future-read"


def plant_group_skip(model: RandomHistory, number: int) -> str:
    value = model.rows[number].value
    model.rows = [
        row for row in model.rows if not (row.function == Function.DELIVER and row.value == value)
    ]
    return "group-skip"


def plant_overrun(model: RandomHistory, number: int) -> str:
    row = model.rows[number]
    beyond = row._replace(function=Function.COMMIT_OFFSET, operation=4, queue_offset=1000)
    model.rows.append(beyond)
    return "offset-overrun"


PLANTS = [
    plant_loss,
    plant_unseen,
    plant_phantom,
    plant_unknown,
    plant_duplicate,
    plant_conflict,
    plant_move,
    plant_vanished,
    plant_future,
    plant_group_skip,
    plant_overrun,
]


@pytest.mark.parametrize("plant", PLANTS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 40), form=st.booleans())
def test_a_planted_anomaly_is_found(
    plant: Callable[[RandomHistory, int], str], seed: int, form: bool
) -> None:
    model = RandomHistory(seed)
    number = _ok(model)
    if number is None:
        return
    check_id = plant(model, number)
    assert check_id in violated(model.check(in_plain=form))
