"""Spans of a request's attempts: at which instance, from when to when. Computed from the records that name it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.declare import Hold
from dunlin.messages.subjects import References, RequestKey

OPENING = (Hold.OFFERED, Hold.BEGINS)
WAITING = (Hold.OFFERED, Hold.WAITS)
"""After one of these no step holds the request, and yet its instance still has it."""


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt at one instance. `end_s` None: no record says that it ended; `last_s` is then its newest record."""

    instance: Address
    attempt: int
    start_s: float
    end_s: float | None
    last_s: float
    starts_waiting: bool
    sequences: tuple[int, ...]
    tickets: tuple[int, ...]


def attempt_spans(records: Sequence[tuple[float, References]]) -> list[AttemptSpan]:
    """The attempts in one request's own records (time in s, references), by dispatcher and time."""
    by_dispatcher: dict[RequestKey | None, list[tuple[float, References]]] = {}
    for at_s, refs in records:
        by_dispatcher.setdefault(refs.request, []).append((at_s, refs))
    return [span for mine in by_dispatcher.values() for span in _of_dispatcher(mine)]


def _of_dispatcher(records: Sequence[tuple[float, References]]) -> list[AttemptSpan]:
    names = dict.fromkeys(
        (refs.instance, refs.attempt) for _, refs in records if refs.instance is not None and refs.hold in OPENING
    )
    return [_attempt_span(records, instance, attempt) for instance, attempt in names]


def _attempt_span(records: Sequence[tuple[float, References]], instance: Address, attempt: int) -> AttemptSpan:
    mine = [(at_s, refs) for at_s, refs in records if refs.instance == instance and refs.attempt == attempt]
    start_s = mine[0][0]
    ends = [at_s for at_s, refs in mine if refs.hold is Hold.ENDS]
    ends += [at_s for at_s, refs in records if refs.hold is Hold.OFFERED and refs.attempt > attempt]
    return AttemptSpan(
        instance,
        attempt,
        start_s,
        end_s=min(ends, default=None),
        last_s=mine[-1][0],
        starts_waiting=mine[-1][1].hold in WAITING,
        sequences=tuple(refs.sequence for _, refs in mine if refs.sequence is not None),
        tickets=tuple(refs.ticket for _, refs in mine if refs.ticket is not None),
    )
