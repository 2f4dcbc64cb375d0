"""Collection of tests: each with a cluster once for each backend and seed."""

import inspect
import re
import zlib
from typing import Any, Final, Literal

import pytest

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.pytest_plugin.options import replay_of
from rocketbed.chaos.pytest_plugin.wishes import (
    Wishes,
    check_count,
    read_backends,
    read_needs,
    read_wishes,
)

TRIAL: Final = "_rb_trial"
"""The fixture that makes a test one of ours."""
NAME_MAX: Final = 120
RunsOn = Literal["trio", "asyncio", "nothing"]
"""Loop that a body needs; nothing: it is a plain function."""
ON_ASYNCIO: Final = pytest.StashKey[set[str]]()
"""Tests that ask for asyncio by a mark of their own."""


def generate(metafunc: pytest.Metafunc) -> None:
    """Generate backends and seeds of one test function, or the error of an unusable mark."""
    if metafunc.definition.get_closest_marker("asyncio") is not None:
        # Now: in its automatic mode pytest-asyncio marks all that are async, a moment later.
        nodes = metafunc.config.stash.setdefault(ON_ASYNCIO, set())
        nodes.add(metafunc.definition.nodeid)
    try:
        pairs: list[tuple[Any, Any]] = list(_pairs(metafunc.definition, metafunc.config))
        ids = [f"{backend}-{seed}" for backend, seed in pairs]
    except ScenarioError as error:
        pairs, ids = [(error, error)], ["refused"]
    metafunc.parametrize(("rb_backend", "rb_seed"), pairs, indirect=True, ids=ids)


def collected(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take our tests from the trio plugin; with a replay, keep its one test."""
    for item in items:
        if TRIAL in getattr(item, "fixturenames", ()):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "trio"]
    replay = replay_of(config)
    if replay is not None:
        node = replay[1].node
        chosen = [item for item in items if item.nodeid == node]
        if not chosen:
            raise pytest.UsageError(
                f"--rb-replay {config.getoption('rb_replay')}: it belongs to {node}, which is"
                " not among the tests that were collected"
            )
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def wishes_of(item: pytest.Item) -> Wishes:
    """Return the wishes in a test's marks. Raises `ScenarioError`."""
    marks = list(item.iter_markers("rocketbed"))
    return read_wishes((mark.args, mark.kwargs) for mark in reversed(marks))


def needs_of(item: pytest.Item) -> tuple[str, ...]:
    """Return the capabilities in a test's marks. Raises `ScenarioError`."""
    return read_needs(name for mark in item.iter_markers("rb_needs") for name in mark.args)


def is_async(item: Any) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(item.obj))


def runs_on(item: Any, anyio_backend: Any = None) -> RunsOn:
    """Return what a test is to run on; `anyio_backend` is the value of that fixture, if the
    test uses it."""
    if not is_async(item):
        return "nothing"
    if anyio_backend is not None:
        name = anyio_backend if isinstance(anyio_backend, str) else anyio_backend[0]
        return "asyncio" if name == "asyncio" else "trio"
    nodes = item.config.stash.get(ON_ASYNCIO, set())
    return "asyncio" if item.nodeid.partition("[")[0] in nodes else "trio"


def file_name(item: pytest.Item) -> str:
    """Return a file name for the files of a test: its id in plain characters, unique to the
    test."""
    file, _, test = item.nodeid.partition("::")
    place = file.removesuffix(".py").replace("/", ".")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{place}-{test}").strip("-.")
    if len(name) > NAME_MAX:
        name = f"{name[:NAME_MAX]}-{zlib.crc32(item.nodeid.encode()):08x}"
    return name


# --- inside


def _pairs(item: pytest.Item, config: pytest.Config) -> list[tuple[str, int]]:
    wishes = wishes_of(item)
    needs_of(item)
    replay = replay_of(config)
    if replay is not None:
        return [(replay[0].backend, replay[0].plan.seed)]
    backends = _backends(item, config)
    counts = {backend: wishes.seed_count(backend) for backend in backends}
    if (mark := item.get_closest_marker("rb_seeds")) is not None:
        if len(mark.args) != 1 or mark.kwargs:
            raise ScenarioError("the mark rb_seeds takes one number: rb_seeds(20)")
        check_count(f"rb_seeds({mark.args[0]!r})", mark.args[0])
        counts = dict.fromkeys(backends, mark.args[0])
    count, first = config.getoption("rb_seeds"), config.getoption("rb_seed")
    if count is None and first is not None:
        count = 1
    if count is not None:
        counts = dict.fromkeys(backends, count)
    begin = 1 if first is None else first
    return [(backend, begin + number) for backend in backends for number in range(counts[backend])]


def _backends(item: pytest.Item, config: pytest.Config) -> list[str]:
    """Return the mark's backends that the option allows; without a mark the option's."""
    option = config.getoption("rb_backend")
    allowed = None if option is None else read_backends(option)
    mark = item.get_closest_marker("rb_backend")
    marked = None if mark is None else read_backends(",".join(map(str, mark.args)))
    if marked is not None and allowed is not None:
        return [name for name in marked if name in allowed] or marked
    if marked is None and allowed is None:
        is_anyio = "anyio_backend" in getattr(item, "fixturenames", ())
        return ["sim"] if runs_on(item) == "trio" and not is_anyio else ["process"]
    return allowed or marked or []
