"""The page of an audit: a single file with plots as SVG, which loads nothing else."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocketbed.pipeline.jobs.audit.job import Audit

WIDTH: Final = 940
HEIGHT: Final = 170
LEFT: Final = 64
BOTTOM: Final = 22
TOP: Final = 10
LINES: Final = 4
UNITS: Final = ("", "k", "M", "G", "T")

Row = dict[str, Any]


def write_page(path: Path, audit: "Audit") -> None:
    """Write the page. Raises `OSError`."""
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"count": short, "bytes": in_bytes, "moment": moment}
    text = environment.get_template("audit.html.j2").render(
        total=audit.total,
        topics=audit.topics,
        queues=balance(audit.queues),
        hot=audit.hot,
        bucket_s=audit.bucket_s,
        plots=plots(audit),
        span=f"{moment(audit.total['first_ms'])} to {moment(audit.total['last_ms'])}",
    )
    path.write_text(text, encoding="utf-8")


def plots(audit: "Audit") -> list[tuple[str, str]]:
    series, width = audit.series, audit.bucket_s
    per_s = [(row["start_ms"], row["messages"] / width) for row in series]
    bytes_s = [(row["start_ms"], row["bytes"] / width) for row in series]
    p50 = [(row["start_ms"], row["latency_p50_ms"]) for row in series]
    p99 = [(row["start_ms"], row["latency_p99_ms"]) for row in series]
    return [
        ("Messages a second", bars(per_s, width * 1000, short)),
        ("Bytes of log a second", bars(bytes_s, width * 1000, in_bytes)),
        ("Latency, median and 99th percentile (ms)", curves([p50, p99], ["p50", "p99"])),
    ]


def bars(points: Sequence[tuple[int, float]], width_ms: int, show: Any) -> str:
    """Return a bar chart over time; a gap is a time without messages."""
    scale = _Scale([points], width_ms)
    parts = scale.axes(show)
    for start, value in points:
        x, end = scale.x(start), scale.x(start + width_ms)
        y = scale.y(value)
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{max(end - x - 0.5, 0.8):.1f}"'
            f' height="{HEIGHT - BOTTOM - y:.1f}">'
            f"<title>{moment(start)}: {show(value)}</title></rect>"
        )
    return _svg(parts)


def curves(lines: Sequence[Sequence[tuple[int, float | None]]], names: Sequence[str]) -> str:
    drawn = [[(x, y) for x, y in line if y is not None] for line in lines]
    scale = _Scale(drawn, 1)
    parts = scale.axes(short)
    for line, name in zip(drawn, names, strict=True):
        places = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="{name}" points="{places}"/>')
        parts += [
            f'<circle class="{name}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="1.6">'
            f"<title>{name}, {moment(x)}: {short(y)} ms</title></circle>"
            for x, y in line
        ]
    return _svg(parts)


class _Scale:
    """Scale from times and values to positions on a drawing; values begin at 0."""

    def __init__(self, lines: Sequence[Sequence[tuple[int, float]]], width_ms: int) -> None:
        points = [point for line in lines for point in line]
        self.first = min((x for x, _ in points), default=0)
        self.last = max((x for x, _ in points), default=0) + width_ms
        self.most = max((y for _, y in points), default=0.0) or 1.0

    def x(self, time_ms: float) -> float:
        return LEFT + (WIDTH - LEFT) * (time_ms - self.first) / max(self.last - self.first, 1)

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.most)

    def axes(self, show: Any) -> list[str]:
        """Return the axes: values on the left, times below."""
        parts = []
        for number in range(LINES + 1):
            value = self.most * number / LINES
            y = self.y(value)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="left" x="{LEFT - 6}" y="{y + 4:.1f}">{show(value)}</text>')
        for number in range(LINES + 1):
            time_ms = self.first + (self.last - self.first) * number / LINES
            place = ("start", "middle", "end")[(number > 0) + (number == LINES)]
            parts.append(
                f'<text x="{self.x(time_ms):.1f}" y="{HEIGHT - 5}" text-anchor="{place}">'
                f"{escape(moment(time_ms))}</text>"
            )
        return parts


def balance(queues: Sequence[Row]) -> list[Row]:
    """Return a row for each topic of a broker, with its least and most used queue."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in queues:
        grouped.setdefault((row["broker"], row["topic"]), []).append(row)
    skews = []
    for (broker, topic), rows in grouped.items():
        counts = [row["messages"] for row in rows]
        mean = sum(counts) / len(counts)
        skews.append(
            {
                "broker": broker,
                "topic": topic,
                "queues": len(rows),
                "least": min(counts),
                "most": max(counts),
                "skew": max(counts) / mean,
            }
        )
    return sorted(skews, key=lambda row: -row["skew"])


def short(value: float) -> str:
    """Format a number with three digits: 1.23M."""
    power = 0
    while abs(value) >= 999.5 and power < len(UNITS) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g}{UNITS[power]}"


def in_bytes(value: float) -> str:
    """Format a size: 1.2 MiB."""
    power = 0
    while abs(value) >= 1023.5 and power < len(UNITS) - 1:
        value /= 1024
        power += 1
    return f"{value:.3g} " + ("B" if power == 0 else f"{UNITS[power].upper()}iB")


def moment(time_ms: float | None) -> str:
    """Format a time of the store's clock, UTC."""
    if time_ms is None:
        return "-"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _svg(parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'
