"""The plugin's work for tests with a cluster: `rocketbed.testing` passes its hooks on to this
module.

A test exists once for each backend and seed. Its fixtures are set up by pytest as always; its body
is run by `chaos.pytest_plugin.trial` in a forked process, and its failure is rendered there.
"""

import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.pytest_plugin.blocking import BlockingCluster, StageThread
from rocketbed.chaos.pytest_plugin.body import Body
from rocketbed.chaos.pytest_plugin.collection import (
    collected,
    file_name,
    generate,
    needs_of,
    runs_on,
    wishes_of,
)
from rocketbed.chaos.pytest_plugin.failure import repeated
from rocketbed.chaos.pytest_plugin.fixtures import Deferred, is_deferred
from rocketbed.chaos.pytest_plugin.options import (
    budget_s,
    check_options,
    replay_of,
    report_directory,
)
from rocketbed.chaos.pytest_plugin.perform import missing_for
from rocketbed.chaos.pytest_plugin.running import call, summarize, tell
from rocketbed.chaos.pytest_plugin.spec import RunSpec
from rocketbed.chaos.pytest_plugin.trial import Trial

__all__ = [
    "call",
    "check_options",
    "collected",
    "fixture",
    "generate",
    "make_trial",
    "module_cluster",
    "summarize",
    "tell",
]

MISSING: Final = pytest.StashKey[dict[str, str | None]]()
"""Backend -> why it cannot be used here."""
OTHERS: Final = ("pytest_asyncio.plugin", "anyio.pytest_plugin")
"""Plugins that wrap fixtures in functions of their own."""
ANYIO: Final = "anyio_backend"


def make_trial(request: pytest.FixtureRequest, backend: str, seed: int) -> Trial:
    item: Any = request.node
    is_anyio = ANYIO in item.fixturenames
    body_on = runs_on(item, request.getfixturevalue(ANYIO) if is_anyio else None)
    if backend == "sim" and body_on == "nothing":
        pytest.skip(
            "a test that is a plain function cannot run in simulation: its body would"
            " block the cluster; make it async, or choose --rb-backend process"
        )
    if backend == "sim" and body_on == "asyncio":
        pytest.skip(
            "a test on asyncio cannot run in simulation, whose clock its loop does not know:"
            " leave out the mark (it runs on trio then), or choose --rb-backend process"
        )
    if "subtests" in item.fixturenames:
        pytest.fail(
            "subtests report to pytest's own process, and a test with a cluster runs in another:"
            " use pytest.mark.parametrize, or several tests",
            pytrace=False,
        )
    missing = request.config.stash.setdefault(MISSING, {})
    if backend not in missing:
        missing[backend] = missing_for(backend)
    if (reason := missing[backend]) is not None:
        pytest.skip(f"no cluster on {backend}: {reason}")
    wishes = wishes_of(item)
    spec = RunSpec(
        test=item.nodeid.partition("[")[0],
        backend=backend,
        wishes=wishes,
        plan=wishes.plan(item.originalname, seed, needs_of(item)),
        budget_s=budget_s(request.config),
    )
    replay = replay_of(request.config)
    if replay is not None:
        spec = repeated(spec, *replay)
    body = Body(function=item.obj, names=item._fixtureinfo.argnames, home=str(item.path))
    directory = report_directory(request.config) / file_name(item)
    return Trial(spec, body, directory, body_on)


def fixture(fixturedef: "pytest.FixtureDef[Any]", request: pytest.FixtureRequest) -> object:
    """Return a stand-in for a fixture that runs where the body does; None for all others."""
    unwrapped = _unwrapped(fixturedef.func)
    names = fixturedef.argnames
    if unwrapped is not fixturedef.func:  # the other plugin may have added names of its own
        parameters = inspect.signature(unwrapped).parameters
        names = tuple(name for name in names if name in parameters)
    arguments = {name: request.getfixturevalue(name) for name in names}
    function = _bound(unwrapped, request.instance)
    if not is_deferred(function, arguments):
        return None
    stand_in = Deferred(fixturedef.argname, function, arguments)
    fixturedef.cached_result = (stand_in, fixturedef.cache_key(request), None)  # type: ignore[arg-type]
    return stand_in


def _unwrapped(function: Any) -> Any:
    """Return the user's own function, if another plugin has wrapped it."""
    if getattr(function, "__globals__", {}).get("__name__", "") not in OTHERS:
        return function
    if hasattr(function, "__wrapped__"):
        return function.__wrapped__
    return inspect.getclosurevars(function).nonlocals.get("func", function)


def _bound(function: Any, instance: object) -> Callable[..., Any]:
    """Bind a fixture that is a method to the object that the test is a method of."""
    owner = getattr(function, "__self__", None)
    if instance is None or owner is None or not isinstance(instance, type(owner)):
        bare: Callable[..., Any] = function
        return bare
    bound: Callable[..., Any] = function.__func__.__get__(instance)
    return bound


@contextmanager
def module_cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """Run a cluster for a module, on real processes, in a thread of pytest's own process."""
    item: Any = request.node
    try:
        wishes = wishes_of(item)
        plan = wishes.plan(Path(item.name).stem, 1, needs_of(item))
    except ScenarioError as unusable:
        pytest.fail(str(unusable), pytrace=False)
    spec = RunSpec(test=item.nodeid, backend="process", wishes=wishes, plan=plan, budget_s=0.0)
    with tempfile.TemporaryDirectory(prefix="rocketbed-") as place:
        thread = StageThread(spec, Path(place))
        cluster = BlockingCluster()
        try:
            if thread.start():
                cluster.bind(thread)
                yield cluster
        finally:
            cluster.bind(None)
            result, error = thread.finish()
        if result.kind == "skipped":
            pytest.skip(result.reason)
        if error is not None:
            raise error
