"""What a campaign did not reach."""

from pathlib import Path

from rocketbed.chaos.hunt.runner import Outcome
from rocketbed.chaos.hunt.unreached import logged_events, unreached
from rocketbed.chaos.record import Promise, RunRecord
from rocketbed.chaos.scenario.plan import Plan


def outcome(points: list[str], steps: list[str]) -> Outcome:
    record = RunRecord(scenario="x", backend="sim", seed=1, promise=Promise(), groups={})
    record.facts["points"] = dict.fromkeys(points, ())
    record.steps = steps
    return Outcome(plan=Plan(name="x", seed=1), backend="sim", record=record)


def test_what_one_run_reached_is_left_out() -> None:
    reached = ["store.segment_made ASYNC_MASTER", "store.disk_full SLAVE"]
    missed = unreached([outcome(reached, []), outcome([], ["at 1s kill b1"])])
    assert "store.segment_made" not in missed["marks"]
    assert "store.cut_done" in missed["marks"]
    assert not any(event.startswith("store.disk_full") for event in missed["events"])
    assert "kill" not in missed["faults"]
    assert "powercut" in missed["faults"]


def test_an_event_names_the_files_that_log_it() -> None:
    events = logged_events()
    assert events["store.disk_full"] == str(Path("store", "retention.py"))
    assert "replication.cut" in events
