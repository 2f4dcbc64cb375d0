"""Whether a user's own packages hide ours: our programs have plain names (`node`, `chaos`, ...).

With a package of the same name first on the path our programs would run the user's code, and fail
in odd places or, worse, pass. So who runs them in a process of the user's asks here first, and is
told which path hides which. Without a package hidden, nothing is imported.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from rocketbed.wire.errors import RocketbedError

NAMES: Final = ("node", "replication", "routing", "chaos", "pipeline", "bench")
"""Our top-level packages beside this one."""
HOME: Final = Path(__file__).resolve().parents[1]
"""Where they stand."""


class HiddenName(RocketbedError):
    """A package of somebody else has the name of one of ours."""


def refuse_hidden() -> None:
    """Raises `HiddenName` if an import of one of our packages would find, or has found, another."""
    for name in NAMES:
        for path in _found(name):
            if path is not None and path != HOME / name:
                raise HiddenName(
                    f"{path} hides rocketbed's own package {name!r} ({HOME / name}), so no"
                    " cluster can run here: rename it, move it into a package of your own, or"
                    " take its folder off the import path (in pytest: --import-mode=importlib and"
                    " no `pythonpath` to it)"
                )


def _found(name: str) -> Iterator[Path | None]:
    """Where the name leads: as imported, and as it would be imported now."""
    module = sys.modules.get(name)
    if module is not None:
        yield _place(getattr(module, "__spec__", None), getattr(module, "__file__", None))
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, None)
        if spec is not None:
            yield _place(spec, spec.origin)
            return


def _place(spec: ModuleSpec | None, origin: str | None) -> Path | None:
    """The folder of a package, or the file of a module; None for what has neither."""
    if origin in (None, "namespace"):
        places = list(getattr(spec, "submodule_search_locations", None) or ())
        return Path(places[0]).resolve() if places else None
    file = Path(str(origin)).resolve()
    return file.parent if file.name.startswith("__init__.") else file
