"""The native bodies for tests: what an install builds, built here too where it is not there yet."""

import importlib
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = "rocketbed.node.broker.plain_native"
LOG = "rocketbed.node.store.log_native"
SYNC = "rocketbed.world.sync_native"


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
def native(name: str = PLAIN) -> ModuleType:
    """The module, of the sources as they are. Skips where there is no compiler: there it is the
    Python body that everything runs with, and `make test-all` fails."""
    script = build_script()
    digest = script.source_digest()
    paths = [script.built(source) for source in script.SOURCES]
    if not all(path.exists() and digest.encode() in path.read_bytes() for path in paths):
        assert not {PLAIN, LOG, SYNC} & set(sys.modules), "an old build was imported: run again"
        try:
            script.build()
        except script.CannotBuild as exc:
            pytest.skip(str(exc))
        importlib.invalidate_caches()
    module = importlib.import_module(name)
    assert digest == module.SOURCE
    return module


def needed(name: str = PLAIN) -> ModuleType:
    """The same for tests of `make test-all`, which fails where something is missing."""
    try:
        return native(name)
    except pytest.skip.Exception as exc:
        pytest.fail(f"no native body: {exc}")


def sanitized(folder: Path, name: str) -> tuple[Path, dict[str, str]]:
    """A build of a module that AddressSanitizer watches, and the environment that it needs."""
    script = build_script()
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
    built = script.build(folder, flags)
    library = subprocess.run(
        [*script.compiler(), "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert Path(library).is_file(), f"the compiler has no {library}"
    (path,) = (path for path in built if path.name.startswith(name.rpartition(".")[2]))
    return path, {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
