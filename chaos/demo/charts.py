"""Drawings of the report as inline SVG: no script, no service, colours from the page's style.

Every drawing is made twice, for a wide and for a narrow window: a wide one scaled down to a phone
would have letters nobody can read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDE: Final = 960
NARROW: Final = 400
TICK_STEPS: Final = (1, 2, 5, 10)
LEFT: Final = 58
RIGHT: Final = 12
TOP: Final = 22
BOTTOM: Final = 26
FONT: Final = 12

Point = tuple[float, float | None]
"""Seconds and a value; None is a gap."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a drawing."""

    name: str
    style: str
    """Class of the page's style."""
    points: Sequence[Point]
    filled: bool = False
    """Whether the area below is shaded."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time to be shaded: a node was down, or producers waited."""

    start_s: float
    end_s: float
    title: str
    style: str = "down"


@dataclass(frozen=True, slots=True)
class Moment:
    """A kill."""

    at_s: float
    title: str
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over time, with what happened."""

    title: str
    end_s: float
    lines: Sequence[Line]
    top: float
    """Highest value of the vertical axis."""
    spans: Sequence[Span] = ()
    moments: Sequence[Moment] = ()
    hints: Sequence[tuple[float, str]] = field(default_factory=list)
    """What a pointer shows at a time."""
    height: int = 190


def draw(chart: Chart) -> str:
    """The drawing for wide and for narrow windows."""
    return _svg(chart, WIDE, "wide") + _svg(chart, NARROW, "narrow")


def ticks(top: float, count: int) -> list[float]:
    """Round numbers from 0 to at most `top`, about `count` of them."""
    if top <= 0:
        return [0.0]
    raw = top / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(size * magnitude for size in TICK_STEPS if size * magnitude >= raw * 0.999)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def thin(points: Sequence[Point], columns: int) -> list[Point]:
    """At most about four points a column, among them its lowest, highest, first and last.

    So no peak and no gap is lost, however many points there were.
    """
    if len(points) <= columns * 4:
        return list(points)
    kept: list[Point] = []
    size = math.ceil(len(points) / columns)
    for start in range(0, len(points), size):
        column = points[start : start + size]
        chosen = {0, len(column) - 1}
        known = [(value, place) for place, (_, value) in enumerate(column) if value is not None]
        if known:
            chosen |= {min(known)[1], max(known)[1]}
        if len(known) < len(column):
            chosen.add(next(place for place, (_, value) in enumerate(column) if value is None))
        kept += [column[place] for place in sorted(chosen)]
    return kept


def _svg(chart: Chart, width: int, kind: str) -> str:
    scale = _Scale(chart, width)
    parts = [
        f'<svg class="chart {kind}" viewBox="0 0 {width} {chart.height}" role="img"'
        f' aria-label="{escape(chart.title)}">',
        *(_span(scale, span) for span in chart.spans),
        *_grid(scale),
        *(_line(scale, line) for line in chart.lines),
        *_moments(scale),
        *_hints(scale),
        "</svg>",
    ]
    return "".join(parts)


class _Scale:
    """From seconds and values to places in the drawing."""

    def __init__(self, chart: Chart, width: int) -> None:
        self.chart = chart
        self.width = width
        self.bottom = chart.height - BOTTOM
        self.right = width - RIGHT
        self._seconds = max(chart.end_s, 0.001)
        self._top = max(chart.top, 0.001)

    def x(self, at_s: float) -> float:
        """Across."""
        share = min(max(at_s / self._seconds, 0.0), 1.0)
        return round(LEFT + share * (self.right - LEFT), 1)

    def y(self, value: float) -> float:
        """Down."""
        share = min(max(value / self._top, 0.0), 1.0)
        return round(self.bottom - share * (self.bottom - TOP), 1)


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for value in ticks(scale.chart.top, 4):
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{scale.right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(value)}</text>')
    for at_s in ticks(scale.chart.end_s, 8 if scale.width == WIDE else 4):
        x = scale.x(at_s)
        parts.append(
            f'<text x="{x}" y="{scale.bottom + 17}" text-anchor="middle">{_number(at_s)} s</text>'
        )
    return parts


def _line(scale: _Scale, line: Line) -> str:
    """A line, broken where values are missing."""
    parts = []
    for run in _runs(thin(line.points, scale.width)):
        path = " ".join(f"{scale.x(at_s)},{scale.y(value)}" for at_s, value in run)
        if line.filled:
            first, last = scale.x(run[0][0]), scale.x(run[-1][0])
            area = f"{first},{scale.bottom} {path} {last},{scale.bottom}"
            parts.append(f'<polygon class="area {line.style}" points="{area}"/>')
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
    return "".join(parts)


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[float, float]]] = []
    fresh = True
    for at_s, value in points:
        if value is None:
            fresh = True
            continue
        if fresh:
            runs.append([])
        runs[-1].append((at_s, value))
        fresh = False
    return runs


def _span(scale: _Scale, span: Span) -> str:
    start, end = scale.x(span.start_s), scale.x(span.end_s)
    return (
        f'<rect class="{span.style}" x="{start}" y="{TOP}" width="{max(end - start, 1):.1f}"'
        f' height="{scale.bottom - TOP}"><title>{escape(span.title)}</title></rect>'
    )


def _moments(scale: _Scale) -> list[str]:
    parts = []
    for moment in scale.chart.moments:
        x = scale.x(moment.at_s)
        parts.append(
            f'<g class="kill"><line x1="{x}" x2="{x}" y1="{TOP}" y2="{scale.bottom}"/>'
            f'<circle cx="{x}" cy="{TOP}" r="4"/><title>{escape(moment.title)}</title>'
        )
        if moment.label:
            parts.append(f'<text x="{x}" y="{TOP - 8}" text-anchor="middle">{moment.label}</text>')
        parts.append("</g>")
    return parts


def _hints(scale: _Scale) -> list[str]:
    """Invisible columns that show their figures under a pointer."""
    hints = list(scale.chart.hints)
    step = max(1, math.ceil(len(hints) / 300))
    parts = []
    for number in range(0, len(hints), step):
        at_s, text = hints[number]
        x = scale.x(at_s)
        following = scale.x(hints[number + step][0]) if number + step < len(hints) else x + 2
        parts.append(
            f'<rect class="hint" x="{x}" y="{TOP}" width="{max(following - x, 1):.1f}"'
            f' height="{scale.bottom - TOP}"><title>{escape(text)}</title></rect>'
        )
    return parts


def _number(value: float) -> str:
    """A short text: 12 000 as 12k."""
    if value >= 10_000 and value % 1000 == 0:
        return f"{value / 1000:.0f}k"
    return f"{value:.10g}"
