"""A run as JUnit XML: one test case for each check (chaos.md 4.9)."""

from pathlib import Path
from xml.etree import ElementTree

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.result import Severity, Verdict
from rocketbed.chaos.evidence.record import RunRecord

FILE = "junit.xml"


def write_junit(directory: Path, judgement: Judgement, record: RunRecord) -> Path:
    """Write `junit.xml`: a finding is a failure; a crash or a check that did not run is an
    error."""
    name = f"{record.scenario} seed {record.seed} on {record.backend}"
    suite = ElementTree.Element("testsuite", name=name)
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for result in judgement.results:
        counts["tests"] += 1
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.id)
        message = result.findings[0] if result.findings else result.note
        crashed = result.verdict is Verdict.VIOLATED and result.severity is Severity.CRASH
        if result.verdict is Verdict.NOT_APPLICABLE:
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=result.note)
        elif result.verdict is Verdict.DID_NOT_RUN or crashed:
            counts["errors"] += 1
            ElementTree.SubElement(case, "error", message=message)
        elif not result.harmless:
            counts["failures"] += 1
            failure = ElementTree.SubElement(case, "failure", message=message)
            failure.text = "\n".join(result.findings)
    for key, count in counts.items():
        suite.set(key, str(count))
    path = directory / FILE
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    return path
