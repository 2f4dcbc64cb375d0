"""Node code touches nothing but its World (docs of `rocketbed.world.api`); this reads its syntax.

Each rule has a snippet that breaks it and the closest one that does not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NODE_CODE = ("node", "replication", "routing", "rocketbed/client", "rocketbed/remoting")

BANNED_MODULES = {
    "time": "world.clock, trio.current_time()",
    "os": "world.disk, world.process; posixpath for names",
    "pathlib": "world.disk; posixpath for names",
    "shutil": "world.disk",
    "tempfile": "world.disk",
    "fcntl": "world.disk.lock",
    "mmap": "File.read_at; a mapped read of a cut file is a SIGBUS",
    "socket": "world.network",
    "ssl": "the TLS wrapper of the network",
    "select": "world.network",
    "selectors": "world.network",
    "threading": "world.offload",
    "queue": "trio memory channels",
    "concurrent": "world.offload",
    "multiprocessing": "world.offload",
    "subprocess": "nothing: a node starts no process",
    "asyncio": "trio",
    "signal": "world.process.stop_requested",
    "logging": "world.log",
    "random": "world.random",
    "secrets": "world.random",
    "uuid": "world.random",
    "weakref": "explicit closing; collection has no fixed time",
    "gc": "nothing",
}
TYPES_ONLY = {("random", "Random"), ("pathlib", "PurePosixPath")}
"""What may be imported from a banned module: names that reach nothing outside."""
BANNED_OF_TRIO = {
    "open_tcp_stream",
    "open_tcp_listeners",
    "serve_tcp",
    "open_ssl_over_tcp_stream",
    "open_file",
    "open_unix_socket",
    "to_thread",
    "from_thread",
    "run_process",
    "open_signal_receiver",
    "socket",
    "Path",
    "run",
}
BANNED_CALLS = {
    "open": "world.disk.open",
    "hash": "a fixed hash: Python's differs from run to run",
    "id": "a counter: addresses differ from run to run",
    "input": "nothing",
    "print": "world.log",
    "exec": "nothing",
    "eval": "nothing",
}
CONSUMERS = {"list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "dict"}
"""Calls that pass the order of their argument on."""


def findings(source: str) -> list[str]:
    """Return the banned calls of a module as `line: rule`."""
    tree = ast.parse(source)
    lines = []
    for rule in (imports, calls, set_order, classes_and_functions, handlers, module_state, shields):
        lines += [f"{node.lineno}: {text}" for node, text in rule(tree)]
    return lines


Found = Iterator[tuple[Any, str]]


def imports(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (top := alias.name.partition(".")[0]) in BANNED_MODULES:
                    yield node, f"import {alias.name}: use {BANNED_MODULES[top]}"
        elif isinstance(node, ast.ImportFrom):
            top = (node.module or "").partition(".")[0]
            for alias in node.names:
                if top in BANNED_MODULES and (node.module, alias.name) not in TYPES_ONLY:
                    yield node, f"from {node.module} import {alias.name}: {BANNED_MODULES[top]}"
                if node.module == "trio" and alias.name in BANNED_OF_TRIO:
                    yield node, f"trio.{alias.name}: go through the World"


def calls(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in BANNED_CALLS:
                yield node, f"{node.func.id}(): use {BANNED_CALLS[node.func.id]}"
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            if "datetime" in set(_words(node.value)) or "date" in set(_words(node.value)):
                yield node, f"{node.attr}(): use world.clock.wall_ms()"
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "trio"
            and node.attr in BANNED_OF_TRIO
        ):
            yield node, f"trio.{node.attr}: go through the World"


def set_order(tree: ast.Module) -> Found:
    """Loops over what is known to be a set, by its form or by an annotation or assignment."""
    names = set(_set_names(tree))

    def is_set(node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        if isinstance(node, ast.Name):
            return node.id in names
        return isinstance(node, ast.Attribute) and f".{node.attr}" in names

    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor) and is_set(node.iter):
            yield node, "a loop over a set: sort it, or use a dict"
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            for generator in node.generators:
                if is_set(generator.iter):
                    yield node, "a comprehension over a set: sort it, or use a dict"
        elif isinstance(node, ast.Call) and node.args and is_set(node.args[0]):
            if isinstance(node.func, ast.Name) and node.func.id in CONSUMERS:
                yield node, f"{node.func.id}() of a set: sort it, or use a dict"
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "join":
                yield node, "join() of a set: sort it, or use a dict"
        elif (popped := _popped(node)) is not None and is_set(popped):
            yield node, "pop() of a set: which one differs from run to run"


def _popped(node: ast.AST) -> ast.expr | None:
    """Return the objects whose `pop` is called."""
    if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == "pop" else None
    return None


def _set_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_type(node.annotation):
            yield from _name_of(node.target)
        elif isinstance(node, ast.arg) and node.annotation and _is_set_type(node.annotation):
            yield node.arg
        elif isinstance(node, ast.Assign):
            value = node.value
            of_call = (
                isinstance(value, ast.Call)
                and isinstance(value.func, ast.Name)
                and value.func.id in ("set", "frozenset")
            )
            if of_call or isinstance(value, ast.Set | ast.SetComp):
                for target in node.targets:
                    yield from _name_of(target)


def _is_set_type(annotation: ast.expr) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return isinstance(annotation, ast.Name) and annotation.id in ("set", "frozenset", "Set")


def _name_of(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield f".{target.attr}"


def classes_and_functions(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            decorators = {name for item in node.decorator_list for name in _words(item)}
            if "asynccontextmanager" not in decorators and _yields(node):
                yield node, "an async generator: the collector ends it at no fixed time"
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            yield node, "__del__: the collector calls it at no fixed time"
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    words = {word for entry in item.decorator_list for word in _words(entry)}
                    if words & {"lru_cache", "cache"}:
                        yield item, "a cache on a method keeps its object for ever"


def _words(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def _yields(function: ast.AsyncFunctionDef) -> bool:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def handlers(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            words = set(_words(node.type)) if node.type else {"BaseException"}
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            if words & {"BaseException", "BaseExceptionGroup"} and not raises:
                yield node, "an except that swallows a simulated kill"


def module_state(tree: ast.Module) -> Found:
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        value = getattr(node, "value", None)
        mutable = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)
        for target in targets:
            name = target.id if isinstance(target, ast.Name) else ""
            constant = name.isupper() or name.lstrip("_").isupper() or name.startswith("__")
            if mutable and name and not constant:
                yield node, f"{name}: nodes of one process would share it"
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield inner, "global: nodes of one process would share it"


def shields(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and "CancelScope" in set(_words(node.func)):
            keywords = {keyword.arg for keyword in node.keywords}
            if "shield" in keywords and "deadline" not in keywords:
                yield node, "a shield without a deadline: a stuck peer would hold the node"


REAL = {ROOT / "replication/register/sqlite.py"}
"""Passed by the code that starts a controller; the simulator passes its own store."""


def node_files() -> list[Path]:
    files = (file for folder in NODE_CODE for file in sorted((ROOT / folder).rglob("*.py")))
    return [file for file in files if file not in REAL]


@pytest.mark.parametrize("path", node_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_node_code_reaches_outside_only_through_its_world(path: Path) -> None:
    assert findings(path.read_text()) == []


EXAMPLES = [
    ("import time", "import struct"),
    ("from time import monotonic", "from trio import current_time"),
    ("datetime.datetime.now()", "datetime.datetime.fromtimestamp(seconds, UTC)"),
    ("import os.path", "import posixpath"),
    ("from pathlib import Path", "from pathlib import PurePosixPath"),
    ("from random import randrange", "from random import Random"),
    ("import socket", "import trio"),
    ("from trio import to_thread", "from trio import Event"),
    ("trio.to_thread.run_sync(f)", "world.offload(f)"),
    ("trio.open_file('a')", "trio.open_nursery()"),
    ("open('a')", "disk.open('a')"),
    ("hash(topic)", "topic.hash()"),
    ("table[id(x)] = 1", "table[x.id] = 1"),
    ("for x in {1, 2}: pass", "for x in sorted({1, 2}): pass"),
    ("s = set()\nfor x in s: pass", "s = dict()\nfor x in s: pass"),
    ("s: set[int] = make()\nlist(s)", "s: set[int] = make()\nsorted(s)"),
    ("def f(s: set[int]): return [x for x in s]", "def f(s: set[int]): return 3 in s"),
    ("self.s = set()\nfor x in self.s: pass", "self.s = set()\nlen(self.s)"),
    ("self.s = set()\nself.s.pop()", "self.s = set()\nself.s.discard(1)"),
    ("','.join({a, b})", "','.join((a, b))"),
    ("async def f():\n  yield 1", "def f():\n  yield 1"),
    ("async def f():\n  yield 1", "@asynccontextmanager\nasync def f():\n  yield 1"),
    ("async def f():\n  yield 1", "async def f():\n  def g():\n    yield 1"),
    ("class A:\n  def __del__(self): pass", "class A:\n  def close(self): pass"),
    ("class A:\n  @lru_cache\n  def f(self): pass", "@lru_cache\ndef f(x): pass"),
    ("try: f()\nexcept: pass", "try: f()\nexcept Exception: pass"),
    ("try: f()\nexcept BaseException: pass", "try: f()\nexcept BaseException:\n  g()\n  raise"),
    ("state = {}", "STATE = {1: 2}"),
    ("state: list[int] = []", "def f():\n  state: list[int] = []"),
    ("def f():\n  global x", "def f():\n  nonlocal_x = 1"),
    ("trio.CancelScope(shield=True)", "trio.CancelScope(shield=True, deadline=soon)"),
]


@pytest.mark.parametrize(("guilty", "innocent"), EXAMPLES)
def test_each_ban_catches_its_cases_and_no_others(guilty: str, innocent: str) -> None:
    assert len(findings(guilty)) == 1
    assert findings(innocent) == []
