"""Java's hashes of many texts at once, against one by one."""

import pyarrow
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbed.inspect.properties import index_key_hash, java_hash
from rocketbed.pipeline.jobs.rebuild.hash import appended, hashes_of, key_hashes, text_parts

TEXTS = st.lists(st.none() | st.text(st.characters(max_codepoint=127), max_size=40), max_size=20)


@settings(deadline=None)  # the first array loads pandas
@given(TEXTS, st.integers(0, 3))
def test_hashes_are_javas(texts: list[str | None], skipped: int) -> None:
    values = pyarrow.array(texts, pyarrow.string())[skipped:]
    hashes = hashes_of(*text_parts(values)).view("int32").tolist()
    assert hashes == [java_hash(text or "") for text in texts[skipped:]]


@settings(deadline=None)  # the first array loads pandas
@given(TEXTS, st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=9))
def test_key_hashes_after_a_topic(texts: list[str | None], topic: str) -> None:
    offsets, data = text_parts(pyarrow.array(texts, pyarrow.string()))
    sizes = offsets[1:] - offsets[:-1]
    starts = sizes.astype("uint32") * 0 + (java_hash(topic + "#") & 0xFFFFFFFF)
    actual = key_hashes(appended(starts.astype("uint32"), sizes, hashes_of(offsets, data)))
    assert actual.tolist() == [index_key_hash(topic, text or "") for text in texts]


def test_the_least_number_has_no_absolute_value() -> None:
    """`polygenelubricants` hashes to -2^31, which counts as 0."""
    hashes = hashes_of(*text_parts(pyarrow.array(["polygenelubricants", "a"])))
    assert hashes.tolist() == [1 << 31, 97]
    assert key_hashes(hashes).tolist() == [0, 97]


def test_long_texts() -> None:
    texts = ["x" * 70_000, "y" * 3, "", "z" * 200_000]
    hashes = hashes_of(*text_parts(pyarrow.array(texts))).view("int32").tolist()
    assert hashes == [java_hash(text) for text in texts]
