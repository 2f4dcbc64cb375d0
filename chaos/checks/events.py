"""Questions that checks ask of single events: the step, the nodes concerned, the role."""

from rocketbed.chaos.evidence.history import Event


def step_of(event: Event) -> str:
    """Return the step that caused an event; empty without one."""
    return str(event.fields.get("step", ""))


def heals(event: Event, step: str) -> bool:
    """True if an event ends what a step began."""
    return event.kind == "heal" and step_of(event) in (step, "everything")


def targets_of(event: Event) -> list[str]:
    """Return the nodes that an event concerns."""
    targets = event.fields.get("targets", ())
    return [event.node] if event.node else [str(target) for target in targets]


def as_master(event: Event) -> bool:
    return event.fields.get("id") == 0 or event.fields.get("role") == "master"
