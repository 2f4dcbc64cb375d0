"""A real RocketMQ: its jars, fetched by Maven, or an unpacked distribution.

Fetched jars are kept (`$XDG_CACHE_HOME/rocketbed/rocketmq-VERSION`) and fetched again only when
their list of dependencies has changed. A directory becomes the place of the jars by one rename, so
two harnesses that fetch at once end with one complete set, and a broken download leaves none.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketbed.wire.errors import RocketbedError

VERSIONS: Final = ("5.3.3", "5.5.0")
"""Versions that the findings refer to; others can be fetched as well."""
FETCH_S: Final = 600
PACKAGES: Final = "on Debian: apt install openjdk-17-jdk-headless maven"
OPEN: Final = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
"""Options by which RocketMQ's own start scripts open what its mapped files need."""
LAST_OPEN: Final = 8
"""The last Java that has nothing to open, and does not know those options."""
FAST_START: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
NEEDED: Final = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-store", "rocketmq-controller")
PARTS: Final = ("namesrv", "broker", "client", "tools")
CLIENT: Final = ("client", "tools")
"""The only parts of 4.9.8 on Maven Central."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[\w.]+)?")
_POM: Final = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rocketbed</groupId>
  <artifactId>foreign</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_DEPENDENCY: Final = """
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-{part}</artifactId>
      <version>{version}</version>
    </dependency>"""


class InstallationError(RocketbedError):
    """A RocketMQ that is not available; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    version: str
    """Version of the broker's jar."""
    lib: Path
    java: str = "java"
    """The Java program of the system that has the jars."""
    java_release: int = 17
    """8, 11, 17, ..."""

    def command(
        self,
        main: str,
        *arguments: str,
        home: Path,
        memory_mib: int,
        options: Sequence[str] = (),
        classes: Path | None = None,
    ) -> list[str]:
        """Return a command line that runs a Java class; its files besides the store go below
        `home`.

        `classes` are searched before the jars; `options` are the virtual machine's.
        """
        path = f"{self.lib}/*" if classes is None else f"{classes}:{self.lib}/*"
        return [
            self.java,
            f"-Xms{memory_mib}m",
            f"-Xmx{memory_mib}m",
            *FAST_START,
            *(OPEN if self.java_release > LAST_OPEN else ()),
            *options,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            "-cp",
            path,
            main,
            *arguments,
        ]


def install(
    version: str, directory: Path | None = None, *, parts: Sequence[str] = PARTS
) -> Installation:
    """Return a version from Maven Central, fetched if necessary. Raises `InstallationError`.

    `directory` is where its folder `lib` is kept; without it a place in the user's cache.
    """
    if _VERSION.fullmatch(version) is None:
        raise InstallationError(f"{version!r} is not a version of RocketMQ such as {VERSIONS[0]}")
    pom = pom_text(version, parts)
    digest = hashlib.sha256(pom.encode()).hexdigest()
    place = cache() / f"rocketmq-{version}" if directory is None else directory
    lib, stamp = place / "lib", place / "lib.stamp"
    if not (lib.is_dir() and stamp.exists() and stamp.read_text() == digest):
        _fetch(pom, place, digest)
    return Installation(version, lib)


def unpacked(directory: Path) -> Installation:
    """Return a distribution (`lib/*.jar`) or a folder of jars. Raises `InstallationError`."""
    lib = directory / "lib" if (directory / "lib").is_dir() else directory
    for name in NEEDED:
        if not list(lib.glob(f"{name}-[0-9]*.jar")):
            raise InstallationError(
                f"{lib} has no {name}-VERSION.jar: pass the directory of an unpacked RocketMQ 5"
            )
    return Installation(version_of([path.name for path in lib.glob("*.jar")]), lib.absolute())


def version_of(jars: Iterable[str]) -> str:
    """Return the version in the name of the broker's jar, which is among them."""
    jar = min(name for name in jars if re.match(rf"{NEEDED[0]}-\d", name))
    return jar.removeprefix(f"{NEEDED[0]}-").removesuffix(".jar")


def pom_text(version: str, parts: Sequence[str] = PARTS) -> str:
    dependencies = (_DEPENDENCY.format(part=part, version=version) for part in parts)
    return _POM.format(dependencies="".join(dependencies))


def cache() -> Path:
    """Return the directory for this user's cached downloads."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rocketbed"


def need(tool: str) -> str:
    """Return the path of a program. Raises `InstallationError` if it is missing."""
    path = shutil.which(tool)
    if path is None:
        raise InstallationError(
            f"{tool} is missing; a real RocketMQ needs Java 17 and Maven ({PACKAGES})"
        )
    return path


def run_tool(command: Sequence[str], limit_s: int, failure: str) -> None:
    """Run a program to its end. Raises an `InstallationError` with its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise InstallationError(f"{failure}: did not finish within {limit_s} s") from None
    if done.returncode:
        raise InstallationError(f"{failure}:\n{(done.stdout + done.stderr)[-3000:]}")


def _fetch(pom: str, place: Path, digest: str) -> None:
    need("java")
    maven = need("mvn")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=place) as temporary:
        file, jars = Path(temporary) / "pom.xml", Path(temporary) / "lib"
        file.write_text(pom, encoding="utf-8")
        command = [
            maven, "-q", "-B", "-f", str(file), f"{_PLUGIN}:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
        ]  # fmt: skip
        run_tool(command, FETCH_S, "Maven could not fetch RocketMQ's jars; it needs Maven Central")
        if not jars.is_dir():
            raise InstallationError(f"{maven} succeeded but fetched nothing")
        (place / "lib.stamp").unlink(missing_ok=True)
        shutil.rmtree(place / "lib", ignore_errors=True)
        jars.rename(place / "lib")
        (place / "lib.stamp").write_text(digest)
