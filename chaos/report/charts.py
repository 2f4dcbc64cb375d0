"""Charts of a report: timeline, offsets, latency, throughput, order within a queue."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape

from jinja2.filters import do_filesizeformat

from rocketbed.chaos.checks.judgement import Judgement
from rocketbed.chaos.report.cause import Root
from rocketbed.chaos.report.story import Story
from rocketbed.chaos.report.svg import (
    LEFT,
    PLOT,
    WIDTH,
    Point,
    path,
    svg,
    tag,
    thin,
    ticks,
    time_axis,
    titled,
    x_of,
)
from rocketbed.chaos.report.words import clock

ROW = 26
SIGNS = {
    "kill": "✕",
    "powercut": "⚡",
    "crash": "✕",
    "promote": "▲",
    "cut": "✂",
    "stop": "■",
    "finding": "●",
}
BINS = 120
DOTS = 600
"""Columns of sends; of each column and outcome the ends and the extremes are drawn."""


def timeline(story: Story, judgement: Judgement, roots: Sequence[Root] = ()) -> str:
    """Draw a row for each machine: role, faults, events, findings."""
    names = [*story.roles, *(name for name in sorted(story.faulted) if name not in story.roles)]
    bottom = 24 + ROW * (len(names) + 1)
    parts = _frame(story, 6, bottom, axis=24)
    for number, name in enumerate(names):
        y = 24 + ROW * number
        parts.append(_label(name, y + 17))
        for bar in story.roles.get(name, []):
            if bar.kind:
                title = f"{name}: {bar.kind}"
                parts.append(_bar(story, bar.begin_s, bar.end_s, y + 6, 14, bar.kind, title))
        for bar in story.faulted.get(name, []):
            parts.append(_bar(story, bar.begin_s, bar.end_s, y + 2, 22, "fault", bar.label))
        for tick in story.ticks.get(name, []):
            x = x_of(tick.time_s, story.end_s)
            sign = tag("text", SIGNS.get(tick.kind, "|"), x=x, y=y + 18, class_=f"sign {tick.kind}")
            parts.append(
                f"<g>{sign}<title>{escape(tick.label)}, {clock(tick.time_s, 2)}</title></g>"
            )
    y = 24 + ROW * len(names)
    parts.append(_label("findings", y + 17))
    zero_ns = int(judgement.record.facts.get("zero_ns", 0)) if judgement.record else 0
    lost = {id(result): root.moments for root in roots for result in root.results if root.moments}
    dots = []
    for result in judgement.findings:
        for number, example in enumerate(result.examples, 1):
            if example.time_ns is not None:
                x = x_of((example.time_ns - zero_ns) / 1e9, story.end_s)
                for name, time_s in lost.get(id(result), [])[:1] if number == 1 else []:
                    top, at = 37 + ROW * names.index(name), x_of(time_s, story.end_s)
                    parts.append(tag("line", x1=at, y1=top, x2=x, y2=y + 13, class_="thread"))
                text = f"{result.id}: {example.text}"
                dot = titled("circle", text, cx=x, cy=y + 13, r=6, class_="finding")
                dots.append(f'<a href="#find-{result.id}-{number}">{dot}</a>')
    for number, root in enumerate(roots, 1):
        for name, time_s in root.moments:
            x, row = x_of(time_s, story.end_s), 37 + ROW * names.index(name)
            dot = titled("circle", root.sentence, cx=x, cy=row, r=6, class_="lost")
            dots.append(f'<a href="#root-{number}">{dot}</a>')
    parts += dots
    return svg(bottom + 24, parts, "Roles, faults and findings over time")


def offsets(story: Story, node: str) -> str:
    """Draw the ends of a node's log: written, flushed, confirmed, dispatched."""
    samples = story.samples[node]
    top, bottom = 10, 130
    highest = max(max(sample[1:]) for sample in samples) or 1

    def line(field: int) -> list[Point]:
        values = [(sample[0], float(sample[field])) for sample in samples]
        return _scaled(story, thin(values), highest, top, bottom)

    written, flushed = line(1), line(2)
    parts = _frame(story, top, bottom)
    for value in ticks(0, highest, 3):
        y = bottom - (bottom - top) * value / highest
        parts.append(_label(do_filesizeformat(value, binary=True), y + 4, small=True))
    parts.append(path([*written, *reversed(flushed)], "exposed", closed=True))
    parts += [path(line(4), "dispatched"), path(line(3), "confirmed")]
    parts += [path(flushed, "flushed"), path(written, "written")]
    for tick in story.ticks.get(node, []):
        x, kind = x_of(tick.time_s, story.end_s), f"cutline {tick.kind}"
        parts.append(titled("line", tick.label, x1=x, x2=x, y1=top, y2=bottom, class_=kind))
    return svg(bottom + 22, parts, f"Offsets of {node} over time")


