"""`rocketbed nameserver`: run one nameserver until SIGTERM or SIGINT."""

import logging
from pathlib import Path

import click

from rocketbed.wire.errors import RocketbedError


@click.command()
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="RocketMQ's namesrv.conf (properties).",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting, such as listenPort=9876, over the file's; may be repeated.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def nameserver(config_path: Path | None, overrides: tuple[str, ...], verbose: bool) -> int:
    """Run a nameserver: brokers register, clients ask for routes."""
    from rocketbed.world.real import run_real
    from routing.config import read_settings
    from routing.nameserver import Nameserver

    try:
        settings = _read(config_path) if config_path is not None else {}
        for item in overrides:
            key, equals, value = item.partition("=")
            if not equals:
                raise click.UsageError(f"--set {item}: KEY=VALUE is needed")
            settings[key.strip()] = value.strip()
        config, warnings = read_settings(settings)
    except RocketbedError as exc:
        raise click.UsageError(str(exc)) from exc
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    for warning in warnings:
        click.echo(f"rocketbed: warning: {warning}", err=True)
    run_real(lambda world: Nameserver(world, config).run(), "nameserver")
    return 0


def _read(path: Path) -> dict[str, str]:
    """A properties file: `key=value` lines, `#` and `!` begin comments."""
    settings = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{path}:{number}: {text!r} is no key=value")
        settings[key.strip()] = value.strip()
    return settings
