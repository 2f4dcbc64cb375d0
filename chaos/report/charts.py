"""The drawings of a report: timeline, offsets, latency, throughput, order within a queue."""

import math
from collections import defaultdict
from collections.abc import Sequence

from rocketbed.chaos.checkers.judgement import Judgement
from rocketbed.chaos.report.story import Story
from rocketbed.chaos.report.svg import (
    LEFT,
    PLOT,
    WIDTH,
    Point,
    path,
    show_bytes,
    svg,
    tag,
    thin,
    ticks,
    time_axis,
    titled,
    x_of,
)

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


def timeline(story: Story, judgement: Judgement) -> str:
    """A row for each machine: role, faults, moments, findings."""
    names = [*story.roles, *(name for name in sorted(story.faulted) if name not in story.roles)]
    height = 24 + ROW * (len(names) + 1) + 24
    bottom = 24 + ROW * (len(names) + 1)
    parts = [*_phases(story, 6, bottom), *time_axis(story.end_s, 24, bottom)]
    marks = _finding_marks(story, judgement)
    for number, name in enumerate(names):
        y = 24 + ROW * number
        parts.append(tag("text", name, x=LEFT - 8, y=y + 17, class_="row"))
        parts += [
            _bar(story, bar.begin_s, bar.end_s, y + 6, 14, bar.kind, f"{name}: {bar.kind}")
            for bar in story.roles.get(name, [])
            if bar.kind
        ]
        parts += [
            _bar(story, bar.begin_s, bar.end_s, y + 2, 22, "fault", bar.label)
            for bar in story.faulted.get(name, [])
        ]
        for tick in story.ticks.get(name, []):
            x = x_of(tick.time_s, story.end_s)
            sign = tag("text", SIGNS.get(tick.kind, "|"), x=x, y=y + 18, class_=f"sign {tick.kind}")
            parts.append(f"<g>{sign}<title>{tick.label}, {tick.time_s:.2f} s</title></g>")
    y = 24 + ROW * len(names)
    parts.append(tag("text", "findings", x=LEFT - 8, y=y + 17, class_="row"))
    for time_s, check, text in marks:
        x = x_of(time_s, story.end_s)
        dot = titled("circle", text, cx=x, cy=y + 13, r=6, class_="finding")
        parts.append(f'<a href="#check-{check}">{dot}</a>')
    return svg(height, parts, "Roles, faults and findings over time")


def offsets(story: Story, node: str) -> str:
    """How far a node's log reached: written, flushed, confirmed, dispatched."""
    samples = story.samples.get(node, [])
    if not samples:
        return ""
    top, bottom = 10, 130
    highest = max(max(sample[1:]) for sample in samples) or 1

    def line(field: int) -> list[Point]:
        points = thin([(sample[0], float(sample[field])) for sample in samples])
        return [(x_of(t, story.end_s), bottom - (bottom - top) * v / highest) for t, v in points]

    written, flushed = line(1), line(2)
    parts = [*_phases(story, top, bottom), *time_axis(story.end_s, top, bottom)]
    for value in ticks(0, highest, 3):
        y = bottom - (bottom - top) * value / highest
        parts.append(tag("text", show_bytes(value), x=LEFT - 8, y=y + 4, class_="row small"))
    parts.append(path([*written, *reversed(flushed)], "exposed", closed=True))
    parts += [path(line(4), "dispatched"), path(line(3), "confirmed")]
    parts += [path(flushed, "flushed"), path(written, "written")]
    for tick in story.ticks.get(node, []):
        x = x_of(tick.time_s, story.end_s)
        parts.append(
            titled("line", tick.label, x1=x, x2=x, y1=top, y2=bottom, class_=f"cutline {tick.kind}")
        )
    return svg(bottom + 22, parts, f"Offsets of {node} over time")


