"""The shipped scenarios, and loading any scenario by name or path."""

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from rocketbed.chaos.plan.errors import ScenarioError
from rocketbed.chaos.plan.family import Family
from rocketbed.chaos.plan.scenario import Scenario, family
from rocketbed.chaos.plan.toml import read_file

DIRECTORY: Final = Path(__file__).parent / "library"


def load_scenario(name_or_path: str) -> Family:
    """Return a shipped scenario by name, or one in a file.

    A file is TOML or Python: `FILE.py` with one function of a `Scenario`, or `FILE.py::FUNCTION`.
    Raises `ScenarioError`.
    """
    shipped = DIRECTORY / f"{name_or_path}.toml"
    if "/" not in name_or_path and shipped.exists():
        return _shipped(name_or_path)
    place, _, function = name_or_path.partition("::")
    path = Path(place)
    if path.suffix == ".toml" and not function:
        return read_file(path)
    if path.suffix == ".py":
        return _of_python(path, function)
    names = scenario_names()
    near = difflib.get_close_matches(name_or_path, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"shipped are {', '.join(names)}."
    raise ScenarioError(f"no scenario {name_or_path!r}: {hint} A file must end in .toml or .py")


def scenario_names() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.toml"))


def all_scenarios() -> list[Family]:
    return [_shipped(name) for name in scenario_names()]


def is_shipped(family: Family) -> bool:
    """Return whether it must be found by its name; a user's file may be named like a shipped
    one."""
    return not family.source or Path(family.source).parent == DIRECTORY


@cache
def _shipped(name: str) -> Family:
    return read_file(DIRECTORY / f"{name}.toml")


def _of_python(path: Path, name: str) -> Family:
    module = _import(path)
    functions = {
        function.__name__: function
        for function in vars(module).values()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and _takes_scenario(function)
    }
    if name:
        if name not in functions:
            listed = ", ".join(functions) or "none"
            raise ScenarioError(
                f"{path}: no function {name} that returns a Scenario; found: {listed}"
            )
        return family(functions[name], source=f"{path}::{name}")
    if len(functions) != 1:
        problem = f"several scenarios: {', '.join(functions)}" if functions else "no scenario"
        raise ScenarioError(f"{path}: {problem}; name one as {path}::FUNCTION")
    return family(next(iter(functions.values())), source=str(path))


def _import(path: Path) -> ModuleType:
    name = f"_scenario_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ScenarioError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ScenarioError(f"{path}: cannot be imported: {error!r}") from error
    return module


def _takes_scenario(function: Callable[..., object]) -> bool:
    """Return whether it is a public function of one argument, a `Scenario`."""
    parameters = list(inspect.signature(function).parameters.values())
    if function.__name__.startswith("_") or len(parameters) != 1:
        return False
    kind = parameters[0].annotation
    return kind is Scenario or (isinstance(kind, str) and kind.endswith("Scenario"))
