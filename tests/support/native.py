"""The native body for tests: what an install builds, built here too where it is not there yet."""

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODULE = "rocketbed.node.broker.plain_native"


@cache
def build_script() -> ModuleType:
    """`hatch_build.py`, which is no module of the package."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def native() -> ModuleType:
    """The module, of the source as it is. Skips where there is no compiler: there it is the
    Python body that everything runs with, and `make test-all` fails."""
    script = build_script()
    built: Path = script.SOURCE.parent / script.NAME
    digest = script.source_digest()
    if not built.exists() or digest.encode() not in built.read_bytes():
        assert MODULE not in sys.modules, "an old build was imported: run again"
        try:
            script.build(built.parent)
        except script.CannotBuild as exc:
            pytest.skip(str(exc))
        importlib.invalidate_caches()
    module = importlib.import_module(MODULE)
    assert digest == module.SOURCE
    return module


def needed() -> ModuleType:
    """The same for tests of `make test-all`, which fails where something is missing."""
    try:
        return native()
    except pytest.skip.Exception as exc:
        pytest.fail(f"no native body: {exc}")
