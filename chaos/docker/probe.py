"""Whether containers can be had here, for `rocketbed chaos doctor`."""

from rocketbed.chaos.docker.client import Daemon
from rocketbed.chaos.docker.errors import DockerError
from rocketbed.chaos.docker.image import IMAGE
from rocketbed.chaos.process.capability import ProbeResult, absent, works


def probe_docker() -> ProbeResult:
    """A daemon that answers; no image is built for it."""
    try:
        with Daemon.connect() as daemon:
            version = daemon.api.version()["Version"]
            has_image = bool(daemon.api.images(IMAGE))
    except DockerError as exc:
        return absent(str(exc))
    image = f"{IMAGE} is there" if has_image else f"{IMAGE} will be built at first use"
    return works(f"Docker {version} at {daemon.address}; {image}")
