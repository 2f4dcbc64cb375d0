"""The report of a trial: one page that needs nothing but itself, made from `verdict.json`.

Everything shown is in the JSON too, so the page can be made again from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from chaos.demo.charts import Chart, Line, Moment, Span, draw

MIB: Final = 1 << 20
SPARE: Final = 1.05
"""Room above the highest value of a drawing."""
RATE_WINDOW_S: Final = 0.4
"""Acknowledged rates are averages over about this time: less shows the sampling, not the cluster"""
EXPLANATIONS: Final = {
    "pass": "Every check ran, and every one held.",
    "anomaly": "A check found what must not be. See the findings.",
    "crashed": "A node ended though nobody killed it.",
    "stalled": "The cluster did not get on with its work.",
    "unknown": "Nothing wrong was found, but a check did not run, so nothing is proved.",
    "harness-error": "The trial itself failed before it could check.",
}


def write_report(directory: Path, verdict: Mapping[str, Any]) -> Path:
    """Write `index.html`; its path. `verdict` is what `verdict.json` holds. Raises `OSError`."""
    path = directory / "index.html"
    path.write_text(render(verdict), encoding="utf-8")
    return path


def render(verdict: Mapping[str, Any]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=show_count, seconds=show_seconds, mib=show_mib)
    charts = _charts(verdict) if verdict.get("load") else []
    return environment.get_template("report.html.j2").render(
        verdict=verdict,
        explanation=EXPLANATIONS[verdict["result"]],
        charts=charts,
        checks=[dict(check, anchor=f"check-{n}") for n, check in enumerate(verdict["checks"])],
        tiles=_tiles(verdict) if verdict.get("counts") else [],
        again=command_again(verdict),
    )


def command_again(verdict: Mapping[str, Any]) -> str:
    """The command line that asks for the same trial."""
    options = verdict.get("options", {})
    words = ["rocketbed demo", f"--seed {verdict['seed']}"]
    if options:
        words += [f"--messages {options['messages']}", f"--flush {options['flush']}"]
        if options["store"]:
            words.append(f"--store {options['store']}")
    return " ".join(words)


def show_count(value: int | None) -> str:
    """`12 345`, with narrow spaces that do not break."""
    return "-" if value is None else f"{value:,}".replace(",", "\u202f")


def show_seconds(value: float | None) -> str:
    """`0.35 s`."""
    return "-" if value is None else f"{value:.2f}\u202fs"


def show_mib(value: int | None) -> str:
    """`12.3 MiB`."""
    return "-" if value is None else f"{value / MIB:.1f}\u202fMiB"


def _tiles(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    """The figures that stand first."""
    loss, kills, starts = verdict["loss"], verdict["kills"], verdict["starts"]
    lost = "not known" if loss["lost"] is None else show_count(loss["lost"])
    outages = [kill["outage_s"] for kill in kills if kill["outage_s"] is not None]
    recoveries = [start["recovery_s"] for start in starts if start["recovery_s"] is not None]
    return [
        {"name": "messages acknowledged", "value": show_count(loss["acknowledged"])},
        {"name": f"lost, of {loss['allowed']} allowed", "value": lost},
        {"name": "kills with SIGKILL", "value": str(len(kills))},
        {"name": "longest recovery", "value": show_seconds(max(recoveries, default=None))},
        {"name": "longest pause of acks", "value": show_seconds(max(outages, default=None))},
    ]


def _charts(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    load, nodes = verdict["load"], verdict["nodes"]
    end_s = max(load["at_s"], default=1.0)
    written = [value for node in nodes.values() for value in node["written"] if value is not None]
    top = max(written, default=0) / MIB * SPARE
    charts = [_rate_chart(verdict, end_s)]
    charts += [_offset_chart(verdict, name, end_s, top) for name in nodes]
    return [{"title": chart.title, "svg": draw(chart)} for chart in charts]


def _rate_chart(verdict: Mapping[str, Any], end_s: float) -> Chart:
    points = rates(verdict["load"]["at_s"], verdict["load"]["acknowledged"])
    return Chart(
        title="Acknowledged messages a second",
        end_s=end_s,
        lines=[Line("acknowledged", "acknowledged", points, filled=True)],
        top=max((value for _, value in points), default=0.0) * SPARE,
        spans=[*_downs(verdict, None), *_holds(verdict)],
        moments=_kills(verdict, None),
        hints=[(at_s, f"{at_s:.1f} s: {value:,.0f} messages/s") for at_s, value in points],
    )


def _offset_chart(verdict: Mapping[str, Any], name: str, end_s: float, top: float) -> Chart:
    node, load = verdict["nodes"][name], verdict["load"]
    written = _mib(node["at_s"], node["written"])
    flushed = _mib(node["at_s"], node["flushed"])
    physical = [value if value >= 0 else None for value in load["physical"]]
    acknowledged = _mib(load["at_s"], physical)
    hints = [
        (at_s, f"{name} at {at_s:.1f} s: written {_show(one)}, flushed {_show(other)}")
        for (at_s, one), (_, other) in zip(written, flushed, strict=True)
    ]
    return Chart(
        title=f"Log of {name}, MiB",
        end_s=end_s,
        lines=[
            Line("written", "written", written, filled=True),
            Line("flushed", "flushed", flushed, filled=True),
            Line("acknowledged to producers", "promised", acknowledged),
        ],
        top=top,
        spans=list(_downs(verdict, name)),
        moments=_kills(verdict, name),
        hints=hints,
        height=170,
    )


def rates(at_s: Sequence[float], counts: Sequence[int]) -> list[tuple[float, float]]:
    """Messages a second at each sample, over the time since a sample `RATE_WINDOW_S` before."""
    found: list[tuple[float, float]] = []
    first = 0
    for number in range(1, len(at_s)):
        while first + 1 < number and at_s[number] - at_s[first + 1] >= RATE_WINDOW_S:
            first += 1
        elapsed_s = at_s[number] - at_s[first]
        if elapsed_s > 0:
            found.append((at_s[number], (counts[number] - counts[first]) / elapsed_s))
    return found


def _mib(at_s: Sequence[float], values: Sequence[int | None]) -> list[tuple[float, float | None]]:
    return [
        (moment, None if value is None else value / MIB)
        for moment, value in zip(at_s, values, strict=True)
    ]


def _show(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} MiB"


def _kills(verdict: Mapping[str, Any], node: str | None) -> list[Moment]:
    """Kills of one node, or of all."""
    return [
        Moment(
            kill["at_s"],
            f"{kill['at_s']:.2f} s: {kill['node']} killed ({kill['target']}),"
            f" {kill['in_flight']} messages in flight",
            str(number) if node is None else "",
        )
        for number, kill in enumerate(verdict["kills"], 1)
        if node in (None, kill["node"])
    ]


def _downs(verdict: Mapping[str, Any], node: str | None) -> Iterator[Span]:
    """From each kill until the node served again; of the master, where no node is named."""
    name = node or "master"
    end_s = 0.0
    for kill in verdict["kills"]:
        if kill["node"] != name or kill["at_s"] < end_s:
            continue
        back = [
            start["at_s"] + start["serving_s"]
            for start in verdict["starts"]
            if start["node"] == name
            and start["serving_s"] is not None
            and start["at_s"] > kill["at_s"]
        ]
        end_s = min(back, default=kill["at_s"])
        yield Span(kill["at_s"], end_s, f"{name} down for {end_s - kill['at_s']:.2f} s")


def _holds(verdict: Mapping[str, Any]) -> Iterator[Span]:
    """When producers waited for the next kill's turn."""
    for start_s, end_s in verdict["holds"]:
        yield Span(start_s, end_s, f"producers waited for {end_s - start_s:.2f} s", "held")