def latency(story: Story) -> str:
    """Each send's time on a logarithmic scale, and the outages of producers."""
    top, bottom = 10, 190
    low, high = 1e-4, max([1e-2, *(latency_s for _, latency_s, _ in story.sends)])
    span = math.log(high / low)

    def y_of(seconds: float) -> float:
        return bottom - (bottom - top) * math.log(max(seconds, low) / low) / span

    parts = [*_phases(story, top, bottom), *time_axis(story.end_s, top, bottom)]
    for exponent in range(-4, math.ceil(math.log10(high)) + 1):
        y = y_of(10.0**exponent)
        if y >= top:
            parts.append(tag("line", x1=LEFT, x2=WIDTH, y1=y, y2=y, class_="grid"))
            parts.append(
                tag("text", _seconds(10.0**exponent), x=LEFT - 8, y=y + 4, class_="row small")
            )
    for time_s, latency_s, outcome in _extremes(story.sends):
        parts.append(
            tag(
                "circle",
                cx=x_of(time_s, story.end_s),
                cy=y_of(latency_s),
                r=1.6,
                class_=f"dot {outcome}",
            )
        )
    for name, begin_s, end_s in story.outages:
        parts.append(
            _bar(
                story, begin_s, end_s, top, 4, "outage", f"{name}: {end_s - begin_s:.2f} s without"
            )
        )
    return svg(bottom + 22, parts, "Latency of sends over time")


def throughput(story: Story) -> str:
    """Acknowledged sends each second, and how far readers were behind."""
    top, bottom = 10, 90
    width = max(story.end_s / BINS, 1e-9)
    counts: dict[int, int] = defaultdict(int)
    for time_s, latency_s, outcome in story.sends:
        if outcome == "ok":
            counts[int((time_s + latency_s) / width)] += 1
    rates = [counts.get(number, 0) / width for number in range(BINS + 1)]
    highest = max([1.0, *rates])
    points = [
        (x_of((number + 0.5) * width, story.end_s), bottom - (bottom - top) * rate / highest)
        for number, rate in enumerate(rates)
    ]
    parts = [*_phases(story, top, bottom), *time_axis(story.end_s, top, bottom)]
    parts.append(tag("text", f"{highest:.0f}/s", x=LEFT - 8, y=top + 8, class_="row small"))
    parts.append(path(points, "written"))
    lag = thin([(time_s, float(behind)) for time_s, behind in sorted(story.lag)])
    if lag:
        most = max(1.0, max(value for _, value in lag))
        line = [(x_of(t, story.end_s), bottom - (bottom - top) * v / most) for t, v in lag]
        parts.append(path(line, "confirmed"))
        parts.append(tag("text", f"lag ≤ {most:.0f}", x=LEFT - 8, y=bottom - 2, class_="row small"))
    return svg(bottom + 22, parts, "Acknowledged sends a second, and the lag of readers")


def percentiles(story: Story) -> dict[str, float]:
    """p50, p99 and the longest time of an acknowledged send, seconds."""
    times = sorted(latency_s for _, latency_s, outcome in story.sends if outcome == "ok")
    if not times:
        return {}
    return {
        "p50": times[len(times) // 2],
        "p99": times[min(len(times) - 1, int(len(times) * 0.99))],
        "max": times[-1],
    }


def _phases(story: Story, top: float, bottom: float) -> list[str]:
    if not story.calm_s:
        return []
    x = x_of(story.calm_s, story.end_s)
    return [
        tag("rect", x=x, y=top, width=LEFT + PLOT - x, height=bottom - top, class_="calm"),
        tag("text", "calm", x=x + 4, y=top + 11, class_="phase"),
    ]


def _bar(
    story: Story, begin_s: float, end_s: float, y: float, height: float, kind: str, title: str
) -> str:
    x = x_of(begin_s, story.end_s)
    width = max(x_of(end_s, story.end_s) - x, 1.5)
    return titled("rect", title, x=x, y=y, width=width, height=height, class_=f"bar {kind}")


def _finding_marks(story: Story, judgement: Judgement) -> list[tuple[float, str, str]]:
    record = judgement.record
    zero_ns = int(record.facts.get("zero_ns", 0)) if record else 0
    return [
        ((example.time_ns - zero_ns) / 1e9, result.id, f"{result.title}: {example.text}")
        for result in judgement.findings
        for example in result.examples
        if example.time_ns is not None
    ]


def _extremes(sends: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Sends to draw: all where there are few, else each column's shortest, longest and odd ones."""
    if len(sends) <= 4000:
        return list(sends)
    columns: dict[tuple[int, str], list[tuple[float, float, str]]] = defaultdict(list)
    end = max(time_s for time_s, _, _ in sends) or 1.0
    for send in sends:
        columns[int(send[0] / end * 600), send[2]].append(send)
    kept = []
    for column in columns.values():
        column.sort(key=lambda send: send[1])
        kept += [column[0], column[len(column) // 2], column[-1]]
    return kept


def _seconds(value: float) -> str:
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
