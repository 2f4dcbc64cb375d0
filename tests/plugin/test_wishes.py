"""Valid marks and options, and the errors about others."""

from typing import Any

import pytest

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.pytest_plugin.wishes import read_backends, read_needs, read_wishes


def wishes_of(**arguments: Any) -> Any:
    return read_wishes([((), arguments)])


def test_the_closest_mark_wins_and_the_others_stay() -> None:
    far, near = {"brokers": 2, "flush": "sync"}, {"brokers": 3}
    wishes = read_wishes([((), far), ((), near)])
    assert (wishes.brokers, wishes.flush) == (3, "sync")


def test_a_plain_number_of_seeds_counts_in_simulation() -> None:
    wishes = wishes_of(seeds=20)
    assert [wishes.seed_count(name) for name in ("sim", "process", "docker")] == [20, 1, 1]
    named = wishes_of(seeds={"sim": 5, "process": 2})
    assert [named.seed_count(name) for name in ("sim", "process", "docker")] == [5, 2, 1]


def test_sizes_times_and_switches_as_people_write_them() -> None:
    wishes = wishes_of(
        segment="64KiB", failover_after="250ms", settings={"autoCreateTopicEnable": False}
    )
    plan = wishes.plan("name", 7)
    assert plan.shape.segment == 64 << 10
    assert wishes.failover_s == 0.25
    assert plan.shape.settings == {"autoCreateTopicEnable": "false"}
    assert (plan.producers.count, plan.consumers.count, plan.steps) == (0, 0, ())


def test_failover_time_needs_a_replica_to_promote() -> None:
    assert wishes_of(brokers=1, min_isr=1).failover_s is None
    assert wishes_of(failover=False).failover_s is None
    assert wishes_of().failover_s == 1.0


def test_seed_draws_background_faults() -> None:
    wishes = wishes_of(background="swarm")
    assert wishes.plan("name", 3).background == wishes.plan("name", 3).background
    assert len({str(wishes.plan("name", seed).background) for seed in range(8)}) > 4


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"brokrs": 3}, "unknown argument of the mark rocketbed 'brokrs'; did you mean 'brokers'?"),
        ({"brokers": 0}, "brokers: 0 is not between 1 and 9"),
        ({"brokers": "3"}, "brokers='3'"),
        ({"flush": "maybe"}, "one of sync, async"),
        ({"seeds": 0}, "must be an integer, at least 1"),
        ({"seeds": {"sym": 3}}, "did you mean 'sim'?"),
        ({"segment": "64 KoB"}, "unknown unit"),
        ({"settings": {"flushDiskTyp": "X"}}, "flushDiskTyp"),
        ({"failover_after": "soon"}, "soon"),
    ],
)
def test_invalid_argument_is_refused_with_a_hint(arguments: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ScenarioError, match=pattern.replace("?", r"\?")):
        wishes_of(**arguments)


def test_the_mark_takes_names_only() -> None:
    with pytest.raises(ScenarioError, match="named arguments only"):
        read_wishes([((3,), {})])


def test_capabilities_may_be_named_in_more_detail() -> None:
    assert read_needs(["disk.powercut.kernel", "net.cut"]) == ("disk.powercut", "net.cut")
    with pytest.raises(ScenarioError, match=r"did you mean 'disk\.powercut'"):
        read_needs(["disk.powercat"])


def test_backends_by_name() -> None:
    assert read_backends("sim, process,sim") == ["sim", "process"]
    with pytest.raises(ScenarioError, match="did you mean 'process'"):
        read_backends("proces")
    with pytest.raises(ScenarioError, match="no backend given"):
        read_backends(" ,")
