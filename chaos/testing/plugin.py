"""What the plugin does for tests of ours: `rocketbed.testing` hands its hooks over to this.

A test is there once for each backend and seed. Its fixtures are set up by pytest as always; its
body is run by `chaos.testing.trial` in a forked process, and its failure is rendered there.
"""

import inspect
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from chaos.scenario.errors import ScenarioError
from chaos.scenario.units import parse_duration
from chaos.testing.blocking import BlockingCluster, StageThread
from chaos.testing.errors import BudgetSpent, ChecksFailed, ClusterFailed
from chaos.testing.fixtures import Deferred, is_deferred
from chaos.testing.longrepr import plain_longrepr, report_directory
from chaos.testing.order import Order, Told
from chaos.testing.performance import BUDGET
from chaos.testing.places import missing_for
from chaos.testing.replay import TestReplay, load_test_replay, make_replay, save_test_replay
from chaos.testing.shrinking import shrink_order
from chaos.testing.story import ignore_all, tell_story
from chaos.testing.trial import Trial
from chaos.testing.wishes import Wishes, check_count, read_backends, read_needs, read_wishes
from rocketbed.names import HiddenName, refuse_hidden

TRIAL: Final = "_rb_trial"
KEEPS: Final = ("failed", "all", "none")
TOLD: Final = pytest.StashKey[Told]()
STORY: Final = pytest.StashKey[list[str]]()
REPLAY: Final = pytest.StashKey[TestReplay]()
NOTES: Final = pytest.StashKey[list[str]]()
MISSING: Final = pytest.StashKey[dict[str, str | None]]()
"""Backend -> why it cannot be used here."""
SHRUNK: Final = pytest.StashKey[set[str]]()
"""Tests of which a failure was shrunk already: one of each is enough."""
PLAIN: Final = (ChecksFailed, ClusterFailed, BudgetSpent)
"""Errors that tell all in their text: a traceback would only show our own code."""


class RunFailed(Exception):
    """Stands for an error that cannot leave the process of its run; the real one is shown."""


# --- options


def check_options(config: pytest.Config) -> None:
    """Raises `pytest.UsageError` for an option that cannot be used."""
    try:
        if (text := config.getoption("rb_backend")) is not None:
            read_backends(text)
        for name in ("rb_seeds", "rb_seed"):
            _number(config, name)
        budget_s(config)
        _replay(config)
    except ScenarioError as error:
        raise pytest.UsageError(str(error)) from None
    keep = config.getoption("rb_keep")
    if keep not in KEEPS:
        raise pytest.UsageError(f"--rb-keep {keep}: it is one of {', '.join(KEEPS)}")


def budget_s(config: pytest.Config) -> float:
    """Real seconds of one run. Raises `ScenarioError`."""
    text = str(config.getoption("rb_budget"))
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ScenarioError(f"--rb-budget: {error}") from None
    if seconds <= 0:
        raise ScenarioError(f"--rb-budget {text}: it has to be above 0")
    return seconds


def _number(config: pytest.Config, name: str) -> int | None:
    text = config.getoption(name)
    if text is None:
        return None
    option = f"--{name.replace('_', '-')}"
    try:
        number = int(text)
    except ValueError:
        raise ScenarioError(f"{option} {text}: it is a whole number") from None
    if name == "rb_seeds":
        check_count(f"{option} {text}", number)
    return number


def _replay(config: pytest.Config) -> TestReplay | None:
    """The file of `--rb-replay`. Raises `ScenarioError`."""
    text = config.getoption("rb_replay")
    if text is None:
        return None
    if REPLAY not in config.stash:
        config.stash[REPLAY] = load_test_replay(Path(text))
    return config.stash[REPLAY]


# --- collection


def generate(metafunc: pytest.Metafunc) -> None:
    """Backends and seeds of one test function."""
    try:
        pairs = _pairs(metafunc.definition, metafunc.config)
    except ScenarioError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None
    ids = [f"{backend}-{seed}" for backend, seed in pairs]
    metafunc.parametrize(("rb_backend", "rb_seed"), pairs, indirect=True, ids=ids)


def _pairs(item: pytest.Item, config: pytest.Config) -> list[tuple[str, int]]:
    wishes = wishes_of(item)
    needs_of(item)
    replay = _replay(config)
    if replay is not None:
        return [(replay.backend, replay.seed)]
    backends = _backends(item, config)
    counts = {backend: wishes.seed_count(backend) for backend in backends}
    for mark in item.iter_markers("rb_seeds"):
        if len(mark.args) != 1 or mark.kwargs:
            raise ScenarioError("the mark rb_seeds takes one number: rb_seeds(20)")
        check_count(f"rb_seeds({mark.args[0]!r})", mark.args[0])
        counts = dict.fromkeys(backends, mark.args[0])
        break
    count, first = _number(config, "rb_seeds"), _number(config, "rb_seed")
    if count is None and first is not None:
        count = 1
    if count is not None:
        counts = dict.fromkeys(backends, count)
    begin = 1 if first is None else first
    return [(backend, begin + number) for backend in backends for number in range(counts[backend])]


