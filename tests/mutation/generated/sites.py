"""Sites of generated mutants: places where a small edit makes a source text wrong.

A site is an edit of the text and not of the tree, so that its diff reads like a person's. Only
bodies of functions have sites: they can be exchanged in a running process (`mutant.swap_code`),
constants of modules cannot, as others have imported their values. Skipped are places that no run
could show to be wrong: docstrings, logging and marks, texts of errors, assertions, annotations,
`__repr__`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.mutation.generated.operators import OPERATORS, Edit, Function, Spot, Text, last_name

LOGS: Final = ("log", "_log", "logger", "_logger")
LEVELS: Final = ("debug", "info", "warning", "error", "exception", "critical")
TEXTS: Final = frozenset(("__repr__", "__str__"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    operator: str
    function: str
    """Qualified name of the outermost function around it, whose code is exchanged as a whole."""
    def_line: int
    """Line at which that function's code begins, its first decorator's; counted from 1."""
    line: int
    """Line that a run has to visit."""
    edit: Edit

    def applied(self, source: bytes) -> bytes:
        begin, end, text = self.edit
        return source[:begin] + text.encode() + source[end:]


def sites(source: bytes) -> list[Site]:
    """Return all sites, in the order of the text."""
    text = Text(source)
    sites_found = []
    for name, outermost in _functions(ast.parse(source).body, ""):
        first = min([outermost.lineno, *(one.lineno for one in outermost.decorator_list)])
        for spot in _spots(outermost, outermost, text):
            for operator, edits in OPERATORS.items():
                for edit in edits(spot):
                    line = source.count(b"\n", 0, edit[0]) + 1
                    sites_found.append(
                        Site(operator=operator, function=name, def_line=first, line=line, edit=edit)
                    )
    return sites_found


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            if not any(last_name(base) == "Protocol" for base in node.bases):
                yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, Function) and node.name not in TEXTS:
            yield prefix + node.name, node


def _spots(node: ast.AST, function: Function, text: Text) -> Iterator[Spot]:
    """Yield the nodes below a node that may be made wrong."""
    for child in _children(node):
        if _is_silent(child):
            continue
        yield Spot(child, node, function, text)
        inner = child if isinstance(child, Function) else function
        yield from _spots(child, inner, text)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from node.body
        case ast.Lambda():
            yield node.body
        case ast.AnnAssign():
            yield from [node.value] if node.value is not None else []
        case ast.Call(func=ast.Name("cast"), args=[_, value]):
            yield value
        case ast.match_case():
            yield from [node.guard] if node.guard is not None else []
            yield from node.body
        case ast.ExceptHandler():
            yield from node.body
        case ast.Raise() | ast.JoinedStr():
            pass
        case _:
            yield from ast.iter_child_nodes(node)


def _is_silent(node: ast.AST) -> bool:
    """True if it only logs or asserts: leaving it out breaks nothing."""
    match node:
        case ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call() as call):
            return _is_silent(call)
        case ast.Call(func=ast.Attribute(attr="mark"), args=[ast.Constant(value=str())]):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return attr in LEVELS and last_name(value) in LOGS
    return False
