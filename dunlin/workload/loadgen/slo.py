"""Service level objectives: how fast a request must be to count, per class. Pure.

A request that misses one of its class's limits, or ends badly, misses its objective.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from dunlin.workload.loadgen.stats import RequestRecord, request_tpot_s
from dunlin.workload.traffic.help_texts import SLO_HELP


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    jct: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a request was as fast as it must be. One of a single token has no TPOT to miss."""
        if record.outcome != "ok" or not record.token_s:
            return False
        ttft = record.token_s[0] - record.at_s
        tpot = request_tpot_s(record) if len(record.token_s) > 1 else 0.0
        taken = (ttft, tpot, record.token_s[-1] - record.at_s)
        limits = (self.ttft, self.tpot, self.jct)
        return all(limit is None or value <= limit for value, limit in zip(taken, limits, strict=True))


Slos = Mapping[str, Slo]
"""By class; the one of "" is for every class that has none of its own."""


def parse_slos(texts: Sequence[str]) -> Slos:
    """`[CLASS:]ttft=…,tpot=…,jct=…`, each at most once per class. Raises ValueError naming what is wrong."""
    found: dict[str, Slo] = {}
    for text in texts:
        label, colon, limits = text.rpartition(":")
        if label in found:
            raise ValueError(f"SLO {text!r}: {f'class {label!r}' if colon else 'the general one'} is given twice")
        pairs = [_limit(item, text) for item in limits.split(",")]
        if len(pairs) > len(dict(pairs)):
            raise ValueError(f"SLO {text!r}: a limit is given twice")
        found[label] = Slo(**dict(pairs))
    return found


def _limit(item: str, text: str) -> tuple[str, float]:
    known = [field.name for field in fields(Slo)]
    key, _, value = (part.strip() for part in item.partition("="))
    try:
        limit = float(value)
    except ValueError:
        limit = 0.0
    if key not in known or not 0 < limit < float("inf"):
        raise ValueError(f"SLO {text!r}: {item!r} is no limit; give {SLO_HELP}")
    return key, limit


def meets_slo(records: Sequence[RequestRecord], slos: Slos) -> list[bool]:
    """For each request whether it met its class's objective; without one for its class, whether it was completed."""
    general = slos.get("", Slo())
    return [slos.get(record.label, general).met_by(record) for record in records]
