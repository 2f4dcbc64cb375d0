"""Generated mutants are planted where their lines are visited, and what was found is kept."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rocketbed.chaos.plan.plan import Plan
from rocketbed.chaos.search.runner import Options, run_plan
from tests.mutation.generated import search as generated
from tests.mutation.generated.draw import Generated, Source, candidates, read_sources
from tests.mutation.generated.results import RESULTS, MutantResult
from tests.mutation.generated.search import Progress, Search, UnknownMutant, search
from tests.mutation.generated.tally import (
    SURVIVORS,
    as_row,
    percent,
    score,
    score_lines,
    write_survivors,
)
from tests.mutation.generated.testing import run_tests
from tests.mutation.generated.visits import (
    Trial,
    VisitError,
    digest_of_sources,
    files_of_tests,
    measure,
    run_name,
)
from tests.mutation.planted.mutant import StaleMutant
from tests.support.campaigns import LONE, mutant
from tests.support.paths import ROOT as REPOSITORY

SLICE = 40
SCORE_MIN = 1 / 6
"""Of those that are visited, four clusters and the sessions find from 27 to 65 %, by the draw."""
OTHER = replace(LONE, seed=2)
SOURCES = read_sources(
    mutated=("node/config/node_config.py", "node/release.py", "node/store/heal.py")
)
RETENTION = read_sources(mutated=("node/store/retention.py",))


BUG = mutant("ReleaseQueue._is_safe", "self._flushed.value >= end) or (", SOURCES)
HARMLESS = mutant("ReleaseQueue._is_safe", "self._flushed.value >= (end + 1)", SOURCES)
"""`ReleaseQueue._expire` comes behind it, and lets go of what lacks nothing."""
CRASH = mutant("NodeConfig.is_slave", "return not (", SOURCES)
UNVISITED = next(one for one in candidates(SOURCES[2]) if one.site.function == "_check")


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., tuple[Progress, list[MutantResult]]]:
    """Search for some of the mutants of `SOURCES`; what was told meanwhile."""

    def search_for(
        *chosen: Generated, plans: Sequence[Plan] = (LONE,), runs: int = 1
    ) -> tuple[Progress, list[MutantResult]]:
        verdicts: list[MutantResult] = []
        keys = tuple(one.key for one in chosen)
        request = Search(number=10_000, out=tmp_path, runs=runs, only=keys)
        trials = [Trial(plan=plan) for plan in plans]
        progress = search(
            request, verdicts.append, print, warn=print, trials=trials, sources=SOURCES
        )
        return progress, verdicts

    return search_for


Ask = Callable[..., tuple[Progress, list[MutantResult]]]


def states(progress: Progress) -> dict[str, str]:
    return {mutant.key: verdict.state for mutant, verdict in progress.verdicts}


@pytest.mark.slow
def test_bug_is_found_and_a_later_call_continues(ask: Ask, tmp_path: Path) -> None:
    first, verdicts = ask(BUG, UNVISITED)
    assert states(first) == {BUG.key: "found", UNVISITED.key: "not visited"}
    verdict = next(verdict for verdict in verdicts if verdict.key == BUG.key)
    assert (verdict.by, verdict.run, verdict.passed) == (["acked-before-durable"], "lone/1", [])

    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"key": "cut sh')
    second, verdicts = ask(BUG, HARMLESS, UNVISITED)
    assert states(second) == {**states(first), HARMLESS.key: "not found"}
    assert [verdict.key for verdict in verdicts] == [UNVISITED.key, HARMLESS.key]
    assert verdicts[1].passed == ["lone/1"]
    assert verdicts[1].same, "not one event differs"

    more, verdicts = ask(BUG, HARMLESS, plans=(LONE, OTHER), runs=2)
    assert states(more)[HARMLESS.key] == "not found"
    assert [(verdict.key, sorted(verdict.passed)) for verdict in verdicts] == [
        (HARMLESS.key, ["lone/1", "lone/2"])
    ]
    lines = (tmp_path / RESULTS).read_text().splitlines()
    assert len(lines) == 4, "the one that was cut short does no harm to the next"
    assert '"passed": ["lone/1"]' in lines[2]


@pytest.mark.slow
def test_results_of_other_sources_do_not_count(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(HARMLESS)
    monkeypatch.setattr(generated, "digest_of_sources", lambda: "other")
    _, verdicts = ask(HARMLESS)
    assert [verdict.key for verdict in verdicts] == [HARMLESS.key]


def test_a_run_that_hangs_is_a_find(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "PATIENCE", 0.0)
    monkeypatch.setattr(generated, "PATIENCE_S", 1.0)
    _, verdicts = ask(mutant("ReleaseQueue.run", "+            if (self._queue):", SOURCES))
    assert (verdicts[0].state, verdicts[0].by) == ("found", ["hang"])


def test_a_harness_that_fails_is_a_find(ask: Ask) -> None:
    _, verdicts = ask(CRASH)
    assert (verdicts[0].state, verdicts[0].by) == ("found", ["crash"])
    assert verdicts[0].error


def test_survivors_are_written_with_their_diffs(ask: Ask, tmp_path: Path) -> None:
    progress, _ = ask(BUG, HARMLESS, UNVISITED)
    path = tmp_path / "survivors.txt"
    assert write_survivors(progress, path) == 1
    assert HARMLESS.diff in path.read_text()
    assert "the same events as without it in lone/1" in path.read_text()
    lines = list(score_lines(progress))
    assert f"no run visits node/store/heal.py:{UNVISITED.site.line} _check" in lines
    assert as_row(progress)["score"]["all"]["percent"] == 33


def test_source_edited_during_the_search_is_no_find(ask: Ask) -> None:
    old = SOURCES[1]
    edited = Source(old.place, old.data.replace(b"end >= self._queue[-1].end", b"end > 0"))
    changed = mutant("ReleaseQueue.add", "(end + 1)", [edited])
    outcome = run_plan(LONE, Options(before=changed.plant))
    assert StaleMutant.__name__ in outcome.error
    with pytest.raises(StaleMutant, match="was it edited"):
        changed.plant()


def test_failing_suite_cannot_judge(tmp_path: Path) -> None:
    bad = replace(LONE, expect=replace(LONE.expect, checks=("recovery-time",)))
    with pytest.raises(VisitError, match="lone/1 fails with nothing planted: unknown"):
        measure([Trial(plan=bad)], SOURCES, tmp_path / "visits.json", jobs=1, say=print, warn=print)


def test_visits_of_a_run_are_measured_once(tmp_path: Path) -> None:
    notices: list[str] = []
    cache = tmp_path / "visits.json"
    for _ in range(2):
        (visited,) = measure(
            [Trial(plan=LONE)], SOURCES, cache, jobs=1, say=notices.append, warn=print
        )
    assert len(notices) == 1
    assert visited.name == run_name(LONE)
    assert visited.digest == run_plan(LONE).digest
    site = BUG.site
    assert visited.visits("node/release.py", site.line)
    assert not visited.visits("node/store/heal.py", UNVISITED.site.line)


def test_digest_covers_everything_a_run_depends_on(tmp_path: Path) -> None:
    for place in ("node/a.py", "pipeline/b.py", "chaos/plan/library/c.toml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("1")
    before = digest_of_sources(tmp_path)
    (tmp_path / "pipeline/b.py").write_text("2")
    assert digest_of_sources(tmp_path) == before
    (tmp_path / "chaos/plan/library/c.toml").write_text("2")
    assert digest_of_sources(tmp_path) != before


@pytest.mark.slow
def test_session_find_is_named_after_its_session(tmp_path: Path) -> None:
    """Sessions come last, all that visit the line, and tell what they find by their name."""
    bug = mutant("Retention._tight", "return not (", RETENTION)
    run = partial(run_tests, REPOSITORY / "tests" / "sim" / "test_retention.py")
    session = Trial(plan=Plan(name="retention", seed=1), session=run, kind="session")
    trials = [session, Trial(plan=LONE)]
    request = Search(number=10_000, out=tmp_path, runs=1, only=(bug.key,))
    progress = search(request, print, print, warn=print, trials=trials, sources=RETENTION)
    (_, verdict), *_ = progress.verdicts
    assert (verdict.state, verdict.by, verdict.run) == ("found", ["retention"], "retention/1")


@pytest.mark.slow
def test_finds_by_tests_alone_are_counted_apart(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    looks = "from rocketbed.node.config.node_config import make_config\n\n"
    looks += "def test_a_master_is_no_slave() -> None:\n    assert {}make_config([])[0].is_slave\n"
    (folder / "test_right.py").write_text(looks.format("not "))
    (folder / "test_wrong.py").write_text(looks.format(""))
    warnings: list[str] = []
    request = Search(number=10_000, out=tmp_path, only=(CRASH.key,))
    trials = files_of_tests(folder)
    progress = search(request, print, print, warn=warnings.append, trials=trials, sources=SOURCES)
    ((_, verdict),) = progress.verdicts
    assert (verdict.state, verdict.by) == ("tests only", [str(folder / "test_right.py")])
    (line,) = warnings
    assert all(part in line for part in ("test_wrong.py", "nothing planted", "1 failed"))
    assert percent(score(progress)["all"]) == 0

    (folder / "test_right.py").unlink()
    with pytest.raises(VisitError, match="every file of tests fails"):
        search(request, print, print, warn=print, trials=files_of_tests(folder), sources=SOURCES)


def test_tests_run_where_the_project_is_loaded_already() -> None:
    """`planted --tests` has such a process: pytest finds our plugin loaded too early, and
    objects that were there before the fork are frozen."""
    path = Path(__file__).parents[1] / "unit/client/test_ids.py"
    code = "import gc, sys, pathlib, trio, rocketbed.cli.main\ngc.freeze()\n"
    code += "from tests.mutation.generated.testing import run_tests\n"
    code += "print(run_tests(pathlib.Path(sys.argv[1])))"
    ran = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == (f"{path}\n", "")


@pytest.mark.slow
def test_a_slice_of_all_sources(tmp_path: Path) -> None:
    """A mutant of each of many modules, in a few runs and all sessions: from a seed to a score."""
    command = [sys.executable, "-m", "tests.mutation.slice", str(SLICE), "1", str(tmp_path)]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(ran.stdout)["score"]["all"]
    assert row["found"] + row["not found"] + row["not visited"] == SLICE
    survivors = (tmp_path / SURVIVORS).read_text()
    assert row["found"] >= SCORE_MIN * (row["found"] + row["not found"]), f"{row}\n{survivors}"


def test_undrawn_key_is_named(ask: Ask) -> None:
    with pytest.raises(UnknownMutant, match="0123: not among"):
        ask(replace(BUG, key="0123"))
