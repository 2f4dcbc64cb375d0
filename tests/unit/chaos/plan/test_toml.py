"""Scenarios as files: what they mean, and what is said about mistakes in them."""

from pathlib import Path

import pytest

from rocketbed.chaos.checks.registry import CHECKS
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.library import load_scenario, scenario_names
from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.plan.toml import read_file, read_toml

STEPS = [
    "at 8s kill leader:b as k",
    "after k+5s restart @k",
    "every 7s~2s until 50s partition rand:1 -> others one-way with p=0.5 for 3s",
    "when lag>64KiB crash leader powercut store-event rand:1..400",
]
WHOLE = f"""
steps = {STEPS!r}
name = "all"
description = "Every key"
backends = ["sim", "process"]
seeds = {{ sim = 7, process = 2 }}
needs = ["disk.powercut"]
[cluster]
brokers = 3
groups = 2
nameservers = 3
flush = "sync"
repl = "async"
min_isr = 3
segment = "64KiB"
settings = {{ flushIntervalCommitLog = 100, transferMsgByHeap = true }}
[[load.producer]]
count = 2
rate = 12.5
in_flight = 3
topics = 2
queues = 8
body = [16, "1KiB"]
keys = 5
batch = 0
ordered = true
timeout = "1500ms"
[load.consumer]
count = 3
mode = "pull"
[background]
cut = "strict"
link = "5ms"
link_jitter = "200us"
disk = {{ b1 = "50ms" }}
slowness = {{ c2 = 3.5 }}
cold_share = 0.25
[recovery]
at = "60s"
drain = "20s"
[expect]
loss = "none"
rto = "5s"
progress = [50, "5s"]
"""


def plan_of(text: str) -> Plan:
    return read_toml(text, "file.toml").plan(3)


def test_every_key_has_its_place_in_the_plan() -> None:
    family = read_toml(WHOLE, "file.toml")
    assert (family.name, family.description, family.needs) == (
        "all",
        "Every key",
        ("disk.powercut",),
    )
    assert (family.seed_count("sim"), family.seed_count("process")) == (7, 2)
    plan = family.plan(3)
    shape, load, background = plan.shape, plan.producers, plan.background
    assert (plan.name, plan.seed, plan.faults_s, plan.recovery_s) == ("all", 3, 60.0, 20.0)
    assert (shape.brokers, shape.groups, shape.nameservers, shape.min_isr) == (3, 2, 3, 3)
    assert (shape.flush, shape.repl, shape.segment) == ("sync", "async", 65536)
    assert shape.settings == {"flushIntervalCommitLog": "100", "transferMsgByHeap": "true"}
    assert (load.count, load.rate, load.in_flight, load.topics, load.queues) == (2, 12.5, 3, 2, 8)
    assert (load.body, load.keys, load.batch, load.ordered) == ((16, 1024), 5, 0.0, True)
    assert load.timeout_s == 1.5
    assert (plan.consumers.count, plan.consumers.mode) == (3, "pull")
    assert (background.cut_mode, background.link_ms, background.link_jitter_ms) == (
        "strict",
        5.0,
        0.2,
    )
    assert (background.disk_ms, background.slowness) == ({"b1": 50.0}, {"c2": 3.5})
    assert [str(step) for step in plan.steps] == STEPS
    assert (plan.expect.loss, plan.expect.rto_s, plan.expect.progress) == ("none", 5.0, (50, 5.0))


def test_variants_replace_keys() -> None:
    text = """
name = "v"
steps = ["at 24s kill leader for 2s"]
load.producer = { rate = 5 }
[recovery]
at = "48s"
[process.load.producer]
rate = 100
"""
    family = read_toml(text, "v.toml")
    assert family.plan(0).producers.rate == 5.0
    assert family.plan(0, "process").producers.rate == 100.0
    quick = family.plan(0, quick=True)
    assert (quick.faults_s, str(quick.steps[0])) == (12.0, "at 6s kill leader for 500ms")
    own = read_toml(text + '[quick]\nsteps = ["at 1s kill leader"]\n', "v.toml")
    assert [str(step) for step in own.plan(0, quick=True).steps] == ["at 1s kill leader"]


