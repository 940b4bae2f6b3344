"""Which global manager to ask: the one that leads, by the monitor's word."""

from dunlin.client.errors import Unavailable
from dunlin.messages.fleet import FleetStatus


def leader_of(status: FleetStatus, asked: str) -> str:
    """The endpoint of the leader of the newest term.

    Raises:
        Unavailable: none leads just now.
    """
    best, epoch = "", 0
    for member in status.members:
        if member.manager is not None and member.manager.epoch > epoch and member.endpoint:
            best, epoch = member.endpoint, member.manager.epoch
    if not best:
        raise Unavailable(f"{asked}: no global manager leads this cluster; try again in a few seconds")
    return best
