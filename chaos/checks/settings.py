"""Settings that an operator changes under load: nodes say what they were told (S29)."""

from dataclasses import dataclass, field

from rocketbed.chaos.checks.check import Case, Findings, NotApplicable, check
from rocketbed.chaos.checks.told import UNDER_WAY_NS
from rocketbed.chaos.evidence.history import Event, Function

EVENTS = ("start", "setting_asked", "setting_changed", "setting_shown")


@dataclass(slots=True)
class _Setting:
    """What one setting of a node may be."""

    may_be: set[str] = field(default_factory=set)
    at_start: str | None = None
    """What it is after the next start; None: nobody knows."""
    is_as_at_start: bool = True
    """Whether nobody has asked for another value in this life."""
    asked: list[tuple[int, str]] = field(default_factory=list)
    """Requests without an answer so far, and when they were begun."""

    def begin(self, event: Event) -> None:
        self.may_be = set() if self.at_start is None else {self.at_start}
        if self.may_be:
            self.may_be |= self._under_way(event.time_ns)
        self.is_as_at_start = not self._under_way(event.time_ns)

    def ask(self, event: Event) -> None:
        value = str(event.fields["value"])
        self.asked.append((int(event.fields["began_ns"]), value))
        self.is_as_at_start = False
        if self.may_be:
            self.may_be.add(value)

    def change(self, event: Event, life_ns: int) -> None:
        value = str(event.fields["value"])
        began_ns, _ = self.asked.pop()
        if began_ns >= life_ns:
            self.may_be = {value} | self._under_way(event.time_ns)
        # Else the one that answered has ended since.

    def show(self, event: Event) -> None:
        value = str(event.fields["value"])
        if self.is_as_at_start:
            self.at_start = value
        self.may_be = {value} | self._under_way(event.time_ns)

    def _under_way(self, time_ns: int) -> set[str]:
        return {value for began_ns, value in self.asked if began_ns >= time_ns - UNDER_WAY_NS}


@check("S29 settings kept", "answers about settings")
def settings_kept(case: Case, found: Findings) -> int:
    """S29: a running node says of a setting what it was told last, and after a start what it was
    configured with, as it says itself before the first change."""
    evidence = case.evidence
    settings: dict[tuple[str, str], _Setting] = {}
    lives: dict[str, int] = {}
    examined = 0
    for event in evidence.events(Function.NODE, *EVENTS):
        node = event.node
        if event.what == "start":
            lives[node] = event.time_ns
            for (who, _), setting in settings.items():
                if who == node:
                    setting.begin(event)
            continue
        key = str(event.fields["key"])
        setting = settings.setdefault((node, key), _Setting())
        if event.what == "setting_asked":
            setting.ask(event)
        elif event.what == "setting_changed":
            setting.change(event, lives.get(node, -1))
        elif int(event.fields["began_ns"]) >= lives.get(node, -1):  # else from an earlier life
            examined += 1
            if setting.may_be and event.fields["value"] not in setting.may_be:
                right = " or ".join(sorted(setting.may_be))
                found.add(
                    f"{node} said at {event.time_ns / 1e9:.3f} s that {key} is"
                    f" {event.fields['value']}, and it is {right} by what it was told",
                    node=node,
                )
            setting.show(event)
    if not settings:
        raise NotApplicable("no setting was changed")
    return examined
