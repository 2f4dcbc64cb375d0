"""`rocketbed nameserver`: run one nameserver until SIGTERM or SIGINT."""

from pathlib import Path

import click

from rocketbed.cli.servers import read_config, server_options, start_logging
from rocketbed.wire.errors import RocketbedError
from rocketbed.wire.properties_text import parse_properties


@click.command()
@server_options(
    "Configuration file in the format of RocketMQ's namesrv.conf.",
    "Override one setting of the file, such as listenPort=9876; repeatable.",
)
def nameserver(
    config_path: Path | None, overrides: tuple[str, ...], log_path: Path | None, verbose: bool
) -> int:
    """Run a nameserver: brokers register with it, clients query it for routes.

    With rbRegister=FILE it also runs the controller of groups with failover.
    """
    from rocketbed.replication.controller import Controller
    from rocketbed.replication.register.place import check_place, open_register
    from rocketbed.routing.config import read_settings
    from rocketbed.routing.nameserver import Nameserver
    from rocketbed.world.api import World
    from rocketbed.world.real import run_real
    from rocketbed.world.sockets import usable_source

    settings = {}
    try:
        if config_path is not None:
            settings = _settings_of(config_path)
        for item in overrides:
            key, equals, value = item.partition("=")
            if not equals:
                raise click.UsageError(f"--set {item}: expected KEY=VALUE")
            settings[key.strip()] = value.strip()
        config, warnings = read_settings(settings)
        check_place(config.register)
    except (RocketbedError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc
    start_logging(warnings, log_path, verbose=verbose)
    source = usable_source(config.host)

    async def serve(world: World) -> None:
        if not config.register:
            await Nameserver(world, config).run()
            return
        async with open_register(world, config.register) as store:
            await Nameserver(world, config, Controller(world, store)).run()

    run_real(serve, "nameserver", source)
    return 0


def _settings_of(path: Path) -> dict[str, str]:
    """Return the settings of a file. Raises `click.UsageError`."""
    try:
        return {key: value for _, key, value in parse_properties(read_config(path))}
    except ValueError as exc:
        raise click.UsageError(f"{path}: {exc}") from exc