def test_seed_draws_background_faults() -> None:
    family = read_toml('name = "w"\n[background]\nswarm = true\nlink = "3ms"\n', "w.toml")
    assert family.plan(1) == family.plan(1)
    assert len({str(family.plan(seed).background) for seed in range(8)}) > 3
    assert {family.plan(seed).background.link_ms for seed in range(8)} == {3.0}


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("brokers = 3", "file.toml: brokers: unknown key"),
        (
            "[cluster]\nbrokrs = 3",
            "file.toml: cluster.brokrs: unknown key; did you mean 'brokers'?",
        ),
        ("[cluster]\nbrokers = '3'", "cluster.brokers: '3' is not an integer"),
        ("[cluster]\nbrokers = 0", "brokers: 0 is not between 1 and 9"),
        ("[load.producer]\ndeleted = 1", "topics: 1, late: 0, and one has to stay"),
        (
            "[cluster]\nflush = 'synk'",
            "cluster.flush: must be one of sync, async, not 'synk'; did you mean",
        ),
        (
            "[cluster]\nfailover = true\nbrokers = 2",
            "failover: needs three brokers or more",
        ),
        ("[cluster]\nsegment = '64KB!'", "cluster.segment: '64KB!' is not a size such as 64KiB"),
        ("[cluster.settings]\nflushDiskTipe = 'x'", "unknown key 'flushDiskTipe'; did you mean"),
        ("[cluster.settings]\nautoCreateSubscriptionGroup = false", "nobody makes the groups"),
        (
            "[cluster.settings]\nmaxMessageSize = 300",
            "maxMessageSize=300 refuses bodies of this load",
        ),
        ("[recovery]\nat = 8", 'recovery.at: 8 is not a duration; write "8s"'),
        (
            "[load.consumer]\ncount = 2\nmembers = 3",
            "members: 3 is not between 1 and 2 (of 2 consumers)",
        ),
        ("[recovery]\nbroken = 'leader'", "recovery.broken: 'leader': nobody would lead"),
        (
            "[cluster]\nnameservers = 1\n[recovery]\nbroken = 'ns:any'",
            "recovery.broken: 'ns:any': there is no other nameserver",
        ),
        (
            "[recovery]\nbroken = 'all'",
            "recovery.broken: 'all': one node that the others can do without",
        ),
        (
            "[recovery]\nbroken = 'node:producer-1'",
            "recovery.broken: 'node:producer-1': one node that",
        ),
        ("[recovery]\nbroken = 'clients:all'", "recovery.broken: 'clients:all': one node that"),
        (
            "[recovery]\nbroken = 'follower:all:b'",
            "recovery.broken: 'follower:all:b': one node that",
        ),
        ("[recovery]\nbroken = 'rand:0'", "recovery.broken: 'rand:0': one node that"),
        ("[recovery]\nbroken = 'rand:1'", "recovery.broken: 'rand:1': nobody would lead"),
        ("[recovery]\nbroken = 'node:b1'", "recovery.broken: 'node:b1': nobody would lead"),
        (
            "[recovery]\nbroken = 'rand:2'\n[cluster]\nfailover = true",
            "recovery.broken: 'rand:2': 3 brokers of a group could be 1, too few to store",
        ),
        (
            "[recovery]\nbroken = 'rand:minority'\n[cluster]\nfailover = true\ngroups = 2",
            "recovery.broken: 'rand:minority': 3 brokers of a group could be 1, too few to store",
        ),
        (
            "[recovery]\nbroken = 'follower:any'\n[cluster]\nbrokers = 2",
            "recovery.broken: 'follower:any': 2 brokers of a group could be 1, too few to store",
        ),
        (
            "[recovery]\nbroken = 'b2,b3'\n[cluster]\nbrokers = 3",
            "recovery.broken: 'b2,b3': one node that",
        ),
        ("[recovery]\nat = '-8s'", "recovery.at: must not be negative, not '-8s'"),
        (
            "[load.producer]\nbody = [4000, 4000]",
            "batches of bodies of 4000 bytes exceed what nodes accept",
        ),
        ("[[load.producer]]\n[[load.producer]]", "load.producer: there are 2 of them"),
        ("[background.disk]\nb9 = '1ms'", "background: unknown node 'b9'"),
        ("[expect]\nprogress = 5", "expect.progress: 5 is not a number and a time"),
        ("backends = ['dokker']", "backends: must be one of sim, process, not 'dokker'"),
        ("needs = ['disk.powerct']", "needs: unknown capability 'disk.powerct'; did you mean"),
        ("generate = { classes = ['kil'] }", "generate.classes: must be one of"),
        ("quick = 3", "quick: must be a table"),
        ("steps = ['at 1s kil leader']", "steps[0]: step 'at 1s kil leader': unknown fault 'kil'"),
        ("steps = [1]", "steps: 1 is not a quoted string"),
        ("[[step]]\nat = '1s'\nkill = 'leader'", "step: unknown key; did you mean 'steps'?"),
    ],
)
def test_mistakes_are_reported_with_their_place(text: str, expected_text: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        read_toml(f"name = 'x'\n{text}\n", "file.toml")
    assert expected_text in str(raised.value)
    assert str(raised.value).startswith("file.toml: ")


@pytest.mark.parametrize(
    ("step", "expected_text"),
    [
        ("at -1s kill leader", "before the cluster is up"),
        ("at 61s kill leader", "it is due at 61s, after the faults end ([recovery] at = 60s)"),
        ("at 1s kill leadr", "unknown target 'leadr'; did you mean 'leader'?"),
        ("at 1s kill b4", "unknown target 'b4'"),
        ("at 1s kill ns:3", "this plan has 2 nameservers"),
        ("at 1s kill controller:leader", "needs automatic failover"),
        ("at 1s kill @k", "unknown label 'k'"),
        ("after k+1s kill leader", "unknown label 'k'"),
        ("at 1s kill @x as x", "@x refers to the step itself"),
        ("after x+1s kill leader as x", "labels form a cycle"),
    ],
)
def test_steps_that_can_never_be_are_refused(step: str, expected_text: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        read_toml(f"name = 'x'\nsteps = [{step!r}]\n", "file.toml")
    assert expected_text in str(raised.value)
    assert f"step {step!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("steps", "pattern"),
    [
        (["at 8s kill leader as k", "at 3s restart @k"], "@k is used at 3s, before its step"),
        (["at 1s kill leader as k", "at 2s kill leader as k"], "two steps are called 'k'"),
        (["after a kill leader as b", "after b kill leader as a"], "labels form a cycle"),
    ],
)
def test_labels_have_an_order(steps: list[str], pattern: str) -> None:
    with pytest.raises(ScenarioError, match=pattern):
        read_toml(f"name = 'x'\nsteps = {steps!r}\n", "file.toml")


def test_byte_order_mark_is_no_part_of_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_text("", encoding="utf-8-sig")
    assert read_file(path).name == "marked"


def test_invalid_files(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_file(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ", encoding="utf-8")
    with pytest.raises(ScenarioError, match="not valid TOML"):
        read_file(broken)


def test_the_name_may_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "short-name.toml"
    path.write_text("[cluster]\nbrokers = 1\n", encoding="utf-8")
    assert read_file(path).plan(0).name == "short-name"
    with pytest.raises(ScenarioError, match="name: is required"):
        read_toml("[cluster]\nbrokers = 1\n", "x")


def test_scenario_refuses_an_unsuitable_backend() -> None:
    family = read_toml("name = 'x'\nbackends = ['sim']\n", "x.toml")
    with pytest.raises(ScenarioError, match="not made for process: sim only"):
        family.plan(0, "process")
    with pytest.raises(ScenarioError, match="unknown backend 'docke'"):
        family.plan(0, "docke")


@pytest.mark.parametrize("name", [name for name in scenario_names() if name != "soak-swarm"])
def test_shipped_scenario_names_the_checks_it_shows(name: str) -> None:
    """The swarm visits everything: a campaign of it fails where a check ran in no seed."""
    checks = load_scenario(name).plan(1).expect.checks
    assert checks
    assert set(checks) <= set().union(*(check.ids for check in CHECKS))
