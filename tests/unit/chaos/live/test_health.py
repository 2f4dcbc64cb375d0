"""The mark of a live page, and the times in which nothing was acknowledged."""

from typing import Any

from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.health import Health, troubles
from rocketbed.chaos.live.picture import Picture

GROUPS = {"b": ["b1", "b2"]}


def machine(role: str, state: str = "running", *, cut: bool = False) -> dict[str, Any]:
    return {"role": role, "state": state, "cut": cut}


WELL = {"b1": machine("master"), "b2": machine("slave")}
HEADLESS = {"b1": machine("master", "down"), "b2": machine("slave")}


def outages(feed: Feed) -> list[tuple[float, float | None]]:
    spans = [value for key, value in feed.since(0).items() if key.startswith("span:")]
    return [(span["begin"], span["end"]) for span in spans if span["kind"] == "outage"]


def test_second_without_acknowledgements_means_no_writes() -> None:
    feed = Feed()
    health = Health(Picture(feed), GROUPS, rate=60)
    health.update(10, WELL, 5, loaded=True)
    assert feed.get("health") == {"mark": "well", "since": None, "why": []}
    health.update(10.9, HEADLESS, 5, loaded=True)
    assert feed.get("health")["mark"] == "degraded"
    health.update(16, HEADLESS, 5, loaded=True)
    assert feed.get("health") == {"mark": "no writes", "since": 10, "why": ["b1 down", "no master"]}
    assert outages(feed) == [(10, None)]
    health.update(17, WELL, 6, loaded=True)
    assert feed.get("health")["mark"] == "well"
    assert outages(feed) == [(10, 17)]


def test_silence_is_tolerated_longer_at_a_low_rate() -> None:
    feed = Feed()
    health = Health(Picture(feed), GROUPS, rate=1)
    health.update(0, WELL, 5, loaded=True)
    health.update(7.9, WELL, 5, loaded=True)
    assert feed.get("health")["since"] is None
    health.update(8, WELL, 5, loaded=True)
    assert feed.get("health")["since"] == 0


def test_silence_without_load_is_no_outage() -> None:
    feed = Feed()
    health = Health(Picture(feed), GROUPS, rate=60)
    health.update(0, WELL, 0, loaded=False)
    health.update(9, WELL, 0, loaded=False)
    assert feed.get("health")["mark"] == "well"
    health.update(10, WELL, 0, loaded=True)
    health.update(12, WELL, 0, loaded=True)
    health.update(15, WELL, 0, loaded=False)
    assert outages(feed) == [(10, 15)]


def test_faults_that_no_machine_shows_are_causes_too() -> None:
    feed = Feed()
    picture = Picture(feed)
    health = Health(picture, GROUPS, rate=60)
    health.update(10, WELL, 5, loaded=True)
    picture.begin_fault("at 1s partition b1 -> b2", "partition", ["b1", "b2"], 11, lasts=True)
    picture.begin_fault("at 1s disk b1 full", "disk", ["b1"], 11, lasts=True)
    picture.begin_fault("at 1s pause ns1", "pause", ["ns1"], 11, lasts=True)
    health.update(20, HEADLESS, 5, loaded=True)
    assert feed.get("health") == {
        "mark": "no writes",
        "since": 10,
        "why": ["b1 down", "no master", "partition b1 -> b2", "disk b1 full"],
    }
    picture.end_faults(21)
    health.update(21, WELL, 6, loaded=True)
    assert feed.get("health")["why"] == []


def test_problems_are_named() -> None:
    machines = {
        "ns1": machine("nameserver", "paused"),
        "b1": machine("master", cut=True),
        "c1": machine("slave"),
    }
    problems = troubles(machines, {"b": ["b1"], "c": ["c1"]})
    assert problems == ["ns1 paused", "b1 cut off", "no master in c"]
