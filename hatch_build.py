"""Builds the native bodies (`SOURCES`), where that can be.

Hatchling calls it for wheels and for editable installs. Without a C compiler, without Python's
headers, or with ROCKETBED_PURE=1, the wheel is a pure one: a line says why, and nothing fails.
`python hatch_build.py` builds them in place, for a checkout that is used without an install.

The compiler is called as it is: a file without libraries is one command, for which setuptools
would bring a second build system with its own idea of where packages are
(docs/internal/decisions.md).
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCES = tuple(
    ROOT / "rocketbed" / name
    for name in ("node/store/log_native.c", "node/broker/plain_native.c", "world/sync_native.c")
)
COMMON = ROOT / "rocketbed" / "node" / "store" / "native.h"
SUFFIX = ".abi3.so"
FLAGS = ("-std=c11", "-O2", "-g0", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")
LINKED = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared",)
BUILT_FOR = "0x030B0000"
"""The oldest CPython whose limited API is used, as in `requires-python` and the wheel's tag."""


class CannotBuild(Exception):
    """There will be the Python body alone; the text says why."""


def source_digest() -> str:
    """What a build says that it was made of."""
    texts = [path.read_bytes() for path in (COMMON, *SOURCES)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def built(source: Path, folder: Path | None = None) -> Path:
    """The file that is imported, made of a source: beside it, or in `folder`."""
    return (folder or source.parent) / (source.stem + SUFFIX)


def compiler() -> list[str]:
    """The command of a C compiler: the one asked for, Python's own, or what there is."""
    for words in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        try:
            command = shlex.split(words or "")
        except ValueError as exc:
            raise CannotBuild(f"the compiler {words!r} is no command: {exc}") from exc
        if command and shutil.which(command[0]):
            return command
    raise CannotBuild("no C compiler was found")


def build(folder: Path | None = None, flags: Sequence[str] = ()) -> list[Path]:
    """Compile everything, each beside its source or into `folder`. Raises `CannotBuild`."""
    if os.environ.get("ROCKETBED_PURE") == "1":
        raise CannotBuild("ROCKETBED_PURE=1")
    if sys.maxsize < 2**32:
        raise CannotBuild("it is made for 64 bits")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotBuild("this Python has no stable binary interface")
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        raise CannotBuild(f"there is no {include}/Python.h")
    command = [
        *compiler(),
        *FLAGS,
        *LINKED,
        f"-DPy_LIMITED_API={BUILT_FOR}",
        f'-DSOURCE="{source_digest()}"',
        f"-I{include}",
        *flags,
    ]
    return [_compile(command, source, built(source, folder)) for source in SOURCES]


def _compile(command: list[str], source: Path, target: Path) -> Path:
    # Beside the target and then renamed: a process that has the old file open keeps it whole.
    made = target.with_name(f".{target.name}.{os.getpid()}")
    whole = [*command, "-o", str(made), str(source)]
    done = subprocess.run(whole, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CannotBuild(f"{shlex.join(whole)}:\n{done.stderr}")
    return made.replace(target)


def get_build_hook() -> type:
    """What hatchling looks for."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class NativeBodies(BuildHookInterface):
        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build, and have the wheel carry it under the tag that it is good for."""
            self._folder = tempfile.TemporaryDirectory()
            is_editable = version == "editable"
            try:
                build(None if is_editable else Path(self._folder.name))
            except CannotBuild as exc:
                if is_editable:  # one of an earlier install may be of another state
                    for source in SOURCES:
                        built(source).unlink(missing_ok=True)
                self.app.display_warning(f"rocketbed runs with its Python bodies alone: {exc}")
                return
            if not is_editable:
                for source in SOURCES:
                    made = built(source, Path(self._folder.name))
                    place = built(source).relative_to(ROOT)
                    build_data["force_include"][str(made)] = str(place)
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            self._folder.cleanup()

    return NativeBodies


if __name__ == "__main__":
    try:
        print(*build(), sep="\n")
    except CannotBuild as exc:
        sys.exit(str(exc))
