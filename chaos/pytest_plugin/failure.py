"""Handling of a failure: a smaller run that fails alike, a file that repeats it, a story.

The steps of a test are the body's own, so in a smaller plan some of the body's calls do nothing;
fault phases lose steps as those of a scenario do, and the background faults go. A replay file has
the steps that are left out, and the steps of fault phases in place of the draw from the seed; the
cluster is that of the failure, even if the marks have changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.plan import Background, Plan
from rocketbed.chaos.plan.step import Step, parse_step
from rocketbed.chaos.pytest_plugin.spec import Choice, RunResult, RunSpec
from rocketbed.chaos.search.replay import (
    PlanResult,
    Replay,
    TestPart,
    changed_versions,
    read_backend,
    read_replay,
    versions,
)
from rocketbed.chaos.search.shrink import Budget, Shrunk, shrink_plan

RUNS: Final = 60
SECONDS: Final = 30.0
TRIES: Final = 3
"""Runs of each candidate outside the simulation; one of them has to fail the same way."""
STEPS_MAX: Final = 12
IGNORE: Final = ".gitignore"


def shrink_test(
    spec: RunSpec,
    result: RunResult,
    run: Callable[[RunSpec], RunResult],
) -> tuple[RunSpec, RunResult, Shrunk]:
    """Return the smallest run that fails with the signature of `result`, and its last result."""
    tries = 1 if spec.backend == "sim" else TRIES
    steps = _steps(result)
    latest: list[tuple[Plan, RunResult]] = []

    def probe(plans: Sequence[Plan]) -> list[bool]:
        return [any(fails(plan) for _ in range(tries)) for plan in plans]

    def fails(plan: Plan) -> bool:
        tried = run(_spec_of(spec, plan, steps))
        if tried.signature != result.signature:
            return False
        latest.append((plan, tried))
        return True

    plan = replace(spec.plan, steps=steps, faults_s=1.0, recovery_s=1.0)
    shrunk = shrink_plan(
        plan, result.signature, probe, concrete=steps, budget=Budget(RUNS, SECONDS), width=1
    )
    if not shrunk.reproduced:
        return spec, result, shrunk
    last = next(tried for plan, tried in reversed(latest) if plan == shrunk.plan)
    return _spec_of(spec, shrunk.plan, steps), last, shrunk


def replay_of_run(node: str, spec: RunSpec, result: RunResult) -> Replay:
    """Return the replay of a run of the test `node`."""
    left_out = tuple(sorted(spec.choice.left_out))
    return Replay(
        plan=spec.plan,
        taken=PlanResult(verdict=result.kind, digest=result.digest, steps=tuple(result.done)),
        backend=read_backend(spec.backend),
        repro="exact" if spec.backend == "sim" else "schedule",
        finding=result.signature,
        test=TestPart(node=node, left_out=left_out, fault_phases=dict(result.fault_phases)),
        versions=versions(),
    )


def load_test_replay(path: Path) -> tuple[Replay, TestPart]:
    """Read a replay file. Raises `ScenarioError` if it is not one, or not of a test."""
    replay = read_replay(path)
    if replay.test is None:
        raise ScenarioError(
            f"{path}: this file belongs to a scenario, not to a test: rocketbed chaos replay {path}"
        )
    return replay, replay.test


def repeated(spec: RunSpec, replay: Replay, test: TestPart) -> RunSpec:
    """Return the run of a file, as a run of the same test."""
    choice = Choice(left_out=frozenset(test.left_out), fault_phases=dict(test.fault_phases))
    return replace(spec, backend=replay.backend, plan=replay.plan, choice=choice)


def compared(replay: Replay, result: RunResult) -> str:
    """Return how a run of a file compares with the failure, in words."""
    if result.kind == "passed":
        return f"the replay passed; the file has {replay.finding}"
    if result.signature != replay.finding:
        return f"the replay failed in another way: {result.signature}, not {replay.finding}"
    digest = replay.taken.digest
    if not digest:
        return "the replay failed in the same way"
    if result.digest == digest:
        return f"the replay is identical to the last event ({digest})"
    why = changed_versions(replay) or ", so the test has changed"
    return f"the replay failed in the same way, by a different sequence of events{why}"


def tell_story(spec: RunSpec, result: RunResult, notes: Sequence[str]) -> list[str]:
    """Return lines for a reader, the most wanted first."""
    time = f"{result.simulated_s:.1f} s simulated in " if result.simulated_s else ""
    return [
        f"seed {spec.plan.seed} on {spec.backend}, {time}{result.wall_s:.2f} s",
        f"cluster: {_cluster(spec.plan)}",
        f"steps:   {_step_list(result.done)}",
        f"failed:  {_cause(result)}",
        *notes,
    ]


def ignore_all(directory: Path) -> None:
    """Keep the files of tests out of version control, unless the user has decided otherwise."""
    if directory.name == ".rocketbed" and not (directory / IGNORE).exists():
        (directory / IGNORE).write_text("*\n", encoding="utf-8")


# --- inside


def _steps(result: RunResult) -> tuple[Step, ...]:
    """Return all steps, labelled by origin: `n3` the body's third, `w1` a fault phase's."""
    steps = [
        replace(parse_step(f"at 0s {text}"), for_s=None, label=f"n{number}")
        for number, text in result.steps
    ]
    for phase, texts in result.fault_phases.items():
        for place, text in enumerate(texts):
            step = parse_step(text)
            steps.append(step if step.label else replace(step, label=f"w{phase}s{place}"))
    return tuple(steps)


def _spec_of(spec: RunSpec, plan: Plan, all_steps: tuple[Step, ...]) -> RunSpec:
    """Return the run for a plan of the shrinker."""
    labels = {step.label for step in plan.steps}
    left_out = {
        int(step.label[1:])
        for step in all_steps
        if step.label.startswith("n") and step.label not in labels
    }
    fault_phases: dict[int, tuple[str, ...]] = {
        _phase_number(step): () for step in all_steps if step.label.startswith("w")
    }
    for step in plan.steps:
        if step.label.startswith("w"):
            fault_phases[_phase_number(step)] = (*fault_phases[_phase_number(step)], str(step))
    return replace(
        spec,
        plan=replace(spec.plan, background=plan.background),
        choice=Choice(left_out=spec.choice.left_out | left_out, fault_phases=fault_phases),
    )


def _phase_number(step: Step) -> int:
    digits = step.label[1:].partition("e")[0].partition("s")[0]
    return int(digits)


def _cluster(plan: Plan) -> str:
    shape = plan.shape
    groups = f"{shape.groups} groups of " if shape.groups > 1 else ""
    copies = f"{shape.copies} copies" if shape.copies > 1 else "1 copy"
    is_plain = plan.background == Background()
    background = "no background faults" if is_plain else "background faults chosen by the seed"
    nodes = "node" if shape.brokers == 1 else "nodes"
    return f"{groups}{shape.brokers} {nodes}, {shape.flush} flush, {copies}, {background}"


def _step_list(done: Sequence[str]) -> str:
    steps = "; ".join(done[:STEPS_MAX])
    more = f"; and {len(done) - STEPS_MAX} more" if len(done) > STEPS_MAX else ""
    return f"{steps}{more}" or "none"


def _cause(result: RunResult) -> str:
    kind, _, detail = result.signature.partition(":")
    if kind == "checks":
        return f"checks {detail}" if detail else "checks could not tell"
    if not detail:
        return kind
    return f"{kind} in line {detail}" if detail != "0" else kind
