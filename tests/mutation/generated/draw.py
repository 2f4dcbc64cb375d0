"""Generated mutants: drawn from the sources by a seed, each module getting its share.

The modules take turns, and each gives one of its sites, of an operator drawn first: most sites are
left-out statements, but they are not most of what people get wrong. So the first hundred of a seed
are the first hundred of its thousand as well.
"""

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from random import Random
from types import CodeType
from typing import Final

import rocketbed
from tests.mutation.generated.sites import Site, sites
from tests.mutation.planted.mutant import swap_code

ROOT: Final = Path(rocketbed.__file__).parent
MUTATED: Final = (
    "node",
    "replication",
    "routing",
    "client/consumer.py",
    "client/flow.py",
    "client/offsets.py",
    "client/pulls.py",
    "client/routes.py",
    "client/session.py",
)
"""Folders and files below the package: servers, and the client's consumer side."""
UNUSED: Final = tuple(f"replication/register/{one}.py" for one in ("etcd", "place", "sqlite"))
"""Not drawn: simulated controllers keep their register in memory, so that nothing could tell."""
KEY_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Source:
    """A module as it was read. Another machine may have it at another path."""

    place: str
    """`node/store/flush.py`."""
    data: bytes

    @property
    def path(self) -> Path:
        return ROOT / self.place

    @property
    def module(self) -> str:
        return f"rocketbed.{self.place.removesuffix('.py').replace('/', '.')}"


@dataclass(frozen=True)
class Generated:
    """A wrong version of a function."""

    key: str
    """Of module, function, the text of the line and the change: stays when lines move."""
    source: Source
    site: Site

    @cached_property
    def codes(self) -> tuple[CodeType, CodeType] | None:
        """The function's code before and after; None if it would not run, or be the same."""
        before, after = self.source.data, self.site.applied(self.source.data)
        try:
            old, new = (self._code(text) for text in (before, after))
        except SyntaxError:
            return None
        if old == new or (old.co_freevars, old.co_flags) != (new.co_freevars, new.co_flags):
            return None
        return old, new

    def _code(self, text: bytes) -> CodeType:
        whole = compile(text, str(self.source.path), "exec", dont_inherit=True)
        codes = (
            code
            for code in _codes(whole)
            if code.co_qualname == self.site.function and code.co_firstlineno == self.site.def_line
        )
        return next(codes)

    def plant(self) -> None:
        """Put it into this process. Raises `StaleMutant`."""
        assert self.codes is not None
        swap_code(self.source.module, *self.codes)

    @cached_property
    def diff(self) -> str:
        place = self.source.place
        name = f"rocketbed/{place}" if place.startswith("client/") else place
        before, after = (
            text.decode().splitlines()
            for text in (self.source.data, self.site.applied(self.source.data))
        )
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=2, lineterm="")
        return "\n".join(lines) + "\n"


def read_sources(mutated: tuple[str, ...] = MUTATED) -> list[Source]:
    """The modules that are mutated, in order of their names."""
    paths = [
        path
        for place in mutated
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    ]
    places = (path.relative_to(ROOT).as_posix() for path in sorted(paths))
    return [Source(place, (ROOT / place).read_bytes()) for place in places if place not in UNUSED]


@cache
def candidates(source: Source) -> tuple[Generated, ...]:
    """Every mutant of a module, in the order of its text."""
    lines = source.data.splitlines()
    repeats: dict[tuple[str, ...], int] = {}
    mutants = []
    for site in sites(source.data):
        begin, end, text = site.edit
        old = source.data[begin:end].decode()
        line = lines[site.line - 1].decode().strip()
        identity = (source.place, site.function, line, site.operator, old, text)
        repeats[identity] = repeats.get(identity, 0) + 1
        digest = hashlib.sha256("\0".join((*identity, str(repeats[identity]))).encode())
        mutants.append(Generated(digest.hexdigest()[:KEY_DIGITS], source, site))
    return tuple(mutants)


def draw(number: int, seed: int, sources: list[Source]) -> list[Generated]:
    """Draw `number` mutants, or all if there are fewer; the same for the same sources and seed."""
    random = Random(f"mutants {seed}")
    turns = [_drawn(source, Random(f"{seed} {source.place}")) for source in sources]
    random.shuffle(turns)
    drawn: list[Generated] = []
    while turns and len(drawn) < number:
        for turn in list(turns):
            if (mutant := next(turn, None)) is None:
                turns.remove(turn)
            else:
                drawn.append(mutant)
    return drawn[:number]


def _drawn(source: Source, random: Random) -> Iterator[Generated]:
    by_operator: dict[str, list[Generated]] = {}
    for mutant in candidates(source):
        by_operator.setdefault(mutant.site.operator, []).append(mutant)
    for remaining in by_operator.values():
        random.shuffle(remaining)
    while by_operator:
        operator = random.choice(sorted(by_operator))
        mutant = by_operator[operator].pop()
        if not by_operator[operator]:
            del by_operator[operator]
        if mutant.codes is not None:
            yield mutant


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