def latency(story: Story) -> str:
    """Draw each send's latency on a logarithmic scale, and the outages of producers."""
    top, bottom = 10, 190
    low, high = 1e-4, max([1e-2, *(latency_s for _, latency_s, _ in story.sends)])
    span = math.log(high / low)

    def y_of(seconds: float) -> float:
        return bottom - (bottom - top) * math.log(max(seconds, low) / low) / span

    parts = _frame(story, top, bottom)
    for exponent in range(-4, math.ceil(math.log10(high)) + 1):
        seconds = 10.0**exponent
        y = y_of(seconds)
        if y >= top:
            text = f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
            parts.append(tag("line", x1=LEFT, x2=WIDTH, y1=y, y2=y, class_="grid"))
            parts.append(_label(text, y + 4, small=True))
    sends: dict[str, list[Point]] = defaultdict(list)
    for time_s, latency_s, outcome in story.sends:
        sends[outcome].append((time_s, latency_s))
    for outcome, points in sends.items():
        for time_s, latency_s in thin(sorted(points), DOTS):
            x, y = x_of(time_s, story.end_s), y_of(latency_s)
            parts.append(tag("circle", cx=x, cy=y, r=1.6, class_=f"dot {outcome}"))
    for name, begin_s, end_s in story.outages:
        title = f"{name}: {end_s - begin_s:.2f} s without"
        parts.append(_bar(story, begin_s, end_s, top, 4, "outage", title))
    return svg(bottom + 22, parts, "Latency of sends over time")


def throughput(story: Story) -> str:
    """Draw the acknowledged sends each second, and the lag of readers."""
    top, bottom = 10, 90
    width = max(story.end_s / BINS, 1e-9)
    counts = Counter(
        int((time_s + latency_s) / width)
        for time_s, latency_s, outcome in story.sends
        if outcome == "ok"
    )
    rates = [((number + 0.5) * width, counts[number] / width) for number in range(BINS + 1)]
    highest = max([1.0, *(rate for _, rate in rates)])
    parts = _frame(story, top, bottom)
    parts.append(_label(f"{highest:,.0f}/s", top + 8, small=True))
    parts.append(path(_scaled(story, rates, highest, top, bottom), "written"))
    lag = thin([(time_s, float(messages)) for time_s, messages in sorted(story.lag)])
    if lag:
        most = max(1.0, max(value for _, value in lag))
        parts.append(path(_scaled(story, lag, most, top, bottom), "confirmed"))
        parts.append(_label(f"lag ≤ {most:,.0f} messages", bottom - 2, small=True))
    return svg(bottom + 22, parts, "Acknowledged sends a second, and the lag of readers")


def percentiles(story: Story) -> dict[str, float]:
    """Return p50, p99 and the longest time of an acknowledged send, seconds."""
    times = sorted(latency_s for _, latency_s, outcome in story.sends if outcome == "ok")
    if not times:
        return {}
    return {
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) - 1, int(len(times) * 0.99))],
        "max": times[-1],
    }


def _frame(story: Story, top: float, bottom: float, axis: float | None = None) -> list[str]:
    """Draw the background: the recovery phase, and the seconds (lines from `axis` down)."""
    seconds = time_axis(story.end_s, top if axis is None else axis, bottom)
    if not story.recovery_s:
        return seconds
    x = x_of(story.recovery_s, story.end_s)
    return [
        tag("rect", x=x, y=top, width=LEFT + PLOT - x, height=bottom - top, class_="recovery"),
        tag("text", "recovery", x=x + 4, y=top + 11, class_="phase"),
        *seconds,
    ]


def _label(text: str, y: float, *, small: bool = False) -> str:
    return tag("text", text, x=LEFT - 8, y=y, class_="row small" if small else "row")


def _scaled(
    story: Story, values: Sequence[Point], highest: float, top: float, bottom: float
) -> list[Point]:
    return [
        (x_of(time_s, story.end_s), bottom - (bottom - top) * value / highest)
        for time_s, value in values
    ]


def _bar(
    story: Story, begin_s: float, end_s: float, y: float, height: float, kind: str, title: str
) -> str:
    x = x_of(begin_s, story.end_s)
    width = max(x_of(end_s, story.end_s) - x, 1.5)
    return titled("rect", title, x=x, y=y, width=width, height=height, class_=f"bar {kind}")
