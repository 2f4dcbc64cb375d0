"""Every chapter that code or docs cite is there, and so is every file and anchor that docs link to.

The form: `store.md 8.6` is chapter 8.6 of docs/spec/store.md. Behind the file's name stand chapters
(`1.3, 1.5`, `5.1 to 5.6`, `1 and 17`), rows or steps of a chapter (`3.2 no. 14`, `3.2, step 3`,
`11, trap 17`), a paragraph of it (`8.6, Cut`, `8.6, "units"`), or an id (`T20`, `2.4, A2 and A10 to
A16`). Any other text ends the citation. In code a trap or an invariant also stands alone: `(T8)`.
`§4.3` or `chapter 4` in docs/spec is one of the same file.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
SPEC: Final = ROOT / "docs" / "spec"
NAMES: Final = ("broker", "chaos", "design", "pipeline", "replication", "store", "wire")
KINDS: Final = (".c", ".h", ".java", ".js", ".md", ".py", ".toml", ".yaml")
HERE: Final = Path(__file__).relative_to(ROOT)
"""Not looked at: it is full of citations that are wrong on purpose."""

GAP: Final = r"(?: |[ \t]*\n[ \t]*(?:#+|//|\*)?[ \t]*)"
"""Between two words, also where a docstring or a comment goes on in the next line."""
CHAPTER: Final = r"\d+(?:\.\d+)*[a-z]?(?!\w|\.\w)"
ID: Final = r"[AEIMRSTV]\d+[a-z]?(?!\w)"
ROW: Final = rf"(?:no\.|step|trap){GAP}"
PARAGRAPH: Final = r'[A-Z][a-z]+(?=[;:)]|\.?"""|\.\s)|"\w+"'
PART: Final = rf"(?:{ROW})?{CHAPTER}|{ID}|{PARAGRAPH}"
JOIN: Final = rf",?{GAP}(?:and{GAP}|to{GAP})?|,|-|\u2013"
CITATION: Final = re.compile(
    rf"(?<![\w/.-])({'|'.join(NAMES)})\.md(?={GAP}(?:{ROW})?(?:{CHAPTER}|{ID}))"
    rf"((?:(?:{JOIN})(?:{PART}))+)"
)
WORD: Final = re.compile(rf"({JOIN})(?:({ROW})?({CHAPTER})|({ID})|({PARAGRAPH}))")
BARE: Final = re.compile(r"""(?<![\w"'`./-])([TI]\d{1,2})(?![\w"'-])""")
"""A trap or an invariant by its id alone, in code."""
SECTION: Final = re.compile(r"(?:§|\b(?:chapter|section)s? )(\d+(?:\.\d+)*[a-z]?)")
MENTION: Final = re.compile(r"(?<![\w/.*-])((?:[\w.-]+/)*[\w-]+\.md)\b")
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
HEADING: Final = re.compile(r"^(#{1,4}) (.+)$", re.MULTILINE)
NUMBER: Final = re.compile(r"(\d+(?:\.\d+)*[a-z]?)\.?(?: |$)")
DEFINED: Final = re.compile(
    rf"^\| ({ID}) \||\*\*({ID})[. ]|^\| \*?\*?({ID})\*?\*? \|", re.MULTILINE
)


ELSEWHERE: Final = {
    "docs/internal/style.md": ("TIGER_STYLE.md", "doc/impl.md", "doc/whats-here.md"),
    "tests/unit/cluster/test_compose_files.py": ("docs/a.md",),
}
"""Names of documents of other projects, of earlier versions, or invented."""


class Trouble(NamedTuple):
    """A citation or link that leads nowhere."""

    line: int
    subject: str


@cache
def chapters(name: str) -> dict[str, str]:
    """Number of a chapter -> its text, that of its sub-chapters included."""
    text = (SPEC / f"{name}.md").read_text(encoding="utf-8")
    headings = [
        (match.start(), len(match[1]), str(number[1]))
        for match in HEADING.finditer(text)
        if (number := NUMBER.match(match[2]))
    ]
    references: dict[str, str] = {}
    for place, (start, level, chapter) in enumerate(headings):
        following = [at for at, its_level, _ in headings[place + 1 :] if its_level <= level]
        assert chapter not in references, f"{name}.md has chapter {chapter} twice"
        references[chapter] = text[start : following[0] if following else len(text)]
    return references


