"""`dunlin status`: every process of the cluster, as the monitor sees it."""

import argparse
import re
from collections.abc import Iterable

from cli.common.cluster import connect
from cli.common.options import Subparsers, add_cluster_options, add_json
from cli.common.output import as_json, table
from dunlin.messages.fleet import FleetStatus, InstanceReport, ManagerReport, MemberStatus
from dunlin.messages.types import GroupKind, GroupRole, StepTimesSource

_DESCRIPTION = """\
Print every process of the cluster, as the monitor sees it.

  incarnation   tells one start of a process from the next; part of its address in `dunlin explain`
  state         up, starting (no engine yet), draining, suspect (silent or stuck), away (not connected)
  free, slots   token slots of an instance: room for new sequences, and in all (one holds the KV of one token)
  running, waiting   requests of an instance or a dispatcher
  more          of an instance its group, what it does there, and its members (the leader first)

examples:
  dunlin status
  dunlin status --json | jq '.members[] | select(.address.role == "instance") | .pid'
"""
_HEADER = ("role", "name", "incarnation", "pid", "node", "state", "free", "slots", "running", "waiting", "more")


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="print every process",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_cluster_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    with connect(arguments) as client:
        status = client.status()
    print(as_json(status) if arguments.json else render(status))
    return 0


def render(status: FleetStatus) -> str:
    """As a table, with a line below on the view itself."""
    members = sorted(status.members, key=_order)
    groups = group_members(members)
    rows = [_row(member, groups) for member in members]
    lost = f", {status.reasons_lost} lost" if status.reasons_lost else ""
    last = f"view {status.version}; {status.suspicions_total} suspicions; {status.reasons_held} reasons held{lost}"
    return f"{table(_HEADER, rows)}\n{last}"


def _order(member: MemberStatus) -> tuple[str, list[tuple[int, str]]]:
    """By role and name, instance-2 before instance-10."""
    parts = re.findall(r"\d+|\D+", member.address.name)
    return member.address.role, [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def group_members(members: Iterable[MemberStatus]) -> dict[int, list[str]]:
    """The names of the instances that say to be in each group of several, the leader first."""
    groups: dict[int, list[str]] = {}
    for member in members:
        report = member.instance
        if report is None or report.kind is GroupKind.LOCAL:
            continue
        names = groups.setdefault(report.group, [])
        names.insert(0 if report.part is GroupRole.LEADER else len(names), member.address.name)
    return groups


def _row(member: MemberStatus, groups: dict[int, list[str]]) -> tuple[str, ...]:
    address = member.address
    whole = (address.role, address.name, str(address.incarnation), str(member.pid), member.node, member_state(member))
    return (*whole, *_load(member), _more(member, groups))


def member_state(member: MemberStatus) -> str:
    """One word for how a member is."""
    if not member.connected:
        return "away"
    if member.suspect:
        return "suspect"
    if member.instance is not None and not member.instance.ready:
        return "starting"
    if member.instance is not None and member.instance.draining:
        return "draining"
    return "up"


def _step_times(one: InstanceReport) -> str:
    """Whether predictions of steps are learnt, and how far off they are; empty where they are not learnt."""
    if one.step_times is StepTimesSource.LEARNING:
        return f", learns the times of steps ({one.learnt_steps_total} so far)"
    if one.step_times is StepTimesSource.LEARNT:
        return f", times of steps learnt (off by {max(one.prompt_step_error, one.decode_step_error):.0%})"
    return ""


def _load(member: MemberStatus) -> tuple[str, str, str, str]:
    if member.instance is not None:
        one = member.instance
        free = one.free_slots + one.cached_slots
        return str(free), str(one.capacity_slots), str(one.running), str(one.waiting)
    if member.dispatcher is not None:
        return "", "", str(member.dispatcher.running), str(member.dispatcher.queued)
    return "", "", "", ""


def _more(member: MemberStatus, groups: dict[int, list[str]]) -> str:
    if member.instance is not None:
        one = member.instance
        together = f" of {', '.join(groups[one.group])}" if one.group in groups else ""
        part = f"group {one.group} {one.part.name.lower()}{together}, plan {one.plan_version}"
        return f"{part}, engine {one.engine_pid}, {one.steps_total} steps{_step_times(one)}"
    if member.dispatcher is not None:
        two = member.dispatcher
        return f"{two.finished_total} finished, {two.failed_total} failed, {two.replaced_total} dispatched again"
    if member.kvstore is not None:
        used, capacity = (size >> 20 for size in (member.kvstore.used_bytes, member.kvstore.capacity_bytes))
        return f"{used} of {capacity} MiB in {member.kvstore.regions} regions"
    if member.manager is not None:
        return _leads(member.manager) if member.manager.epoch else "does not lead"
    return ""


def _leads(manager: ManagerReport) -> str:
    """Its term, and the requests that are longer than an instance, where there are any."""
    long = f", {manager.long_placed} long requests in {manager.elastic_groups} groups, {manager.long_waiting} waiting"
    return f"leads, epoch {manager.epoch}{long if manager.long_waiting or manager.elastic_groups else ''}"
