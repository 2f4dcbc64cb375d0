"""The native body of `plain_run` against the Python one: the same for any bytes, and no error of
memory, whatever fails. What both do to a whole node is in test_plain_run.py."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.node.broker.plain_body import choose
from rocketbed.node.store.entry import ONE_UNIT, Entry
from rocketbed.wire.command import Encoding
from rocketbed.wire.javahash import tag_code
from tests.support.native import PLAIN, build_script, native, needed, sanitized
from tests.support.native_builds import assert_nothing_is_kept
from tests.support.native_fuzz import Pair, end_of_log, fields_of, fuzz, odd, plain, send
from tests.support.wire_sessions import SESSIONS, recorded_frames

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return native()


def test_it_is_chosen_where_it_is_wanted(module: ModuleType) -> None:
    assert choose(native=True) == (module.take, "native")
    assert choose(native=False)[1].startswith("python")


def test_without_a_build_the_python_body_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    import rocketbed.node.broker

    monkeypatch.delattr(rocketbed.node.broker, "plain_native", raising=False)
    monkeypatch.setitem(sys.modules, "rocketbed.node.broker.plain_native", None)
    body, reason = choose(native=True)
    assert body is choose(native=False)[0]
    assert "no native one" in reason


@pytest.mark.parametrize("compiler", ["gcc 'x", "says bytes that are no text, and fails"])
def test_unusual_compiler_is_refused(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = build_script()
    if compiler.startswith("says"):
        program = tmp_path / "cc"
        program.write_text("#!/bin/sh\nprintf '\\377' >&2\nexit 1\n")
        program.chmod(0o755)
        compiler = str(program)
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(script.CannotBuild):
        script.build(tmp_path)


@pytest.mark.parametrize("state", ["a field more", "a name less"])
def test_a_build_of_another_state_is_not_used(state: str, module: ModuleType) -> None:
    """After a pull without an install, it is reported at the start, not with each send."""
    change = {
        "a field more": "run.EndOfLog = namedtuple('E', (*run.EndOfLog._fields, 'more'))",
        "a name less": "del entry.ONE_UNIT",
    }[state]
    script = (
        "from collections import namedtuple\n"
        "from rocketbed.node.store import entry\n"
        "from rocketbed.node.broker import plain_body, plain_run as run\n"
        f"{change}\n"
        "body, which = plain_body.choose(native=True)\n"
        "assert body is run.take, which\n"
        "print(which)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "build it again" in done.stdout, done.stderr


def test_damaged_frames(module: ModuleType) -> None:
    assert fuzz(module, seed=1, count=1500).taken_bytes > 1_000_000


@pytest.mark.parametrize("name", SESSIONS)
def test_recorded_frames(module: ModuleType, name: str) -> None:
    frames = [frame.data for frame in recorded_frames(name)]
    pair = Pair(module)
    pair.check_all(b"".join(frames))
    for frame in frames:
        for at in range(len(frame)):
            pair.check(frame, at)
            pair.check(frame[:at])
    assert pair.taken_bytes > 0


texts = st.text(max_size=12) | st.sampled_from(["UNIQ_KEY", "AB12", "TAGS", "WAIT", "true", "KEYS"])
strings = st.lists(st.tuples(texts, texts), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
odd_numbers = st.integers(-(2**66), 2**66).map(str) | st.sampled_from(
    ["0", "1", "01", "", "é", "1_0"]
)
frames = st.builds(
    lambda topic, string, unique, changes, body, kind, opaque, flag: send(
        fields_of(topic, 1, string + unique, **changes), body, kind, opaque, flag
    ),
    st.sampled_from(["T", "U", "Unknown", ""]),
    strings,
    st.sampled_from(["UNIQ_KEY\x01AB12", "UNIQ_KEY\x01AB12\x02", "", "UNIQ_KEY\x01a.b"]),
    st.dictionaries(st.sampled_from("acdefghjklmn"), odd_numbers, max_size=1),
    st.binary(max_size=20),
    st.sampled_from(Encoding),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 0, 2, 1]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(frames | st.sampled_from(plain() + odd()) | st.binary(), max_size=6))
def test_any_frames(frame_list: list[bytes]) -> None:
    Pair(native()).check_all(b"".join(frame_list))


def test_numbers_up_to_their_ends(module: ModuleType) -> None:
    pair = Pair(module)
    read = b"".join(send(fields_of("T", 1, "UNIQ_KEY\x01A"), b"x", kind, 9, 0) for kind in Encoding)
    for position in (0, 2**32 - 1, 2**40, 2**62):
        end = end_of_log(position=position, limit=position + 10**6, now_ms=2**63 - 1)
        assert pair.check(read, end=end) == len(read)
    assert pair.check(read, end=end_of_log(limit=0)) == 0
    assert pair.check(read, len(read)) == len(read)
    assert pair.check(read, len(read) + 100) == len(read) + 100


def test_errors_of_forms_and_caches_propagate_or_skip_the_frame(module: ModuleType) -> None:
    """Python does the same: an unreadable frame is left, anything else is a programming error."""
    read = send(fields_of("T", 1, "UNIQ_KEY\x01A"), b"x", Encoding.MSGPACK, 9, 0)
    for caught in (KeyError, IndexError, ValueError, TypeError, UnicodeError):
        assert Pair(module, failing=caught).check(read) == 0
    for error in (RuntimeError, AttributeError, OverflowError, MemoryError):
        pair = Pair(module, failing=error)
        pair.check(read)
        assert pair.raised == error
    with pytest.raises(TypeError):
        module.take(bytearray(read), 0, {}, {}, {}, {}, bytes(8), end_of_log())
    with pytest.raises(ValueError, match="before the first byte"):
        module.take(read, -1, {}, {}, {}, {}, bytes(8), end_of_log())


def test_nothing_is_left_in_memory(module: ModuleType) -> None:
    """Neither of messages that were taken nor of those that were left at any step."""
    pair = Pair(module)
    reads = [b"".join(plain()), *odd()]

    def use() -> None:
        for _ in range(60):
            for read in reads:
                pair.native_alone(read)

    assert_nothing_is_kept(use, 60)


def test_cached_objects_have_no_other_references(module: ModuleType) -> None:
    """A reference too many to an object that lives anyway takes no memory."""
    pair, read = Pair(module), b"".join(plain())
    pair.native_alone(read)
    cached = [tag_code("TagA"), ONE_UNIT, None, Entry, *pair.shapes(), end_of_log().now_ms]
    before = [sys.getrefcount(item) for item in cached]
    pair.native_alone(read)
    assert [sys.getrefcount(item) for item in cached] == before


@pytest.mark.slow
def test_damaged_frames_under_the_sanitizers(tmp_path: Path) -> None:
    """No byte outside of what is there is read or written; nor when memory runs out anywhere."""
    needed()
    built, environment = sanitized(tmp_path, PLAIN)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.native_fuzz", seed, "4000", built],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:]
        assert "taken" in done.stdout


@pytest.mark.slow
def test_many_damaged_frames() -> None:
    for seed in range(2, 6):
        assert fuzz(needed(), seed, count=10_000).taken_bytes > 1_000_000