@cache
def ids() -> set[str]:
    """Traps, invariants, anomalies, mutants: what the texts define under a name of its own."""
    texts = "\n".join((SPEC / f"{name}.md").read_text(encoding="utf-8") for name in NAMES)
    return {found for match in DEFINED.finditer(texts) for found in match.groups() if found}


def between(low: str, high: str) -> list[str]:
    """`5.1` to `5.6`, `A10` to `A16`: all of them. Empty for what is no range."""
    first, last = re.fullmatch(r"(.*?)(\d+)", low), re.fullmatch(r"(.*?)(\d+)", high)
    if first is None or last is None or first[1] != last[1] or int(first[2]) >= int(last[2]):
        return []
    return [f"{first[1]}{number}" for number in range(int(first[2]), int(last[2]) + 1)]


def has_row(text: str, row: str) -> bool:
    """True if a chapter has this step, no. or trap: a row of a table, or an item of a list."""
    return re.search(rf"^\| {row} \||^{row}\. |(?<= ){row}\. ", text, re.MULTILINE) is not None


def has_paragraph(text: str, name: str) -> bool:
    if name.startswith('"'):
        return re.search(rf"\b{name[1:-1]}\b", text) is not None
    return f"**{name}" in text


def words(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """The parts of a citation, one behind the other."""
    while start < end and (match := WORD.match(text, start)):
        yield match
        start = match.end()


def unresolved(name: str, text: str, start: int, end: int) -> Iterator[str]:
    """Yield the parts of a citation that are not in docs/spec."""
    known_places, chapter, previous, in_rows = chapters(name), "", "", False
    for match in words(text, start, end):
        join, row, number, identity, paragraph = match.groups()
        in_rows = bool(row) or (in_rows and number is not None and "." not in number)
        word = number or identity or paragraph
        is_range = "to" in join or join.strip() in ("-", "\u2013")
        expected = between(previous, word) if is_range else [word]
        if identity:
            defined = ids().issuperset(expected)
        elif paragraph:
            defined = has_paragraph(known_places.get(chapter, ""), word)
        elif in_rows:
            defined = all(has_row(known_places.get(chapter, ""), each) for each in expected)
        else:
            defined = known_places.keys() >= set(expected)
        if not expected or not defined:
            of = f" {chapter}," if in_rows or paragraph else ""
            yield f"{name}.md{of} {f'{previous} to {word}' if is_range else word}"
        if number and not in_rows:
            chapter = number
        previous = word


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    stripped = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return stripped.replace(" ", "-")


def link_trouble(target: str, file: Path) -> str:
    """Reason why a link of a document is broken; empty if it is not."""
    if re.match(r"[a-z]+:", target):
        return ""
    path, _, anchor = target.partition("#")
    goal = (file.parent / path) if path else file
    if not goal.exists():
        return f"{target}: no such file"
    if anchor and anchor not in {slug(match[2]) for match in HEADING.finditer(goal.read_text())}:
        return f"{target}: no such heading"
    return ""


def troubles(text: str, file: Path) -> list[Trouble]:
    """Broken references in a file's text."""
    references_found = []

    def note(at: int, subject: str) -> None:
        references_found.append(Trouble(text.count("\n", 0, at) + 1, subject))

    cited = {match.start(): match for match in CITATION.finditer(text)}
    for at, match in cited.items():
        for expected_text in unresolved(match[1], text, *match.span(2)):
            note(at, f"{expected_text}: no such chapter, row or id")
    links = {match.start(1): match[1] for match in LINK.finditer(text)}
    if file.suffix == ".md":
        for at, target in links.items():
            if why := link_trouble(target, file):
                note(at, why)
    for match in MENTION.finditer(text):
        path, at = match[1], match.start()
        if (
            path in ELSEWHERE.get(str(file.relative_to(ROOT)), ())
            or at in cited
            or (at in links and file.suffix == ".md")
        ):
            continue
        is_spec = path.removesuffix(".md") in NAMES and text[at - 1 : at] != '"'
        if is_spec and file.parent != SPEC:
            note(at, f"{path} without a chapter of docs/spec")
        elif not any((base / path).exists() for base in (file.parent, ROOT, ROOT / "docs", SPEC)):
            note(at, f"{path}: no such file")
        elif re.search(r"(?:^|/)spec/", path) and re.match(rf"`?{GAP}\d", text[match.end() :]):
            note(at, f"cite it as {Path(path).name} and a number")
    if file.suffix in (".py", ".c", ".h"):
        for match in BARE.finditer(text):
            if match[1] not in ids():
                note(match.start(), f"{match[1]}: no such trap or invariant")
    if file.parent == SPEC and file.stem in NAMES:
        for match in SECTION.finditer(text):
            if match[1] not in chapters(file.stem):
                note(match.start(), f"{match[0]}: no such chapter")
    return references_found


def tracked() -> list[Path]:
    """Files of the repository that can cite something."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [Path(name) for name in listed.stdout.split("\0") if name.endswith(KINDS)]
    return [path for path in paths if path != HERE and (ROOT / path).is_file()]


def test_citations_and_links_have_targets() -> None:
    files = tracked()
    assert len(files) > 700
    wrong = [
        f"{path}:{trouble.line}: {trouble.subject}"
        for path in files
        for trouble in troubles((ROOT / path).read_text(encoding="utf-8"), ROOT / path)
    ]
    assert wrong == []


def test_the_finder_finds() -> None:
    """Else the test above would hold for want of citations."""
    count = sum(
        len(CITATION.findall((ROOT / path).read_text(encoding="utf-8")))
        for path in tracked()
        if path.suffix in (".py", ".c", ".h")
    )
    assert count > 200
    assert {f"T{n}" for n in range(1, 25)} | {f"I{n}" for n in range(1, 28)} <= ids()
    assert {"A1", "A29", "R9", "S19", "M15", "M23", "E1"} <= ids()


@pytest.mark.parametrize(
    "text",
    [
        "(store.md 8.6)",
        "store.md 1.3, 1.5.",
        "store.md 1 and 17.",
        "(wire.md 5.1 to 5.6)",
        "(wire.md 3.2, step 3)",
        "wire.md 11, trap 14",
        "chaos.md 3.2 no. 10, 11, 12b",
        "chaos.md 2.2 no. 3, 2.3.",
        'store.md 8.6, "units"',
        "(store.md 8.6, Cut; T4)",
        "chaos.md 2.4, A2 and A10 to A16.",
        "store.md T20",
        "(wire.md 6.8, 5.x)",
        "(wire.md 6.2; 34, 35, 99)",
        "design.md 7: p99.9 is 0.13 ms",
        "chaos.md 6.2 says 5 s",
        "(store.md\n    2.8, 3.1)",
        "# wire.md 2.1,\n# 6.5",
        "docs/guides/spark.md",
        'ROOT / "docs/guides/spark.md"',
    ],
)
def test_valid_references_are_accepted(text: str) -> None:
    assert troubles(text, HERE.absolute()) == []


@pytest.mark.parametrize(
    "text",
    [
        "(store.md 8.7)",
        "store.md 1.3, 99.",
        "store.md 1 and 18.",
        "(wire.md 5.1 to 5.9)",
        "(wire.md 3.2, step 30)",
        "wire.md 11, trap 44",
        "chaos.md 3.2 no. 10, 11, 12x",
        "chaos.md 2.2 no. 3, 2.33.",
        'store.md 8.6, "unicorns"',
        "(store.md 8.6, Cake)",
        "chaos.md 2.4, A2 and A10 to A60.",
        "store.md T25",
        "(store.md\n    2.8, 3.99)",
        "# wire.md 2.1,\n# 6.99",
        "as in store.md, somewhere",
        "docs/spec/store.md 8.6",
        "spec/broken.md",
        "docs/pipelines.md",
        "protocol.md 3",
        "a torn tail (T25)",
    ],
)
def test_broken_references_are_found(text: str) -> None:
    assert {trouble.line for trouble in troubles("first line\n" + text, HERE.absolute())} == {2}


def test_document_links_lead_somewhere() -> None:
    page = SPEC / "store.md"
    assert (
        troubles("[a](../reference/formats.md) [b](#8-recovery) [c](wire.md#12-test-vectors)", page)
        == []
    )
    assert troubles(
        "see §8.6\n[a](../formats.txt)\n[b](#nowhere)\n[c](wire.md#x)\n§8.66", page
    ) == [
        (2, "../formats.txt: no such file"),
        (3, "#nowhere: no such heading"),
        (4, "wire.md#x: no such heading"),
        (5, "§8.66: no such chapter"),
    ]
