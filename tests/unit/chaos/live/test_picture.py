"""Drawing of the events of a run."""

from typing import Any

from rocketbed.chaos.evidence.history import Event, Function
from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.picture import KEPT, Picture, action_of
from rocketbed.chaos.run.api import Sample


def picture() -> tuple[Picture, Feed]:
    feed = Feed()
    return Picture(feed), feed


def of_kind(feed: Feed, kind: str) -> list[dict[str, Any]]:
    return [value for key, value in feed.since(0).items() if key.startswith(f"{kind}:")]


def nemesis(time_s: float, event: str, step: str, **fields: Any) -> Event:
    row = {"step": step, "targets": ["b1"], "second": [], "for_s": None, **fields}
    return Event(round(time_s * 1e9), Function.NEMESIS, "b1", event, row)


def test_a_row_is_one_thing_after_the_other() -> None:
    drawn, feed = picture()
    for time_s, kind in ((0, "recovering"), (1, "master"), (2, "master"), (3, "down")):
        drawn.enter("b1", kind, time_s)
    spans = sorted((span["begin"], span["end"], span["kind"]) for span in of_kind(feed, "span"))
    assert [span[:2] for span in spans] == [(0, 1), (1, 3), (3, None)]


def test_fault_is_a_band_from_begin_to_end() -> None:
    drawn, feed = picture()
    step = "at 1s pause b1 for 2s"
    drawn.take(nemesis(1.1, "pause", step, for_s=2.0, began_ns=1_000_000_000, by_hand=True))
    (band,) = of_kind(feed, "span")
    assert (band["begin"], band["end"], band["label"], band["hand"]) == (
        1.0, None, "pause b1 for 2s", True,
    )  # fmt: skip
    drawn.take(nemesis(3.1, "heal", step))
    (band,) = of_kind(feed, "span")
    assert band["end"] == 3.1


def test_instant_action_is_a_line() -> None:
    drawn, feed = picture()
    drawn.take(nemesis(1.1, "promote", "at 1s promote b1", began_ns=1_000_000_000))
    (band,) = of_kind(feed, "span")
    assert (band["begin"], band["end"]) == (1.0, 1.0)


def test_heal_step_ends_links_and_disks_but_no_pause() -> None:
    drawn, feed = picture()
    for fault in ("isolate", "disk", "pause"):
        drawn.take(nemesis(1, fault, f"at 1s {fault} b1", began_ns=1))
    drawn.take(nemesis(2, "heal", "at 2s heal", began_ns=2))
    ends = {span["verb"]: span["end"] for span in of_kind(feed, "span")}
    assert ends == {"isolate": 2.0, "disk": 2.0, "pause": None}
    drawn.take(Event(3 * 10**9, Function.NEMESIS, "", "heal", {"step": "everything"}))
    assert {span["end"] for span in of_kind(feed, "span")} == {2.0, 3.0}


def test_only_the_last_are_kept() -> None:
    drawn, feed = picture()
    for number in range(3 * KEPT["event"]):
        drawn.tell(number, f"event {number}")
    texts = [event["text"] for event in of_kind(feed, "event")]
    assert len(texts) == KEPT["event"]
    assert texts[-1] == f"event {3 * KEPT['event'] - 1}"


def test_ongoing_fault_is_kept_however_old() -> None:
    drawn, feed = picture()
    drawn.enter("ns1", "serving", 0)
    drawn.take(nemesis(1, "isolate", "at 1s isolate b1", began_ns=0))
    for number in range(3 * KEPT["span"]):
        drawn.enter("b2", ("slave", "down")[number % 2], number)
    spans = of_kind(feed, "span")
    assert len(spans) <= KEPT["span"] + 2
    open_ones = {span.get("label", span["kind"]) for span in spans if span["end"] is None}
    assert open_ones == {"serving", "isolate b1", "down"}
    drawn.enter("ns1", "down", 9_999)
    assert sum(span["end"] == 9_999 for span in of_kind(feed, "span")) == 1


def test_silent_node_keeps_its_offsets_marked() -> None:
    drawn, feed = picture()
    drawn.stand("b1", None)
    assert feed.get("at:b1") is None
    sample = Sample(
        written=9, flushed=8, confirmed=7, dispatched=6, in_sync=2, is_master=True,
        is_following=False, disk_used=0.5, group="epoch 3",
    )  # fmt: skip
    assert not {"disk_used", "group"} & {*sample.as_row()}  # of no history, and of no digest
    drawn.stand("b1", sample)
    drawn.stand("b1", None)
    assert feed.get("at:b1") == {
        "written": 9, "flushed": 8, "confirmed": 7, "dispatched": 6, "in_sync": 2,
        "following": False, "disk": 0.5, "group": "epoch 3", "answers": False,
    }  # fmt: skip


def test_a_steps_text_without_its_time() -> None:
    assert action_of("at 3s kill b1 for 2s") == "kill b1 for 2s"
    assert action_of("kill slave-1") == "kill slave-1"
