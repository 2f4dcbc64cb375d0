"""A Docker daemon that is a dictionary: containers of real processes, networks by name."""

import subprocess
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any, cast

import docker.errors

from rocketbed.host.docker.client import Daemon

Row = dict[str, Any]


def refused(text: str, status: int = 409) -> docker.errors.APIError:
    """An answer of the daemon."""
    response = type("Response", (), {"status_code": status, "url": "", "reason": text})()
    return docker.errors.APIError(text, response, text)


class FakeApi:
    """The parts of `docker.APIClient` that we use. Programs are `sleep`s of this system."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.networks_made: dict[str, str] = {}
        self.requests: list[str] = []
        self.before: dict[str, Callable[[str], None]] = {}
        """Called before the request of that name; may end a program, or raise."""
        self.is_born_dead = False

    def close(self) -> None:
        for row in self.rows.values():
            self._end(row)

    def version(self) -> dict[str, str]:
        return {"Version": "20.10.24", "ApiVersion": "1.41"}

    def end(self, name: str) -> None:
        """End the program from inside."""
        self._end(self.rows[name])

    # --- containers

    def create_host_config(self, *_: object, **settings: Any) -> Row:
        return settings

    create_endpoint_config = create_networking_config = create_host_config

    def create_container(
        self, _image: str, *, name: str, labels: Row, host_config: Row | None = None, **_: object
    ) -> Row:
        self._ask("create", name)
        if name in self.rows:
            raise refused(f"the name {name} is in use")
        state = {"Running": False, "Paused": False, "Pid": 0}
        self.rows[name] = {
            "Id": name,
            "Labels": labels,
            "State": state,
            "HostConfig": host_config,
            "process": None,
        }
        return {"Id": name}

    def start(self, name: str) -> None:
        self._ask("start", name)
        row = self._row(name)
        row["process"] = process = subprocess.Popen(["sleep", "1000"])
        row["State"] |= {"Running": True, "Pid": process.pid}
        if self.is_born_dead:
            self._end(row)

    def inspect_container(self, name: str) -> Row:
        self._ask("inspect", name)
        return self._row(name)

    def pause(self, name: str) -> None:
        self._ask("pause", name)
        self._running(name)["Paused"] = True

    def unpause(self, name: str) -> None:
        self._ask("unpause", name)
        self._running(name)["Paused"] = False

    def kill(self, name: str, signal: str) -> None:
        self._ask("kill", name)
        self._running(name)
        self._end(self.rows[name])

    def update_container(self, name: str, **_: object) -> None:
        self._ask("update", name)
        self._running(name)

    def wait(self, name: str) -> Row:
        self._ask("wait", name)
        self._row(name)
        return {"StatusCode": 137}

    def remove_container(self, name: str, **_: object) -> None:
        self._ask("remove", name)
        self._end(self._row(name))
        del self.rows[name]

    def containers(self, *, filters: Row, **_: object) -> list[Row]:
        key, _, value = filters["label"].partition("=")
        return [row for row in self.rows.values() if row["Labels"].get(key) == value]

    def _row(self, name: str) -> Row:
        if name not in self.rows:
            raise docker.errors.NotFound(f"no container {name}")
        return self.rows[name]

    def _running(self, name: str) -> Row:
        state: Row = self._row(name)["State"]
        if not state["Running"]:
            raise refused(f"{name} is not running")
        return state

    def _end(self, row: Row) -> None:
        if row["process"] is not None:
            row["process"].kill()
            row["process"].wait()
        row["State"] |= {"Running": False, "Paused": False, "Pid": 0}

    # --- networks

    def networks(self, names: list[str]) -> list[Row]:
        """Find networks by a part of the name, as Docker does."""
        return [{"Name": name} for name in self.networks_made if names[0] in name]

    def create_network(self, name: str, *, ipam: Any = None, **_: object) -> Row:
        self._ask("network" if ipam is None else "network on", name)
        subnet = next(
            text
            for text in ([ipam["Config"][0]["Subnet"]] if ipam else free_ranges())
            if ipam or text not in self.networks_made.values()
        )
        if subnet in self.networks_made.values():
            raise refused("Pool overlaps with other one on this address space", 403)
        self.networks_made[name] = subnet
        return {"Id": name}

    def inspect_network(self, name: str) -> Row:
        return {"IPAM": {"Config": [{"Subnet": self.networks_made[name]}]}}

    def remove_network(self, name: str) -> None:
        self._ask("remove network", name)
        del self.networks_made[name]

    def _ask(self, request: str, name: str) -> None:
        self.requests.append(request)
        hook = self.before.get(request)
        if hook is not None:
            hook(name)


def free_ranges() -> list[str]:
    """Ranges that the daemon chooses from, in this order."""
    return [str(network) for network in IPv4Network("10.5.0.0/16").subnets(new_prefix=24)]


def daemon_of(api: FakeApi) -> Daemon:
    """A connection to it."""
    return Daemon(cast(Any, api), "unix:///nowhere/socket")
