"""The image of a node: built from a checkout when it is missing, or of other sources.

A label holds the digest of its sources, so that a run never tests yesterday's code. From an
installed wheel nothing can be built; then the image must exist. An image of another project is used
as it exists or pulled, and examined by running a short program in it.
"""

import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

from rocketbed.host.docker.client import Daemon, DockerError, asking
from rocketbed.host.docker.container import Spec, create, remove
from rocketbed.host.janitor.docker import docker_record
from rocketbed.host.janitor.record import Ledger

IMAGE: Final = "rocketbed/node:local"
BASE: Final = "rocketbed/base:local"
SOURCE_LABEL: Final = "rocketbed.source"
ROOT: Final = Path(__file__).resolve().parents[3]
"""Root directory of the checkout."""
DOCKERFILE: Final = "compose/Dockerfile"
BUILT_OF: Final = ("rocketbed", "node", "replication", "routing", "chaos", "pipeline")
FILES: Final = (
    "pyproject.toml",
    "requirements.lock",
    "README.md",
    "LICENSE",
    "NOTICE",
    DOCKERFILE,
    "compose/pip-install",
    "hatch_build.py",
    "pyspark_rocketbed.py",
)
STAGE_LABEL: Final = "rocketbed.stage"
"""Label that the Dockerfile puts on the images of a build's stages."""
KEPT_FOR: Final = "2h"
"""Time for which the leftovers of a build are kept to speed up the next one."""
BUILD_S: Final = 900
LOOK_S: Final = 60
TAIL: Final = 12
"""Last lines of a failed build that an error shows."""

Say = Callable[[str], None]


def ready_image(daemon: Daemon, say: Say = lambda line: None) -> str:
    """Return the id of an image of this very code, built if necessary. Blocks. Raises
    `DockerError`.

    The id stays valid when another checkout gives the name to its own image.
    """
    image = found_image(daemon, IMAGE)
    if not (ROOT / DOCKERFILE).exists():
        if image is None:
            raise DockerError(
                f"the Docker daemon has no image {IMAGE}, and there is no checkout to build it "
                "from: build it in one (python -m rocketbed.host.docker.image)"
            )
        return image[0]
    digest = source_digest()
    if image is None or image[1] != digest:
        say(f"building {IMAGE}")
        build(daemon, digest)
        prune(daemon)
        image = found_image(daemon, IMAGE)
    if image is None:
        raise DockerError(f"{IMAGE} was built and is gone: is somebody removing images?")
    return image[0]


def _is_made(path: Path) -> bool:
    """Return whether an install or a run made this file; .dockerignore excludes those."""
    return "__pycache__" in path.parts or path.suffix == ".so"


def source_digest() -> str:
    """Return a digest of everything that goes into the image."""
    digest = hashlib.sha256()
    paths = [ROOT / name for name in FILES]
    for name in BUILT_OF:
        below = sorted((ROOT / name).rglob("*"))
        paths += [path for path in below if path.is_file() and not _is_made(path)]
    for path in paths:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def build(daemon: Daemon, digest: str) -> None:
    """Build the image. Raises `DockerError`."""
    arguments = ["--target", "node", "-f", str(ROOT / DOCKERFILE), str(ROOT)]
    run_build(daemon, IMAGE, digest, arguments)


def run_build(
    daemon: Daemon,
    name: str,
    digest: str,
    arguments: Sequence[str],
    context: IO[bytes] | None = None,
) -> None:
    """Build an image with the `docker` command. Raises `DockerError` with the build's last lines.

    The last of the `arguments` is the context: a directory, or `-` for a tar archive in `context`.
    The base is `rocketbed/base:local` if the daemon has that image, else the Dockerfile's.
    """
    command = ["docker", "--host", daemon.address, "build", "--network", "host", "--force-rm"]
    command += ["-t", name, "--label", f"{SOURCE_LABEL}={digest}"]
    if found_image(daemon, BASE) is not None:
        command += ["--build-arg", f"BASE={BASE}"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL if context is None else context,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
    except FileNotFoundError as exc:
        raise DockerError("docker command not found: apt-get install docker.io") from exc
    except subprocess.TimeoutExpired as exc:
        raise DockerError(f"{name} was not built within {BUILD_S} s") from exc
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-TAIL:])
        hint = (
            "without an image hub: compose/base-image makes a base; behind a proxy: "
            "compose/take-host-settings"
        )
        raise DockerError(f"{name} cannot be built; {hint}. The build ends with:\n{last}")


def prune(daemon: Daemon) -> None:
    """Remove old leftovers of earlier builds that have no name and no container."""
    for label in (SOURCE_LABEL, STAGE_LABEL):
        with suppress(DockerError), asking(f"old images with the label {label} stay"):
            filters = {"dangling": True, "label": [label], "until": KEPT_FOR}
            daemon.api.prune_images(filters)


def found_image(daemon: Daemon, name: str) -> tuple[str, str] | None:
    """Return an image's id and the digest of its sources; `None` if the daemon does not have it."""
    row = daemon.image(name)
    if row is None:
        return None
    return str(row["Id"]), (row["Config"]["Labels"] or {}).get(SOURCE_LABEL, "")


def pulled_image(daemon: Daemon, name: str, say: Say = lambda line: None) -> dict[str, Any]:
    """Return the daemon's description of an image, pulled if missing. Raises `DockerError`.

    Blocks.
    """
    image = daemon.image(name)
    if image is not None:
        return image
    say(f"pulling {name}")
    why = "it was pulled and is not there"
    try:
        with asking(""):
            daemon.api.pull(name)
    except DockerError as error:
        why = str(error).removeprefix(": ").strip()
    image = daemon.image(name)
    if image is None:
        raise DockerError(
            f"the Docker daemon at {daemon.address} has no image {name} and cannot pull it ({why});"
            " provide it: docker pull, docker load or docker build"
        )
    return image


def output_of(
    daemon: Daemon,
    image: str,
    command: Sequence[str],
    user: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    files: Sequence[str] = (),
) -> tuple[int, str]:
    """Run a program in an image to its end; return exit code and output. Blocks. Raises
    `DockerError`.

    It has no network, and of this system can only read `files`.
    """
    with Ledger.begin() as run, asking(f"{command[0]} does not run in the image {image}"):
        name = f"rocketbed-{run.id}-look"
        run.note("container", docker_record(daemon.address, name))
        spec = Spec(
            image=image,
            command=command,
            network="none",
            user=user,
            environment=environment,
            files=files,
        )
        container = create(daemon, run.id, name, spec)
        try:
            daemon.api.start(container)
            status = int(daemon.api.wait(container, timeout=LOOK_S)["StatusCode"])
            text = daemon.api.logs(container, stdout=True, stderr=True).decode("utf-8", "replace")
        finally:
            remove(daemon, container)
    return status, text


if __name__ == "__main__":
    with Daemon.connect() as own_daemon:
        print(ready_image(own_daemon, print))
