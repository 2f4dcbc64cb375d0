"""The real RocketMQ of these tests in `.peer/`: its jars, and our Java program, compiled.

Made when it is absent or when what it is made from has changed. A tool that is missing is an error
that says what to install: a test that is left out would look like one that passed.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.chaos.backends.foreign import installation as foreign
from rocketbed.chaos.backends.foreign.installation import InstallationError, need, run_tool

HERE: Final = Path(__file__).parent
DIRECTORY: Final = HERE.parents[2] / ".peer"
VERSION: Final = "5.3.3"
"""What the tests run beside where they do not name another."""
COMPILE_S: Final = 120

PeerMissing = InstallationError
"""The real RocketMQ cannot be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Paths of the jars and our classes."""

    jars: foreign.Installation
    classes: Path

    @property
    def lib(self) -> Path:
        """The folder of jars."""
        return self.jars.lib

    def command(self, main: str, *arguments: str, home: Path, memory_mib: int) -> list[str]:
        """A command line that runs a Java class; it keeps its logs below `home`."""
        return self.jars.command(
            main, *arguments, home=home, memory_mib=memory_mib, classes=self.classes
        )


def install(version: str = VERSION) -> Installation:
    """A version's installation, made if it has to be. Raises `PeerMissing`."""
    place = DIRECTORY if version == VERSION else DIRECTORY / version
    for tool in ("java", "javac"):
        need(tool)
    return _with_program(foreign.install(version, place), place)


def install_client(version: str) -> Installation:
    """Java's client of a version whose broker may not be had."""
    place = DIRECTORY / f"client-{version}"
    jars = foreign.install(version, place, parts=foreign.CLIENT)
    for jar in install().lib.glob("fastjson2-*.jar"):  # our program reads JSON with it
        shutil.copy(jar, jars.lib / jar.name)
    return _with_program(jars, place)


def _with_program(jars: foreign.Installation, place: Path) -> Installation:
    installed = Installation(jars, place / "classes")
    sources = sorted((HERE / "java").glob("*.java"))
    built_from = _digest(jars.version, *sources)
    if _stored(installed.classes) != built_from:
        _compile(sources, installed)
        installed.classes.with_suffix(".stamp").write_text(built_from)
    return installed


def _compile(sources: list[Path], installed: Installation) -> None:
    shutil.rmtree(installed.classes, ignore_errors=True)
    installed.classes.mkdir(parents=True)
    command = [
        need("javac"), "--release", "17", "-Xlint:all,-path", "-Werror",
        "-cp", f"{installed.lib}/*", "-d", str(installed.classes), *map(str, sources),
    ]  # fmt: skip
    run_tool(command, COMPILE_S, "the Java program of the peer tests does not compile")


def _digest(version: str, *paths: Path) -> str:
    digest = hashlib.sha256(version.encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _stored(directory: Path) -> str:
    """Digest of what a directory was made from; empty when it is not there or not finished."""
    stamp = directory.with_suffix(".stamp")
    return stamp.read_text() if stamp.exists() and directory.is_dir() else ""
