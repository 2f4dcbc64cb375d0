"""Writes a store directory of any size, as a node would have: `python -m bench.generate --help`.

It uses the node's own store, so log, consume queues, index files and marks are what a broker leaves
after a clean stop. Bodies are random bytes: they do not compress, and no two are the same. The same
seed gives the same messages.
"""

import json
import struct
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from random import Random
from typing import IO, Final

import click
import trio
import trio.lowlevel

from rocketbed.node.store.config import StoreConfig
from rocketbed.node.store.store import MessageStore
from rocketbed.wire.message import body_crc
from rocketbed.world.real import real_world

HOST: Final = bytes([127, 0, 0, 1]) + struct.pack(">i", 5000)
BATCH: Final = 500
BATCHES_PER_S: Final = 100
"""Only with a rate."""
BODY_MIN: Final = 64
POOL_SIZE: Final = 1 << 22
AHEAD_MAX: Final = 64 << 20
"""Bytes of log by which dispatch may lag."""


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The store directory.")
@click.option("--mib", default=1024, show_default=True, help="Size of the log.")
@click.option("--messages", default=0, help="How many messages, instead of --mib.")
@click.option("--segment-mib", default=128, show_default=True)
@click.option("--topics", default=8, show_default=True)
@click.option("--queues", default=4, show_default=True, help="Queues per topic.")
@click.option("--body", default=416, show_default=True, help="Mean size of a body, in bytes.")
@click.option("--index/--no-index", default=True, show_default=True)
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    help="Also write the history of producers to this file.",
)
@click.option("--rate", default=0, help="Messages per second; default: as fast as possible.")
@click.option("--seed", default=1, show_default=True)
def main(
    out: Path,
    mib: int,
    messages: int,
    segment_mib: int,
    topics: int,
    queues: int,
    body: int,
    index: bool,
    history: Path | None,
    rate: int,
    seed: int,
) -> None:
    """Write a store directory."""
    config = StoreConfig(
        root=str(out),
        segment_size=segment_mib << 20,
        index_enabled=index,
        reserved_ms=10**12,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        history_file = None if history is None else stack.enter_context(history.open("w"))
        generator = Generator(
            topics=topics, queues=queues, body=body, rate=rate, seed=seed, history_file=history_file
        )
        limit = messages or mib << 20
        trio.run(generator.write, config, limit, bool(messages))
    click.echo(json.dumps({"messages": generator.count, "bytes": generator.end}))


class Generator:
    """Messages of one directory."""

    def __init__(
        self,
        *,
        topics: int,
        queues: int,
        body: int,
        rate: int,
        seed: int,
        history_file: IO[str] | None,
    ) -> None:
        self.count = 0
        self.end = 0
        """End of the log, in bytes."""
        self._random = Random(seed)
        self._pool = self._random.randbytes(POOL_SIZE)
        self._places = [
            (f"topic-{number % topics:02d}", number // topics) for number in range(topics * queues)
        ]
        self._sizes = [
            max(BODY_MIN, min(8 * body, round(self._random.expovariate(1 / body))))
            for _ in range(4096)
        ]
        self._history_file = history_file
        self._rate = rate
        self._batch = BATCH if rate == 0 else max(1, rate // BATCHES_PER_S)

    async def write(self, config: StoreConfig, limit: int, is_count: bool) -> None:
        """Write until there are `limit` bytes of log, or messages; stop cleanly."""
        store = await MessageStore.open(real_world("generate"), config)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            click.echo("writing")
            began = trio.current_time()
            reached: Callable[[], int] = (lambda: self.count) if is_count else (lambda: self.end)
            while reached() < limit:
                self._write_batch(store)
                await store.dispatched.wait_for(store.max_offset - AHEAD_MAX)
                await trio.sleep_until(began + self.count / self._rate if self._rate else -inf)
            await store.dispatched.wait_for(store.max_offset)
            await store.close()

    def _write_batch(self, store: MessageStore) -> None:
        run = store.begin()
        lines = []
        for _ in range(self._batch):
            number = self.count
            unique, tag, key = f"7F000001{number:024X}", f"tag{number % 5}", f"key{number % 9973}"
            size = self._sizes[(number * 2654435761) & 4095]
            start = (number * 40503) % (POOL_SIZE - size - 8)
            body = number.to_bytes(8, "big") + self._pool[start : start + size - 8]
            topic, queue_id = self._places[number % len(self._places)]
            text = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{key}\x02TAGS\x01{tag}\x02"
            now_ms = run.now_ms
            _, offset = run.add(
                topic,
                queue_id,
                body,
                text.encode(),
                flag=0,
                sys_flag=0,
                born_ms=now_ms - number % 20,
                born_host=HOST,
                tag=tag,
                keys=(unique, key),
            )
            self.count += 1
            if self._history_file is not None:
                lines.append(
                    f'{{"client":"p{number % 16}","uniq_key":"{unique}","topic":"{topic}",'
                    f'"queue_id":{queue_id},"queue_offset":{offset},"body_crc":{body_crc(body)},'
                    f'"sent_ns":{number * 1000},"done_ns":{number * 1000 + 900},"outcome":"ok"}}\n'
                )
        store.commit(run)
        self.end = store.max_offset
        if self._history_file is not None:
            self._history_file.writelines(lines)


if __name__ == "__main__":
    main()
