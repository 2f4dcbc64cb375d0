"""What the plugin does for tests of ours: `rocketbed.testing` hands its hooks over to this.

A test is there once for each backend and seed. Its fixtures are set up by pytest as always; its
body is run by `chaos.testing.trial` in a forked process, and its failure is rendered there.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketbed.chaos.testing.blocking import BlockingCluster, StageThread
from rocketbed.chaos.testing.body import Body
from rocketbed.chaos.testing.collection import (
    collected,
    file_name,
    generate,
    is_async,
    needs_of,
    wishes_of,
)
from rocketbed.chaos.testing.failure import repeated
from rocketbed.chaos.testing.fixtures import Deferred, is_deferred
from rocketbed.chaos.testing.options import budget_s, check_options, replay_of, report_directory
from rocketbed.chaos.testing.perform import missing_for
from rocketbed.chaos.testing.running import call, summarize, tell
from rocketbed.chaos.testing.spec import RunSpec
from rocketbed.chaos.testing.trial import Trial

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
ASYNCIO: Final = ("pytest_asyncio.plugin",)


def make_trial(request: pytest.FixtureRequest, backend: str, seed: int) -> Trial:
    item: Any = request.node
    if backend == "sim" and not is_async(item):
        pytest.skip(
            "a test that is a plain function cannot run in simulation: its body would"
            " block the cluster; make it async, or choose --rb-backend process"
        )
    if "subtests" in item.fixturenames:
        pytest.fail(
            "subtests report to pytest's own process, and a test with a cluster runs in another:"
            " use pytest.mark.parametrize, or several tests",
            pytrace=False,
        )
    known = request.config.stash.setdefault(MISSING, {})
    if backend not in known:
        known[backend] = missing_for(backend)
    if (reason := known[backend]) is not None:
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
    return Trial(spec, body, directory, is_async=is_async(item))


def fixture(fixturedef: "pytest.FixtureDef[Any]", request: pytest.FixtureRequest) -> object:
    """A stand-in for a fixture that runs where the body does; None for all others."""
    arguments = {name: request.getfixturevalue(name) for name in fixturedef.argnames}
    function = _bound(_unwrapped(fixturedef.func), request.instance)
    if not is_deferred(function, arguments):
        return None
    stand_in = Deferred(fixturedef.argname, function, arguments)
    fixturedef.cached_result = (stand_in, fixturedef.cache_key(request), None)  # type: ignore[arg-type]
    return stand_in


def _unwrapped(function: Any) -> Any:
    """The user's own function, where pytest-asyncio has put one of its own around it."""
    home = getattr(function, "__globals__", {}).get("__name__", "")
    return getattr(function, "__wrapped__", function) if home in ASYNCIO else function


def _bound(function: Any, instance: object) -> Callable[..., Any]:
    """A fixture that is a method, of the object that the test is a method of."""
    owner = getattr(function, "__self__", None)
    if instance is None or owner is None or not isinstance(instance, type(owner)):
        bare: Callable[..., Any] = function
        return bare
    bound: Callable[..., Any] = function.__func__.__get__(instance)
    return bound


@contextmanager
def module_cluster(request: pytest.FixtureRequest) -> Iterator[BlockingCluster]:
    """A cluster for a module, on real processes, in a thread of pytest's own process."""
    item: Any = request.node
    wishes = wishes_of(item)
    plan = wishes.plan(Path(item.name).stem, 1, needs_of(item))
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
