"""Small files that others read while they are written."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Let a file have this text: who reads it finds what it had before, or all of the new one.

    Raises `OSError`; what was there is as it was then.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
