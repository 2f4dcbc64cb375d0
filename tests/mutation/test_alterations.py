"""A recorded run from which something was taken, or in which something is wrong, does not pass."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.search.runner import Options, run_here
from tests.mutation.alterations.alteration import Alteration
from tests.mutation.alterations.command import tamper as command
from tests.mutation.alterations.listeners import TOLD_ALTERATIONS
from tests.mutation.alterations.tables import ALTERATIONS
from tests.mutation.alterations.tamper import Tampered, tamper

SEED = 29
"""Of three nodes that are killed, with images of masters, and no lying disk."""
TOLD_SEED = 34
"""With listeners that refuse some."""
NOT_RUN = {
    "searches-gone",
    "history-cut",
    "trace-gone",
    "positions-unread",
    "commits-gone",
    "store-unkept",
}
"""What leaves a check nothing to look at: such a run is no pass either."""


def record(directory: Path, seed: int) -> Path:
    directory.mkdir(exist_ok=True)
    plan = load_scenario("soak-swarm").plan(seed, quick=True)
    outcome = run_here(plan, directory, Options())
    assert outcome.verdict == "pass", outcome.finding_ids
    return directory


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("run"), SEED)


def test_some_alterations_are_noticed(recorded: Path, tmp_path: Path) -> None:
    are_noticed(ALTERATIONS[::6], recorded, tmp_path)


@pytest.mark.slow
def test_every_known_alteration_is_noticed(recorded: Path, tmp_path: Path) -> None:
    are_noticed(ALTERATIONS, recorded, tmp_path)


def are_noticed(alterations: Sequence[Alteration], recorded: Path, tmp_path: Path) -> None:
    of_listeners = {one.name for one in TOLD_ALTERATIONS}
    names = [one.name for one in alterations]
    of_clients = [name for name in names if name not in of_listeners]
    answers: dict[str, Tampered] = {
        one.name: one for one in tamper(recorded, tmp_path, only=of_clients)
    }
    assert list(answers) == of_clients
    told_run = record(tmp_path / "told", TOLD_SEED)
    of_told = of_listeners.intersection(names)
    (tmp_path / "scratch").mkdir()
    answers |= {one.name: one for one in tamper(told_run, tmp_path / "scratch", only=of_told)}
    assert answers.keys() == set(names)
    assert [name for name, answer in answers.items() if answer.passed] == []
    assert [name for name, answer in answers.items() if answer.verdict == "nothing"] == []
    unknown = {name for name, answer in answers.items() if answer.verdict == "unknown"}
    assert unknown == NOT_RUN.intersection(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "told"]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_command_lists_noticed_alterations_and_their_checks(recorded: Path) -> None:
    result = CliRunner().invoke(
        command, [str(recorded), "--only", "topics-gone", "--only", "labels"], standalone_mode=False
    )
    assert result.return_value == 0
    assert "2 of 2 alterations were noticed" in result.output
    assert "anomaly        labels" in result.output
    assert result.output.splitlines()[1].endswith(
        "topics.json is missing on every node: tables-complete"
    )


def test_a_run_that_did_not_pass_says_nothing(recorded: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert result.exit_code == 2
    assert "only a run that passes says something" in result.output


@pytest.mark.slow
def test_missing_index_is_noticed_where_files_expired(tmp_path: Path) -> None:
    """`tables-complete` asked for it only where a log still had its beginning."""
    run = tmp_path / "run"
    plan = load_scenario("soak-failover").plan(770_002, quick=True)
    run.mkdir()
    assert run_here(plan, run, Options()).verdict == "pass"
    (answer,) = tamper(run, tmp_path / "scratch", only=["index-gone"])
    assert "tables-complete" in answer.ids
