"""Events and checks that a campaign did not reach."""

from pathlib import Path

from rocketbed.chaos.evidence.record import Promise, RunRecord
from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.runner import Outcome
from rocketbed.chaos.search.unreached import logged_events, must_run_all, never_ran, unreached


def outcome(points: list[str], steps: list[str]) -> Outcome:
    record = RunRecord(scenario="x", backend="sim", seed=1, promise=Promise(), groups={})
    record.facts["points"] = dict.fromkeys(points, ())
    record.steps = steps
    return Outcome(plan=Plan(name="x", seed=1), backend="sim", record=record)


def test_checks_of_one_run_are_left_out() -> None:
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


def test_a_check_that_ran_once_did_run() -> None:
    runs = [
        {"lost-write": False, "unseen-message": False},
        {"lost-write": False, "unseen-message": True, "phantom-write": False},
        {"unseen-message": False},
        {},
    ]
    assert never_ran(runs) == ["lost-write", "phantom-write"]
    assert never_ran([]) == []


def test_all_checks_must_run_only_in_a_whole_swarm_campaign() -> None:
    swarm, single = load_scenario("soak-swarm"), load_scenario("sync-failover")
    assert must_run_all(swarm, 200)
    assert not must_run_all(swarm, 199)
    assert not must_run_all(single, 1000)
