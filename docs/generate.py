"""Writes the tables of docs/reference from the code: commands, settings, scenario files, checks.

`python docs/generate.py` writes them; with `--check` it only names the stale pages, exit code 1.
On each page the text between `<!-- generated: NAME -->` and `<!-- end -->` is replaced.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from rocketbed.chaos.checks.registry import CHECKS
from rocketbed.chaos.evidence.record import Expectation
from rocketbed.chaos.plan import plan, table
from rocketbed.chaos.plan.check_names import CODES
from rocketbed.chaos.plan.library import all_scenarios
from rocketbed.chaos.plan.marks import MARKS
from rocketbed.chaos.plan.targets import SELECTORS
from rocketbed.chaos.plan.verbs import VERBS
from rocketbed.cli.main import cli
from rocketbed.node.config.changes import CHANGEABLE
from rocketbed.node.config.keys import KEYS
from rocketbed.node.config.node_config import NodeConfig
from rocketbed.node.store.config import StoreConfig
from rocketbed.pipeline.errors import markdown as condition_rows
from rocketbed.pipeline.option_table import READS, WRITES
from rocketbed.pipeline.option_table import markdown as option_rows
from rocketbed.pipeline.schema import RECORDS
from rocketbed.routing.config import KEYS as NAMESERVER_KEYS
from rocketbed.routing.config import NameserverConfig

PAGES: Final = Path(__file__).parent / "reference"
PLACE: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.S)


def cell(text: object) -> str:
    """Text of a table's cell in one line. GitHub and the site agree on a bar only as an entity."""

    def safe(match: re.Match[str]) -> str:
        code, other = match.groups()
        if not code:
            return {"<": "&lt;", "|": "&#124;"}[other]
        inner = code[1:-1].replace("<", "&lt;").replace("|", "&#124;")
        return f"<code>{inner}</code>" if "|" in code else code

    return re.sub(r"(`[^`]*`)|([<|])", safe, " ".join(str(text).split()))


