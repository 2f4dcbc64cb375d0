"""A real RocketMQ in `.peer/`: its jars, fetched by Maven, and our Java program, compiled.

Made when it is absent or when what it is made from has changed. A tool that is missing is an error
that says what to install: a test that is left out would look like one that passed.
"""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
DIRECTORY: Final = HERE.parents[1] / ".peer"
POM: Final = HERE / "pom.xml"
FETCH_S: Final = 600
COMPILE_S: Final = 120
PACKAGES: Final = "on Debian: apt install openjdk-17-jdk-headless maven"
OPEN: Final = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
"""What RocketMQ's own start scripts open for its mapped files."""
FAST_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class PeerMissing(Exception):
    """The real RocketMQ cannot be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the jars and our classes are."""

    lib: Path
    classes: Path

    def command(self, main: str, *arguments: str, home: Path, memory_mib: int) -> list[str]:
        """A command line that runs a Java class; it keeps its logs below `home`."""
        return [
            "java",
            f"-Xms{memory_mib}m",
            f"-Xmx{memory_mib}m",
            *FAST_START,
            *OPEN,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            "-cp",
            f"{self.classes}:{self.lib}/*",
            main,
            *arguments,
        ]


def install() -> Installation:
    """The installation, made if it has to be. Raises `PeerMissing`."""
    installed = Installation(DIRECTORY / "lib", DIRECTORY / "classes")
    _need("java")
    pom = _digest(POM)
    if _stored(installed.lib) != pom:
        _fetch(installed.lib)
        _store(installed.lib, pom)
    sources = sorted((HERE / "java").glob("*.java"))
    built_from = _digest(POM, *sources)
    if _stored(installed.classes) != built_from:
        _compile(sources, installed)
        _store(installed.classes, built_from)
    return installed


def _fetch(lib: Path) -> None:
    shutil.rmtree(lib, ignore_errors=True)
    command = [
        _need("mvn"), "-q", "-B", "-f", str(POM), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={lib}",
    ]  # fmt: skip
    _run(command, FETCH_S, "Maven could not fetch RocketMQ's jars; it needs Maven Central")


def _compile(sources: list[Path], installed: Installation) -> None:
    shutil.rmtree(installed.classes, ignore_errors=True)
    installed.classes.mkdir(parents=True)
    command = [
        _need("javac"), "--release", "17", "-Xlint:all,-path", "-Werror",
        "-cp", f"{installed.lib}/*", "-d", str(installed.classes), *map(str, sources),
    ]  # fmt: skip
    _run(command, COMPILE_S, "the Java program of the peer tests does not compile")


def _need(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise PeerMissing(f"{tool} is missing; the peer tests need Java 17 and Maven ({PACKAGES})")
    return found


def _run(command: list[str], limit_s: int, what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{what}: no end after {limit_s} s") from None
    if done.returncode:
        raise PeerMissing(f"{what}:\n{(done.stdout + done.stderr)[-3000:]}")


def _digest(*paths: Path) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _stamp(directory: Path) -> Path:
    return directory.with_suffix(".stamp")


def _stored(directory: Path) -> str:
    """What a directory was made from; empty when it is not there or not finished."""
    stamp = _stamp(directory)
    return stamp.read_text() if stamp.exists() and directory.is_dir() else ""


def _store(directory: Path, digest: str) -> None:
    _stamp(directory).write_text(digest)
