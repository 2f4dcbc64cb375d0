"""Output of `rocketbed cluster status`, for one group or several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketbed.cli.client import group_rows, table

if TYPE_CHECKING:
    from rocketbed.cli.client import Groups
    from rocketbed.cluster.status import MemberStatus


def status_json(rows: list[MemberStatus], groups: Groups) -> dict[str, object]:
    """Return the value for `--json`: members, and groups with failover."""
    members = [
        {**row.as_row(), "brokerName": row.member.broker if row.member.is_node else None}
        for row in rows
    ]
    return {"members": members, "groups": group_rows(groups)}


def status_lines(rows: list[MemberStatus], groups: Groups | None = None) -> list[str]:
    """Return lines of text: a row for each member, then the groups and remarks about members."""
    names = {"log from": "commitLogMinOffset", "to": "commitLogMaxOffset"}
    if groups:
        names["confirmed"] = "rbConfirmedOffset"
    is_one = _is_one(rows)
    head = ("member",) if is_one else ("member", "broker")
    cells: list[tuple[str, ...]] = [
        (*head, "role", "id", "address", "pid", "state", *names),
    ]
    for row in rows:
        offsets = [row.offset(name) for name in names.values()]
        labels = (row.member.name, row.member.broker if row.member.is_node else "-")
        cells.append(
            (
                *labels[: len(head)],
                row.role,
                str(row.broker_id) if row.member.is_node else "-",
                row.member.address,
                str(row.pid or "-"),
                row.state,
                *("-" if offset is None else str(offset) for offset in offsets),
            )
        )
    lines, errors = table(cells), []
    for name, group in (groups or {}).items():
        start = "" if is_one else f"{name}: "
        if isinstance(group, str):
            errors.append(f"{start}the group's state is unknown: {group}")
        else:
            lines += [start + line for line in group.lines()]
    remarks = [f"{row.member.name}: {remark}" for row in rows for remark in row.remarks]
    return [*lines, *remarks, *errors]


def _is_one(rows: list[MemberStatus]) -> bool:
    """True if all nodes are in one group."""
    return len({row.member.broker for row in rows if row.member.is_node}) <= 1
