"""What can be wrong with Docker, as one kind of error."""

from typing import Final

from rocketbed.chaos.trial.api import BackendError
from rocketbed.wire.errors import RocketbedError

HOW_TO_GET_ONE: Final = (
    "start one (Debian: apt-get install docker.io), set DOCKER_HOST to one that runs, or start a "
    "private one: python -m rocketbed.chaos.docker.daemon DIRECTORY (root)"
)


class DockerError(BackendError, RocketbedError):
    """No daemon, no image, a container that does not start; the message says what to do."""
