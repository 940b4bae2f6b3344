"""Whether a cluster can serve: what the monitor says of the instances, and whether the public doors answer.

The judging is pure; `LivenessProber` asks over the network.
"""

import ssl
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

from dunlin.messages.fleet import FleetStatus, MemberStatus


@dataclass(frozen=True, slots=True)
class Readiness:
    """`missing` names what is not there yet, in words; nothing missing means ready."""

    missing: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.missing


def placeable(member: MemberStatus) -> bool:
    """Whether a dispatcher may place requests there: connected, not suspect, ready, and part of an ordered group."""
    report = member.instance
    return member.connected and not member.suspect and report is not None and report.ready and report.plan_version > 0


def check_readiness(status: FleetStatus | None, names: tuple[str, ...], http_answers: bool) -> Readiness:
    """Judge one look at the cluster whose instances are called `names`."""
    if status is None:
        return Readiness(("an answer of the monitor",))
    good = {member.address.name for member in status.members if placeable(member)}
    missing = [name for name in names if name not in good]
    if not http_answers:
        missing.append("the HTTP door")
    return Readiness(tuple(missing))


def http_answers(url: str, context: ssl.SSLContext | None = None, timeout_s: float = 2.0) -> bool:
    """Whether `url` answers 200; `context` for https."""
    # No proxy: the door is on this machine, whatever http_proxy says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False
