"""The native bodies of scan and index against the Python ones: the same for any bytes and keys, and
no error of memory, whatever fails."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from rocketbed.node.store.log_bodies import log_bodies
from tests.support.log_native_fuzz import BASE, Indexes, Scans, bodies_of, fuzz, record
from tests.support.native import LOG, native, needed, sanitized
from tests.support.native_builds import assert_nothing_is_kept

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return native(LOG)


def test_they_are_chosen_where_they_are_wanted(module: ModuleType) -> None:
    assert log_bodies(enabled=True) == bodies_of(module)
    assert log_bodies(enabled=False) is None


def test_without_a_build_the_python_bodies_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    import rocketbed.node.store

    monkeypatch.delattr(rocketbed.node.store, "log_native", raising=False)
    monkeypatch.setitem(sys.modules, LOG, None)
    assert log_bodies(enabled=True) is None


def test_logs_and_keys_that_a_seed_makes(module: ModuleType) -> None:
    assert fuzz(module, seed=1, count=3000) > 8000


def test_plain_records_take_one_call(module: ModuleType) -> None:
    """But for the first, which teaches the topic."""
    calls: list[int] = []
    bodies = bodies_of(module)

    def counted(*args: object) -> int:
        calls.append(1)
        return bodies.scan(*args)

    scans = Scans(bodies._replace(scan=counted))
    data = b""
    while len(data) < 50_000:
        data += plain_record(BASE + len(data))
    scanned = scans.check(data, 4096, None)
    assert scanned.end == BASE + len(data)
    assert len(calls) == 2


def plain_record(physical: int) -> bytes:
    from tests.support.stores import Spec, encode

    properties = (("UNIQ_KEY", f"{physical:032X}"), ("KEYS", str(physical)), ("TAGS", "TagA"))
    return encode(Spec(properties=properties), offset=physical, queue_offset=0, store_ms=1)


def test_refused_arguments(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="outside"):
        module.scan(b"x", 2, 0, 9, True, {}, {}, print, [])
    with pytest.raises(TypeError):
        module.scan(bytearray(9), 0, 0, 9, True, {}, {}, print, [])
    with pytest.raises(ValueError, match="positive"):
        module.put_keys([], -1, 0, {}, {}, bytearray(), 1, 1, 1, 0, 0, 0)


@pytest.mark.slow
def test_nothing_is_left_in_memory(module: ModuleType) -> None:
    def use() -> None:
        random = Random(5)
        scans, indexes = Scans(bodies_of(module)), Indexes(bodies_of(module))
        for _ in range(300):
            scans.fuzz(random)
            indexes.fuzz(random)

    assert_nothing_is_kept(use, 300)


def test_an_odd_record_is_left_to_python(module: ModuleType) -> None:
    """Python reads it alone: the native body takes nothing of it."""
    random, data = Random(1), b""
    while not data or data[36:40] == bytes(4):
        data = record(random, BASE)
    entries: list[object] = []
    assert module.scan(data, 0, BASE, BASE + 4096, True, {b"T": "T"}, {}, print, entries) == 0
    assert entries == []


@pytest.mark.slow
def test_under_the_sanitizers(tmp_path: Path) -> None:
    """No byte outside of what is there is read or written; nor when memory runs out anywhere."""
    needed(LOG)
    built, environment = sanitized(tmp_path, LOG)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.log_native_fuzz", seed, "6000", built],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:]
        assert "taken" in done.stdout
