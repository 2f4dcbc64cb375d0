"""What somebody's image holds: found there or pulled, and asked by a program that soon ends."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rocketbed.chaos.docker.client import Daemon, asking
from rocketbed.chaos.docker.container import Spec, create, remove
from rocketbed.chaos.docker.errors import DockerError
from rocketbed.chaos.host.janitor.docker import docker_record
from rocketbed.chaos.host.janitor.record import Ledger

LOOK_S: Final = 60

Say = Callable[[str], None]


def pulled_image(daemon: Daemon, name: str, say: Say = lambda line: None) -> dict[str, Any]:
    """What the daemon knows of an image, pulled if it has to be. Blocks. Raises `DockerError`."""
    found = daemon.image(name)
    if found is not None:
        return found
    say(f"pulling {name}")
    why = "it was pulled and is not there"
    try:
        with asking(""):
            daemon.api.pull(name)
    except DockerError as error:
        why = str(error).removeprefix(": ").strip()
    found = daemon.image(name)
    if found is None:
        raise DockerError(
            f"the Docker daemon at {daemon.address} has no image {name} and cannot pull it ({why});"
            " provide it: docker pull, docker load or docker build"
        )
    return found


def said_in(
    daemon: Daemon,
    image: str,
    command: Sequence[str],
    user: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    files: Sequence[str] = (),
) -> tuple[int, str]:
    """Run a program in an image to its end; exit code and output. Blocks. Raises `DockerError`.

    It has no network, and of this system only `files`, to be read.
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
        made = create(daemon, run.id, name, spec, command)
        try:
            daemon.api.start(made)
            status = int(daemon.api.wait(made, timeout=LOOK_S)["StatusCode"])
            text = daemon.api.logs(made, stdout=True, stderr=True).decode("utf-8", "replace")
        finally:
            remove(daemon, made)
    return status, text
