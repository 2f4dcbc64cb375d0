"""Whatever happens to a directory's bytes, the reader ends, and says so."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rocketbed.inspect import (
    Fault,
    Filler,
    Filter,
    Record,
    Scanned,
    Severity,
    messages,
    open_directory,
)
from rocketbed.inspect.bodies import unpack_body, unpack_inner_batch
from rocketbed.inspect.config import read_json, read_properties
from rocketbed.inspect.listing import describe, table
from rocketbed.inspect.properties import DispatchProperties, java_hash, parse_properties
from rocketbed.inspect.record import dissect, scan_record
from tests.support.stores import SETTINGS, Spec, build, check, encode, some

COUNT = 30


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "store"
    build(root, some(COUNT))
    return root


def files_of(root: Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(base, name), root)
        for base, _, names in os.walk(root)
        for name in names
    )


@st.composite
def harms(draw: st.DrawFn) -> list[tuple[str, int, float, int]]:
    kinds = st.sampled_from(["flip", "cut", "zero", "delete", "stray", "grow"])
    single_harm = st.tuples(kinds, st.integers(0, 999), st.floats(0, 1), st.integers(1, 255))
    return draw(st.lists(single_harm, min_size=1, max_size=3))


def harm(root: Path, kind: str, number: int, where: float, mask: int) -> None:
    names = files_of(root)
    path = root / names[number % len(names)]
    data = bytearray(path.read_bytes())
    at = int(where * max(0, len(data) - 1))
    if kind == "delete":
        path.unlink()
        return
    if kind == "stray":
        (path.parent / f"stray{mask}").write_bytes(b"stray")
        return
    if kind == "flip" and data:
        data[at] ^= mask
    elif kind == "cut":
        del data[at:]
    elif kind == "zero":
        data[at : at + 4 * mask] = bytes(len(data[at : at + 4 * mask]))
    else:
        data += bytes(mask)
    path.write_bytes(data)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(harms())
def test_any_damage_is_read_through_and_reported(
    pristine: Path, done: list[tuple[str, int, float, int]]
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "store"
        shutil.copytree(pristine, root)
        for applied in done:
            harm(root, *applied)
        opened = open_directory(root, SETTINGS)
        report = check(root)
        rows = [message.as_row() for message in messages(opened, Filter(scan=True))]
        assert len(rows) == report.records
        for selection in (Filter(topic="T", queue_id=0), Filter(topic="T", key="k3")):
            assert len(list(messages(opened, selection))) <= 2 * COUNT
        assert list(table(describe(opened)))
        opened.close()
        # A log without its first segments is what retention leaves.
        if report.records < COUNT and report.log_min == 0:
            assert report.worst > Severity.NOTE, report.findings


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(number=0, where=0.014451522511013129, mask=1)
@given(st.integers(0, 2), st.floats(0, 0.999), st.integers(1, 255))
def test_every_flip_in_covered_bytes_is_noticed(
    pristine: Path, number: int, where: float, mask: int
) -> None:
    """A flip is told, or changes what no checksum and no second copy covers."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "store"
        shutil.copytree(pristine, root)
        log = sorted((root / "commitlog").iterdir())
        path = log[number % len(log)]
        before = open_directory(pristine, SETTINGS)
        items = list(before.log.scan())
        before.close()
        records = [item for item in items if isinstance(item, Scanned)]
        fillers = [item for item in items if isinstance(item, Filler)]
        data = bytearray(path.read_bytes())
        at = int(where * len(data))
        data[at] ^= mask
        path.write_bytes(data)
        offset = int(path.name) + at
        inside = [r for r in records if r.offset <= offset < r.offset + r.size]
        report = check(root)
        unused = any(f.offset + 8 <= offset < f.offset + f.size for f in fillers)
        if not report.findings and not unused:
            assert inside, "a changed filler or end must be told"
            position = offset - inside[0].offset
            body_size = len(b"body %d" % records.index(inside[0]))
            uncovered = {*range(16, 20), *range(36, 56), *range(62, 84)}
            assert position in uncovered or position >= 88 + body_size


@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_fast_and_slow_way_agree_on_noise(data: bytes, offset: int) -> None:
    slow = dissect(data, 0, offset)
    fast = scan_record(data, memoryview(data), 0, offset)
    assert isinstance(slow, Fault) == (fast is None)


@settings(max_examples=300)
@given(
    st.builds(
        Spec,
        topic=st.text("abcXYZ%-_|", min_size=1, max_size=127),
        body=st.binary(max_size=700),
        queue_id=st.integers(0, 9),
        properties=st.lists(
            st.tuples(st.text("ABC", min_size=1), st.text("\0xyz", min_size=1, max_size=600)),
            max_size=3,
        ).map(tuple),
    ),
    st.integers(0, 5000),
    st.one_of(st.none(), st.tuples(st.floats(0, 0.999), st.integers(1, 255))),
)
def test_fast_and_slow_way_agree_on_damaged_records(
    spec: Spec, offset: int, flip: tuple[float, int] | None
) -> None:
    data = bytearray(encode(spec, offset=offset, queue_offset=5, store_ms=17))
    if flip is not None:
        data[int(flip[0] * len(data))] ^= flip[1]
    slow = dissect(bytes(data), 0, offset)
    fast = scan_record(bytes(data), memoryview(bytes(data)), 0, offset)
    if isinstance(slow, Record):
        assert fast == slow.scanned
    else:
        assert fast is None


@given(st.binary(max_size=200))
def test_wanted_properties_are_the_parsed_ones(raw: bytes) -> None:
    dispatched, parsed = DispatchProperties(raw), parse_properties(raw)
    assert dispatched.tags.decode(errors="replace") == parsed.get("TAGS", "")


@given(st.text(max_size=50))
def test_java_hash_is_horners(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    assert java_hash(text) % (1 << 32) == value


@given(st.binary(max_size=300), st.integers(0, 7))
def test_packed_noise_is_refused_quietly(data: bytes, kind: int) -> None:
    bodies = (
        unpack_body(data, 1 | kind << 8),
        unpack_body(b"\x28\xb5\x2f\xfd" + data, 1 | 2 << 8),
        unpack_body(b"\x04\x22\x4d\x18" + data, 1 | 1 << 8),
    )
    assert all(body is None or isinstance(body, bytes) for body in bodies)
    items = unpack_inner_batch(data)
    assert items is None or sum(len(item.body) for item in items) <= len(data)


@given(st.text(max_size=100))
def test_configuration_noise_is_refused_quietly(text: str) -> None:
    assert all("=" not in name and name == name.strip() for name in read_properties(text))
    try:
        read_json(text)
    except (ValueError, RecursionError):
        return
