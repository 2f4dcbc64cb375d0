"""A run with a live page, from its first process to its verdict; its steps are kept as a plan.

Unlike other runs it lives in the command's own process, as a person watches it. Ctrl-C ends the
fault phase; a second one (and SIGTERM at any time) ends the run, with everything cleaned up.
"""

import gc
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from rocketbed.chaos.checks.judgement import Judgement, judge_run
from rocketbed.chaos.evidence.record import RunRecord
from rocketbed.chaos.live.attendant import RunAttendant
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.server import LiveServer
from rocketbed.chaos.plan.dump import plan_to_toml
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.report.page import WORDS, write_report
from rocketbed.chaos.run.conductor import Attendant
from rocketbed.chaos.search.campaign import run_key
from rocketbed.chaos.search.failures import explain
from rocketbed.chaos.search.replay import Replay, save_replay
from rocketbed.chaos.search.runner import BackendName, Outcome, Say
from rocketbed.world.api import World
from rocketbed.world.real import real_world

ABORT: Final = (signal.SIGTERM, signal.SIGHUP)
LOOKING_S: Final = 5.0
"""Time for which a browser may be away (a reload) without ending the page, once there is a
verdict."""

SHOW_S: Final = 0.2
"""Interval of updates while the run is judged."""

RunPlan = Callable[[Plan, Path, Say, Attendant], Awaitable[RunRecord]]
"""Runs a plan in a directory, with an attendant. Raises `HostError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    directory: Path
    """The run's own directory; exists and is empty."""
    scenario: Path
    """File for the steps of the run, as a scenario (TOML)."""
    replay: Path
    """File for the same as a replay file."""

    @classmethod
    def of(cls, report: Path, plan: Plan, backend: BackendName) -> "Place":
        """Return the places beside the directory of the run, since a later run of that name clears
        it."""
        key = run_key(plan)
        return cls(
            directory=report / f"{key}-{backend}",
            scenario=report / f"LIVE-{key}.toml",
            replay=report / f"LIVE-{key}.rbx",
        )


@dataclass(slots=True)
class _Session:
    outcome: Outcome
    interrupted: bool = False
    looking: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Scope of the time in which only the page is left."""


def run_live(
    plan: Plan,
    place: Place,
    run: RunPlan,
    *,
    backend: BackendName,
    software: str = "",
    say: Say,
    port: int = 0,
) -> Outcome:
    """Run and judge a plan whose fault phase ends on request.

    `software` is the page's name for foreign software under test. The outcome's plan contains what
    was done. Raises `KeyboardInterrupt` for an aborted run, `LiveError` if the page cannot be
    served, `OSError` if files cannot be written.
    """
    description = f"{backend} · {software}" if software else backend
    attendant = RunAttendant(plan, Feed(), description)
    session = _Session(Outcome(plan=plan, backend=backend, directory=place.directory))
    gc.collect()
    gc.freeze()  # imported objects stay, and need not be scanned again and again
    trio.run(_session, session, attendant, place, run, say, port)
    if session.interrupted:
        raise KeyboardInterrupt
    return session.outcome


async def _session(
    session: _Session, attendant: RunAttendant, place: Place, run: RunPlan, say: Say, port: int
) -> None:
    feed = attendant.feed
    world = real_world("live")
    server = LiveServer(world, feed, attendant)
    address = await server.listen(port)
    async with trio.open_nursery() as nursery:
        await nursery.start(_signals, session, attendant, nursery.cancel_scope)
        nursery.start_soon(server.serve)
        say(f"live page: {address}")
        try:
            record = await run(session.outcome.plan, place.directory, say, attendant)
            session.outcome.plan = attendant.session()
            _phase(feed, "judging")
            judgement = await _judge(feed, world, place.directory)
            await world.offloader.run(_write, session, place, record, judgement)
            server.files["/report"] = place.directory / "index.html"
            server.files["/session.toml"] = place.scenario
            verdict = str(judgement.verdict)
            row = {
                "verdict": verdict,
                "sentence": WORDS.get(verdict, ""),
                "findings": [result.id for result in judgement.findings],
                "report": "/report",
                "session": "/session.toml",
            }
            feed.put("verdict", row)
        except Exception as error:
            session.outcome.error = explain(error)
            text = session.outcome.error.strip().splitlines()[-1]
            feed.put("verdict", {"verdict": "harness-error", "sentence": text, "findings": []})
        _phase(feed, "over")
        if feed.readers:
            say("the page stays up until you close it or press Ctrl-C")
            with session.looking:
                await feed.wait_nobody(LOOKING_S)
        nursery.cancel_scope.cancel()


async def _judge(feed: Feed, world: World, directory: Path) -> Judgement:
    """Judge a run in a thread, and show the progress."""
    state = (0, 0, "reading what the run left behind")

    def progress(done: int, total: int, check: str) -> None:
        nonlocal state
        state = done, total, check

    async def show() -> None:
        start = trio.current_time()
        while True:
            done, total, check = state
            elapsed_s = int(trio.current_time() - start)
            feed.put("judging", {"done": done, "of": total, "check": check, "s": elapsed_s})
            await trio.sleep(SHOW_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(show)
        judge = partial(judge_run, directory, progress=progress)
        judgement: Judgement = await world.offloader.run(judge)
        nursery.cancel_scope.cancel()
    return judgement


def _write(session: _Session, place: Place, record: RunRecord, judgement: Judgement) -> None:
    outcome = session.outcome
    outcome.record, outcome.judgement = record, judgement
    judgement.save(place.directory)
    save_replay(Replay.of(outcome), place.replay)
    description = "The faults that were injected by hand in a live run"
    place.scenario.write_text(plan_to_toml(outcome.plan, description=description), encoding="utf-8")
    write_report(
        place.directory, judgement, record, repeat_command=f"rocketbed chaos replay {place.replay}"
    )


def _phase(feed: Feed, name: str) -> None:
    feed.put("phase", {**(feed.get("phase") or {}), "name": name})


async def _signals(
    session: _Session,
    attendant: RunAttendant,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, *ABORT) as signals:
        task_status.started()
        async for number in signals:
            is_over = session.outcome.judgement is not None or session.outcome.error
            if number == signal.SIGINT and is_over:
                session.looking.cancel()
            elif number in ABORT or not attendant.end_faults():
                session.interrupted = True
                scope.cancel()
