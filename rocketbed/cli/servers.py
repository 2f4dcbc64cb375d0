"""What the commands that run a server have in common: settings from a file and options, logging."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def server_options(config_help: str, set_help: str) -> Callable[[Callable[..., Any]], Any]:
    """Options -c, --set and -v for a command `f(config_path, overrides, verbose)`."""

    def decorate(command: Callable[..., Any]) -> Any:
        for option in (
            click.option("-v", "--verbose", is_flag=True, help="Log at debug level."),
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
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path} cannot be read: {exc}") from exc


def start_logging(warnings: list[str], *, verbose: bool) -> None:
    """Log to standard error, and print the warnings from reading the settings."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for warning in warnings:
        click.echo(f"rocketbed: warning: {warning}", err=True)
