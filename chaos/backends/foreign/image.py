"""A real RocketMQ in an image: a user's own, or one that is built here from its jars.

Images of RocketMQ differ in the places of Java and the jars, in the Java version (8 in the official
ones) and in the user. So a shell script inspects the image from inside, as the user that will run
the brokers. The image's start scripts are not used: they choose the heap by the machine's memory
and stand between Docker and the program's signals.
"""

import hashlib
import os
import re
import tarfile
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Final

from rocketbed.chaos.backends.foreign.installation import NEEDED, Installation, version_of
from rocketbed.chaos.backends.process.machine.clock import find_library
from rocketbed.host.docker.client import Daemon, DockerError
from rocketbed.host.docker.image import (
    Say,
    found_image,
    output_of,
    prune,
    pulled_image,
    run_build,
)
from rocketbed.host.docker.owner import OURS, Owner
from rocketbed.host.errors import HostError

NAME: Final = "rocketbed/rocketmq"
"""Name of the images built here; the tag is the version."""
ROOT_NAMES: Final = ("", "root", "0")
JAVA_MIN: Final = 8
_RELEASE: Final = re.compile(r'version "(?:1\.)?(\d+)')
_DOCKERFILE: Final = """ARG BASE=debian:bookworm-slim
FROM ${{BASE}}
RUN mkdir -p /usr/share/man/man1 && apt-get update -q \\
    && apt-get install -y -q --no-install-recommends openjdk-17-jre-headless \\
    && rm -rf /var/lib/apt/lists/*
ENV ROCKETMQ_HOME=/home/rocketmq/rocketmq-{version}
COPY lib/ /home/rocketmq/rocketmq-{version}/lib/
USER {owner}
"""
DAYS_S: Final = 10 * 86_400
LOOK: Final = r"""
echo "user $(id -u) $(id -g)"
for java in "${JAVA_HOME:-/nowhere}/bin/java" "$(command -v java)" \
    /opt/java/*/bin/java /usr/lib/jvm/*/bin/java; do
    [ -x "$java" ] || continue
    echo "java $java"
    "$java" -version 2>&1 | while read -r line; do echo "says $line"; done
    break
done
for home in "${ROCKETMQ_HOME:-/nowhere}" "$PWD" "$PWD/.." \
    /home/rocketmq/* /opt/rocketmq* /usr/local/rocketmq* /rocketmq*; do
    ls "$home"/lib/rocketmq-broker-[0-9]*.jar >/dev/null 2>&1 || continue
    cd "$home/lib" || continue
    echo "lib $(pwd)"
    for jar in rocketmq-*.jar; do echo "jar $jar"; done
    break
done
[ -z "$CLOCK" ] || echo "clock $(date +%s) $(LD_PRELOAD=$CLOCK FAKETIME=+10d date +%s)"
"""


@dataclass(frozen=True, slots=True)
class ImageInstallation:
    """An image, and its layout."""

    image: str
    """Its id, which stays when the name moves to another image."""
    jars: Installation
    owner: Owner
    """User that its programs run as."""
    moves_clock: bool = True
    """True if this system's libfaketime works in it; with another or older C library it may not."""


def in_image(daemon: Daemon, name: str, say: Say = lambda line: None) -> ImageInstallation:
    """Inspect a user's image, pulled if necessary. Blocks.

    Raises `DockerError` for an image without Java or RocketMQ 5, or that is not available.
    """
    row = pulled_image(daemon, name, say)
    user = user_for(str((row.get("Config") or {}).get("User") or ""))
    try:
        clock = find_library()
    except HostError:
        clock = ""  # a machine that needs a clock reports it missing
    code, text = output_of(
        daemon,
        str(row["Id"]),
        ["/bin/sh", "-c", LOOK],
        user,
        {"CLOCK": clock},
        [clock] if clock else [],
    )
    if code:
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise DockerError(
            f"the image {name} has no shell that runs (it ends with {code}): {last[0]}"
        )
    jars, owner = read_layout(name, text)
    return ImageInstallation(str(row["Id"]), jars, owner, not clock or moves_clock(text))


