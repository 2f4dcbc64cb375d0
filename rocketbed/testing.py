"""The pytest plugin: a cluster, and fault injection, for tests of other programs.

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

pytest loads this module in every run, even if no test of that run uses a cluster. So the work is
done by `chaos.pytest_plugin`, which is imported with the first test that does.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rocketbed.chaos.plan.scenario import Scenario
    from rocketbed.chaos.pytest_plugin.blocking import BlockingChaos, BlockingCluster
    from rocketbed.chaos.pytest_plugin.cluster import Cluster
    from rocketbed.chaos.pytest_plugin.faults import Chaos

__all__ = ["BlockingChaos", "BlockingCluster", "Chaos", "Cluster", "Scenario"]

OURS: Final = "_rb_trial"
"""Fixture by which a test uses this plugin."""
_IMPLEMENTATION: Final = "rocketbed.chaos.pytest_plugin.plugin"
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
    "rb_replay": None,
    "rb_budget": "60s",
}
"""Names that have to be looked at, with their defaults."""
_HOMES: Final = {
    "BlockingChaos": "rocketbed.chaos.pytest_plugin.blocking",
    "BlockingCluster": "rocketbed.chaos.pytest_plugin.blocking",
    "Chaos": "rocketbed.chaos.pytest_plugin.faults",
    "Cluster": "rocketbed.chaos.pytest_plugin.cluster",
    "Scenario": "rocketbed.chaos.plan.scenario",
}


if not TYPE_CHECKING:  # a checker has the imports above, and reports other names

    def __getattr__(name: str) -> object:
        """Import a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module 'rocketbed.testing' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


# --- options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line."""
    group = parser.getgroup("rocketbed", "clusters under chaos (rocketbed)")
    add = group.addoption
    add("--rb-backend", metavar="NAMES", help="backends, such as sim,process (default: sim)")
    add("--rb-seeds", metavar="N", type=int, help="number of seeds for each test, on every backend")
    add("--rb-seed", metavar="S", type=int, help="seed; with --rb-seeds the first one")
    add("--rb-replay", metavar="FILE", help="replay the failed run in this file")
    add("--rb-report", metavar="DIR", help="where runs and replay files go (default: .rocketbed)")
    add(
        "--rb-keep",
        metavar="WHICH",
        choices=("failed", "all", "none"),
        default="failed",
        help="which runs to keep: failed, all, none (default: failed)",
    )
    add(
        "--rb-shrink",
        action="store_true",
        default=None,
        dest="rb_shrink",
        help="shrink failing plans (default: in simulation only)",
    )
    add(
        "--no-rb-shrink", action="store_false", default=None, dest="rb_shrink", help="do not shrink"
    )
    add("--rb-budget", metavar="TIME", default=OPTIONS["rb_budget"], help=BUDGET_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Register marks; unusable options end the run before it begins."""
    for line in MARKS:
        config.addinivalue_line("markers", line)
    if any(config.getoption(name) != default for name, default in OPTIONS.items()):
        try:
            _plugin().check_options(config)
        except _Unusable as error:
            raise pytest.UsageError(str(error)) from None


# --- hooks: tests with a cluster go to `chaos.pytest_plugin.plugin`


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with a cluster once for each backend and seed."""
    if not {OURS, "rb_seed", "rb_backend"}.intersection(metafunc.fixturenames):
        return
    try:
        _plugin().generate(metafunc)
    except _Unusable:  # the fixtures report it, so that other tests run
        names = ("rb_backend", "rb_seed")
        metafunc.parametrize(names, [(None, None)], indirect=True, ids=["refused"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have tests with a cluster run by this plugin, not by another one for async functions."""
    if config.getoption("rb_replay") or any(map(_is_ours, items)):
        with suppress(_Unusable):
            _plugin().collected(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(
    fixturedef: "pytest.FixtureDef[Any]", request: pytest.FixtureRequest
) -> object | None:
    """Run fixtures that are async functions where the body runs."""
    if request.scope == "function" and _is_ours(request.node):
        value: object | None = _usable_plugin().fixture(fixturedef, request)
        return value
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test with a cluster."""
    if not _is_ours(pyfuncitem):
        return None
    _usable_plugin().call(pyfuncitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Keep the plugin of anyio, which runs all tests with its fixture, from a test with a
    cluster."""
    if _is_ours(item):
        item.funcargs.pop("anyio_backend", None)  # type: ignore[attr-defined]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Any:
    """Report a failure with its traceback in the test process."""
    outcome = yield  # a wrapper of the old kind: the only one that every version of pytest knows
    if call.when == "call" and _is_ours(item) and _IMPLEMENTATION in sys.modules:
        sys.modules[_IMPLEMENTATION].tell(item, call, outcome.get_result())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Report how a replay compares with the original run."""
    if _IMPLEMENTATION in sys.modules:
        sys.modules[_IMPLEMENTATION].summarize(terminalreporter, config)


def _is_ours(item: object) -> bool:
    return OURS in getattr(item, "fixturenames", ())


class _Unusable(Exception):
    """Reason why no test with a cluster can run here."""


def _plugin() -> Any:
    """Return the module that imports the testbed. Raises `_Unusable`."""
    try:
        return importlib.import_module(_IMPLEMENTATION)
    except ModuleNotFoundError as error:
        from rocketbed.host.extras import install_command

        raise _Unusable(
            f"tests with a cluster need the testbed ({error}): {install_command('chaos')}"
        ) from None


def _usable_plugin() -> Any:
    """Return that module for one test, which fails if it is unusable."""
    try:
        return _plugin()
    except _Unusable as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _parameter(request: pytest.FixtureRequest) -> Any:
    """Return a backend or seed; without one the test fails with the reason."""
    if request.param is None:
        _usable_plugin()
    if isinstance(request.param, Exception):
        raise pytest.fail.Exception(str(request.param), pytrace=False)
    return request.param


# --- fixtures


@pytest.fixture
def rb_backend(request: pytest.FixtureRequest) -> str:
    """`sim`, `process` or `docker`."""
    return str(_parameter(request))


@pytest.fixture
def rb_seed(request: pytest.FixtureRequest) -> int:
    """Seed of every random choice."""
    return int(_parameter(request))


@pytest.fixture
def _rb_trial(request: pytest.FixtureRequest, rb_backend: str, rb_seed: int) -> Any:
    """Run of a test."""
    return _usable_plugin().make_trial(request, rb_backend, rb_seed)


@pytest.fixture
def cluster(_rb_trial: Any) -> Any:
    """Cluster of the test: `Cluster` in async tests, `BlockingCluster` in others."""
    return _rb_trial.cluster


@pytest.fixture
def chaos(_rb_trial: Any) -> Any:
    """Fault injection: `Chaos` in async tests, `BlockingChaos` in others."""
    return _rb_trial.chaos


@pytest.fixture
def rb_report(_rb_trial: Any) -> Path:
    """Directory of this run, kept according to `--rb-keep`; for files of the test too."""
    directory: Path = _rb_trial.directory
    return directory


@pytest.fixture(scope="module")
def cluster_module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Cluster for all tests of a module, on real processes; a `BlockingCluster`."""
    with _usable_plugin().module_cluster(request) as cluster:
        yield cluster
