"""The blocking face: the same names, calls from any thread, its end (rocketbed.blocking)."""

import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import rocketbed
from rocketbed import aio, blocking
from rocketbed.client import admin, consumer, offsets, producer
from rocketbed.client.errors import BadMessage, ClientError
from rocketbed.client.progress import POLLER
from rocketbed.portal import Portal
from rocketbed.routing.config import NameserverConfig
from rocketbed.routing.nameserver import Nameserver
from rocketbed.world.real import real_world


@contextmanager
def nameserver() -> Iterator[str]:
    """A real nameserver in a thread of its own; its address."""
    ready = threading.Event()
    started: list[Any] = []

    async def main() -> None:
        world = real_world("nameserver")
        async with trio.open_nursery() as nursery:
            server = Nameserver(world, NameserverConfig(host="127.0.0.1", port=0))
            address = await nursery.start(server.run)
            started.extend((address, world, trio.lowlevel.current_trio_token()))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(10)
    (host, port), world, token = started
    try:
        yield f"{host}:{port}"
    finally:
        token.run_sync_soon(world.process.stop_requested.set)
        thread.join()


@pytest.mark.parametrize(
    ("face", "native"),
    [
        (blocking.Producer, producer.Producer),
        (blocking.Consumer, consumer.Consumer),
        (blocking.Admin, admin.Admin),
        (blocking.QueueOffsets, offsets.QueueOffsets),
        (aio.Producer, producer.Producer),
        (aio.Consumer, consumer.Consumer),
        (aio.Admin, admin.Admin),
        (aio.QueueOffsets, offsets.QueueOffsets),
    ],
)
def test_both_faces_have_the_same_names_and_arguments(face: type, native: type) -> None:
    def public(kind: type) -> dict[str, Callable[..., Any]]:
        return {
            name: item
            for name, item in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(function).parameters)

    native_names = public(native)
    for inner in ("ask", "give_back", "listen_by"):
        native_names.pop(inner, None)
    names = public(face)
    if face in (aio.Producer, aio.Consumer, aio.Admin):
        del names["start"], names["stop"]
    assert names.keys() == native_names.keys()
    for name, function in names.items():
        ours, theirs = parameters(function), parameters(native_names[name])
        if name == "listen" and face is blocking.Consumer:  # functions of two kinds
            assert ours.pop("handler").annotation != theirs.pop("handler").annotation
        assert ours == theirs, name
    if native is not offsets.QueueOffsets:
        expected = [one for name, one in parameters(native).items() if name != "world"]
        assert list(parameters(face).values()) == expected


def test_calls_are_answered_from_several_threads() -> None:
    with nameserver() as address, blocking.Admin(nameservers=address) as upkeep:
        lists: list[list[str]] = []
        threads = [threading.Thread(target=lambda: lists.append(upkeep.topics())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lists == [[]] * 4


def test_polling_thread_is_the_poller() -> None:
    """Else what one thread has in hand would be committed by another one's next poll."""

    async def poller() -> object:
        return POLLER.get(None)

    with nameserver() as address, blocking.Admin(nameservers=address) as upkeep:
        threads: list[object] = []
        call = upkeep._call
        poller_thread = threading.Thread(
            target=lambda: threads.extend((call(poller), call(poller)))
        )
        poller_thread.start()
        poller_thread.join()
        assert threads == [poller_thread, poller_thread]
        assert call(poller) is threading.current_thread()
        assert POLLER.get(None) is None


def test_outcomes_and_errors_come_through() -> None:
    with nameserver() as address:
        with blocking.Producer(nameservers=address, timeout_s=1) as sender:
            outcome = sender.send(blocking.Message("T", b"x"))
            assert isinstance(outcome, blocking.Refused)
            assert outcome.code == 17
            with pytest.raises(BadMessage):
                sender.send(blocking.Message("T", b""))
        with blocking.Consumer(nameservers=address, group="g") as reader:
            with pytest.raises(ClientError, match="does not exist"):
                reader.queues("T")
            with pytest.raises(ClientError, match="call subscribe first"):
                reader.poll()
            assert reader.positions() == {}


def test_outside_of_its_block_a_client_refuses_calls() -> None:
    with nameserver() as address:
        upkeep = blocking.Admin(nameservers=address)
        with pytest.raises(ClientError, match="in a `with` block"):
            upkeep.topics()
        with upkeep:
            assert upkeep.topics() == []
        with pytest.raises(ClientError, match="the client is closed"):
            upkeep.topics()
        with pytest.raises(ClientError, match="entered only once"):
            upkeep.__enter__()


def test_errors_leave_the_block_and_the_thread_ends() -> None:
    def fail_inside() -> None:
        with blocking.Admin(nameservers="127.0.0.1:1"):
            assert threading.active_count() == before + 1
            raise KeyError("own")

    before = threading.active_count()
    with pytest.raises(KeyError):
        fail_inside()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_gets_an_error_and_the_parent_continues() -> None:
    """gunicorn's preload, Celery's prefork: the child has no thread that would ever answer."""
    with nameserver() as at, blocking.Admin(nameservers=at) as upkeep:
        assert upkeep.route("T") is None
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                upkeep.route("T")
            except ClientError as exc:
                upkeep.__exit__(None, None, None)
                os._exit(0 if f"{os.getpid()} is a fork" in str(exc) else 2)
            finally:
                os._exit(3)
        assert upkeep.route("T") is None
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert upkeep.route("T") is None


def test_failed_client_raises_its_error() -> None:
    class Broken:
        async def __aenter__(self) -> None:
            raise ClientError("no good")

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("never entered")

    portal = Portal(Broken())
    with pytest.raises(ClientError, match="no good"):
        portal.open()


def test_public_names_exist() -> None:
    for name in rocketbed.__all__:
        assert getattr(rocketbed, name) is not None
    assert rocketbed.Producer is producer.Producer
    assert rocketbed.blocking is blocking
    with pytest.raises(AttributeError, match="nonsense"):
        rocketbed.nonsense  # type: ignore[attr-defined]  # noqa: B018
