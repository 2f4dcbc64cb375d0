"""Summary of a run for the console: the promise, the loss, the findings."""

from collections import Counter
from shlex import quote

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.checks.registry import MEANINGS
from rocketbed.chaos.checks.result import Verdict
from rocketbed.chaos.evidence.record import Promise, RunRecord
from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.step import parse_step
from rocketbed.chaos.report.words import clock, failing, length

EXAMPLES = 2
"""Number of findings of a check that are quoted."""


def promise_text(promise: Promise) -> str:
    """Describe what an acknowledgement promised."""
    place = "on disk" if promise.flush == "sync" else "in memory"
    if promise.copies > 1:
        return f"{promise.flush} flush, {promise.copies} copies: acknowledged means {place} there"
    return f"{promise.flush} flush, one copy: acknowledged means {place} at the master"


def loss_text(judgement: Judgement) -> str:
    try:
        result = judgement.result("loss-within-bound")
    except KeyError:
        return "the loss was not judged"
    return result.note or f"{result.examined:,} {result.unit}"


def faults_text(record: RunRecord) -> str:
    """Return the steps that were carried out, counted by verb: `kill 3, powercut 1`."""
    done = Counter(record.steps) - Counter(record.facts.get("vain", []))
    counts = Counter(step.split()[2] for step in done.elements() if len(step.split()) > 2)
    return ", ".join(f"{verb} {count}" for verb, count in counts.most_common()) or "nothing"


def done_texts(record: RunRecord) -> list[str]:
    """Return each step that was carried out, in order of time: `0:03.564 restart b1`."""
    steps = sorted(map(parse_step, record.steps), key=lambda step: step.at_s)
    return [f"{clock(step.at_s, 3)} {step.to_the_millisecond().action()}" for step in steps]


def pause_texts(judgement: Judgement, record: RunRecord) -> list[str]:
    """Return the longest time without a write, and how long each failover took."""
    zero_ns, pauses = int(record.facts.get("zero_ns", 0)), judgement.pauses
    texts = []
    if pauses.longest_s:
        begin_s = (pauses.begin_ns - zero_ns) / 1e9
        texts.append(f"longest time without one {length(pauses.longest_s)}, at {clock(begin_s, 1)}")
    for failover in pauses.failovers:
        change = f"{failover.node} took over" + (
            f" from {failover.former}" if failover.former else ""
        )
        took = (
            "nothing was written again"
            if failover.seconds is None
            else f"{length(failover.seconds)} until the next write"
        )
        begin_s = (failover.begin_ns - zero_ns) / 1e9
        action = _action(failover.step)
        texts.append(f"{change} after {clock(begin_s, 1)} {action}: {took}")
    return texts


def _action(step: str) -> str:
    """Return what a step does; the background's own steps are in words already."""
    try:
        return parse_step(step).to_the_millisecond().action()
    except ScenarioError:
        return step


def run_command(record: RunRecord) -> str:
    """Return the command that makes the same plan and runs it."""
    command = f"rocketbed chaos run {quote(record.scenario)} --backend {record.backend}"
    command += f" --seed {record.seed}"
    if record.facts.get("quick"):
        command += " --quick"
    if "target" in record.facts:
        command += f" --target {record.facts['target']} --mode {record.facts['mode']}"
    return command


def _inapplicable(judgement: Judgement) -> dict[str, list[str]]:
    """Return the checks that this run had nothing for, by reason."""
    reasons: dict[str, list[str]] = {}
    for result in judgement.results:
        if result.verdict is Verdict.NOT_APPLICABLE:
            reasons.setdefault(result.note, []).append(result.id)
    return reasons


def excuse_texts(judgement: Judgement, record: RunRecord) -> list[str]:
    """Return what each excuse covers: `lost-write 5 by: power cut of b1 (0:12.3 to 0:12.9)`."""
    zero_ns, texts = int(record.facts.get("zero_ns", 0)), []
    for excuse, covered in judgement.ledger.items():
        begin_s, end_s = ((at - zero_ns) / 1e9 for at in (excuse.begin_ns, excuse.end_ns))
        until = "the end" if excuse.end_ns >= record.end_ns else clock(end_s, 1)
        counts = ", ".join(f"{name} {line.count}" for name, line in covered.items())
        texts.append(f"{counts} by: {excuse.cause} ({clock(begin_s, 1)} to {until})")
    return texts


def summary_text(judgement: Judgement, record: RunRecord, *, explain: bool = False) -> str:
    """Return the summary; with `explain`, also why each other check does not apply."""
    facts, ran_on = record.facts, ""
    if "target" in facts:  # the software under test was not our own node
        software, mode = facts.get("software", facts["target"]), facts.get("mode", "classic")
        ran_on = f", {software} in {mode} mode"
    ran = [r for r in judgement.results if r.verdict in (Verdict.OK, Verdict.VIOLATED)]
    held = sum(result.passed or result.harmless for result in ran)
    violated = len(ran) - held
    reasons = _inapplicable(judgement)
    others = f", {sum(map(len, reasons.values()))} do not apply" if reasons else ""
    others += " (--explain says why)" if reasons and not explain else ""
    broken_nodes = facts.get("left_broken")
    lines = [
        f"{judgement.verdict.upper()}  {record.scenario}, seed {record.seed}, {record.backend}"
        f"{ran_on}",
        f"promised: {promise_text(record.promise)}",
        f"broken:   {faults_text(record)}",
        *(
            [f"  in the recovery phase without power: {', '.join(broken_nodes)}"]
            if broken_nodes
            else []
        ),
        f"loss:     {loss_text(judgement)}",
        *(f"writes:   {text}" for text in pause_texts(judgement, record)),
        f"checks:   {held} held, {violated} violated{others}",
    ]
    if explain:
        lines += [f"  {', '.join(ids)}: {reason}" for reason, ids in reasons.items()]
    lines += [f"  excused: {text}" for text in excuse_texts(judgement, record)]
    for result in judgement.findings:
        kind = "  warning" if result.harmless else "  FINDING"
        extent = failing(result.found, result.examined, result.unit)
        lines.append(f"{kind} {result.id}: {extent}")
        if result.id in MEANINGS:
            lines.append(f"      required: {MEANINGS[result.id]}")
        lines += [f"      {text}" for text in result.findings[:EXAMPLES]]
    lines += [
        f"  did not run: {result.id}: {result.note}"
        for result in judgement.results
        if result.verdict is Verdict.DID_NOT_RUN
    ]
    lines += [f"  skipped: {text}" for text in record.skipped]
    lines += [f"  not done: {text}" for text in facts.get("missed", [])]
    if record.digest:
        lines.append(f"digest:   {record.digest}")
    return "\n".join(lines)
