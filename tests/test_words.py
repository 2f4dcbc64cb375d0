"""Messages and log lines use the field's terms, not those of an earlier vocabulary."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("chaos", "node", "pipeline", "replication", "rocketbed", "routing")
FORMER_WORDS = re.compile(
    r"\b(mend|mends|mended|mending|parted|guardian|fate|calm|storm|hunt)\b", re.IGNORECASE
)
"""Words of an earlier vocabulary: heal or repair, diverged, reaper, process state, recovery phase,
fault phase, search."""


def former_words(source: str) -> list[str]:
    """Texts, docstrings aside, that use one of these words, and keyword arguments named so."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        text
        for node in ast.walk(tree)
        for text in (
            [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else [node.arg or ""]
            if isinstance(node, ast.keyword)
            else []
        )
        if id(node) not in docs and FORMER_WORDS.search(text)
    ]


def test_messages_use_terms_of_the_field() -> None:
    files = [file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    used = {str(file): texts for file in files if (texts := former_words(file.read_text()))}
    assert used == {}


def test_a_former_word_is_seen_in_a_message_only() -> None:
    assert former_words("log.info('x.parted', mend='no')") == ["x.parted", "mend"]
    assert (
        former_words("def f():\n    '''Mend it.'''\n    return 'mendedUnits, recommended'\n") == []
    )
