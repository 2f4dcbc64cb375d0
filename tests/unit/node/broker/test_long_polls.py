"""Long polls beside a model: each is answered once, by its message or at its deadline."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.node.broker.long_polling import ADVANCE_EVERY, SWEEP_S, LongPoll, LongPolls
from rocketbed.node.store.entry import Entry
from rocketbed.world.api import World

STEPS = 120
Queue = tuple[str, int]


class Model:
    """Waiting pulls, and those to answer."""

    def __init__(self, random: Random) -> None:
        self.random, self.limit = random, random.randrange(3, 9)
        self.answered = list[LongPoll]()
        self.ends = {(topic, queue): random.randrange(5) for topic in "AB" for queue in (0, 1)}
        self.polls = LongPolls(
            limit=self.limit, queue_max=lambda *queue: self.ends[queue],
            execute=self.answered.append,
        )  # fmt: skip
        self.waiting = list[tuple[Queue, LongPoll]]()
        self.outlived, self.due, self.expected = list[Any](), list[Any](), list[Any]()
        self.sweeps = 0

    async def step(self, begin: float) -> None:
        random, polls = self.random, self.polls
        queue, draw = (random.choice("AB"), random.randrange(2)), random.random()
        if draw < 0.45:
            self._add(queue)
        elif draw < 0.65:
            self._arrive(queue)
        elif draw < 0.7:
            polls.release(*queue)
            self._answer(pull for at, pull in self.waiting if at == queue)
        elif draw < 0.75:
            polls.topic_deleted(queue[0])
            self.outlived += [pull for at, pull in self.waiting if at[0] == queue[0]]
        elif draw < 0.8:
            count = random.randrange(3)
            polls.topic_recreated(queue[0], count)
            self._answer(
                pull for at, pull in sorted(self.waiting, key=lambda row: row[0])
                if at[0] == queue[0] and at[1] < count and pull in self.outlived
            )  # fmt: skip
        elif draw < 0.83 and self.waiting:
            connection: Any = random.choice(self.waiting)[1].connection
            connection.is_closed = True
        elif draw < 0.9:
            self.ends[queue] += 1  # nothing reports it
        else:
            await trio.sleep(random.choice((0.25, SWEEP_S, 3 * SWEEP_S)))
        await wait_all_tasks_blocked()
        while self.sweeps < int((trio.current_time() - begin) / SWEEP_S):
            self.sweeps += 1
            self._sweep(begin + self.sweeps * SWEEP_S)
        self.waiting = [row for row in self.waiting if row[1] not in self.due]
        self._settle()

    def _add(self, queue: Queue) -> None:
        codes = self.random.choice((None, frozenset((5,)), frozenset((7, 9))))
        connection: Any = SimpleNamespace(is_closed=False)
        command: Any = None
        deadline = trio.current_time() + self.random.choice((0.5, 2.25, 60))
        offset = self.ends[queue] + self.random.randrange(2)
        pull = LongPoll(command, connection, offset, codes, deadline)
        is_added = self.polls.add(*queue, pull)
        assert is_added == (len(self.waiting) < self.limit), "hold: the limit does not hold"
        self.waiting += [(queue, pull)] * is_added

    def _arrive(self, queue: Queue) -> None:
        count, code = self.random.choice((1, -2, 0)), self.random.choice((5, 7))
        entry = Entry(*queue, self.ends[queue], 0, 99, code, 0, (), count)
        self.polls.on_arrival([entry])
        self.ends[queue] += abs(count)
        self._answer(
            pull for at, pull in self.waiting
            if count and at == queue and code in (pull.tag_codes or (code,))
            and pull.offset < self.ends[queue]
        )  # fmt: skip

    def _sweep(self, at_s: float) -> None:
        closed = [pull for _, pull in self.waiting if pull.connection.is_closed]
        self.waiting = [row for row in self.waiting if row[1] not in closed]
        for queue, pull in self.waiting:
            high = self.ends[queue] if self.sweeps % ADVANCE_EVERY == 0 else -1
            if (pull.deadline <= at_s or pull.offset < high) and pull not in self.due:
                self.due.append(pull)

    def _answer(self, pulls: Any) -> None:
        self.due += pulls

    def _settle(self) -> None:
        self.expected += [pull for pull in self.due if not pull.connection.is_closed]
        self.due.clear()
        assert sorted(map(id, self.answered)) == sorted(map(id, self.expected)), (
            f"hold: {len(self.answered)} are answered, expected {len(self.expected)}"
        )
        assert len(self.polls) == len(self.waiting), "hold: another number waits"

    def end(self) -> None:
        self.polls.release_all()
        self._answer(pull for _, pull in self.waiting)
        self.waiting.clear()
        self._settle()


def check(seed: int) -> None:
    """Raises `AssertionError` where the model disagrees."""

    async def main(_world: World) -> AssertionError | None:
        model, begin = Model(Random(seed)), trio.current_time()
        failure: AssertionError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.polls.run)
            await wait_all_tasks_blocked()
            try:
                for _ in range(STEPS):
                    await model.step(begin)
                model.end()
            except AssertionError as exc:
                failure = exc
            nursery.cancel_scope.cancel()
        return failure

    if (failure := run_solo(main).value) is not None:
        raise failure


def check_all() -> None:
    for seed in range(8):
        check(seed)


def test_answers_each_pull_once() -> None:
    check_all()


def test_finds_pulls_lost_with_a_recreated_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongPolls, "topic_recreated", lambda self, *queue: None)
    with pytest.raises(AssertionError, match="hold"):
        check_all()
