"""Actions by hand on a local cluster, as a scenario."""

from pathlib import Path

from rocketbed.chaos.live.notebook import AFTER_S, FILE, Notebook
from rocketbed.chaos.plan.toml import read_file
from rocketbed.cluster.plan import make_plan


def notebook() -> Notebook:
    return Notebook(make_plan(slaves=2, flush="sync"))


def steps(notes: Notebook) -> list[str]:
    return [str(step) for step in notes.plan().steps]


def test_members_are_called_as_the_testbed_calls_them() -> None:
    assert notebook().names == {
        "nameserver": "ns1", "master": "b1", "slave-1": "b2", "slave-2": "b3",
    }  # fmt: skip


def test_second_group_of_the_cluster_is_the_testbeds_second() -> None:
    notes = Notebook(make_plan(slaves=2, groups=2, failover=True))
    assert notes.names["b-node-3"] == "c3"
    assert notes.plan().shape.group_nodes() == {"b": ["b1", "b2", "b3"], "c": ["c1", "c2", "c3"]}
    assert notes.plan().shape.failover


def test_ended_fault_has_its_duration() -> None:
    notes = notebook()
    notes.begin("kill", "master", 1.0)
    notes.begin("pause", "slave-1", 1.5)
    notes.begin("promote", "slave-2", 2.0)
    notes.end(("kill", "pause"), "master", 3.25)
    notes.end(("pause",), "slave-1", 2.0)
    assert steps(notes) == [
        "at 1s kill b1 for 2.25s",
        "at 1.5s pause b2 for 500ms",
        "at 2s promote b3",
    ]


def test_start_of_a_node_stopped_by_others_is_a_step() -> None:
    notes = notebook()
    notes.end(("kill", "pause"), "slave-1", 4.0)
    assert steps(notes) == ["at 4s restart b2 down"]


def test_file_is_a_scenario_for_the_same_cluster(tmp_path: Path) -> None:
    notes = notebook()
    notes.begin("kill", "slave-1", 1.0)
    notes.end(("kill", "pause"), "slave-1", 3.0)
    path = notes.save(tmp_path)
    assert path == tmp_path / FILE
    plan = read_file(path).plan(0, "process")
    assert plan.steps == notes.plan().steps
    assert plan.faults_s == 3.0 + AFTER_S
    shape = plan.shape
    assert (shape.brokers, shape.nameservers, shape.flush, shape.copies) == (3, 1, "sync", 2)
