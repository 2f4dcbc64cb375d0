from rocketbed.node.broker.plain_run import EndOfLog
from rocketbed.node.broker.plain_shapes import Headers, Names
from rocketbed.node.store.entry import Entry

SOURCE: str

def take(
    data: bytes,
    at: int,
    headers: dict[int, Headers],
    names: Names,
    offsets: dict[tuple[str, int], int],
    next_offsets: dict[tuple[str, int], int],
    born_host: bytes,
    end_of_log: EndOfLog,
    /,
) -> tuple[int, bytes, list[Entry], bytes]: ...
