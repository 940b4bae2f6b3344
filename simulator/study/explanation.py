"""The explanation of a simulated request: what `dunlin explain` prints for a live one, from the same records."""

from collections.abc import Sequence

from dunlin.effects import Address, Message
from dunlin.messages.fleet import Reason
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import explain
from services.monitor.reason_ring import ReasonRing
from simulator.cluster.codec import InMemoryCodec

_MOST_RECORDS = 1000


def explain_request(decisions: Sequence[tuple[float, Address, Address, Message]], request: str) -> tuple[str, ...]:
    """One sentence per decision about `request`; empty if it is not known.

    Raises:
        ValueError: `request` is no public id.
    """
    codec = InMemoryCodec()
    ring = ReasonRing(len(decisions) + 1, 1 << 62, codec.decode)
    for at_s, sender, to, message in decisions:
        ring.add(Reason(at_s, sender, to, type(message).__name__, codec.encode(message)))
    found = ring.records_of(request, _MOST_RECORDS)
    return tuple(explain([_record(one, codec) for one in found], request))


def _record(reason: Reason, codec: InMemoryCodec) -> DecisionRecord:
    return DecisionRecord(reason.at_s, reason.sender, reason.to, codec.decode(reason.kind, reason.payload))
