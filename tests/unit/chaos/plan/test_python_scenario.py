"""Scenarios as Python functions, and finding scenarios by name or path."""

from pathlib import Path

import pytest

from rocketbed.chaos.plan import MiB, Scenario, load_scenario, ms, s
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.library import all_scenarios, scenario_names
from rocketbed.chaos.plan.scenario import family
from rocketbed.chaos.plan.toml import read_toml
from rocketbed.chaos.plan.verb_methods import VerbMethods
from rocketbed.chaos.plan.verbs import VERBS


def sync_failover(sc: Scenario) -> None:
    """Kill the master, promote a slave.

    More text that is not shown.
    """
    sc.cluster(brokers=3, flush="sync", repl="sync", min_isr=2, segment=1 * MiB)
    sc.producers(4, rate=300, queues=8, body=(16, 1024), keys=64, timeout=3 * s)
    sc.consumers(2, mode="pull")
    sc.background(disk={"b1": 50 * ms}, cut="strict", link=5 * ms)
    k = sc.at(8 * s).kill("leader", label="k")
    sc.after(k, 1 * s).promote("follower:longest")
    sc.after(k, 5 * s).restart("@k")
    sc.every(7 * s, jitter=2 * s, until=60 * s).partition(
        "rand:1", "others", for_=3 * s, one_way=True
    )
    sc.at(20 * s).disk("leader", slow_fsync=300 * ms, for_=1 * s, p=0.5)
    sc.when("isr < 2").powercut("leader")
    sc.at(30 * s).crash("leader", store_event="rand:1..9", within=2 * s)
    sc.recovery(at=60 * s, drain=30 * s)
    sc.expect(loss="bound", rto=5 * s, progress=(50, 5 * s))


AS_TOML = """
name = "sync-failover"
steps = [
    "at 8s kill leader as k",
    "after k+1s promote follower:longest",
    "after k+5s restart @k",
    "every 7s~2s until 60s partition rand:1 -> others one-way for 3s",
    "at 20s disk leader slow-fsync 300ms with p=0.5 for 1s",
    "when isr<2 powercut leader",
    "at 30s crash leader store-event rand:1..9 within 2s",
]
[cluster]
flush = "sync"
[load.producer]
rate = 300
queues = 8
body = [16, 1024]
[load.consumer]
mode = "pull"
[background]
disk = { b1 = "50ms" }
cut = "strict"
link = "5ms"
[expect]
rto = "5s"
progress = [50, "5s"]
"""


def test_the_function_and_the_file_give_one_plan() -> None:
    assert family(sync_failover).plan(5) == read_toml(AS_TOML, "x.toml").plan(5)


def test_a_family_is_described_by_its_function() -> None:
    described = family(sync_failover, backends=["sim"])
    assert (described.name, described.description) == (
        "sync-failover",
        "Kill the master, promote a slave.",
    )
    assert described.plan(0, quick=True).faults_s == 12.0


def chancy(sc: Scenario) -> None:
    sc.swarm()
    if sc.coin(0.5):
        sc.at(sc.between(1.0, 5.0)).kill(sc.pick(["leader", "follower:any"]), label="k")
    sc.step(f"at {sc.between(6, 9)}s stop leader for 1s")


def test_chance_is_the_seed_alone() -> None:
    drawn_family = family(chancy)
    assert [drawn_family.plan(seed) for seed in range(6)] == [
        drawn_family.plan(seed) for seed in range(6)
    ]
    assert len({str(drawn_family.plan(seed)) for seed in range(6)}) > 3


def test_labels_are_made_only_where_they_are_used() -> None:
    scenario = Scenario("x", 0)
    first = scenario.at(1 * s).kill("leader")
    scenario.at(2 * s).stop("follower:any")
    scenario.after(first, 1 * s).restart(first)
    assert [str(step) for step in scenario.plan().steps] == [
        "at 1s kill leader as _1",
        "at 2s stop follower:any",
        "after _1+1s restart @_1",
    ]


