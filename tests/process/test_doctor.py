"""The doctor: prepared for `make test-all`, everything works; elsewhere it says why not."""

import json
import os
from pathlib import Path

import pytest

from rocketbed.chaos.doctor import probes as doctor_probes
from rocketbed.chaos.doctor import report as doctor
from rocketbed.chaos.doctor.report import (
    PROBES,
    Capability,
    doctor_rows,
    render_json,
    render_table,
)
from rocketbed.host.janitor.record import Ledger


@pytest.mark.slow
def test_everything_works_here() -> None:
    tested_elsewhere = ("net.", "docker")  # with tests of their own
    names = [name for name in PROBES if not name.startswith(tested_elsewhere)]
    rows = doctor_rows(names)
    print(render_table(rows))
    assert [row.name for row in rows] == names
    assert {row.name: row.reason for row in rows if not row.works} == {}
    slow = [row.name for row in rows if row.seconds >= 10]
    while slow:  # other work took the machine; a slow probe never passes
        slow = [row.name for row in doctor_rows(slow) if row.seconds >= 10]


def three_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_run: Ledger) -> str:
        raise OSError("the device\nis on fire")

    def fails_badly(_run: Ledger) -> str:
        raise doctor_probes.Broken("badly")

    def missing(_run: Ledger) -> str:
        raise doctor_probes.Missing("needs root")

    probes = {
        "a.good": lambda _run: "well",
        "a.bad": fails_badly,
        "a.crash": fails,
        "a.missing": missing,
    }
    monkeypatch.setattr(doctor, "PROBES", probes)


def test_rows_name_broken_and_missing_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    three_probes(monkeypatch)
    rows = doctor_rows()
    assert [(row.name, row.state, row.reason) for row in rows] == [
        ("a.good", "works", "well"),
        ("a.bad", "broken", "badly"),
        ("a.crash", "broken", "the device is on fire"),
        ("a.missing", "absent", "needs root"),
    ]
    assert [row.name for row in doctor_rows(["a.bad"])] == ["a.bad"]
    with pytest.raises(ValueError, match=r"unknown capability a\.ugly"):
        doctor_rows(["a.ugly"])
    assert os.listdir(tmp_path / "rocketbed-runs") == []


def test_table_and_json() -> None:
    rows = [
        Capability(name="proc.cpu", state="works", reason="fine", seconds=0.123),
        Capability(name="net.switch", state="absent", reason="no TUN", seconds=1.0),
    ]
    assert render_table(rows).splitlines() == [
        "proc.cpu    works    0.12 s  fine",
        "net.switch  absent   1.00 s  no TUN",
    ]
    assert json.loads(render_json(rows))[0] == {
        "name": "proc.cpu",
        "state": "works",
        "reason": "fine",
        "seconds": 0.123,
    }


def test_without_root_nothing_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with Ledger.begin(tmp_path, guard=False) as run:
        for probe in (doctor_probes.probe_power_cut, doctor_probes.probe_cpu):
            with pytest.raises(doctor_probes.Missing, match="needs root"):
                probe(run)


def test_pausing_needs_nothing(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path, guard=False) as run:
        assert doctor_probes.probe_pause(run) == "SIGSTOP and SIGCONT"