def image_of(
    daemon: Daemon, installation: Installation, say: Say = lambda line: None
) -> ImageInstallation:
    """Return an image of these jars and Debian's Java, built if necessary. Blocks. Raises
    `DockerError`."""
    name = f"{NAME}:{installation.version}"
    recipe = _DOCKERFILE.format(version=installation.version, owner=OURS)
    digest = _digest(recipe, installation.lib)
    built = found_image(daemon, name)
    if built is None or built[1] != digest:
        say(f"building {name}")
        with tempfile.TemporaryFile() as context:
            _pack(recipe, installation.lib, context)
            run_build(daemon, name, digest, ["-"], context)
        prune(daemon)
    return in_image(daemon, name)


def user_for(own: str) -> str:
    """Return the user for Docker, if an image names `own`: that one, or ours in place of root.

    A harness that is not root can only run what belongs to itself.
    """
    if os.geteuid() != 0:
        return f"{os.geteuid()}:{os.getegid()}"
    return str(OURS) if own.partition(":")[0] in ROOT_NAMES else own


def read_layout(name: str, text: str) -> tuple[Installation, Owner]:
    """Parse the output of the script. Raises a `DockerError` that says what the image lacks."""
    rows = [line.partition(" ") for line in text.splitlines()]
    values: dict[str, list[str]] = {}
    for key, _, value in rows:
        values.setdefault(key, []).append(value)
    user, group = values["user"][0].split()
    condition = f"that its user {user} can read"
    if "java" not in values:
        raise DockerError(
            f"the image {name} has no java {condition}: not in JAVA_HOME, PATH, /opt/java,"
            " /usr/lib/jvm"
        )
    release = _RELEASE.search("\n".join(values.get("says", [])))
    if release is None or int(release[1]) < JAVA_MIN:
        answer = " ".join(values.get("says", ["nothing"]))
        raise DockerError(
            f"the image {name} has no Java {JAVA_MIN} or newer; its java says: {answer}"
        )
    if "lib" not in values:
        raise DockerError(
            f"the image {name} has no RocketMQ {condition}: no lib/rocketmq-broker-VERSION.jar in"
            " ROCKETMQ_HOME, its working directory, /home/rocketmq, /opt"
        )
    for part in NEEDED:
        if not any(re.fullmatch(rf"{part}-\d.*\.jar", jar) for jar in values["jar"]):
            raise DockerError(
                f"the image {name} has no {part}-VERSION.jar in {values['lib'][0]}: it must be a"
                " complete RocketMQ 5"
            )
    installation = Installation(
        version_of(values["jar"]),
        Path(values["lib"][0]),
        java=values["java"][0],
        java_release=int(release[1]),
    )
    return installation, Owner(int(user), int(group))


def moves_clock(text: str) -> bool:
    """Return whether, by the script's output, a clock that should be ten days ahead was."""
    match = re.search(r"^clock (\d+) (\d+)$", text, re.M)
    return match is not None and int(match[2]) - int(match[1]) > DAYS_S / 2


def _digest(recipe: str, lib: Path) -> str:
    digest = hashlib.sha256(recipe.encode())
    for path in _jars(lib):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _pack(recipe: str, lib: Path, context: IO[bytes]) -> None:
    """Write the context of a build, and rewind it. All entries are readable by everybody, whatever
    the files here are."""
    with tarfile.open(fileobj=context, mode="w") as archive:
        text = tarfile.TarInfo("Dockerfile")
        text.size = len(recipe.encode())
        archive.addfile(text, BytesIO(recipe.encode()))
        for path in _jars(lib):
            row = tarfile.TarInfo(str(PurePosixPath("lib") / path.name))
            row.size, row.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(row, file)
    context.seek(0)


def _jars(lib: Path) -> list[Path]:
    return sorted(lib.glob("*.jar"))
