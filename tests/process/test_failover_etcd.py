"""A group with failover whose register is in a real etcd, with two nameservers and controllers."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.client.admin import Admin
from rocketbed.client.errors import ClientError
from rocketbed.client.messages import Message
from rocketbed.client.outcome import Sent
from rocketbed.client.producer import Producer
from rocketbed.host.member import ManagedProcess
from rocketbed.host.parent_death import tied_command
from rocketbed.host.ports import free_ports
from rocketbed.remoting.errors import RemotingError
from tests.support.etcd import etcd

pytestmark = [pytest.mark.process, pytest.mark.slow]
HANG_S = 120
LOOK_S = 0.05
SMALL = {
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "brokerName": "g",
}


def started(directory: Path, name: str, program: str, settings: dict[str, str]) -> ManagedProcess:
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = ManagedProcess(name, tied_command(program, *options), directory / name)
    process.start()
    return process


async def until_group(admin: Admin, epoch: int, in_sync: int) -> dict[str, Any]:
    """The register's entry of the group, once it is of such an epoch and has so many in sync."""
    while True:
        try:
            entry: dict[str, Any] = (await admin.failover_groups())["g"]["entry"]
            if entry["leader"] and entry["epoch"] >= epoch and len(entry["in_sync"]) >= in_sync:
                return entry
        except (ClientError, RemotingError, KeyError):
            pass
        await trio.sleep(LOOK_S)


async def send(producer: Producer) -> Sent:
    """Send one message, until it is acknowledged."""
    while True:
        outcome = await producer.send(Message("T", b"x"))
        if isinstance(outcome, Sent) and outcome.is_safe:
            return outcome


@pytest.mark.ci
async def test_another_controller_takes_over_and_then_another_leader(tmp_path: Path) -> None:
    ports = free_ports(2, 3)
    addresses = ";".join(f"127.0.0.1:{port}" for port in ports[:2])
    with ExitStack() as stack, trio.fail_after(HANG_S):
        server = stack.enter_context(etcd(tmp_path))
        place = f"etcd://127.0.0.1:{server.address[1]}/cluster"
        processes = {}
        for port in ports[:2]:
            settings = {"listenPort": str(port), "bindAddress": "127.0.0.1", "rbRegister": place}
            processes[f"{port}"] = started(tmp_path, f"{port}", "nameserver", settings)
        for number, port in enumerate(ports[2:], 1):
            own = {
                **SMALL,
                "rbReplica": str(number),
                "listenPort": str(port),
                "namesrvAddr": addresses,
                "storePathRootDir": str(tmp_path / f"store-{number}"),
            }
            processes[f"g{number}"] = started(tmp_path, f"g{number}", "node", own)
        try:
            async with (
                Admin(nameservers=addresses) as admin,
                Producer(nameservers=addresses, timeout_s=10) as producer,
            ):
                first = await until_group(admin, 1, 3)
                await send(producer)
                log = processes[f"{ports[0]}"].log_path.read_text()
                active = ports[0] if "controller.active" in log else ports[1]
                await end(processes[f"{active}"])
                await until_group(admin, first["epoch"], 3)
                await send(producer)
                await end(processes[f"g{first['leader']}"])
                second = await until_group(admin, first["epoch"] + 1, 2)
                assert second["leader"] != first["leader"]
                place_of = await send(producer)
                assert place_of.queue.broker_name == "g"
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + HANG_S):
                for process in processes.values():
                    await end(process)


async def end(process: ManagedProcess) -> None:
    """SIGKILL."""
    if process.signal(signal.SIGKILL):
        await process.wait_ended()