@pytest.mark.parametrize(
    ("call", "expected_text"),
    [
        (lambda sc: sc.at(1).kil("leader"), "unknown fault 'kil'; did you mean 'kill'?"),
        (lambda sc: sc.at(1).kill("leader", fast=True), "unknown argument of kill"),
        (lambda sc: sc.at(1).partition("b1", "b2", one_way=3), "must be True or False"),
        (lambda sc: sc.at(1).link("b1", "b2", loss=7), "is not between 0 and 1"),
        (lambda sc: sc.at(1).link("b1", "b2", delay=True), "is not a time"),
        (lambda sc: sc.at(1).kill("leader", for_="3s"), "is not a time; write 3"),
        (lambda sc: sc.at("1s").kill("leader"), "is not a time; write 3"),
        (lambda sc: sc.when(lambda view: True), "takes a string such as 'isr<2'"),
        (lambda sc: sc.when("isr<"), "is not a condition"),
        (lambda sc: sc.at(1).partition("b1"), "needs a second target"),
        (lambda sc: sc.cluster(brokers=0), "brokers: 0 is not between"),
    ],
)
def test_mistakes(call: object, expected_text: str) -> None:
    mistaken = family(call, name="x")  # type: ignore[arg-type]
    with pytest.raises(ScenarioError) as raised:
        mistaken.plan(0)
    assert expected_text in str(raised.value)


def test_python_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from rocketbed.chaos.plan import Scenario, s\n"
        "def helper(x, y): ...\n"
        "def _hidden(sc: Scenario) -> None: ...\n"
        "def first(sc: Scenario) -> None:\n    sc.at(1 * s).kill('leader')\n",
        encoding="utf-8",
    )
    assert [str(step) for step in load_scenario(str(path)).plan(0).steps] == ["at 1s kill leader"]
    with path.open("a", encoding="utf-8") as file:
        file.write("def second(sc: 'Scenario') -> None: ...\n")
    with pytest.raises(ScenarioError, match="several scenarios: first, second; name one as"):
        load_scenario(str(path))
    assert load_scenario(f"{path}::second").plan(0).steps == ()
    with pytest.raises(ScenarioError, match="no function third that returns a Scenario"):
        load_scenario(f"{path}::third")
    path.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="cannot be imported: ZeroDivisionError"):
        load_scenario(str(path))
    with pytest.raises(ScenarioError, match="no such file"):
        load_scenario(str(tmp_path / "none.py"))


def test_shipped_scenarios() -> None:
    shipped = {
        "abort-file",
        "power-lone",
        "sync-failover",
        "demote-truncate",
        "isr-squeeze",
        "route-storm",
        "disk-sick",
        "soak-swarm",
        "double-master",
        "clock-jump",
        "rolling-restart",
        "disk-replace",
        "bit-rot",
        "half-open",
        "promote-async",
        "failover",
        "controller-loss",
        "split-brain",
        "rolling-handover",
        "register-loss",
    }
    assert shipped <= set(scenario_names())
    for scenario in all_scenarios():
        assert scenario.description
        assert "\n" not in scenario.description
        for backend in scenario.backends:
            for quick in (False, True):
                plan = scenario.plan(7, backend, quick=quick)
                assert plan == scenario.plan(7, backend, quick=quick)
                assert plan.steps or scenario.name == "rebalance"
                assert plan.faults_s <= (15 if quick else 70)


def test_unknown_names_have_a_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"did you mean 'abort-file'\?"):
        load_scenario("abort-fil")
    with pytest.raises(ScenarioError, match=r"shipped are .*takeover\. A file must end in"):
        load_scenario("xyzzy")


def test_a_type_checker_knows_each_verb() -> None:
    named = {name for name in VerbMethods.__annotations__ if not name.startswith("_")}
    assert named == set(VERBS)
