"""Buttons of a run, pressed in a simulation: each is a step, and all of them can be run again."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.chaos.backends.sim.run import run_in_simulation
from rocketbed.chaos.evidence.history import Function, read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord, read_record
from rocketbed.chaos.live.attendant import RunAttendant
from rocketbed.chaos.live.console import ACTIONS, Console
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.picture import action_of
from rocketbed.chaos.live.server import Refused
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import At, parse_step
from rocketbed.chaos.plan.toml import read_file
from rocketbed.chaos.report.story import story_of
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.conductor import Company, Conductor
from rocketbed.chaos.search.replay import Replay, load_replay, save_replay
from rocketbed.chaos.search.runner import Outcome

pytestmark = pytest.mark.slow
Script = Callable[["Hands"], Awaitable[None]]
QUIET = Plan(
    name="by-hand",
    seed=5,
    shape=Shape(nameservers=1),
    producers=Producers(count=1, rate=20),
    consumers=Consumers(count=1),
    faults_s=2.0,
    recovery_s=2.0,
)


class Hands(RunAttendant):
    """Somebody who follows a script, then ends the fault phase."""

    def __init__(self, plan: Plan, script: Script) -> None:
        super().__init__(plan, Feed(), "sim")
        self._script = script

    async def attend(self, conductor: Conductor) -> None:
        self.conductor = conductor
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().attend, conductor)
            await until(conductor, lambda phase: phase == "faults")
            await self._script(self)
            self.end_faults()

    async def refusal(self, action: str, name: str) -> str:
        """Return the reason why a button does nothing."""
        with pytest.raises(Refused) as caught:
            await self.press(action, name)
        return str(caught.value)

    def values(self, kind: str) -> list[dict[str, Any]]:
        """Numbered values of the feed."""
        values = self.feed.since(0).items()
        return [value for key, value in values if key.startswith(f"{kind}:")]


async def until(conductor: Conductor, is_there: Callable[[str], bool]) -> None:
    """Wait for a phase, in simulated time."""
    while True:
        if is_there(conductor.phase):
            return
        await trio.sleep(0.05)


def run(directory: Path, script: Script, plan: Plan = QUIET) -> tuple[RunRecord, Hands]:
    directory.mkdir()
    hands = Hands(plan, script)

    def attended(plan: Plan, backend: Backend, company: Company) -> Conductor:
        return Conductor(plan, backend, replace(company, attendant=hands))

    record, _ = run_in_simulation(plan, directory, conductor=attended)
    return record, hands


def faults(directory: Path) -> dict[tuple[str, str], float]:
    """Return the faults by node, and those that were undone: seconds since the load began."""
    history = read_history(directory / HISTORY_FILE)
    zero_ns = read_record(directory).facts["zero_ns"]
    return {
        (event.kind, action_of(event.fields["step"]).split(" for ")[0]): (event.time_ns - zero_ns)
        / 1e9
        for event in history.events
        if event.function == Function.NEMESIS and "targets" in event.fields
    }


async def break_a_lot(hands: Hands) -> None:
    await trio.sleep(1)
    await hands.press("kill", "b3")
    await trio.sleep(1.5)
    await hands.press("start", "b3")
    await hands.press("pause", "b2")
    await trio.sleep(0.5)
    await hands.press("resume", "b2")
    await trio.sleep(4)
    await hands.press("cut", "b1")
    await trio.sleep(0.25)
    await hands.press("heal", "b1")
    await trio.sleep(3)
    await hands.press("powercut", "b3")
    await hands.press("kill", "ns1")
    await trio.sleep(1)
    await hands.press("promote", "b2")
    await trio.sleep(1)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord, Hands]:
    """A run in which much was broken by hand."""
    directory = tmp_path_factory.mktemp("live") / "run"
    record, hands = run(directory, break_a_lot)
    return directory, record, hands


@pytest.mark.ci
def test_pressed_buttons_are_steps_of_the_plan(broken: tuple[Path, RunRecord, Hands]) -> None:
    _, record, hands = broken
    session = hands.session()
    done = [step.action() for step in session.steps]
    assert [words.split(" for ")[0] for words in done] == [
        "kill b3",
        "pause b2",
        "isolate b1",
        "powercut b3",
        "kill ns1",
        "promote b2",
    ]
    lasted = {step.verb: step.for_s for step in session.steps[:3]}
    assert lasted == {
        "kill": pytest.approx(1.5, abs=0.1),
        "pause": pytest.approx(0.5, abs=0.01),
        "isolate": pytest.approx(0.25, abs=0.01),
    }
    assert [step.for_s for step in session.steps[3:]] == [None, None, None]
    assert session.faults_s == pytest.approx(
        record.recovery_ns / 1e9 - record.facts["zero_ns"] / 1e9, 0.1
    )
    assert not record.stalls


def test_plan_repeats_actions_at_the_same_times(
    broken: tuple[Path, RunRecord, Hands], tmp_path: Path
) -> None:
    directory, _, hands = broken
    second_directory = tmp_path / "again"
    second_directory.mkdir()
    run_in_simulation(hands.session(), second_directory)
    first, second = faults(directory), faults(second_directory)
    assert len(second) == 9
    assert set(second) <= set(first)
    for key, time_s in second.items():
        assert time_s == pytest.approx(first[key], abs=0.1), key


def test_session_is_kept_as_scenario_and_replay(
    broken: tuple[Path, RunRecord, Hands], tmp_path: Path
) -> None:
    plan = broken[2].session()
    scenario = tmp_path / "by-hand.toml"
    scenario.write_text(plan_to_toml(plan, description="by hand"))
    read = read_file(scenario).plan(plan.seed, "process")
    assert (read.steps, read.faults_s, read.shape) == (plan.steps, plan.faults_s, plan.shape)
    outcome = Outcome(plan=plan, backend="process", record=broken[1])
    save_replay(Replay.of(outcome), tmp_path / "by-hand.rbx")
    assert load_replay(tmp_path / "by-hand.rbx").plan == plan


def test_bands_last_as_long_as_the_faults(broken: tuple[Path, RunRecord, Hands]) -> None:
    directory, record, hands = broken
    spans = [span for span in hands.values("span") if span["kind"] == "fault"]
    assert all(span["hand"] for span in spans)
    assert all(span["end"] is not None for span in spans)
    story = story_of(record, read_history(directory / HISTORY_FILE))
    drawn = [bar for bars in story.faulted.values() for bar in bars if bar.kind != "kill"]
    bars = {bar.kind: bar.end_s - bar.begin_s for bar in drawn}
    assert bars["pause"] == pytest.approx(0.5, abs=0.05)
    assert bars["isolate"] == pytest.approx(0.25, abs=0.05)
    assert bars["powercut"] > 1.5
    assert bars["promote"] == 0


def test_the_feed_tells_what_happened(broken: tuple[Path, RunRecord, Hands]) -> None:
    hands = broken[2]
    texts = [str(event["text"]) for event in hands.values("event")]
    for expected in (
        "kill b3", "b3 ended: kill", "over: kill b3", "b3 starts as slave", "b3 has recovered",
        "over: pause b2", "over: isolate b1", "b3 ended: powercut",
        "b2 becomes the master in place of b1", "all faults are healed", "faults", "recovery",
    ):  # fmt: skip
        assert expected in texts
    states = {span["kind"] for span in hands.values("span")}
    assert states >= {"master", "slave", "recovering", "paused", "down", "serving", "fault"}
    points = hands.values("point")
    assert sum(float(str(point["ok"])) for point in points) > 50
    assert hands.feed.get("at:b2")["written"] > 0
    assert hands.feed.get("machine:b2")["role"] == "master"


def test_a_button_that_makes_no_sense_says_why(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        assert await hands.refusal("start", "b1") == "start b1: it runs"
        assert await hands.refusal("resume", "b1") == "resume b1: it is not paused"
        assert await hands.refusal("heal", "b1") == "heal b1: none of its links has a fault"
        assert await hands.refusal("promote", "b1") == "promote b1: it is the master"
        assert "no data on disk" in await hands.refusal("powercut", "ns1")
        assert "no master" in await hands.refusal("promote", "ns1")
        assert "unknown machine" in await hands.refusal("kill", "producer-1")
        assert "unknown action" in await hands.refusal("explode", "b1")
        assert await hands.refusal("heal-all", "") == "no link or disk has a fault"
        await hands.press("kill", "b3")
        assert await hands.refusal("kill", "b3") == "kill b3: it is down"
        assert await hands.refusal("pause", "b3") == "pause b3: it is down"
        await hands.press("cut", "b2")
        assert await hands.refusal("cut", "b2") == "cut b2: it is cut off"
        await hands.press("end", "")
        await until(hands.conductor, lambda phase: phase != "faults")
        assert "the fault phase is over" in await hands.refusal("kill", "b2")
        assert "the fault phase is over" in await hands.refusal("end", "")

    record, hands = run(tmp_path / "run", script)
    assert len(hands.session().steps) == 2
    assert not record.crashes


def test_slave_behind_another_is_not_promoted(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        await hands.press("kill", "b3")
        await trio.sleep(2)
        await hands.press("kill", "b1")
        await hands.press("start", "b3")
        assert "b2 has" in await hands.refusal("promote", "b3")
        await hands.press("promote", "b2")
        await trio.sleep(1)

    record, hands = run(tmp_path / "run", script)
    assert "promote b2" in [step.action() for step in hands.session().steps]
    assert not record.stalls


def test_missing_backend_capability_is_the_reason_shown(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        lacks = hands.conductor.backend.lacks
        hands.conductor.backend.lacks = (  # type: ignore[method-assign]
            lambda capability: "no root" if capability == "disk.powercut" else lacks(capability)
        )
        reasons = Console(hands.conductor).reasons("b2")
        assert {action for action in ACTIONS if not reasons[action]} == {
            "kill", "pause", "cut", "promote",
        }  # fmt: skip
        assert await hands.refusal("powercut", "b2") == "powercut b2: no root"

    run(tmp_path / "run", script)


def test_promotion_is_disabled_with_a_controller(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        console = Console(hands.conductor)
        assert not console.reasons("b2")["promote"]
        hands.conductor.backend.elects = True  # type: ignore[misc]
        refusal = "promote b2: a controller elects the master here"
        assert await hands.refusal("promote", "b2") == refusal
        assert console.reasons("b1")["promote"] == "it is the master"
        hands.conductor.backend.elects = False  # type: ignore[misc]

    run(tmp_path / "run", script)


def test_scenario_steps_can_be_ended_by_hand(tmp_path: Path) -> None:
    texts = ("at 500ms partition b3 -> b1,b2 for 60s", "at 500ms kill b2 for 60s")
    plan = Plan(
        **{name: getattr(QUIET, name) for name in ("name", "seed", "shape", "producers")},
        steps=tuple(map(parse_step, texts)),
        faults_s=2.0,
        recovery_s=2.0,
    )

    async def script(hands: Hands) -> None:
        await trio.sleep(1.5)
        await hands.press("heal", "b3")
        await hands.press("start", "b2")
        await trio.sleep(1)

    record, hands = run(tmp_path / "run", script, plan)
    steps = hands.session().steps
    assert sorted(step.verb for step in steps) == ["kill", "partition"]
    for step in steps:
        assert step.for_s == pytest.approx(1.0, abs=0.1)
        assert isinstance(step.trigger, At)
    assert not record.stalls


def test_storm_lasts_until_its_steps_are_ended(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        await trio.sleep(10 * QUIET.faults_s)

    record, hands = run(tmp_path / "run", script)
    lasted_s = (record.recovery_ns - record.facts["zero_ns"]) / 1e9
    assert lasted_s == pytest.approx(10 * QUIET.faults_s, abs=0.2)
    assert hands.session().faults_s == pytest.approx(lasted_s, abs=0.01)


def test_start_by_others_ends_a_manual_kill(tmp_path: Path) -> None:
    async def script(hands: Hands) -> None:
        await trio.sleep(0.5)
        await hands.press("kill", "b3")
        await trio.sleep(0.5)
        await hands.conductor.members.start("b3")
        await trio.sleep(1)
        held = hands.conductor.schedule.held
        assert held == []
        await hands.press("kill", "b3")
        assert [one.step.action() for one in held] == ["kill b3"]

    _, hands = run(tmp_path / "run", script)
    spans = [span for span in hands.values("span") if span["kind"] == "fault"]
    assert [span["label"] for span in spans] == ["kill b3", "kill b3"]
    assert all(span["end"] is not None for span in spans)


@pytest.mark.parametrize("mode", ["group", "pull"])
def test_paused_readers_fall_behind_and_catch_up(tmp_path: Path, mode: str) -> None:
    """Both the page and the report show it."""
    consumers = Consumers(count=2, members=1, mode=mode)  # type: ignore[arg-type]
    steps = (parse_step("at 1s pause clients:consumers for 4s"),)
    plan = replace(QUIET, consumers=consumers, steps=steps, faults_s=6.0)

    async def script(hands: Hands) -> None:
        await trio.sleep(6)

    record, hands = run(tmp_path / "run", script, plan)
    points = [(point["t"], point["lag"]) for point in hands.values("point")]
    story = story_of(record, read_history(tmp_path / "run" / HISTORY_FILE))
    zero_s = record.facts["zero_ns"] / 1e9
    for lag in ([(time_s - zero_s, count) for time_s, count in points], story.lag):
        before = [count for time_s, count in lag if time_s < 1]
        paused = [count for time_s, count in lag if 1.5 < time_s < 5]
        assert max(before, default=0) < 10, before
        assert paused == sorted(paused)
        assert paused[-1] > 40, paused
        assert lag[-1][1] == 0
