"""`rocketbed cluster watch`: watch and control a running cluster in a browser."""

from pathlib import Path

import click


@click.command("watch")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="rocketbed-cluster",
    show_default=True,
    help="Directory of the cluster.",
)
@click.option(
    "--live-port",
    "port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="Port of the page on 127.0.0.1; default: a free one.",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True, max=20_000),
    help="Send this many messages a second to the topic `watch`.",
)
def watch(directory: Path, port: int, load: float | None) -> int:
    """Watch a cluster in a browser: roles, offsets, rates; kill, pause, start and promote.

    The page is served on this machine only, to whoever has its URL. The cluster keeps running when
    the command ends; what was done by hand is written to its watch.toml, as a scenario.
    """
    try:
        from rocketbed.chaos.live.watch import watch as serve
    except ModuleNotFoundError as exc:
        if str(exc.name).partition(".")[0] == "rocketbed":
            raise
        from rocketbed.host.extras import install_command

        raise click.UsageError(
            f"cluster watch needs {exc.name}: {install_command('chaos')}"
        ) from exc
    scenario = serve(directory, click.echo, port=port, rate=load)
    if scenario is not None:
        click.echo(f"recorded as a scenario: {scenario}")
        click.echo(f"reproduce: rocketbed chaos run {scenario} --backend process")
    return 0
