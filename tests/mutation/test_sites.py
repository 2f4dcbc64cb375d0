"""Generated mutants: what each operator changes, what is passed over, what is drawn."""

from textwrap import dedent

import pytest

from tests.mutation.generated.draw import ROOT, UNUSED, Source, candidates, draw, read_sources
from tests.mutation.generated.operators import OPERATORS
from tests.mutation.generated.sites import sites

PLACE = "node/store/made_up.py"


def source_of(text: str) -> Source:
    return Source(PLACE, dedent(text).encode())


def changes(body: str, *, head: str = "async def f(self, a: int, b: int):") -> dict[str, list[str]]:
    """Operator -> lines of a function's body as it makes them."""
    text = f"{head}\n    {body}\n"
    lines_by_operator: dict[str, list[str]] = {}
    for site in sites(text.encode()):
        line = site.applied(text.encode()).decode().splitlines()[1].strip()
        lines_by_operator.setdefault(site.operator, []).append(line)
    return lines_by_operator


@pytest.mark.parametrize(
    ("operator", "body", "expected"),
    [
        ("drop", "await self.log.sync(a)", ["pass"]),
        ("drop", "self.wake.set()", ["pass"]),
        ("drop", "self.count += a", ["pass"]),
        ("drop", "self.end = a", ["pass"]),
        ("drop", "a = b", ["pass"]),
        ("drop", "a, b = b, a", ["pass"]),
        ("drop", "raise ValueError(a)", ["pass"]),
        ("drop", "del self.table[a]", ["pass"]),
        ("negate", "x = a if self.known else b", ["x = a if not (self.known) else b"]),
        ("negate", "x = [y for y in a if y]", ["x = [y for y in a if not (y)]"]),
        ("not", "return not self.known", ["return (self.known)"]),
        ("compare", "return a < b", ["return a <= b"]),
        ("compare", "return (a) >= b", ["return (a) > b"]),
        ("compare", "return 0 < a <= b", ["return 0 <= a <= b", "return 0 < a < b"]),
        ("integer", "return a + 1", ["return a + 2"]),
        ("place", "self.read(self.next_offset)", ["self.read((self.next_offset + 1))"]),
        ("swap", "self.read(a, b)", ["self.read(b, a)"]),
        ("swap", "self.read(end, physical_offset)", ["self.read(physical_offset, end)"]),
        ("logic", "return a and b", ["return a or b"]),
        ("logic", "return a or self.android or b", ["return a and self.android or b"]),
    ],
)
def test_an_operator_changes_one_thing(operator: str, body: str, expected: list[str]) -> None:
    assert changes(body)[operator][: len(expected)] == expected


def test_arguments_of_any_order_are_not_swapped() -> None:
    assert "swap" not in changes("return max(a, b) + min(b, a)")


def test_returned_bool_is_negated() -> None:
    head = "def f(a: int) -> bool:"
    assert changes("return a == 1", head=head)["answer"] == ["return not (a == 1)"]
    assert "answer" not in changes("return a == 1", head="def f(a: int) -> int:")


@pytest.mark.parametrize(
    "body",
    [
        '"""Text, of 1 or 2."""',
        "assert a < 1, f'{a} of 1'",
        "self._world.log.warning('store.cut', offset=a + 1)",
        "self.world.mark('store.cut')",
        "x: int",
        "x = cast('list[1]', b)",
        "self.value = b",
        "return f'{a + 1}'",
        "return a / 1000",
        "a(b, self.names)",
    ],
)
def test_unobservable_edits_are_skipped(body: str) -> None:
    changed = changes(body, head="def __init__(self, a: int, b: int) -> None:")
    assert {name: lines for name, lines in changed.items() if lines != ["pass"]} == {}
    assert changed == {} or body.startswith("a("), (
        "a call is left out, its arguments are not swapped"
    )


@pytest.mark.parametrize(
    "text",
    [
        "LIMIT = 1 + 2\n",
        "class A:\n    size: int = 1\n",
        "def f(a: int = 1) -> int: ...\n",
        "class A(Protocol):\n    def f(self) -> bool:\n        return True\n",
        "class A:\n    def __repr__(self):\n        return str(1)\n",
        "def f():\n    raise ValueError(1, 'a' if 1 else 'b')\n",
        "def f(x):\n    first = x\n",
    ],
)
def test_code_outside_functions_and_texts_is_left(text: str) -> None:
    assert [one.operator for one in sites(text.encode()) if one.operator != "drop"] == []
    assert all("raise" in text for one in sites(text.encode()))


def test_a_site_knows_its_function_and_its_line() -> None:
    source = source_of(
        """
        class Queue:
            @property
            def end(self) -> int:
                \"\"\"Ümlauts take two bytes.\"\"\"
                def inner() -> bool:
                    return "ü" < self.x

                return inner()
        """
    )
    answer, compare = sorted(sites(source.data), key=lambda site: site.operator)
    assert (answer.function, answer.def_line, answer.line) == ("Queue.end", 3, 7)
    assert b'return "\xc3\xbc" <= self.x' in compare.applied(source.data)


def test_keys_survive_moved_lines_and_differ_for_equal_ones() -> None:
    body = "def f(a):\n    a += 1\n    g(a)\n    a += 1\n"
    before = [one.key for one in candidates(source_of(body))]
    after = [one.key for one in candidates(source_of(f"# a comment\n\n{body}"))]
    assert before == after
    assert len(set(before)) == len(before) == 5
    assert before != [one.key for one in candidates(source_of(body.replace("g(a)", "h(a)")))]


def test_edits_that_fail_or_change_nothing_are_not_drawn() -> None:
    frees = "class A:\n    def f(self):\n        super().f()\n"
    assert [one.codes for one in candidates(source_of(frees))] == [None]
    assert draw(9, 1, [source_of(frees)]) == []


def test_draw_follows_the_seed_and_covers_each_module() -> None:
    sources = read_sources(mutated=("replication", "routing", "client/flow.py"))
    drawn = draw(110, 7, sources)
    assert [one.key for one in draw(110, 7, sources)] == [one.key for one in drawn]
    assert [one.key for one in draw(20, 7, sources)] == [one.key for one in drawn[:20]]
    assert [one.key for one in draw(110, 8, sources)] != [one.key for one in drawn]
    rich = [source for source in sources if len(candidates(source)) > 20]
    shares = [sum(one.source == source for one in drawn) for source in rich]
    assert min(shares) >= 2
    assert max(shares) <= min(shares) + 1
    assert {one.site.operator for one in drawn} == set(OPERATORS)


def test_registers_outside_of_simulation_alone_are_left_out() -> None:
    places = {one.place for one in read_sources()}
    assert not places & {*UNUSED}
    assert {place for place in UNUSED if not (ROOT / place).is_file()} == set()
    assert {"replication/master.py", "replication/follower.py", "node/failover.py"} <= places


def test_mutant_is_shown_as_a_diff_of_the_checkout() -> None:
    text = "def f(a, b):\n    return a < b\n"
    diff = candidates(source_of(text))[0].diff
    assert diff.startswith("--- a/node/store/made_up.py\n+++ b/node/store/made_up.py\n")
    assert "-    return a < b\n+    return a <= b\n" in diff
    client = Source("client/flow.py", text.encode())
    assert "+++ b/rocketbed/client/flow.py\n" in candidates(client)[0].diff
