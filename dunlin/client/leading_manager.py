"""The endpoint of the leading global manager, from the monitor's status."""

from dunlin.client.errors import Unavailable
from dunlin.messages.fleet import FleetStatus


def leader_of(status: FleetStatus, asked: str) -> str:
    """The endpoint of the manager that leads in the newest term (epoch).

    `asked` is the dispatcher's endpoint, for the error's text.

    Raises:
        Unavailable: no manager leads.
    """
    best, epoch = "", 0
    for member in status.members:
        if member.manager is not None and member.manager.epoch > epoch and member.endpoint:
            best, epoch = member.endpoint, member.manager.epoch
    if not best:
        raise Unavailable(f"{asked}: no global manager leads this cluster; try again in a few seconds")
    return best
