"""Sessions of one store find what they are there for, and nothing where nothing is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from rocketbed.node.broker.delays import Delays
from rocketbed.node.broker.delivered import Delivered
from rocketbed.node.broker.long_polling import LongPolls
from rocketbed.node.broker.offsets import Offsets
from rocketbed.node.broker.rates import Rates
from rocketbed.node.broker.registration import Registration
from rocketbed.node.broker.send_back import SendBack
from rocketbed.node.broker.table_log import TableLog
from rocketbed.node.store.damage import DamagedRanges
from rocketbed.node.store.flush import Flusher
from rocketbed.node.store.index import Index
from rocketbed.node.store.marks import Mark
from rocketbed.node.store.queues import Queues
from rocketbed.node.store.reader import Reader
from rocketbed.node.store.removal import Removal
from rocketbed.remoting.connection import Connection
from rocketbed.replication.lease import Roll
from rocketbed.routing.nameserver import Nameserver
from rocketbed.routing.table import RoutingTable
from rocketbed.wire.command import Command, answer
from rocketbed.wire.message import HEAD
from tests.model.catalogue import MODELS, sessions
from tests.model.damage import run_cuts, run_damage
from tests.model.figures import run_figures
from tests.model.groups import run_groups
from tests.model.leaders import run_leaders
from tests.model.lives import run_lives, run_remade
from tests.model.model import Model, Put
from tests.model.moments import run_moments
from tests.model.redelivery import run_redelivery
from tests.model.register import run_register
from tests.model.registration import run_registration
from tests.model.routes import run_routes
from tests.model.waiting import run_waiting

SEED = 501
SEEDS = range(1, 11)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_the_code_agree(name: str) -> None:
    assert MODELS[name](SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_the_code_agree_with_more_seeds(name: str) -> None:
    for seed in SEEDS:
        assert MODELS[name](seed)


@pytest.mark.parametrize("name", ["store-lives", "failover-register"])
def test_the_same_seed_is_the_same_session(name: str) -> None:
    assert MODELS[name](SEED) == MODELS[name](SEED)


def test_other_seeds_are_other_sessions() -> None:
    assert not sessions(1).keys() & sessions(2).keys()


def later(original: Callable[..., Any]) -> Callable[..., Any]:
    async def found(*args: Any, **options: Any) -> int:
        at: int = await original(*args, **options)
        return at + 1

    return found


def skipping(original: Callable[..., Any]) -> Callable[..., Any]:
    def pulled(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        result.next_offset += bool(result.ranges)
        return result

    return pulled


def shorter(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: original(*args)[1:]


async def _nowhere(*_args: Any) -> int:
    return 0


async def _no_sync(_self: Queues) -> None:
    return None


async def _never(*_args: Any, **_options: Any) -> bool:
    return False


async def _always(*_args: Any, **_options: Any) -> bool:
    return True


def _untaken(self: TableLog, physical: int, size: int, kinds: Any = ()) -> None:
    return None


async def _success(_self: SendBack, command: Command, _connection: Connection) -> Command:
    return answer(command)


def sooner(original: Callable[..., int]) -> Callable[..., int]:
    return lambda *args: original(*args) - 50


async def _idle(_self: object, **_options: object) -> None:
    await trio.sleep_forever()


Run = Callable[[int], Any]
BUGS: list[tuple[object, str, Callable[..., Any], Run, str]] = [
    (Registration, "announce", lambda _: lambda self: None, run_registration, "wait"),
    (Delivered, "_is_delivered", lambda _: _always, run_redelivery, "lost"),
    (SendBack, "handle", lambda _: _success, run_redelivery, "(code|lost)"),
    (Reader, "offset_by_time", later, run_lives, "time"),
    (Reader, "get_messages", skipping, run_lives, "pull"),
    (Index, "query", shorter, run_lives, "query"),
    (Flusher, "run", lambda _: _idle, run_lives, "(flush|retention|hang)"),
    (Removal, "delete_topic", lambda _: _nowhere, run_lives, "deletion"),
    (DamagedRanges, "summary", lambda _: lambda self: "", run_damage, "scrub"),
    (
        Mark,
        "deleted_below",
        lambda _: lambda self, end: self.deleted,
        run_remade,
        "(append|bounds)",
    ),
    (Queues, "sync", lambda _: _no_sync, run_moments, "durable"),
    (Delivered, "_is_delivered", lambda _: _never, run_waiting, "repeated"),
    (Delays, "delay_ms", sooner, run_waiting, "early"),
    (LongPolls, "release", lambda _: lambda self, topic, queue: None, run_groups, "hold"),
    (
        Offsets,
        "_drop",
        lambda _: lambda self, matches: None,
        run_groups,
        "(code|position|statistics)",
    ),
    (RoutingTable, "touch", lambda _: lambda self, *place, now_s: None, run_routes, "cluster"),
    (Roll, "record_death", lambda _: lambda self, *life: None, run_register, "(register|notice)"),
    (TableLog, "take_over", lambda _: _untaken, run_leaders, "tables"),
    (DamagedRanges, "cut", lambda _: lambda self, offset: None, run_cuts, "cut"),
    (Rates, "per_s", lambda _: lambda self, name: 0.0, run_figures, "figures"),
    (Nameserver, "run", lambda _: _idle, run_routes, "hang"),
]


@pytest.mark.parametrize(
    ("owner", "name", "change", "run", "found"), BUGS, ids=[row[1] for row in BUGS]
)
def test_a_planted_bug_is_found(
    owner: object,
    name: str,
    change: Callable[..., Any],
    run: Run,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises(AssertionError, match=rf"^{found}: "):
        run(SEED)


def a_record(at: int, offset: int, body: bytes = b"body") -> bytes:
    head = bytearray(HEAD.size + 64)
    size = len(head) + len(body) + 1
    head[0:8] = size.to_bytes(4, "big") + b"\xda\xa3\x20\xa7"
    head[20:36] = offset.to_bytes(8, "big") + at.to_bytes(8, "big")
    return bytes(head) + body + b"T"


PUT = Put("T", 0, b"body", b"")


def test_a_model_takes_what_follows_and_nothing_else() -> None:
    model = Model(segment=4096)
    first = a_record(0, 0)
    model.pending = model.expect([PUT], [(0, first)])
    model.wrote()
    after = len(first)
    assert (model.written, model.ends) == (after, {("T", 0): 1})
    for wrong in ([], [(after, a_record(after, 2))], [(after, a_record(after + 1, 1))]):
        with pytest.raises(AssertionError, match=r"^append: "):
            model.expect([PUT], wrong)
    with pytest.raises(AssertionError, match=r"^append: a record at 8"):
        model.expect([PUT], [(8, first)])


def test_a_model_says_what_a_start_may_have_lost() -> None:
    def two(flushed: int) -> tuple[Model, bytes, int]:
        model, log = Model(segment=4096), b""
        for number in range(2):
            data = a_record(len(log), number)
            model.pending = model.expect([PUT], [(len(log), data)])
            model.wrote()
            log += data
        model.flushed = flushed
        return model, log, len(log) // 2

    model, log, half = two(0)
    model.recovered(0, half, log[:half] + bytes(half), power=True)
    assert (len(model.kept), model.written, model.ends) == (1, half, {("T", 0): 1})
    model, log, half = two(2 * half)
    with pytest.raises(AssertionError, match=r"^loss: "):
        model.recovered(0, half, log[:half], power=True)
    model, log, half = two(0)
    with pytest.raises(AssertionError, match=r"^loss: "):
        model.recovered(0, half, log[:half], power=False)
    with pytest.raises(AssertionError, match=r"^log: bytes behind the end"):
        model.recovered(0, half, log, power=True)
    with pytest.raises(AssertionError, match=r"^log: another record at 0"):
        model.recovered(0, half, a_record(0, 0, b"ydob"), power=True)
