"""A store after recovery from a crash is clean by the independent reader too."""

from contextlib import closing
from pathlib import Path

import pytest

from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.inspect.check.store import check_store
from rocketbed.inspect.directory import open_directory
from rocketbed.inspect.findings import Severity
from tests.support.sim.crashes import crashed_run, whole_run
from tests.support.sim.store_oracle import reboot
from tests.support.sim.store_script import ROOT, Ledger, config, script


@pytest.mark.parametrize("kind", ["kill", "power-random", "power-prefix"])
def test_a_recovered_directory_has_no_damage(kind: str, tmp_path: Path) -> None:
    settings = config()
    for event in range(40, whole_run("async"), 23):
        run, _ = crashed_run("async", event, kind)
        recovered = reboot(run.image, kind, settings)
        directory = tmp_path / f"{event}"
        recovered.image.export(str(directory))
        with closing(open_directory(f"{directory}{ROOT}")) as opened:
            report = check_store(opened)
        bad = [finding for finding in report.findings if finding.severity is not Severity.NOTE]
        assert bad == [], f"{kind} at event {event}"
        assert report.log_end == recovered.value["end"]


def test_a_clean_stop_leaves_nothing_to_say(tmp_path: Path) -> None:
    run = run_solo(script, Ledger(), config())
    run.image.export(str(tmp_path))
    with closing(open_directory(f"{tmp_path}{ROOT}")) as opened:
        report = check_store(opened)
    assert list(report.findings) == []
    assert report.verdict == "good"