def rows(head: tuple[str, ...], body: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table of Markdown, and an empty line behind it."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in body:
        yield f"| {' | '.join(cell(text) for text in row)} |"
    yield ""


def sentence(text: str) -> str:
    """The text from a capital letter on, without its last full stop."""
    text = text if text.startswith("rocketbed") else text[:1].upper() + text[1:]
    return text if text.endswith("...") else text.removesuffix(".")


def field_docs(cls: type) -> dict[str, str]:
    """Field -> the string under it in the class's source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(before.target, ast.Name)
            found[before.target.id] = ast.literal_eval(after.value)
    return found


def defaults(cls: Any) -> dict[str, Any]:
    """Field -> default; a required one is missing."""
    return {
        name: one.default_factory() if callable(one.default_factory) else one.default
        for name, one in cls.__dataclass_fields__.items()
        if repr(one.default) + repr(one.default_factory) != "<missing>" * 2
    }


# --- the command line


def commands(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[str, click.Context]]:
    """Full name and context of each command that is no group, sorted by name."""
    context = click.Context(command, info_name=" ".join(names))
    if not isinstance(command, click.Group):
        yield " ".join(names), context
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        if not found.hidden:
            yield from commands(found, (*names, name))


def option_row(option: click.Option) -> tuple[str, str]:
    """Names with the form of the value; help with the default."""
    kind = option.type
    value = "" if option.is_flag else option.metavar or kind.name.partition(" ")[0].upper()
    if isinstance(kind, click.Choice):
        value = "|".join(map(str, kind.choices)) if len(kind.choices) < 9 else "NAME"
    names = ", ".join(
        f"`{name} {value}`" if value else f"`{name}`"
        for name in (*option.opts, *option.secondary_opts)
    )
    text = sentence(option.help or "")
    has_default = not option.is_flag and option.show_default and "default" not in text.lower()
    notes = [f"default `{option.default}`"] if has_default else []
    notes += ["required"] if option.required else []
    notes += ["repeatable"] if option.multiple and "repeat" not in text else []
    return names, text + (f" ({', '.join(notes)})" if notes else "")


def table_of(options: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The table of these options, if there are any."""
    listed = [*options]
    if listed:
        yield from rows(("option", "meaning"), listed)


def shared(lists: Iterable[list[tuple[str, str]]], least: int) -> list[tuple[str, str]]:
    """Options that so many commands have in the same words."""
    count = Counter(row for listed in lists for row in listed)
    return sorted(row for row, times in count.items() if times >= least)


def names_of(options: Iterable[tuple[str, str]]) -> str:
    """The long names of these options."""
    return ", ".join(f"`{re.findall('--[a-z-]+', row[0])[-1]}`" for row in options)


def command_pages() -> Iterator[str]:
    """A section for each command; options of many commands stand before them."""
    found = dict(commands(cli, ("rocketbed",)))
    options = {
        name: [
            option_row(one)
            for one in context.command.params
            if isinstance(one, click.Option) and not one.hidden and "--help" not in one.opts
        ]
        for name, context in found.items()
    }
    everywhere = shared(options.values(), 4)
    groups = [
        {name.split()[1] for name, listed in options.items() if row in listed} for row in everywhere
    ]
    common = [row for row, names in zip(everywhere, groups, strict=True) if len(names) > 2]
    yield "## Common options\n"
    yield from table_of(common)
    group, of_group, of_all = "", list[tuple[str, str]](), list[tuple[str, str]]()
    for name, context in found.items():
        words = name.split()
        if words[1] != group:
            group = words[1]
            yield f"## {group}\n"
            lists = [listed for each, listed in options.items() if each.split()[1] == group]
            of_group = [row for row in shared(lists, 2) if row not in common]
            of_all = shared(lists, len(lists)) if len(lists) > 1 else []
            of_all = [row for row in of_all if row in common or row in of_group]
            if of_group:
                yield "Options of several commands:\n"
                yield from table_of(of_group)
            if of_all:
                yield (
                    textwrap.fill(f"All take {names_of(of_all)}.", 99, break_on_hyphens=False)
                    + "\n"
                )
        if len(words) > 2:
            yield f"### {' '.join(words[1:])}\n"
        pieces = [
            one for one in context.command.collect_usage_pieces(context) if one != "[OPTIONS]"
        ]
        if pieces:
            yield f"`{name} {' '.join(pieces)}`\n"
        text = " ".join(inspect.cleandoc(context.command.help or "").replace("\b", "").split())
        yield textwrap.fill(text.replace("<", "&lt;"), 99) + "\n"
        told = [row for row in options[name] if row in common or row in of_group]
        if also := [row for row in told if row not in of_all]:
            yield textwrap.fill(f"Also {names_of(also)}.", 99, break_on_hyphens=False) + "\n"
        yield from table_of(row for row in options[name] if row not in told)


# --- settings of a node

DERIVED: Final = {"memory_ratio_percent": "memory_bytes"}
"""What a key names -> the field that is worked out from it."""


def meaning(text: str, key: str) -> str:
    """A field's string without the key that it sets, which the table has beside it."""
    text = re.sub(rf"^`{key}`[;.] ?", "", text.strip())
    text = re.sub(
        rf" ?\(`{key}(?:=\w+)?`(?:[,;] ([^)]*))?\)", lambda m: f" ({m[1]})" if m[1] else "", text
    )
    return sentence(text)


def settings(is_store: bool) -> Iterator[str]:
    """Keys of `broker.conf` with their defaults."""
    cls = StoreConfig if is_store else NodeConfig
    docs, usual = field_docs(cls), defaults(cls)
    body = []
    for key, place in KEYS.items():
        if place.is_store == is_store:
            text = docs.get(DERIVED.get(place.field, place.field), "")
            live = "yes" if key in CHANGEABLE else ""
            body.append((f"`{key}`", show(key, usual.get(place.field)), live, meaning(text, key)))
    yield from rows(("key", "default", "live", "meaning"), body)


def nameserver_settings() -> Iterator[str]:
    """Keys of `namesrv.conf` with their defaults."""
    docs, usual = field_docs(NameserverConfig), defaults(NameserverConfig)
    body = (
        (f"`{key}`", show(key, usual[field]), meaning(docs[field], key))
        for key, field in NAMESERVER_KEYS.items()
    )
    yield from rows(("key", "default", "meaning"), body)


def show(key: str, value: object) -> str:
    """A default as `broker.conf` writes it; empty for none."""
    if key == "flushDiskType":
        return "`ASYNC_FLUSH`"
    if key == "fileReservedTime":
        return f"`{int(str(value)) // 3_600_000}`"
    if key == "storePathRootDir":
        return "`store`"
    if key == "deleteWhen":
        return "`04`"
    if key in ("accessMessageInMemoryMaxRatio",):
        return "`40`"
    if value in (None, "", ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# --- scenario files


def scenario_keys() -> Iterator[str]:
    """The keys of each table of a scenario file."""
    parts: tuple[tuple[str, type, Mapping[str, table.Kind]], ...] = (
        ("[cluster]", plan.Shape, table.CLUSTER),
        ("[load.producer]", plan.Producers, table.PRODUCER),
        ("[load.consumer]", plan.Consumers, table.CONSUMER),
        ("[load.listener]", plan.Listeners, table.LISTENER),
        ("[background]", plan.Background, table.BACKGROUND),
        ("[recovery]", plan.Plan, table.RECOVERY),
        ("[expect]", Expectation, table.EXPECT),
    )
    for name, cls, keys in parts:
        docs, usual = field_docs(cls), defaults(cls)
        yield f"### `{name}`\n"
        body = []
        for key, kind in keys.items():
            field = table.FIELDS.get(key, key)
            default = usual.get(field)
            shown = "" if default in (None, "", ()) else f"`{kind.show(default)}`"
            body.append((f"`{key}`", shown, sentence(docs.get(field, ""))))
        yield from rows(("key", "default", "meaning"), body)


def verbs() -> Iterator[str]:
    """What a step can do."""
    body = []
    for name, verb in VERBS.items():
        words = " ".join(
            f"`{word}`" if parse is None else f"`{word} …`" for word, parse in verb.takes.items()
        )
        form = f"`{name}`" + (" `->`" if verb.has_second else "") + (" `for`" if verb.lasts else "")
        needs = f" Needs `{verb.needs}`." if verb.needs else ""
        body.append((form, words, f"{sentence(verb.help)}.{needs}"))
    yield from rows(("verb", "words", "what it does"), body)


def targets() -> Iterator[str]:
    """Words for the machines that a step hits."""
    yield from rows(("target", "who"), ((f"`{name}`", text) for name, text in SELECTORS.items()))


def marks() -> Iterator[str]:
    """The named points of the node's code."""
    body = ((f"`{name}`", sentence(text)) for name, text in MARKS.items())
    yield from rows(("mark", "what has just happened"), body)


def shipped() -> Iterator[str]:
    """The scenarios that ship."""
    body = ((f"`{one.name}`", one.description) for one in all_scenarios())
    yield from rows(("scenario", "what happens"), body)


# --- checks


def checks() -> Iterator[str]:
    """The checks in the order of a report."""
    codes = {id_: code for code, id_ in CODES.items()}
    body = [
        (f"`{id_}`", codes[id_], meaning.rstrip("."))
        for check in CHECKS
        for id_, meaning in zip(check.ids, check.meanings, strict=True)
    ]
    yield from rows(("check", "alias", "holds if"), body)


# --- Spark


def spark_columns() -> Iterator[str]:
    """Columns of the view `records`."""
    listed = ((f"`{name}`", f"`{one.type}`", one.meaning) for name, one in RECORDS.items())
    yield from rows(("column", "type", "meaning"), listed)


def ready(head: str, text: str) -> Iterator[str]:
    """A table whose rows the code writes by itself."""
    yield f"| {head} |\n|{'---|' * (head.count('|') + 1)}\n{text}\n"


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "commands": command_pages,
    "node_settings": lambda: settings(False),
    "store_settings": lambda: settings(True),
    "nameserver_settings": nameserver_settings,
    "scenario_keys": scenario_keys,
    "verbs": verbs,
    "targets": targets,
    "shipped": shipped,
    "marks": marks,
    "checks": checks,
    "spark_columns": spark_columns,
    "spark_reads": lambda: ready("option | default | meaning", option_rows(*READS)),
    "spark_writes": lambda: ready("option | default | meaning", option_rows(*WRITES)),
    "spark_errors": lambda: ready("condition | meaning", condition_rows()),
}


def generated(text: str) -> str:
    """A page with its tables made anew."""
    return PLACE.sub(lambda m: m[1] + "\n" + "\n".join(TABLES[m[2]]()) + m[3], text)


def main(arguments: list[str]) -> int:
    """Write what changed, or say what would; the exit code."""
    stale = 0
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := generated(text)) == text:
            continue
        stale += 1
        if "--check" in arguments:
            print(f"{page.name} is stale: run python docs/generate.py", file=sys.stderr)
        else:
            page.write_text(new, encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
