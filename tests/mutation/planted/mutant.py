"""Planted bugs: what they are, and how one gets into the code.

A mutant replaces functions of the node in the process of one run; the node's own code knows nothing
of it. It names the functions that it replaces; one that is gone is an error before anything runs.
"""

import gc
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

Plant = Callable[[], None]


class StaleMutant(Exception):
    """The function that a mutant changes is gone, or was edited while a search ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug on purpose, or a harmless change (`control`) that must not be reported."""

    id: str
    """`M1`, of chaos.md 6.1 and 6.2; `E1` for a control."""
    title: str
    bug: str
    """What goes wrong, and where it was seen in the wild."""
    edit: str
    """What is changed."""
    caught_by: tuple[str, ...] = ()
    """Ids of the checks that have to find it; empty for a control."""
    family: str = ""
    """The shipped scenario that is closest to it; the score is taken without it."""
    soak: str = ""
    """The swarm that has to find it, if most seeds of `soak-swarm` never use the broken feature."""
    unshown: str = ""
    """Why no seed can be expected to show it, so that it is not hunted: its second defence."""
    targets: tuple[str, ...] = ()
    """Functions that it replaces, as `module:Class.function`."""
    plant: Plant

    def check(self) -> None:
        """Raise `StaleMutant` if a function that it replaces is gone."""
        for target in self.targets:
            try:
                owner, name = _find(target)
                getattr(owner, name)
            except (ImportError, AttributeError) as error:
                raise StaleMutant(f"{self.id} ({self.title}): no {target}: {error}") from error


REGISTRY: Final[dict[str, Mutant]] = {}
"""All mutants by id, once `tests.mutation.planted.catalogue` is imported."""


def planted(
    identity: str, title: str, *, targets: tuple[str, ...], **about: Any
) -> Callable[[Plant], Plant]:
    """Register the decorated function as the planting of a mutant; `about`: fields of `Mutant`."""

    def register(plant: Plant) -> Plant:
        assert identity not in REGISTRY, f"{identity} is defined twice"
        REGISTRY[identity] = Mutant(id=identity, title=title, targets=targets, plant=plant, **about)
        return plant

    return register


def mutant(
    identity: str, title: str, target: str, **about: Any
) -> Callable[[Callable[..., Any]], Plant]:
    """Register the decorated replacement of a function; it gets the original first."""

    def register(replacement: Callable[..., Any]) -> Plant:
        def plant() -> None:
            original: Any = swap(
                target, lambda *args, **named: replacement(original, *args, **named)
            )

        plant.__module__ = replacement.__module__
        return planted(identity, title, targets=(target,), **about)(plant)

    return register


def swap(target: str, replacement: Any) -> Any:
    """Put something in a target's place; what stood there."""
    owner, name = _find(target)
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return original


def swap_code(module: str, old: CodeType, new: CodeType) -> None:
    """Give a function that a module has defined other code, wherever it is held by now: as a
    property, behind a decorator, in a table.

    Raises `StaleMutant` if no function has the code `old`.
    """
    importlib.import_module(module)
    gc.unfreeze()  # else what was loaded before a fork is not listed
    functions = [
        function
        for function in gc.get_objects()
        if type(function) is FunctionType
        and function.__code__ == old
        and function.__module__ == module
    ]
    if not functions:
        raise StaleMutant(f"{module} has no {old.co_qualname} as it was read: was it edited?")
    for function in functions:
        function.__code__ = new


def _find(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name
