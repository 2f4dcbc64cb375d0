"""The engine: exact deaths, virtual time, the network's manners, and the same run from one seed."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rocketbed.chaos.backends.sim.engine import _check_private_names
from rocketbed.chaos.backends.sim.incarnation import SimulationError
from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.chaos.backends.sim.solo import run_solo
from rocketbed.chaos.backends.sim.stream import WINDOW
from rocketbed.world.api import Stream, World
from tests.support.sim.changing_links import run_changing_links
from tests.support.sim.links import cut, heal

ROOT = Path(__file__).parents[2]


async def sleep_long(world: World) -> None:
    await trio.sleep(1000)


def test_same_seed_gives_the_same_run_in_any_process() -> None:
    digest, size = run_changing_links(11)
    assert size >= 8 * 30 * len("client-0-000000\n")
    assert run_changing_links(11) == (digest, size)
    assert run_changing_links(12)[0] != digest
    for hash_seed in ("0", "1", "4242"):
        output = subprocess.run(
            [sys.executable, "-m", "tests.support.sim.changing_links"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert output.strip() == str((digest, size))


def test_time_costs_nothing_and_is_exact() -> None:
    async def main(world: World) -> tuple[float, int]:
        wall, start = world.clock.wall_ms(), trio.current_time()
        await trio.sleep(86_400 * 3)
        return trio.current_time() - start, world.clock.wall_ms() - wall

    slept, wall_ms = run_solo(main, seconds=1e6).value
    assert 259_200 <= slept < 259_200.001
    assert wall_ms == 259_200_000


def test_kill_runs_no_clean_up() -> None:
    unwound: list[str] = []

    @asynccontextmanager
    async def resource(world: World) -> AsyncIterator[None]:
        try:
            yield
        finally:
            world.disk.unlink("/abort")

    async def main(world: World) -> None:
        world.disk.open("/abort", create=True)
        async with resource(world), trio.open_nursery() as nursery:
            nursery.start_soon(sleep_long, world)
            try:
                await trio.sleep(1000)
            finally:
                unwound.append("finally")
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                unwound.append("after an await")

    with Simulation() as simulation:
        process = simulation.start("node", main)
        simulation.run(1)
        simulation.kill("node")
        simulation.run(5)
        assert process.done
        assert unwound == []
        assert simulation.host("node").image.paths() == ["/abort"]
    assert "after an await" not in unwound


def test_a_clean_stop_runs_it() -> None:
    async def main(world: World) -> str:
        await world.process.stop_requested.wait()
        return "clean"

    with Simulation() as simulation:
        process = simulation.start("node", main)
        simulation.run(1)
        simulation.stop("node")
        assert simulation.run_process(process) == "clean"
        with pytest.raises(SimulationError, match="did not end"):
            simulation.start("node", sleep_long).value()


def test_exit_ends_at_once_with_its_code() -> None:
    async def main(world: World) -> None:
        try:
            world.process.exit(3)
        finally:
            world.disk.open("/trace", create=True)

    run = run_solo(main)
    assert (run.outcome, run.exit_code, run.image.paths()) == ("exited", 3, [])


def test_a_crash_comes_out_of_the_run() -> None:
    async def main(world: World) -> None:
        await trio.sleep(1)
        raise LookupError("broken")

    with Simulation() as simulation:
        simulation.start("node", main)
        with pytest.raises(LookupError, match="broken"):
            simulation.run(2)
    with pytest.raises(LookupError, match="broken"):
        run_solo(main)


def test_paused_process_gets_all_timers_late_at_once() -> None:
    async def main(world: World) -> list[float]:
        woken = []

        async def wake_at(moment: float) -> None:
            await trio.sleep_until(moment)
            woken.append(trio.current_time())

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(1, 6):
                nursery.start_soon(wake_at, start + number)
        return [moment - start for moment in woken]

    with Simulation() as simulation:
        process = simulation.start("node", main)
        simulation.run(0.5)
        simulation.pause("node")
        simulation.run(10)
        simulation.resume("node")
        woken = simulation.run_process(process)
    assert isinstance(woken, list)
    assert all(10.4 < moment < 10.6 for moment in woken)


def test_clocks_drift_and_jump_on_their_own() -> None:
    async def main(world: World) -> tuple[float, int]:
        wall = world.clock.wall_ms()
        await trio.sleep(10)
        return world.clock.monotonic(), world.clock.wall_ms() - wall

    with Simulation() as simulation:
        simulation.host("fast").clock.rate = 1.1
        process = simulation.start("fast", main)
        simulation.run(1)
        simulation.host("fast").clock.wall_offset_ms = -3_600_000
        monotonic, wall_ms = simulation.run_process(process)
        assert simulation.timeline.now / 1e9 == pytest.approx(10 / 1.1, rel=1e-3)
    assert monotonic == pytest.approx(10, rel=1e-3)
    assert wall_ms == pytest.approx(10_000 - 3_600_000, abs=10)


def test_power_cut_changes_the_boot_and_a_kill_does_not() -> None:
    async def main(world: World) -> tuple[str, float, int]:
        return world.process.boot_id, world.clock.monotonic(), world.process.pid

    with Simulation() as simulation:
        boots_seen = []
        for end in ("none", "kill", "power"):
            process = simulation.start("node", main)
            boots_seen.append(simulation.run_process(process))
            simulation.run(5)
            if end == "kill":
                simulation.power_cut("node")
        boots = [boot for boot, _, _ in boots_seen]
        assert boots[0] == boots[1] != boots[2]
        assert boots_seen[1][1] >= 5 > boots_seen[2][1]
        assert len({pid for _, _, pid in boots_seen}) == 3


def test_a_mark_can_be_a_crash_point() -> None:
    async def main(world: World) -> None:
        file = world.disk.open("/a", create=True)
        for number in range(5):
            file.write_at(number, b"x")
            world.mark(f"written-{number}")

    with Simulation() as simulation:
        simulation.crash_at_pattern("node", "writ*-2")
        process = simulation.start("node", main)
        simulation.run(1)
        assert process.done
        assert process.disk.contents("/a") == b"xxx"
        assert [mark for _, mark in simulation.marks] == ["written-0", "written-1", "written-2"]


@pytest.mark.slow
def test_a_spinning_node_is_found() -> None:
    async def main(world: World) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with Simulation() as simulation:
        simulation.start("node", main)
        with pytest.raises(SimulationError, match=r"node\.1 spins: .*main"):
            simulation.run()


def test_condition_that_never_holds_is_reported() -> None:
    with Simulation() as simulation:
        simulation.start("node", sleep_long)
        with pytest.raises(SimulationError, match="not reached by"):
            simulation.run(10, until=lambda: False)
        with pytest.raises(SimulationError, match="already running"):
            simulation.start("node", sleep_long)
        with pytest.raises(SimulationError, match="nothing was ever started"):
            simulation.kill("other")


async def listen_and_forget(world: World) -> None:
    listener = await world.network.listen("", 7)
    streams = []
    while True:
        streams.append(await listener.accept())


@pytest.mark.parametrize("how", ["kill", "power", "reborn"])
def test_peer_learns_of_a_death(how: str) -> None:
    async def main(world: World) -> str:
        stream = await world.network.connect("server", 7)
        try:
            with trio.fail_after(20):
                await stream.receive_some()
        except trio.BrokenResourceError:
            return "reset"
        except trio.TooSlowError:
            await stream.send_all(b"x")
            with trio.move_on_after(5):
                try:
                    await stream.receive_some()
                except trio.BrokenResourceError:
                    return "reset once it sent"
        return "half open"

    with Simulation() as simulation:
        simulation.start("server", listen_and_forget)
        process = simulation.start("client", main)
        simulation.run(1)
        if how == "kill":
            simulation.kill("server")
        else:
            simulation.power_cut("server")
            simulation.run(1)
        if how == "reborn":
            simulation.start("server", listen_and_forget)
        value = simulation.run_process(process)
    assert value == {"kill": "reset", "power": "half open", "reborn": "reset once it sent"}[how]


def test_a_full_window_holds_the_sender_back() -> None:
    async def main(world: World) -> bool:
        stream = await world.network.connect("server", 7)
        with trio.move_on_after(5) as scope:
            await stream.send_all(bytes(WINDOW + 1))
        return scope.cancelled_caught

    with Simulation() as simulation:
        simulation.start("server", listen_and_forget)
        assert simulation.run_process(simulation.start("client", main)) is True


def test_cut_holds_bytes_and_dials_until_healed() -> None:
    async def server(world: World) -> bytes:
        listener = await world.network.listen("", 7)
        stream = await listener.accept()
        received = b""
        while part := await stream.receive_some():
            received += part
        return received

    async def client(world: World) -> None:
        stream = await world.network.connect("server", 7)
        for number in range(100):
            await stream.send_all(b"%03d" % number)
            await trio.sleep(0.01)
        await stream.aclose()

    async def dial(world: World) -> float:
        await world.network.connect("server", 7)
        return trio.current_time()

    with Simulation(5) as simulation:
        receiver = simulation.start("server", server)
        simulation.start("client", client)
        simulation.run(0.3)
        cut(simulation.network, "client", "server")
        simulation.run(3)
        late = simulation.start("client-2", dial)
        cut(simulation.network, "client-2", "server", both_ways=False)
        simulation.run(3)
        assert not receiver.done
        heal(simulation.network)
        assert simulation.run_process(receiver) == b"".join(b"%03d" % n for n in range(100))
        assert simulation.run_process(late) > 6


@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_lost_packets_can_reorder_connections(loss: float) -> None:
    """It is accepted late, and its bytes come late and before its end, though it was closed."""
    dials = range(200)
    accepted: list[int] = []
    numbers_received: list[int] = []

    async def serve(world: World, stream: Stream) -> None:
        accepted.append(world.network.peer_address(stream)[1])
        received = b""
        while part := await stream.receive_some():
            received += part
        numbers_received.append(int(received))

    async def server(world: World) -> None:
        listener = await world.network.listen("", 7)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(serve, world, await listener.accept())

    async def client(world: World) -> None:
        for number in dials:
            async with await world.network.connect("server", 7) as stream:
                await stream.send_all(b"%03d" % number)

    with Simulation(5) as simulation:
        simulation.start("server", server)
        dialler = simulation.start("client", client)
        simulation.network.between("client", "server").loss = loss
        simulation.run_process(dialler, 600)
        simulation.run(60)
    assert sorted(numbers_received) == [*dials]
    is_in_order = numbers_received == sorted(numbers_received), accepted == sorted(accepted)
    assert is_in_order == (not loss, not loss)


def test_held_bytes_go_when_the_link_is_fast_again() -> None:
    async def server(world: World) -> tuple[bytes, float]:
        listener = await world.network.listen("", 7)
        stream = await listener.accept()
        received = b""
        while part := await stream.receive_some():
            received += part
        return received, trio.current_time()

    async def client(world: World) -> None:
        stream = await world.network.connect("server", 7)
        for number in range(100):
            await stream.send_all(b"%03d" % number * 100)
        await stream.aclose()

    with Simulation(5) as simulation:
        receiver = simulation.start("server", server)
        simulation.start("client", client)
        link = simulation.network.between("client", "server")
        link.rate = 1000
        simulation.run(3)
        link.rate = None
        simulation.network.changed("client", "server")
        received, at_s = simulation.run_process(receiver)
        assert received == b"".join(b"%03d" % n * 100 for n in range(100))
        assert at_s < 3.1


def test_simulation_may_run_inside_a_trio_loop() -> None:
    async def outer() -> object:
        inner = run_solo(sleep_then_name).value
        await trio.lowlevel.checkpoint()
        return inner

    assert trio.run(outer) == "node"


async def sleep_then_name(world: World) -> str:
    await trio.sleep(5)
    return world.name


def test_other_trio_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("trio._core._run.unrolled_run")
    with pytest.raises(SimulationError, match="unrolled_run"):
        _check_private_names()
