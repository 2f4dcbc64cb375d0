"""How to install what is missing. No package index has rocketbed, so a bare name would not work."""

import importlib.metadata
import json
from typing import Final

CHECKOUT: Final = "file:///path/to/checkout"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from where that came from."""
    return f"pip install 'rocketbed[{extra}] @ {_source()}'"


def _source() -> str:
    """Return the URL that rocketbed was installed from (PEP 610), or a place for the user's own."""
    try:
        text = importlib.metadata.distribution("rocketbed").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return CHECKOUT
    try:
        return str(json.loads(text or "{}")["url"])
    except (ValueError, KeyError, TypeError):
        return CHECKOUT
