"""`dunlin drain`: have an instance's work move to the others, and watch it go."""

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.common.cluster import connect
from cli.common.errors import FAILED, UNREACHABLE, USAGE, CliError
from cli.common.options import Subparsers, add_cluster_options, number
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, InstanceReport
from dunlin.messages.plan import DrainOutcome, DrainReply

if TYPE_CHECKING:
    from dunlin.client import Client

_DESCRIPTION = """\
Empty an instance while everything runs: it takes nothing new, and what it holds moves to the other instances without
their clients noticing. It stays drained until told otherwise, or until its process ends: then it may be stopped.

examples:
  dunlin drain instance-0             move everything away, wait until it is empty
  dunlin drain instance-0 --undo      let it take requests again
"""
_POLL_S = 0.2
_CODES = {
    DrainOutcome.NOT_LEADER: UNREACHABLE,
    DrainOutcome.UNKNOWN_INSTANCE: USAGE,
    DrainOutcome.NOWHERE_TO_GO: FAILED,
}


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "drain",
        help="empty an instance; its requests go on elsewhere",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("instance", metavar="INSTANCE", help="its name, as `dunlin status` prints it")
    parser.add_argument("--undo", action="store_true", help="let it take requests again")
    parser.add_argument(
        "--timeout", type=number(0), default=120.0, metavar="S", help="how long to wait for it (default: 120)"
    )
    add_cluster_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask the leader, then follow the instance's own reports."""
    with connect(arguments) as client:
        before = client.status()
        reply = client.drain(arguments.instance, undo=arguments.undo)
        check_drain_reply(arguments.instance, reply)
        if arguments.undo:
            return _await_undone(client, arguments.instance, arguments.timeout)
        already = " already" if reply.outcome is DrainOutcome.ALREADY else ""
        others = ", ".join(sorted(other.name for other in reply.others)) or "none, no other instance is ready"
        print(f"{arguments.instance} drains{already}; its work goes to: {others}", flush=True)
        return follow(client, arguments.instance, before, arguments.timeout)


def check_drain_reply(instance: str, reply: DrainReply) -> None:
    """Raises CliError when the manager did not do it."""
    code = _CODES.get(reply.outcome)
    if code is None:
        return
    because = {
        DrainOutcome.NOT_LEADER: "the global manager was just replaced: try again",
        DrainOutcome.UNKNOWN_INSTANCE: f"no instance is called {instance!r}",
        DrainOutcome.NOWHERE_TO_GO: f"{instance} cannot be drained: start another instance, or take one back, first",
    }
    raise CliError(f"{because[reply.outcome]} ({reply.detail})", code)


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far it is. `remaining` requests are its own or those of a group that it leads; `guest_slots` hold KV of its
    group's requests, whoever leads that: these do not move, but end there.
    """

    remaining: int
    leaving: int
    moved: int
    arrived: tuple[tuple[str, int], ...]
    guest_slots: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether its process may end."""
        return self.remaining == self.guest_slots == 0

    def __str__(self) -> str:
        to = ", ".join(f"{name} {count}" for name, count in self.arrived if count)
        said = f"{self.remaining} left, {self.leaving} on their way, {self.moved} moved" + (f" ({to})" if to else "")
        return said + (f", {self.guest_slots} slots of its group in use" if self.guest_slots else "")


def drain_progress(
    instance: str, before: dict[str, InstanceReport], now: dict[str, InstanceReport]
) -> DrainProgress | None:
    """What the reports say since `before`; None while the instance does not report that it drains."""
    own = now.get(instance)
    if own is None or not own.draining:
        return None
    begun = before.get(instance, InstanceReport())
    arrived = tuple(
        (name, max(0, report.arrivals_total - before.get(name, InstanceReport()).arrivals_total))
        for name, report in now.items()
        if name != instance
    )
    remaining = own.running + own.waiting + own.spread_running + own.spread_waiting
    moved = own.migrations_total - begun.migrations_total
    return DrainProgress(remaining, own.leaving, moved, arrived, own.guest_slots)


def follow(client: "Client", instance: str, begun: FleetStatus, timeout_s: float) -> int:
    """Print how far the instance is until it is empty. Raises CliError if its process ends, or takes too long.

    A process without a report is not gone: a monitor that has just started knows it from etcd alone.
    """
    began_s, before, process = time.monotonic(), _reports(begun), _process(begun, instance)
    shown: DrainProgress | None = None
    while True:
        status = client.status()
        reports, now = _reports(status), _process(status, instance)
        process = process or now
        if now != process:
            raise CliError(f"{instance} is gone: its process ended while it drained; its requests run elsewhere")
        state = drain_progress(instance, before, reports)
        took_s = time.monotonic() - began_s
        if state is not None and state.is_empty:
            print(f"{instance} is empty after {took_s:.1f} s: {state}")
            print(f"it takes no requests until: dunlin drain {instance} --undo")
            return 0
        if took_s > timeout_s:
            raise CliError(
                f"{instance} is not empty after {took_s:.0f} s: {state or 'it has not heard of it yet'}; it goes on "
                f"draining (undo: dunlin drain {instance} --undo)"
            )
        if state is not None and state != shown:
            print(f"  {took_s:5.1f} s: {state}", flush=True)
            shown = state
        time.sleep(_POLL_S)


def _await_undone(client: "Client", instance: str, timeout_s: float) -> int:
    began_s = time.monotonic()
    while (own := _reports(client.status()).get(instance)) is not None and own.draining:
        if time.monotonic() - began_s > timeout_s:
            raise CliError(f"{instance} has not heard of it after {timeout_s:.0f} s; the manager says it again")
        time.sleep(_POLL_S)
    print(f"{instance} takes requests")
    return 0


def _process(status: FleetStatus, instance: str) -> Address | None:
    """The newest process of that name."""
    named = (one.address for one in status.members if (one.address.role, one.address.name) == ("instance", instance))
    return max(named, default=None)


def _reports(status: FleetStatus) -> dict[str, InstanceReport]:
    """By name, the newest incarnation's."""
    found = sorted(status.members, key=lambda member: member.address.incarnation)
    return {member.address.name: member.instance for member in found if member.instance is not None}
