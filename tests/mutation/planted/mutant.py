"""What a planted bug is, and how it gets into the code.

A mutant replaces functions of the node in the process of one run; the node's own code knows nothing
of it. It was made for the source as it stood when somebody last looked, so it names that source's
hash: once the function has changed, the mutant is *stale* and has to be looked at again.
"""

import gc
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

Plant = Callable[[], None]
HASH_DIGITS: Final = 16


class StaleMutant(Exception):
    """A target is not what the mutant was made for; the message says how to go on."""


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
    """The swarm that has to find it, if that is not `soak-swarm`, of which most seeds have nothing
    of what it breaks."""
    unshown: str = ""
    """Why no seed can be expected to show it, so that it is not hunted: what stands behind it."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """`module:Class.function` -> hash of its source (`source_hash`)."""
    plant: Plant

    def stale(self) -> list[str]:
        """Targets whose source has changed, or is gone."""
        return [target for target, known in self.targets.items() if source_hash(target) != known]

    def check(self) -> None:
        """Raises `StaleMutant`."""
        stale = self.stale()
        if stale:
            raise StaleMutant(
                f"{self.id} ({self.title}) was made for another {', '.join(stale)}: check"
                f" that its edit is still the bug it names ({self.edit}), fix it"
                f" if not, and put the hash of `planted"
                f" --rehash {self.id}` into {self.plant.__module__}"
            )


REGISTRY: Final[dict[str, Mutant]] = {}
"""All mutants by id, once `chaos.mutants.catalogue` is imported."""


def planted(
    identity: str, title: str, *, targets: Mapping[str, str], **about: Any
) -> Callable[[Plant], Plant]:
    """Register the decorated function as the planting of a mutant; `about`: fields of `Mutant`."""

    def register(plant: Plant) -> Plant:
        assert identity not in REGISTRY, f"{identity} is defined twice"
        REGISTRY[identity] = Mutant(id=identity, title=title, targets=targets, plant=plant, **about)
        return plant

    return register


def mutant(
    identity: str, title: str, target: str, known: str, **about: Any
) -> Callable[[Callable[..., Any]], Plant]:
    """Register what stands in for a target with the hash `known`; it gets the original first."""

    def register(replacement: Callable[..., Any]) -> Plant:
        def plant() -> None:
            original: Any = swap(
                target, lambda *args, **named: replacement(original, *args, **named)
            )

        plant.__module__ = replacement.__module__
        return planted(identity, title, targets={target: known}, **about)(plant)

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
    found = [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType and one.__code__ == old and one.__module__ == module
    ]
    if not found:
        raise StaleMutant(f"{module} has no {old.co_qualname} as it was read: was it edited?")
    for one in found:
        one.__code__ = new


@cache
def source_hash(target: str) -> str:
    """The first digits of the SHA-256 of a function's source; empty if it is not there.

    Asked once: while a long score is taken somebody may edit the file.
    """
    try:
        owner, name = _find(target)
        source = inspect.getsource(getattr(owner, name))
    except (ImportError, AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256(textwrap.dedent(source).encode()).hexdigest()[:HASH_DIGITS]


def _find(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name
