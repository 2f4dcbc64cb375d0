"""Small files that other processes read while they are written."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace the text of a file atomically: readers see the old text or the new one.

    Raises `OSError`; the file is then unchanged.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
