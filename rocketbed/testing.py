"""The pytest plugin: a cluster, and what breaks it, for tests of one's own.

    import pytest
    pytestmark = pytest.mark.rocketbed(brokers=3, flush="sync", repl="sync", seeds=20)

    async def test_orders_survive_failover(cluster, chaos):
        p, c = await cluster.producer("orders"), await cluster.consumer("orders", group="billing")
        await p.send_all(range(100))
        async with chaos.during(chaos.kill("leader")):
            await p.send_all(range(100, 200), retry=True)
        await cluster.settled()
        assert await c.read_all() >= set(range(200))
        chaos.check()

pytest loads this module in every run, whether a test of that run is ours or not; so all that is
done for our tests stands in `chaos.testing`, which is imported with the first of them.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from rocketbed.names import HiddenName, refuse_hidden

if TYPE_CHECKING:
    from chaos.scenario.scenario import Scenario
    from chaos.testing.blocking import BlockingChaos, BlockingCluster
    from chaos.testing.cluster import Cluster
    from chaos.testing.faults import Chaos

__all__ = ["BlockingChaos", "BlockingCluster", "Chaos", "Cluster", "Scenario"]

OURS: Final = "_rb_trial"
"""The fixture that makes a test one of ours."""
MODULE: Final = "cluster_module"
_IMPLEMENTATION: Final = "chaos.testing.plugin"
MARKS: Final = (
    "rocketbed(brokers=3, flush='sync', seeds=20, ...): the cluster of a test, and how many seeds",
    "rb_backend(name, ...): the backends of a test: sim, process, docker",
    "rb_needs(capability, ...): skip where a backend cannot do this, for instance disk.powercut",
    "rb_seeds(n): how many seeds, on every backend",
)
BUDGET_HELP: Final = "real time of one run of a test (default: 60s)"
OPTIONS: Final = {
    "rb_backend": None,
    "rb_seeds": None,
    "rb_seed": None,
    "rb_replay": None,
    "rb_keep": "failed",
    "rb_budget": "60s",
}
"""Those that have to be looked at, with their defaults."""
_HOMES: Final = {
    "BlockingChaos": "chaos.testing.blocking",
    "BlockingCluster": "chaos.testing.blocking",
    "Chaos": "chaos.testing.faults",
    "Cluster": "chaos.testing.cluster",
    "Scenario": "chaos.scenario.scenario",
}


if not TYPE_CHECKING:  # a checker has the imports above, and reports other names

    def __getattr__(name: str) -> object:
        """A public name, imported now."""
        if name not in _HOMES:
            raise AttributeError(f"module 'rocketbed.testing' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


# --- options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line."""
    group = parser.getgroup("rocketbed", "clusters under chaos (rocketbed)")
    add = group.addoption
    add("--rb-backend", metavar="NAMES", help="backends, such as sim,process (default: sim)")
    add("--rb-seeds", metavar="N", help="so many seeds for each test, on every backend")
    add("--rb-seed", metavar="S", help="this seed; with --rb-seeds the first one")
    add("--rb-replay", metavar="FILE", help="run what a failed test left behind, and only that")
    add("--rb-report", metavar="DIR", help="where runs and replay files go (default: .rocketbed)")
    add(
        "--rb-keep",
        metavar="WHICH",
        default=OPTIONS["rb_keep"],
        help="whose runs are kept: failed, all, none (default: failed)",
    )
    add(
        "--rb-shrink",
        action="store_true",
        default=None,
        dest="rb_shrink",
        help="look for a smaller plan that fails the same way (default: in simulation)",
    )
    add("--no-rb-shrink", action="store_false", default=None, dest="rb_shrink", help="do not")
    add("--rb-budget", metavar="TIME", default=OPTIONS["rb_budget"], help=BUDGET_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Marks; and options that cannot be used end the run before it begins."""
    for line in MARKS:
        config.addinivalue_line("markers", line)
    if any(config.getoption(name) != default for name, default in OPTIONS.items()):
        _plugin().check_options(config)


# --- hooks: what is ours goes to `chaos.testing.plugin`


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of ours is there once for each backend and seed."""
    if {OURS, "rb_seed", "rb_backend"}.intersection(metafunc.fixturenames):
        _plugin().generate(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Ours are run by this plugin, not by another one for async functions."""
    if config.getoption("rb_replay") or any(_is_ours(item) or _has_module(item) for item in items):
        _plugin().collected(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(
    fixturedef: "pytest.FixtureDef[Any]", request: pytest.FixtureRequest
) -> object | None:
    """Fixtures that are async functions run where the body does."""
    if request.scope == "function" and _is_ours(request.node):
        found: object | None = _plugin().fixture(fixturedef, request)
        return found
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test of ours."""
    if not _is_ours(pyfuncitem):
        return None
    _plugin().call(pyfuncitem)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Any:
    """A failure is told as it was where it happened."""
    report = yield
    if call.when == "call" and _is_ours(item):
        _plugin().tell(item, call, report)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How a replay compares with what it replays."""
    if _IMPLEMENTATION in sys.modules:
        _plugin().summarize(terminalreporter, config)


def _is_ours(item: object) -> bool:
    return OURS in getattr(item, "fixturenames", ())


def _has_module(item: object) -> bool:
    return MODULE in getattr(item, "fixturenames", ())


def _plugin() -> Any:
    """The part that imports what it needs. Raises `pytest.UsageError` where it cannot work."""
    if _IMPLEMENTATION in sys.modules:
        return sys.modules[_IMPLEMENTATION]
    try:
        refuse_hidden()
        return importlib.import_module(_IMPLEMENTATION)
    except HiddenName as error:
        raise pytest.UsageError(str(error)) from None
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"tests with a cluster need more than the client ({error}): pip install"
            " 'rocketbed[chaos]'"
        ) from None


# --- fixtures


@pytest.fixture
def rb_backend(request: pytest.FixtureRequest) -> str:
    """`sim`, `process` or `docker`."""
    return str(request.param)


@pytest.fixture
def rb_seed(request: pytest.FixtureRequest) -> int:
    """The number that decides all that is drawn."""
    return int(request.param)


@pytest.fixture
def _rb_trial(request: pytest.FixtureRequest, rb_backend: str, rb_seed: int) -> Any:
    """One run of a test."""
    return _plugin().make_trial(request, rb_backend, rb_seed)


@pytest.fixture
def cluster(_rb_trial: Any) -> Any:
    """The cluster: `Cluster` in async tests, `BlockingCluster` in others."""
    return _rb_trial.cluster


@pytest.fixture
def chaos(_rb_trial: Any) -> Any:
    """What breaks it: `Chaos` in async tests, `BlockingChaos` in others."""
    return _rb_trial.chaos


@pytest.fixture
def rb_report(_rb_trial: Any) -> Path:
    """A directory of this run, kept as `--rb-keep` says; for files of the test too."""
    directory: Path = _rb_trial.directory
    return directory


@pytest.fixture(scope="module")
def cluster_module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One cluster for all tests of a module, on real processes; a `BlockingCluster`."""
    with _plugin().module_cluster(request) as cluster:
        yield cluster
