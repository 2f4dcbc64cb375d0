"""Small pieces of SVG: scales, axes, lines that preserve their extremes."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from rocketbed.chaos.report.words import clock

WIDTH = 960
LEFT = 110
RIGHT = 12
PLOT = WIDTH - LEFT - RIGHT
Point = tuple[float, float]


def x_of(time_s: float, end_s: float) -> float:
    return LEFT + PLOT * max(0.0, min(time_s, end_s)) / max(end_s, 1e-9)


def tag(name: str, text: str = "", **attributes: object) -> str:
    """Return an element; `class_` and `data_x` become `class` and `data-x`; text is escaped."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{escape(text)}</{name}>" if text else f"<{name}{words}/>"


def titled(name: str, title: str, **attributes: object) -> str:
    """Return an element that shows its title when pointed at."""
    shape = tag(name, "", **attributes)
    return f"{shape[:-2]}><title>{escape(title)}</title></{name}>"


def svg(height: float, parts: Iterable[str], label: str) -> str:
    """Return a drawing that scales with the page's width."""
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{body}</svg>"
    )


def time_axis(end_s: float, top: float, bottom: float) -> list[str]:
    parts = []
    for time_s in ticks(0.0, end_s, 10):
        digits = 0 if end_s >= 10 else 1
        x = x_of(time_s, end_s)
        parts.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(tag("text", clock(time_s, digits), x=x, y=bottom + 14, class_="tick"))
    return parts


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return at most about `count` round numbers within a range."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    magnitude: float = 10 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw)
    first = math.ceil(low / step) * step
    return [first + number * step for number in range(int((high - first) / step + 1e-9) + 1)]


def thin(points: Sequence[Point], columns: int = 480) -> list[Point]:
    """Return fewer points, but with the lowest and the highest of each column of the drawing."""
    if len(points) <= 2 * columns:
        return list(points)
    begin, end = points[0][0], points[-1][0]
    width = max((end - begin) / columns, 1e-9)
    buckets: dict[int, list[Point]] = {}
    for point in points:
        buckets.setdefault(int((point[0] - begin) / width), []).append(point)
    selected: list[Point] = []
    for bucket in buckets.values():
        extremes = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        selected += sorted({bucket[0], bucket[-1], *extremes})
    return selected


def path(points: Sequence[Point], class_: str, *, closed: bool = False) -> str:
    if not points:
        return ""
    steps = " ".join(
        f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points)
    )
    return tag("path", d=steps + (" Z" if closed else ""), class_=class_)


def _number(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
