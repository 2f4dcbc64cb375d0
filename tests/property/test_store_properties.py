"""Whatever happens to a directory: recovery gives a prefix of whole records, or says damage."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.chaos.backends.sim.disk import SimDisk
from rocketbed.node.store.errors import BadStoreDirectory, DamagedLog, PutFailed
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import decode_message
from tests.support.sim.store_oracle import records_of
from tests.support.sim.store_script import Driver, Ledger, config, derived
from tests.support.sim.store_session import edited, put, session
from tests.support.sim.store_session import settings as store_settings

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["A", "B", "%RETRY%g"]),
        st.integers(0, 2),
        st.integers(0, 700),
        st.sampled_from(["", "k1", "k1 k2"]),
        st.sampled_from(["", "TagA", "标签"]),
    ),
    min_size=1,
    max_size=25,
)
Message = tuple[str, int, int, str, str]


async def write(store: MessageStore, messages: list[Message]) -> bytes:
    driver = Driver(store, Ledger())
    for topic, queue_id, size, key, tag in messages:
        driver.put(topic, queue_id, size=size, key=key, tag=tag)
    await driver.mark()
    return b"".join(
        store.log.segments.read(start, store.log.segment_size)
        for start in store.log.segments.starts
    )


@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.integers(1, 8))
def test_ring_and_log_give_equal_queues_and_index(messages: list[Message], ring: int) -> None:
    """The append's entries, and those of a log that is re-read, lead to the same bytes."""

    async def by_ring(store: MessageStore) -> None:
        await write(store, messages)

    async def by_log(store: MessageStore) -> None:
        store.log.on_appended = None
        await write(store, messages)

    first = session(by_ring, config=config(dispatch_ring=ring))
    second = session(by_log, config=config())
    assert derived(first.image) == derived(second.image)


@settings(max_examples=150, deadline=None)
@given(
    MESSAGES,
    st.data(),
    st.sampled_from(["flip", "zero", "cut"]),
    st.booleans(),
)
def test_any_damage_gives_a_prefix_or_is_reported(
    messages: list[Message], data: st.DataObject, kind: str, trusted: bool
) -> None:
    whole = session(lambda store: write(store, messages), config=config())
    log: bytes = whole.value
    paths = [path for path in whole.image.paths() if "/commitlog/" in path]
    path = data.draw(st.sampled_from(paths))
    at = data.draw(st.integers(0, 2047))

    def damage(disk: SimDisk) -> None:
        content = bytearray(disk.contents(path))
        if kind == "flip":
            content[at] ^= 1 << at % 8
        elif kind == "zero":
            content[at : at + 100] = bytes(len(content[at : at + 100]))
        else:
            del content[at:]
        disk.replace_contents(path, bytes(content))
        if not trusted:
            disk.remove_name("/store/rocketbed.ckpt")

    async def look(store: MessageStore) -> tuple[bytes, int, int]:
        await store.scrubber.finished.wait()
        segments = store.log.segments
        data = b"".join(segments.read(s, segments.size) for s in segments.starts)
        return data, store.max_offset, len(store.scrubber.damage)

    try:
        run = session(look, config=config(), image=edited(whole.image, damage), boots=2)
    except (DamagedLog, BadStoreDirectory):
        return
    recovered, end, damages = run.value
    if damages:
        return
    for offset, record in records_of(recovered, 0, end, 2048).items():
        # Sizes, places and bodies are what the format's own checks cover.
        message = decode_message(record)
        original = decode_message(log[offset : offset + len(record)])
        assert (message.size, message.physical_offset) == (original.size, original.physical_offset)
        assert message.body == original.body


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 40))
def test_a_full_disk_refuses_serves_and_comes_back(segments: int) -> None:
    disks: list[SimDisk] = []

    def limit(disk: SimDisk) -> None:
        disk.quota = segments * 4096 + 20_000
        disks.append(disk)

    async def fill(store: MessageStore) -> object:
        stored = 0
        refused = None
        for _ in range(400):
            try:
                put(store, body=bytes(1000))
                stored += 1
            except PutFailed as exc:
                refused = str(exc)
                break
        disk = disks[0]
        readable = len(store.log.read(0, 4096))
        disk.quota = None
        put(store, body=bytes(1000))
        return stored, refused, readable

    stored, refused, readable = session(
        fill, config=store_settings(dirty_max=1 << 30), prepare=limit
    ).value
    assert stored > 0
    assert refused is not None
    assert "free some space" in refused
    assert readable == 4096