def _backends(item: pytest.Item, config: pytest.Config) -> list[str]:
    """Those of the mark, as far as the option wants them; the option's without a mark."""
    option = config.getoption("rb_backend")
    wanted = None if option is None else read_backends(option)
    marked: list[str] | None = None
    for mark in item.iter_markers("rb_backend"):
        marked = read_backends(",".join(map(str, mark.args)))
        break
    if marked is not None and wanted is not None:
        return [name for name in marked if name in wanted] or marked
    if marked is None and wanted is None:
        return ["sim"] if _is_async(item) else ["process"]
    return wanted or marked or []


def wishes_of(item: pytest.Item) -> Wishes:
    """What its marks ask for. Raises `ScenarioError`."""
    marks = list(item.iter_markers("rocketbed"))
    return read_wishes((mark.args, mark.kwargs) for mark in reversed(marks))


def needs_of(item: pytest.Item) -> tuple[str, ...]:
    """Capabilities of its marks. Raises `ScenarioError`."""
    return read_needs(name for mark in item.iter_markers("rb_needs") for name in mark.args)


def _is_async(item: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(item.obj))


def collected(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nobody else is to run what is ours."""
    try:
        refuse_hidden()
    except HiddenName as error:
        raise pytest.UsageError(str(error)) from None
    for item in items:
        if TRIAL in getattr(item, "fixturenames", ()):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "trio"]
    replay = _replay(config)
    if replay is not None:
        chosen = [item for item in items if item.nodeid == replay.node]
        if not chosen:
            raise pytest.UsageError(
                f"--rb-replay {config.getoption('rb_replay')}: it is of {replay.node}, which is"
                " not among the tests that were collected"
            )
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


# --- fixtures


def make_trial(request: pytest.FixtureRequest, backend: str, seed: int) -> Trial:
    """The value of the fixture behind all others."""
    item: Any = request.node
    is_async = _is_async(item)
    if backend == "sim" and not is_async:
        pytest.skip(
            "a test that is a plain function cannot run in simulation: its body would have to"
            " stand still for the cluster to go on; make it async, or choose --rb-backend process"
        )
    known = request.config.stash.setdefault(MISSING, {})
    if backend not in known:
        known[backend] = missing_for(backend)
    if (reason := known[backend]) is not None:
        pytest.skip(f"no cluster on {backend}: {reason}")
    wishes = wishes_of(item)
    order = Order(
        test=item.nodeid.partition("[")[0],
        backend=backend,
        seed=seed,
        wishes=wishes,
        plan=wishes.plan(item.originalname, seed, needs_of(item)),
        budget_s=budget_s(request.config),
    )
    replay = _replay(request.config)
    if replay is not None:
        order = replay.order(order)
    name = _file_name(item)
    directory = report_directory(request.config) / name
    return Trial(order, item.obj, str(item.path), directory, is_async=is_async)


def _file_name(item: pytest.Item) -> str:
    """Of what a run of a test leaves behind: the part of its id behind the file, in plain signs."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid.partition("::")[2]).strip("-")


def fixture(fixturedef: "pytest.FixtureDef[Any]", request: pytest.FixtureRequest) -> object:
    """A stand-in for a fixture that runs where the body does; None for all others."""
    arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
    if not is_deferred(fixturedef.func, arguments):
        return None
    stand_in = Deferred(fixturedef.argname, fixturedef.func, arguments)
    fixturedef.cached_result = (stand_in, fixturedef.cache_key(request), None)  # type: ignore[arg-type]
    return stand_in


@contextmanager
def module_cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """A cluster for a module, on real processes, in a thread of pytest's own process."""
    import tempfile

    item: Any = request.node
    wishes = read_wishes(
        (mark.args, mark.kwargs) for mark in reversed(list(item.iter_markers("rocketbed")))
    )
    plan = wishes.plan(Path(item.name).stem, 1, needs_of(item))
    order = Order(
        test=item.nodeid, backend="process", seed=1, wishes=wishes, plan=plan, budget_s=0.0
    )
    with tempfile.TemporaryDirectory(prefix="rocketbed-") as place:
        thread = StageThread(order, Path(place))
        cluster = BlockingCluster()
        try:
            if thread.start():
                cluster.bind(thread)
                yield cluster
        finally:
            cluster.bind(None)
            told, error = thread.finish()
        if told.kind == "skipped":
            pytest.skip(told.reason)
        if error is not None:
            raise error


# --- running


def call(item: Any) -> None:
    """Run the body of a test; raises what it raised."""
    __tracebackhide__ = True
    refuse_hidden()
    trial: Trial = item.funcargs[TRIAL]
    names = item._fixtureinfo.argnames
    arguments = {name: item.funcargs[name] for name in names}
    config = item.config
    if config.getoption("usepdb") or config.getoption("trace"):
        told, error = trial.run_here(arguments)
        _raise(item, told, error)
        return
    keep = config.getoption("rb_keep")

    def kept(told: Told) -> bool:
        return keep == "all" or (keep == "failed" and told.kind in ("failed", "broken"))

    def finish(told: Told, error: BaseException) -> None:
        render(item, told, error)

    told = trial.run_forked(arguments, finish, keep=kept)
    if told.kind == "failed":
        item.stash[STORY] = _look_into(item, trial, arguments, told)
    elif (replay := _replay(config)) is not None:
        config.stash.setdefault(NOTES, []).append(f"{replay.node}: {replay.compared(told)}")
    _raise(item, told, told.error)


def _look_into(item: pytest.Item, trial: Trial, arguments: dict[str, Any], told: Told) -> list[str]:
    """Shrink a failure and write its replay file; what is to be said about it."""
    config, order = item.config, trial.order
    replay = _replay(config)
    if replay is not None:
        return tell_story(order, told, [replay.compared(told)])
    wanted = config.getoption("rb_shrink")
    done = config.stash.setdefault(SHRUNK, set())
    is_first = order.test not in done
    may = wanted if wanted is not None else order.backend == "sim" and is_first
    notes: list[str] = []
    if may and told.signature != BUDGET:
        done.add(order.test)

        def run(tried: Order) -> Told:
            return trial.run_forked(arguments, lambda told, error: None, order=tried)

        shrunk = shrink_order(order, told, run)
        if shrunk.reproduced:
            order, told = shrunk.order, shrunk.told
            notes.append(
                f"shrunk from {shrunk.steps_before} to {shrunk.steps_after} steps in"
                f" {shrunk.runs} runs"
            )
        else:
            notes.append("it did not come again when it was tried once more")
    path = report_directory(config) / f"FAIL-{_file_name(item)}.rbx"
    try:
        save_test_replay(make_replay(item.nodeid, order, told), path)
        ignore_all(path.parent)
    except OSError as error:
        return tell_story(order, told, [*notes, f"no replay file could be written: {error}"])
    test = shlex.quote(item.nodeid.partition("[")[0])
    shown = os.path.relpath(path)
    return tell_story(order, told, [*notes, f"replay: pytest {test} --rb-replay {shown}"])


def render(item: pytest.Item, told: Told, error: BaseException) -> None:
    """Fill in how pytest shows an error; called where it was raised."""
    if isinstance(error, pytest.skip.Exception):
        told.kind, told.reason = "skipped", str(error.msg)
    elif isinstance(error, pytest.xfail.Exception):
        told.kind, told.reason = "xfailed", str(error.msg)
    elif isinstance(error, PLAIN):
        told.longrepr = plain_longrepr(item, f"{type(error).__name__}: {error}")
    else:
        excinfo = pytest.ExceptionInfo.from_exception(error)
        told.longrepr = item.repr_failure(excinfo)
    told.error = error


def _raise(item: pytest.Item, told: Told, error: BaseException | None) -> None:
    __tracebackhide__ = True
    if told.kind == "passed":
        return
    if told.kind == "skipped":
        raise pytest.skip.Exception(told.reason, _use_item_location=True)
    if told.kind == "xfailed":
        pytest.xfail(told.reason)
    item.stash[TOLD] = told
    if error is None:
        raise RunFailed(told.reason or told.signature)
    raise error if isinstance(error, Exception) else RunFailed(str(error))


def tell(item: pytest.Item, call_: "pytest.CallInfo[None]", report: Any) -> None:
    """Put what was rendered where it was raised into the report, and what repeats it."""
    told = item.stash.get(TOLD, None)
    if told is None or call_.excinfo is None:
        return
    del item.stash[TOLD]
    if told.longrepr is None and told.kind == "broken":
        told.longrepr = plain_longrepr(item, told.reason)
    if told.longrepr is not None:
        report.longrepr = told.longrepr
    lines = item.stash.get(STORY, None)
    if lines is None:
        lines = tell_story(item.funcargs[TRIAL].order, told, [])  # type: ignore[attr-defined]
    if hasattr(report.longrepr, "addsection"):
        report.longrepr.addsection("rocketbed", "\n".join(lines))


def summarize(reporter: Any, config: pytest.Config) -> None:
    """Lines at the end of the session: how a replay that passed compares."""
    for line in config.stash.get(NOTES, []):
        reporter.write_line(f"rocketbed: {line}")
