"""`rocketbed node`: run one broker until SIGTERM or SIGINT."""

import logging
import os
from pathlib import Path

import click

from rocketbed.wire.errors import RocketbedError


@click.command()
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="RocketMQ's broker.conf.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting by RocketMQ's name, over the file's; may be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def node(config_path: Path | None, overrides: tuple[str, ...], verbose: bool) -> int:
    """Run a broker: clients on listenPort, until it is told to stop."""
    from node.config import make_config, settings_from_options, settings_from_text
    from node.node import run_node
    from rocketbed.world.real import run_real

    settings = []
    try:
        if config_path is not None:
            settings += settings_from_text(_read(config_path), str(config_path))
        settings += settings_from_options(overrides)
        config, warnings = make_config(settings, memory_bytes=_memory_bytes())
    except RocketbedError as exc:
        raise click.UsageError(str(exc)) from exc
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for warning in warnings:
        click.echo(f"rocketbed: warning: {warning}", err=True)
    run_real(lambda world: run_node(world, config), config.broker_name)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"{path} cannot be read: {exc}") from exc


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
