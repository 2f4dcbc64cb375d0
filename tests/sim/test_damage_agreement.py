"""The node and the independent reader on the same damaged directory: one verdict.

For each case of the damage campaign: a start refuses, and `fsck` names the same place; a start
serves everything and has nothing to tell, and `fsck` finds nothing wrong. Where they differ, `WHY`
says so.
"""

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketbed.chaos.backends.sim.disk_image import DiskImage
from rocketbed.inspect.check.store import Report, check_store
from rocketbed.inspect.directory import open_directory
from rocketbed.inspect.findings import Severity
from rocketbed.node.store.errors import DamagedLog, StoreError
from rocketbed.node.store.store import MessageStore
from tests.support.sim.damage import CONFIG, SAMPLE, Case, cases, stores
from tests.support.sim.store_session import ROOT, edited, session

WHY = {
    r".*: (bit in checkpoint|checkpoint cut short)": "RocketMQ's checkpoint: the node does not go"
    " by it where its own mark holds, RocketMQ would",
    r"(kill|power): (bit in (begin (offset|time)|end offset|next entry|a used slot) of the index"
    r"|(bit in )?index/.*)": "after an unclean stop the node makes header and slots of the last"
    " index file again, from its mark, without a word",
}
"""Cases (as regular expressions) in which one of the two sees more, and why that is right."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of one of the two on a directory."""

    refused: bool
    places: frozenset[int]
    """Offsets of damage in the log."""
    tells: bool
    """Whether anything of log, queues or index is not as it should be."""


async def look(store: MessageStore) -> Verdict:
    await store.scrubber.finished.wait()
    scrubber, report = store.scrubber, store.recovery
    tells = (
        scrubber.damage
        or scrubber.index_damage
        or scrubber.healed
        or scrubber.unqueued
        or report.findings
    )
    places = frozenset(damage.start for damage in scrubber.damage)
    return Verdict(False, places, bool(tells) or report.took_over)


def node(case: Case, image: DiskImage) -> Verdict:
    boots = 2 if case.stop == "power" else 1
    try:
        verdict: Verdict = session(look, config=CONFIG, image=image, boots=boots).value
    except DamagedLog as exc:
        return Verdict(True, frozenset({exc.offset}), True)
    except StoreError:
        return Verdict(True, frozenset(), True)
    return verdict


def fsck(image: DiskImage, directory: Path) -> Report:
    image.export(str(directory))
    with closing(open_directory(f"{directory}{ROOT}")) as opened:
        return check_store(opened)


def places(report: Report) -> set[int | None]:
    return {
        finding.offset
        for finding in report.findings
        if finding.severity is Severity.DAMAGE
        and finding.rule in ("log-files-tile", "record-checksums", "no-silent-damage")
        and finding.file.startswith("commitlog")
    }


def dispute(case: Case, image: DiskImage, directory: Path) -> str:
    """Return the difference of the two on a case; empty if they agree."""
    ours, report = node(case, image), fsck(image, directory)
    theirs = places(report)
    if ours.refused and report.worst is not Severity.DAMAGE:
        return f"the node refuses, fsck says {report.verdict}"
    if ours.refused and not ours.places <= theirs:
        return f"the node refuses at {sorted(ours.places)}, fsck names {theirs}"
    if not ours.refused and not theirs <= ours.places:
        return f"fsck names {theirs} in the log, the node {sorted(ours.places)}"
    if not ours.places <= theirs:
        return f"the node names {sorted(ours.places)} in the log, fsck {theirs}"
    if not ours.tells and report.worst is Severity.DAMAGE:
        return f"the node has nothing to tell, fsck: {report.findings[0].text}"
    return ""


def run(step: int, directory: Path) -> dict[str, str]:
    images = stores()
    disputes = {}
    for number, case in enumerate(list(cases(images))[::step]):
        image = edited(images[case.stop], case.change)
        disputes[f"{case.stop}: {case.alteration}"] = dispute(case, image, directory / str(number))
    return disputes


def unexplained(disputes: dict[str, str]) -> dict[str, str]:
    return {
        name: what
        for name, what in disputes.items()
        if what and not any(re.fullmatch(pattern, name) for pattern in WHY)
    }


def test_a_sample_is_judged_alike(tmp_path: Path) -> None:
    assert unexplained(run(SAMPLE, tmp_path)) == {}


@pytest.mark.slow
def test_every_case_is_judged_alike(tmp_path: Path) -> None:
    disputes = run(1, tmp_path)
    assert unexplained(disputes) == {}
    idle = [
        pattern
        for pattern in WHY
        if not any(what and re.fullmatch(pattern, name) for name, what in disputes.items())
    ]
    assert idle == [], "they agree by now"
