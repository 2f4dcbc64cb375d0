"""Common code of both native fuzzers: a build of its own is loaded and fuzzed,
and its memory taken away, without pytest, so that AddressSanitizer can be loaded into it."""

import gc
import importlib
import importlib.util
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

ROUNDS = 5


def starved(prepare: Callable[[], Callable[[], object]]) -> int:
    """Have every allocation of a call fail, each in its turn: there is an error or the result, and
    nothing else. How many there were. `prepare` makes the same call again, with its state."""
    testing = importlib.import_module("_testcapi")
    expected = prepare()()
    for number in range(1, 5_000):
        call, result = prepare(), None
        testing.set_nomemory(number)
        try:
            result = call()
        except MemoryError:
            continue
        finally:
            testing.remove_mem_hooks()
        # Python that is called on the way may say less than that, and then less is taken.
        if result == expected:
            return number
    raise AssertionError("it never had enough")


def fuzzed(
    name: str,
    path: str,
    fuzz: Callable[[ModuleType], int],
    starve: Callable[[ModuleType], int],
) -> None:
    """Do both to the build of a module at a path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    print("taken", fuzz(module))
    if importlib.util.find_spec("_testcapi") is None:  # a separate package on Debian
        print("not starved")
    else:
        print("starved", starve(module))


def assert_nothing_is_kept(use: Callable[[], object], objects: int) -> None:
    """Check that memory does not grow from one `use` to the next, each of which makes at least
    `objects` objects.
    """

    def held() -> int:
        use()
        gc.collect()  # what the interpreter itself keeps of tuples and lists that are free
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [held() for _ in range(ROUNDS)]
    finally:
        tracemalloc.stop()
    # The interpreter keeps something of its own now and then; a leak would grow each time, by an
    # object of 32 bytes or more for each of them.
    assert min(after - before for before, after in pairwise(sizes)) < objects * 32, sizes
