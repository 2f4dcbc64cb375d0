"""`rocketbed topic`: create, update, list and delete topics, and show their routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from rocketbed.cli.client import json_option, nameserver_option, show, show_json, table, with_admin
from rocketbed.cli.main import CommandGroup

if TYPE_CHECKING:
    from rocketbed.client.admin import Admin
    from rocketbed.wire.bodies import ClusterInfo, TopicRouteData

SYSTEM_TOPICS: Final = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
SYSTEM_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%")
DELETION_S: Final = 60.0
"""Time for a deletion, seconds. It is answered once durable: after many seconds if thousands of
queues are being written."""
PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}


@click.group("topic", cls=CommandGroup)
def topic() -> None:
    """Create, update, list and delete topics."""


def _change_options(command: Any) -> Any:
    for decorate in (
        click.option("--attribute", "attributes", multiple=True, metavar="+NAME=TEXT|-NAME"),
        click.option("--order", is_flag=True, help="Mark the topic as ordered (informational)."),
        click.option("--broker", "brokers", multiple=True, help="Only this broker; repeatable."),
        click.option("--perm", type=click.Choice(list(PERMISSIONS)), default="rw"),
        nameserver_option,
    ):
        command = decorate(command)
    return command


@topic.command("create")
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65_536), default=4, show_default=True)
@_change_options
def create(name: str, nameservers: str, queues: int, **options: Any) -> int:
    """Create a topic on every broker."""

    async def main(admin: Admin) -> list[str]:
        if await admin.route(name) is not None:
            raise click.ClickException(
                f"topic {name} already exists: change it with `rocketbed topic update`"
            )
        return await _put(admin, name, queues, options)

    brokers = with_admin(nameservers, main)
    click.echo(f"topic {name}: {queues} queues on {', '.join(brokers)}")
    return 0


@topic.command("update")
@click.argument("name")
@click.option("--queues", type=click.IntRange(0, 65_536), required=True)
@_change_options
def update(name: str, nameservers: str, queues: int, **options: Any) -> int:
    """Change a topic's number of queues and its permission."""

    async def main(admin: Admin) -> list[str]:
        if await admin.route(name) is None:
            raise click.ClickException(
                f"topic {name} does not exist: create it with `rocketbed topic create`"
            )
        return await _put(admin, name, queues, options)

    brokers = with_admin(nameservers, main)
    click.echo(f"topic {name}: {queues} queues on {', '.join(brokers)}")
    return 0


@topic.command("delete")
@click.argument("name")
@nameserver_option
def delete(name: str, nameservers: str) -> int:
    """Delete a topic and its messages."""

    async def main(admin: Admin) -> None:
        if await admin.route(name) is None:
            raise click.ClickException(f"topic {name} does not exist")
        await admin.delete_topic(name)

    with_admin(nameservers, main, timeout_s=DELETION_S)
    click.echo(f"topic {name} deleted")
    return 0


@topic.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include system topics.")
@nameserver_option
@json_option
def list_command(nameservers: str, show_all: bool, as_json: bool) -> int:
    """List topics."""

    async def main(admin: Admin) -> list[str]:
        names, info = await admin.topics(), await admin.cluster()
        return [name for name in names if show_all or not _is_system(name, info)]

    names = with_admin(nameservers, main)
    if as_json:
        show_json(names)
    else:
        show(names)
    return 0


@topic.command("route")
@click.argument("name")
@nameserver_option
@json_option
def route(name: str, nameservers: str, as_json: bool) -> int:
    """Show which brokers serve a topic."""

    async def main(admin: Admin) -> TopicRouteData:
        data = await admin.route(name)
        if data is None:
            raise click.ClickException(f"topic {name} does not exist")
        return data

    data = with_admin(nameservers, main)
    if as_json:
        value = data.to_json()
        for broker in value["brokerDatas"]:
            broker["brokerAddrs"] = {str(key): text for key, text in broker["brokerAddrs"].items()}
        show_json(value)
        return 0
    members = {broker.broker_name: broker.broker_addrs for broker in data.broker_datas}
    rows: list[tuple[str, ...]] = [("broker", "read", "write", "permission", "master", "slaves")]
    names = {number: name for name, number in PERMISSIONS.items()}
    for queues in sorted(data.queue_datas, key=lambda item: item.broker_name):
        addresses = dict(members.get(queues.broker_name, {}))
        master = addresses.pop(0, "-")
        rows.append(
            (
                queues.broker_name,
                str(queues.read_queue_nums),
                str(queues.write_queue_nums),
                names.get(queues.perm & 6, str(queues.perm)),
                master,
                " ".join(addresses[number] for number in sorted(addresses)) or "-",
            )
        )
    show(table(rows))
    return 0


async def _put(admin: Admin, name: str, queues: int, options: dict[str, Any]) -> list[str]:
    created = await admin.create_topic(
        name,
        queues=queues,
        perm=PERMISSIONS[options["perm"]],
        brokers=options["brokers"] or None,
        order=options["order"],
        attributes=",".join(options["attributes"]) or None,
    )
    for broker in () if options["brokers"] else (await admin.cluster()).broker_addr_table:
        if broker not in created:
            click.echo(
                f"topic {name} is not on {broker}, which had no master: `rocketbed topic update`"
                " makes it there once there is one",
                err=True,
            )
    return created


def _is_system(name: str, info: ClusterInfo) -> bool:
    own = [*info.cluster_addr_table, *info.broker_addr_table]
    replies = [f"{cluster}_REPLY_TOPIC" for cluster in info.cluster_addr_table]
    return name in SYSTEM_TOPICS or name in own + replies or name.startswith(SYSTEM_PREFIXES)
