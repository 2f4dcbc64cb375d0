"""Threads that read with `rocketbed.blocking`: what one has in hand is not committed by another."""

import sys
import threading
from pathlib import Path

import pytest
import trio

from rocketbed import blocking
from rocketbed.client.errors import ClientError
from rocketbed.cluster.cluster import LocalCluster

COUNT = 40
SOON = {"messageDelayLevel": "1s 1s 1s 1s"}
"""What fails comes again after the third of them, not after 10 s."""


@pytest.mark.process
async def test_threads_share_a_consumer(tmp_path: Path) -> None:
    async with LocalCluster.create(
        tmp_path / "cluster", slaves=0, sync=False, settings=SOON, tied=True
    ) as cluster:
        await cluster.start()
        address = cluster.nameserver_address
        await trio.to_thread.run_sync(read_from_two_threads, address)
        await trio.to_thread.run_sync(listen_in_threads, address)
        await trio.to_thread.run_sync(handler_that_exits, address)
        await trio.to_thread.run_sync(stuck_handler, address)


def read_from_two_threads(address: str) -> None:
    with (
        blocking.Admin(nameservers=address) as admin,
        blocking.Producer(nameservers=address) as sender,
        blocking.Consumer(nameservers=address, group="hands") as reader,
    ):
        admin.create_topic("Hands", queues=1)
        for number in range(4):
            sender.send(blocking.Message("Hands", b"%d" % number))
        reader.subscribe("Hands", start="first")
        (queue,) = reader.positions()
        messages = iter(reader)
        first = next(messages)

        def read_and_commit() -> None:
            assert next(iter(reader)).body == b"1"
            reader.commit()

        thread = threading.Thread(target=read_and_commit)
        thread.start()
        thread.join()
        assert reader.committed(queue) in (None, 0)
        reader.finish(first)
        reader.commit()
        assert reader.committed(queue) == 2
        assert [next(messages).body for _ in range(2)] == [b"2", b"3"]


def listen_in_threads(address: str) -> None:
    """The function runs beside the one who listens, and may use the client itself."""
    reconsume_times: dict[bytes, int] = {}
    threads: set[int] = set()
    lock = threading.Lock()
    with (
        blocking.Admin(nameservers=address) as admin,
        blocking.Producer(nameservers=address) as sender,
        blocking.Consumer(nameservers=address, group="ears") as reader,
    ):
        admin.create_topic("Ears", queues=4)
        for number in range(COUNT):
            sender.send(blocking.Message("Ears", b"%d" % number))

        def handler(received: blocking.Received) -> None:
            assert sender.queues("Ears")
            if received.body == b"7" and not received.reconsume_times:
                raise ValueError("not yet")
            with lock:
                threads.add(threading.get_ident())
                reconsume_times[received.body] = received.reconsume_times
                if len(reconsume_times) == COUNT:
                    reader.stop_listening()

        reader.subscribe("Ears", start="first")
        reader.listen(handler, workers=3)
        assert threading.get_ident() not in threads
    assert reconsume_times == {b"%d" % number: int(number == 7) for number in range(COUNT)}


def handler_that_exits(address: str) -> None:
    """Check that a listener's caller gets its `SystemExit` unchanged, and the message goes to the
    next listener.
    """
    bodies: list[bytes] = []
    with blocking.Consumer(nameservers=address, group="exits") as reader:
        reader.subscribe("Hands", start="first")

        def leave(received: blocking.Received) -> None:
            if received.body == b"2":
                sys.exit(7)

        with pytest.raises(SystemExit) as raised:
            reader.listen(leave, workers=3)
        assert raised.value.code == 7

        def stay(received: blocking.Received) -> None:
            bodies.append(received.body)
            if b"2" in bodies:
                reader.stop_listening()

        reader.listen(stay, workers=1)
    assert b"2" in bodies


def stuck_handler(address: str) -> None:
    """A function that never returns holds up neither the end of the client nor its message."""
    stuck, entered = threading.Event(), threading.Event()
    try:
        with blocking.Consumer(nameservers=address, group="stuck") as reader:
            reader.subscribe("Hands", start="first")

            def handler(received: blocking.Received) -> None:
                entered.set()
                stuck.wait()

            def listen() -> None:
                with pytest.raises(ClientError, match="closed"):
                    reader.listen(handler, workers=2)

            thread = threading.Thread(target=listen)
            thread.start()
            assert entered.wait(60)
        thread.join()
    finally:
        stuck.set()
