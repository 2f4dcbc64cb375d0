"""Operators of generated mutants: ways to make a piece of a function wrong."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[int, int, str]
"""Begin and end in bytes of the source, and the replacement."""

PLACE: Final = re.compile(r"(.*_)?(offset|position|begin|start|end|next)")
"""Names of places in a log, a file or a queue."""
NUMBER: Final = re.compile(
    r"(.*_)?(offset|position|begin|start|end|next|size|length|count|index|id|queue|code|min|max"
    r"|ms|ns|s|bytes)"
)
"""Names of numbers, by their last word (docs/internal/style.md: units last)."""
MS_PER_S: Final = 1000
SYMMETRIC: Final = ("min", "max")
"""Of numbers they give the same in any order."""
TURNED: Final = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True, slots=True)
class Spot:
    """A piece of the tree, with what an operator has to know around it."""

    node: ast.AST
    parent: ast.AST
    function: Function
    """The innermost one."""
    text: "Text"


class Text:
    """A source and the way from its tree's positions to bytes."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.begin(node) : self.end(node)].decode()

    def instead(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return self.begin(node), self.end(node), text

    def between(self, left_term: ast.expr, right_term: ast.expr, old: str, new: str) -> Edit:
        """Exchange a token that stands between two neighbours."""
        begin, end = self.end(left_term), self.begin(right_term)
        text = self.source[begin:end].decode()
        return begin, end, re.sub(old, lambda _: new, text, count=1)


def last_name(node: ast.AST) -> str:
    """The last word of a name; empty for what has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _drop(spot: Spot) -> Iterator[Edit]:
    node = spot.node
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            pass
        case ast.Continue() | ast.Break() | ast.Return(value=None) | ast.AugAssign():
            pass
        case ast.Assign(targets=[target]) if _stood(target, spot):
            pass
        case ast.AnnAssign(target=target, value=ast.expr()) if _stood(target, spot):
            pass
        case _:
            return
    assert isinstance(node, ast.stmt)
    yield spot.text.instead(node, "pass")


def _stood(target: ast.expr, spot: Spot) -> bool:
    """True if a target had a value before, so that a later reader gets the old one."""
    function = spot.function
    if isinstance(target, ast.Tuple):
        return all(_stood(one, spot) for one in target.elts)
    if isinstance(target, ast.Attribute):
        return function.name not in ("__init__", "__post_init__")
    if not isinstance(target, ast.Name):
        return True
    arguments = function.args
    bound = {one.arg for one in (*arguments.args, *arguments.kwonlyargs, *arguments.posonlyargs)}
    bound |= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.lineno < target.lineno
    }
    return target.id in bound


def _negate(spot: Spot) -> Iterator[Edit]:
    node = spot.node
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        if not isinstance(test, ast.UnaryOp | ast.Constant):
            yield spot.text.instead(test, f"not ({spot.text.of(test)})")


def _no_not(spot: Spot) -> Iterator[Edit]:
    if isinstance(spot.node, ast.UnaryOp) and isinstance(spot.node.op, ast.Not):
        yield spot.text.instead(spot.node, f"({spot.text.of(spot.node.operand)})")


def _compare(spot: Spot) -> Iterator[Edit]:
    if isinstance(spot.node, ast.Compare):
        terms = [spot.node.left, *spot.node.comparators]
        for (left_term, right_term), operator in zip(pairwise(terms), spot.node.ops, strict=True):
            if (turned := TURNED.get(type(operator))) is not None:
                yield spot.text.between(left_term, right_term, "[<>]=?", turned)


def _integer(spot: Spot) -> Iterator[Edit]:
    if isinstance(spot.node, ast.Constant) and type(spot.node.value) is int:
        if spot.node.value == MS_PER_S and isinstance(spot.parent, ast.BinOp):
            return  # a thousandth of a duration, which is not promised
        yield spot.text.instead(spot.node, str(spot.node.value + 1))


def _place(spot: Spot) -> Iterator[Edit]:
    node, parent = spot.node, spot.parent
    if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return
    if isinstance(parent, ast.Attribute | ast.FormattedValue | ast.withitem):
        return
    if isinstance(parent, ast.Call) and parent.func is node:
        return
    if PLACE.fullmatch(last_name(node)):
        yield spot.text.instead(node, f"({spot.text.of(node)} + 1)")


def _swap(spot: Spot) -> Iterator[Edit]:
    if not isinstance(spot.node, ast.Call) or last_name(spot.node.func) in SYMMETRIC:
        return
    args = spot.node.args
    for left_term, right_term in pairwise(args):
        kind = _kind(left_term, spot.function)
        if kind and kind == _kind(right_term, spot.function):
            text = spot.text
            between = text.source[text.end(left_term) : text.begin(right_term)].decode()
            swapped = text.of(right_term) + between + text.of(left_term)
            yield text.begin(left_term), text.end(right_term), swapped


def _kind(node: ast.expr, function: Function) -> str:
    """A type, as far as it shows: by annotation, by value, or by the name; else empty."""
    if isinstance(node, ast.Constant):
        return "" if isinstance(node.value, str) else type(node.value).__name__
    if isinstance(node, ast.Name):
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if argument.arg == node.id and argument.annotation is not None:
                return ast.unparse(argument.annotation)
    return "int" if NUMBER.fullmatch(last_name(node)) else ""


def _logic(spot: Spot) -> Iterator[Edit]:
    node = spot.node
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left_term, right_term in pairwise(node.values):
            yield spot.text.between(left_term, right_term, rf"\b{old}\b", new)


def _answer(spot: Spot) -> Iterator[Edit]:
    node, returns = spot.node, spot.function.returns
    if returns is None or last_name(returns) != "bool":
        return
    if isinstance(node, ast.Return) and node.value is not None:
        yield spot.text.instead(node.value, f"not ({spot.text.of(node.value)})")


OPERATORS: Final[dict[str, Callable[[Spot], Iterator[Edit]]]] = {
    "drop": _drop,
    "negate": _negate,
    "not": _no_not,
    "compare": _compare,
    "integer": _integer,
    "place": _place,
    "swap": _swap,
    "logic": _logic,
    "answer": _answer,
}
"""Statement left out (not where a name would then have no value), condition turned around, `not`
left out, `<` for `<=`, a number one higher, a place one further, neighbouring arguments exchanged,
`and` for `or`, bool returned the other way."""
