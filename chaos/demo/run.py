"""The plan of the demo, and its run."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Final, Literal

from rocketbed.chaos.backends.process.run import run_in_processes
from rocketbed.chaos.checks.judgement import Judgement, SecondJudge, clear_place, judge_run
from rocketbed.chaos.checks.result import CheckResult, judged, not_run
from rocketbed.chaos.demo.aims import aim_checks
from rocketbed.chaos.demo.old_store import (
    DemoError,
    OldStore,
    check_served,
    copy_store,
    read_old_store,
)
from rocketbed.chaos.evidence.history import read_history
from rocketbed.chaos.evidence.record import HISTORY_FILE, RunRecord
from rocketbed.chaos.plan.plan import MIB, Consumers, Plan, Producers, Shape
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.run.api import Backend
from rocketbed.chaos.run.conductor import OCCASIONS

SECONDS: Final = 10.0
SECONDS_MIN: Final = 6.0
RECOVERY_S: Final = 3.0
RUN: Final = "run"
"""Folder of the run below the report's."""
Flush = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    seed: int
    report: Path
    flush: Flush = "async"
    seconds: float = SECONDS
    """Seconds in which nodes are killed while producers write."""
    keep: bool = False
    """Keep stores, history and logs even if all is well."""
    store: Path | None = None
    """A store directory to begin with, which is copied."""


@dataclass(slots=True)
class DemoResult:
    judgement: Judgement
    record: RunRecord
    page: Path


def demo_plan(
    options: DemoOptions, *, prefix: str = "demo", settings: Mapping[str, str] | None = None
) -> Plan:
    """Return a plan with kills whose times and victims follow from the seed. Raises `DemoError`.

    The master stays away for a while: another one has to lead before it is back.
    """
    if not options.seconds >= SECONDS_MIN:
        raise DemoError(f"the kills need at least {SECONDS_MIN:g} seconds")
    random = Random(f"demo {options.seed}")

    def moment(low: float, high: float) -> str:
        return f"{random.uniform(low, high) * options.seconds:.3f}s"

    def pause() -> str:
        return f"{random.uniform(0.1, 0.5):.3f}s"

    victim = random.choice(("leader", "follower:any"))
    steps = (
        f"at {moment(0.1, 0.15)} kill b1 as master",
        f"after master+{0.2 * options.seconds:.3f}s restart @master",
        f"at {moment(0.5, 0.55)} kill follower:any for {pause()} as slave",
        f"at {moment(0.7, 0.8)} kill {victim} as victim",
        f"after victim+50ms crash @victim at mark store.recovery* for {pause()} as recovery",
        "after victim+100ms restart @victim",
    )
    return Plan(
        name="demo",
        seed=options.seed,
        shape=Shape(
            brokers=3,
            nameservers=1,
            flush=options.flush,
            repl="sync",
            min_isr=2,
            failover=True,
            segment=16 * MIB,
            settings={"flushIntervalConsumeQueue": "3600000", **(settings or {})},
        ),
        producers=Producers(
            count=4, rate=300.0, in_flight=8, topics=3, queues=4, prefix=prefix, timeout_s=5.0
        ),
        consumers=Consumers(count=2),
        steps=tuple(map(parse_step, steps)),
        faults_s=options.seconds,
        recovery_s=RECOVERY_S,
    )


class Guest:
    """A user's data that the cluster begins with."""

    def __init__(self, old: OldStore) -> None:
        self.old = old

    def settle(self, store: Path) -> None:
        """Put a copy into the first master's store directory. Raises `DemoError`."""
        copy_store(self.old.source, store)

    async def visit(self, when: str, backend: Backend) -> None:
        await check_served(backend.world, backend.nameservers(), "b", self.old, when)

    def check(self) -> CheckResult:
        """Check that all contents of the directory are served unchanged, every time."""
        name = "old-messages-served"
        if len(self.old.served) < len(OCCASIONS):
            missing = " and ".join(when for when in OCCASIONS if when not in self.old.served)
            return not_run(name, "old messages", f"they were not requested {missing}")
        note = ", ".join(f"{served} {when}" for when, served in self.old.served.items())
        return judged(name, self.old.messages, "old messages", self.old.findings, note)


def run_demo(
    options: DemoOptions,
    say: Callable[[str], None],
    *,
    second_judge: SecondJudge | None = None,
) -> DemoResult:
    """Run, judge, and write the page into the report's directory.

    `second_judge` adds a check to the judgement. Raises `DemoError`, `ScenarioError`, `HostError`,
    `OSError`.
    """
    guest = None
    plan = demo_plan(options)
    if options.store is not None:
        old = read_old_store(options.store)
        held = f"{old.messages} messages in {len(old.queues)} queues"
        say(f"{options.store}: {held}, log up to {old.log_end}")
        guest = Guest(old)
        plan = demo_plan(options, prefix=free_prefix(old.topics), settings=old.settings)
    directory = options.report / RUN
    clear_place(directory)
    directory.mkdir(parents=True)
    record = run_in_processes(plan, directory, net="plain", say=say, guest=guest)
    say("checking")
    judgement = judge_run(directory)
    aims = aim_checks(read_history(directory / HISTORY_FILE), record)
    judgement.results += aims
    if guest is not None:
        judgement.results.append(guest.check())
    if second_judge is not None:
        judgement.results.append(second_judge(directory, judgement))
    page = write_report(directory, judgement, record, repeat_command=command_again(options))
    if not options.keep and judgement.exit_code == 0:
        for name in ("stores", "images", "nodes"):
            shutil.rmtree(directory / name, ignore_errors=True)
    return DemoResult(judgement, record, page)


def command_again(options: DemoOptions) -> str:
    """Return the command that repeats the run."""
    command = f"rocketbed demo --seed {options.seed} --flush {options.flush}"
    command += f" --seconds {options.seconds:g}"
    return command if options.store is None else f"{command} --store {options.store}"


def free_prefix(topics: set[str]) -> str:
    """Return a prefix of topic names that none of these have: `demo`, `demo2`, ..."""
    prefixes = chain(["demo"], (f"demo{number}" for number in count(2)))
    return next(
        prefix for prefix in prefixes if not any(topic.startswith(f"{prefix}-") for topic in topics)
    )
