"""What stands below a failed test: where it ran, the plan in three lines, and what repeats it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketbed.chaos.scenario.plan import Plan, Weather
from rocketbed.chaos.testing.order import Order, Told

STEPS_MAX: Final = 12
IGNORE: Final = ".gitignore"


def tell_story(order: Order, told: Told, notes: Sequence[str]) -> list[str]:
    """Lines for a reader, in the order they are wanted."""
    time = f"{told.simulated_s:.1f} s simulated in " if told.simulated_s else ""
    return [
        f"seed {order.seed} on {order.backend}, {time}{told.wall_s:.2f} s",
        f"cluster: {_cluster(order.plan)}",
        f"steps:   {_steps(told.done)}",
        f"failed:  {_what(told)}",
        *notes,
    ]


def ignore_all(directory: Path) -> None:
    """Keep what tests leave behind out of version control, unless somebody decided otherwise."""
    if directory.name == ".rocketbed" and not (directory / IGNORE).exists():
        (directory / IGNORE).write_text("*\n", encoding="utf-8")


def _cluster(plan: Plan) -> str:
    shape = plan.shape
    groups = f"{shape.groups} groups of " if shape.groups > 1 else ""
    copies = f"{shape.copies} copies" if shape.copies > 1 else "1 copy"
    weather = "plain weather" if plan.weather == Weather() else "weather of the seed"
    nodes = "node" if shape.brokers == 1 else "nodes"
    return f"{groups}{shape.brokers} {nodes}, {shape.flush} flush, {copies}, {weather}"


def _steps(done: Sequence[str]) -> str:
    shown = "; ".join(done[:STEPS_MAX])
    more = f"; and {len(done) - STEPS_MAX} more" if len(done) > STEPS_MAX else ""
    return f"{shown}{more}" or "none"


def _what(told: Told) -> str:
    kind, _, rest = told.signature.partition(":")
    if kind == "checks":
        return f"checks {rest}" if rest else "checks could not tell"
    if not rest:
        return kind
    return f"{kind} in line {rest}" if rest != "0" else kind
