"""The trial's producers against simulated nodes: they write until all is acknowledged."""

from collections import Counter
from pathlib import Path

import trio

from chaos.demo.load import Load
from chaos.demo.plan import DemoPlan, make_plan
from chaos.history import Function, History, HistoryWriter, Outcome, Row, read_history
from rocketbed.client.admin import Admin
from rocketbed.world.api import World
from tests.sim.client_cluster import NAMESERVERS, SimCluster

MESSAGES = 600


class Trial:
    """A load in a simulated program, and its history."""

    def __init__(self, path: Path, plan: DemoPlan) -> None:
        self.path = path
        self.plan = plan
        self.load: Load | None = None
        self.limit = plan.messages

    async def main(self, world: World) -> None:
        async with Admin(world, nameservers=NAMESERVERS) as admin:
            for topic in self.plan.topics:
                await admin.create_topic(topic.name, queues=topic.queues)
        with HistoryWriter(self.path, lambda: int(trio.current_time() * 1e9)) as history:
            self.load = Load(world, self.plan, history, NAMESERVERS)
            self.load.limit(self.limit)
            await self.load.run()

    def acknowledged(self) -> int:
        return 0 if self.load is None else self.load.counts.acknowledged


def messages(history: History, *outcomes: Outcome) -> Counter[tuple[int, int]]:
    """Attempts with these outcomes, by operation and length (which tell a message apart)."""
    return Counter((row.operation, row.length) for row in history.rows() if row.outcome in outcomes)


def places(history: History) -> list[tuple[str, int, int]]:
    return [
        (history.topic(row), row.queue, row.queue_offset)
        for row in history.rows()
        if row.outcome == Outcome.OK
    ]


def unfinished(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.returned_ns < row.invoked_ns]


def test_everything_is_acknowledged_over_the_death_of_the_master(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "history", make_plan(seed=1, messages=MESSAGES))
    with SimCluster(seed=3) as cluster:
        cluster.start("a-0", "a-1", "a-2", sync=True)
        cluster.simulation.run(2)
        program = cluster.program(trial.main)
        cluster.simulation.run(60, until=lambda: trial.acknowledged() > 200)
        assert 200 < trial.acknowledged() < MESSAGES
        cluster.simulation.kill("a-0")
        cluster.simulation.run(1)
        cluster.start("a-0", sync=True)
        cluster.simulation.run_process(program, 120)
    assert trial.load is not None
    counts = trial.load.counts
    assert counts.acknowledged == counts.begun == MESSAGES
    assert not counts.under_way
    history = read_history(trial.path)
    rows = list(history.rows())
    assert history.cut is None
    assert not unfinished(rows)
    assert {row.function for row in rows} == {Function.SEND}
    assert len({row.value for row in rows}) == len(rows), "a value for each attempt"
    assert len(places(history)) == len(set(places(history))) == MESSAGES
    assert sum(messages(history, Outcome.OK).values()) == MESSAGES
    assert counts.refused + counts.unknown + counts.weak > 0, "the kill met nothing"
    again = messages(history, Outcome.FAIL, Outcome.INFO, Outcome.WEAK)
    assert set(again) <= set(messages(history, Outcome.OK)), "each was sent again in the end"
    assert len(trial.load.keys) == 40


def test_producers_wait_at_a_limit_and_go_on_when_it_is_raised(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "history", make_plan(seed=2, messages=MESSAGES))
    trial.limit = 300
    with SimCluster() as cluster:
        cluster.start("a-0")
        cluster.simulation.run(1)
        program = cluster.program(trial.main)
        cluster.simulation.run(30)
        load = trial.load
        assert load is not None
        most = 300 + trial.plan.producers * trial.plan.in_flight * trial.plan.batch_max
        assert 300 <= load.counts.acknowledged == load.counts.begun < most
        program.call(load.limit, MESSAGES)
        cluster.simulation.run_process(program, 60)
        assert load.counts.acknowledged == MESSAGES
        ((began, ended),) = load.holds
        assert 20 < ended - began < 31
