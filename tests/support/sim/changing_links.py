"""A small cluster under changing links and disks, for the tests of the engine itself."""

import trio

from rocketbed.chaos.backends.sim.simulation import Simulation
from rocketbed.world.api import Stream, World
from tests.support.sim.links import cut, heal

PORT = 7


async def serve_log(world: World) -> None:
    """Append what clients send to a file, sync it, answer with its length."""
    disk = world.disk
    disk.makedirs("/store")
    file = disk.open("/store/log", create=True)
    await disk.sync_dir("/store")
    listener = await world.network.listen("", PORT)

    async def serve(stream: Stream) -> None:
        try:
            line = b""
            while data := await stream.receive_some():
                line += data
                if not line.endswith(b"\n"):
                    continue  # a line may come in pieces, and is one append
                file.write_at(file.size(), line)
                line = b""
                await file.sync()
                await stream.send_all(file.size().to_bytes(8, "big"))
        except trio.BrokenResourceError:
            world.log.info("server.reset", size=file.size())

    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(serve, await listener.accept())


async def receive_answer(stream: Stream) -> bytes:
    """The eight bytes of one answer, which may come in pieces; fewer at the end of the stream."""
    answer = b""
    while len(answer) < 8 and (piece := await stream.receive_some(8 - len(answer))):
        answer += piece
    return answer


async def append(world: World, count: int) -> int:
    """Send `count` lines to the server, over as many connections as it takes; count answers."""
    answered = 0
    while answered < count:
        try:
            with trio.fail_after(1):
                stream = await world.network.connect("server", PORT)
            async with stream:
                while answered < count:
                    with trio.fail_after(1):
                        await stream.send_all(b"%s-%06d\n" % (world.name.encode(), answered))
                        if not await receive_answer(stream):
                            break
                    answered += 1
                    await trio.sleep(world.random.random() * 0.01)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            world.log.info("client.retry", error=type(error).__name__)
            await trio.sleep(0.1)
    return answered


def run_changing_links(seed: int, clients: int = 8, count: int = 30) -> tuple[str, int]:
    """Kill, pause, cut and power-cut a server under load. Returns digest and bytes on its disk."""
    with Simulation(seed) as simulation:
        simulation.start("server", serve_log)
        names = [f"client-{number}" for number in range(clients)]
        processes = [simulation.start(name, append, count) for name in names]
        simulation.run(0.05)
        simulation.pause("server")
        simulation.run(0.3)
        simulation.resume("server")
        simulation.run(0.05)
        simulation.kill("server")
        simulation.run(0.2)
        simulation.start("server", serve_log)
        simulation.run(0.05)
        cut(simulation.network, "client-0", "server")
        simulation.run(0.5)
        heal(simulation.network)
        simulation.power_cut("server")
        simulation.run(2)
        simulation.start("server", serve_log)
        simulation.run(60, until=lambda: all(process.done for process in processes))
        assert [process.value() for process in processes] == [count] * clients
        size = len(simulation.process("server").disk.contents("/store/log"))
        return simulation.digest(), size


if __name__ == "__main__":
    print(run_changing_links(11))
