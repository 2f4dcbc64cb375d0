"""`rocketbed node`: run one broker until SIGTERM or SIGINT."""

import logging
import os
from pathlib import Path

import click

from rocketbed.cli.servers import read_config, server_options, start_logging
from rocketbed.wire.errors import RocketbedError


@click.command()
@server_options(
    "Configuration file in the format of RocketMQ's broker.conf.",
    "Override one setting of the file, by RocketMQ's name; repeatable.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Read tables and store as a start does, print what the start would do, and exit.",
)
def node(
    config_path: Path | None,
    overrides: tuple[str, ...],
    log_path: Path | None,
    verbose: bool,
    check: bool,
) -> int:
    """Run a broker that serves clients on listenPort until it gets SIGTERM or SIGINT.

    With bindAddress it listens on that address only, and its connections to nameservers and to its
    master use it as their source address.
    """
    import trio

    from rocketbed.node.broker.plain_body import choose
    from rocketbed.node.config.node_config import (
        Setting,
        make_config,
        settings_from_options,
        settings_from_text,
    )
    from rocketbed.node.node import check_node, run_node
    from rocketbed.node.store.log_bodies import log_bodies
    from rocketbed.world.real import real_world, run_real
    from rocketbed.world.sockets import usable_source

    is_native = os.environ.get("RB_NATIVE") != "0"
    settings = [Setting("rbNative", str(is_native).lower(), "RB_NATIVE")]
    try:
        if config_path is not None:
            settings += settings_from_text(read_config(config_path), str(config_path))
        settings += settings_from_options(overrides)
        path = str(config_path.resolve()) if config_path is not None else ""
        config, warnings = make_config(settings, memory_bytes=_memory_bytes(), path=path)
    except RocketbedError as exc:
        raise click.UsageError(str(exc)) from exc
    start_logging(warnings, log_path, verbose=verbose)
    if check:
        for line in trio.run(check_node, real_world("check"), config):
            click.echo(line)
        return 0
    try:
        os.makedirs(config.store.root, exist_ok=True)
    except OSError as exc:
        raise click.UsageError(
            f"{exc.filename} cannot be made: {exc.strerror}: choose another storePathRootDir"
        ) from exc
    _, send_body = choose(native=config.store.native)
    log = "native" if log_bodies(enabled=config.store.native) else "python"
    logging.getLogger("rocketbed.node").info("send.body which=%s log=%s", send_body, log)
    source = usable_source(config.bind_address)
    try:
        run_real(lambda world: run_node(world, config), config.broker_name, source)
    except RocketbedError as exc:
        logging.getLogger("rocketbed.node").error("node.failed error=%s", type(exc).__name__)
        raise
    return 0


def _memory_bytes() -> int:
    """Return the machine's memory, bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
