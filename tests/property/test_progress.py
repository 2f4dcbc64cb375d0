"""What may be committed of a queue, whatever is handed out and finished in which order."""

from hypothesis import given
from hypothesis import strategies as st

from rocketbed.client.progress import Progress


@given(
    st.integers(0, 50),
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6),
    st.randoms(use_true_random=False),
)
def test_a_commit_passes_nothing_that_is_in_a_hand(first: int, batches: list[list[int]], random):  # type: ignore[no-untyped-def]
    """Gaps between the messages of a batch are messages that nobody asked for."""
    progress, end = Progress(first), first
    open_offsets: list[int] = []
    left: list[int] = []
    for gaps in batches:
        offsets = []
        for gap in gaps:
            offsets.append(end + gap)
            end += gap + 1
        end += random.randrange(3)
        progress.hand_out([((0, one), one + 1) for one in offsets], end)
        open_offsets += offsets
        while open_offsets and random.random() < 0.6:
            offset = open_offsets.pop(random.randrange(len(open_offsets)))
            if random.random() < 0.1:
                progress.give_up((0, offset))
                left.append(offset)
            else:
                progress.finish((0, offset))
        held = min([*open_offsets, *left], default=None)
        assert progress.done <= (end if held is None else held)
        if held is None:
            assert progress.done == end
    for offset in open_offsets:
        progress.finish((0, offset))
    assert progress.done == end or left
