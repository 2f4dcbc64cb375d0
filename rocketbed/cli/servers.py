"""Common parts of the commands that run a server: settings from a file and options, logging."""

import io
import logging
import os
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

import click

LOG_BYTES: Final = 10 << 20
"""Size at which a log file is rotated, as in compose/classic.yaml."""
LOG_FILES: Final = 5
"""Number of log files, including the current one, as there."""


def server_options(config_help: str, set_help: str) -> Callable[[Callable[..., Any]], Any]:
    """Add the options -c, --set and -v to a command `f(config_path, overrides, log_path,
    verbose)`."""

    def decorate(command: Callable[..., Any]) -> Any:
        for option in (
            click.option("-v", "--verbose", is_flag=True, help="Log at debug level."),
            click.option(
                "--log",
                "log_path",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Put all output into FILE. At 10 MB it becomes FILE.1, that one FILE.2, ...;"
                " five files are kept.",
            ),
            click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=set_help),
            click.option(
                "-c",
                "--config",
                "config_path",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help=config_help,
            ),
        ):
            command = option(command)
        return command

    return decorate


def read_config(path: Path) -> str:
    """Read a configuration file. Raises `click.UsageError`."""
    from rocketbed.wire.properties_text import decode_file

    try:
        return decode_file(path.read_bytes())
    except OSError as exc:
        raise click.UsageError(f"{path} cannot be read: {exc}") from exc


def start_logging(warnings: list[str], log_path: Path | None, *, verbose: bool) -> None:
    """Log to a file, or to standard error, and print the warnings from reading the settings.

    Raises `click.UsageError` when the file cannot be written.
    """
    try:
        handler = logging.StreamHandler() if log_path is None else _OutputFile(log_path)
    except OSError as exc:
        raise click.UsageError(f"--log {log_path} cannot be written: {exc.strerror}") from exc
    logging.basicConfig(
        handlers=[handler],
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for warning in warnings:
        click.echo(f"rocketbed: warning: {warning}", err=True)


class _OutputFile(RotatingFileHandler):
    """A log file that standard output and error go to as well, so that an error which ends the
    program is its last line, even after a rotation."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")

    def doRollover(self) -> None:
        """Start a new file; if that fails, continue in the old one for the same size again."""
        try:
            super().doRollover()
        except OSError as exc:
            if self.stream is None:
                self.stream = self._open()
            text = f"{self.baseFilename} cannot be rotated, it grows: {exc.strerror}\n"
            self.stream.write(text)
            self.maxBytes += LOG_BYTES

    def _open(self) -> io.TextIOWrapper:
        stream = super()._open()
        if sys.stdout is not None:
            sys.stdout.flush()
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        return stream
