"""`rocketbed cluster watch`: a running cluster as a page with buttons."""

from pathlib import Path

import click


@click.command("watch")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="rocketbed-cluster",
    show_default=True,
    help="Where the cluster lives.",
)
@click.option(
    "--live-port",
    "port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="The page's port on 127.0.0.1; else a free one.",
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True, max=20_000),
    help="Send so many messages a second to the topic `watch`.",
)
def watch(directory: Path, port: int, load: float | None) -> int:
    """Watch a cluster in a browser: roles, offsets, rates; kill, pause, start and promote.

    The page is for this system only, and for who has its address. The cluster goes on when the
    watch ends; what was done by hand stands in the cluster's watch.toml, as a scenario.
    """
    try:
        from rocketbed.chaos.live.watch import watch as serve
    except ModuleNotFoundError as exc:
        if str(exc.name).partition(".")[0] == "rocketbed":
            raise
        raise click.UsageError(
            f"cluster watch needs {exc.name}: install rocketbed with its extra, rocketbed[chaos]"
        ) from exc
    kept = serve(directory, click.echo, port=port, rate=load)
    if kept is not None:
        click.echo(f"what was done: {kept}")
        click.echo(f"again: rocketbed chaos run {kept} --backend process")
    return 0
