"""Planning of `rebuild` between its passes: index files and their names, and queues to redo."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from rocketbed.inspect.index import IndexLayout
from rocketbed.inspect.writers import next_name
from rocketbed.pipeline.jobs.rebuild.blobs import INDEX, KEYS, Run
from rocketbed.pipeline.jobs.rebuild.files import Written


def index_pieces(runs: Iterable[Run], layout: IndexLayout) -> list[Run]:
    """Split runs of keys where an index file is full.

    The ordinal of a key is the number of keys before it. A file holds one key less than its
    entries, since entry 0 is never used. The first piece of a file gets the store time of the
    previous key as `last_ms`. Raises `OSError`.
    """
    per_file = layout.entries - 1
    pieces: list[Run] = []
    ordinal = before_ms = 0
    for run in sorted(runs, key=lambda run: run.at):
        done = 0
        while done < run.items:
            inside = ordinal % per_file
            count = min(run.items - done, per_file - inside)
            position = run.position + done * KEYS.itemsize
            piece = Run(INDEX, INDEX, ordinal // per_file, run.at, count, 0, run.blob, position)
            if not inside:
                piece = piece._replace(last_ms=before_ms)
            pieces.append(piece)
            done += count
            ordinal += count
            if ordinal % per_file == 0 and done < run.items:
                last = piece._replace(position=position + (count - 1) * KEYS.itemsize, items=1)
                before_ms = int(last.read()["store_ms"][0])
        before_ms = run.last_ms
    return pieces


def index_names(files: Iterable[Written]) -> list[tuple[Written, str]]:
    """Return index files, in order, with their names: the first key's time, strictly increasing."""
    named: list[tuple[Written, str]] = []
    name = ""
    for file in sorted(files, key=lambda file: file.file):
        name = next_name(name, file.first)
        named.append((file, name))
    return named


def uneven_queues(files: Iterable[Written], per_file: int) -> set[str]:
    """Return the paths of plain queues whose files are not a gapless sequence of units."""

    def queue(file: Written) -> str:
        return file.path.rpartition("/")[0] if file.is_even else file.path

    by_queue = groupby(sorted(files, key=lambda file: (queue(file), file.file)), key=queue)
    return {path for path, group in by_queue if not _is_even(list(group), per_file)}


def _is_even(files: Sequence[Written], per_file: int) -> bool:
    return all(file.is_even for file in files) and all(
        before.last + 1 == after.first == after.file * per_file
        and before.last_offset < after.first_offset
        for before, after in pairwise(files)
    )
