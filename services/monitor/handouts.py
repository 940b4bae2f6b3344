"""When was a request in whose hands? A pure reading of the records that name it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.effects import Address
from services.monitor.facts import Facts, RequestKey

OPENING = ("Place", "Accepted", "Adopted")
CLOSING = ("Refused", "Returned", "Cancel", "Poisoned", "Failed", "Taken")
WAITING = ("Place", "Preempted")
"""After one of these no step holds the request, and yet its instance still has it."""


@dataclass(frozen=True, slots=True)
class HandOut:
    """One attempt at one instance. `end_s` None: no record says that it ended; `last_s` is then its newest record."""

    instance: Address
    attempt: int
    start_s: float
    end_s: float | None
    last_s: float
    waits: bool
    sequences: tuple[int, ...]
    tickets: tuple[int, ...]


def hand_outs(records: Sequence[tuple[float, Facts]]) -> list[HandOut]:
    """The hand-outs that (time, facts) of one request's own records tell of, by dispatcher and in order of time."""
    by_dispatcher: dict[RequestKey | None, list[tuple[float, Facts]]] = {}
    for at_s, facts in records:
        by_dispatcher.setdefault(facts.request, []).append((at_s, facts))
    return [hand_out for mine in by_dispatcher.values() for hand_out in _of_dispatcher(mine)]


def _of_dispatcher(records: Sequence[tuple[float, Facts]]) -> list[HandOut]:
    names = dict.fromkeys(
        (facts.instance, facts.attempt) for _, facts in records if facts.instance is not None and facts.kind in OPENING
    )
    return [_hand_out(records, instance, attempt) for instance, attempt in names]


def _hand_out(records: Sequence[tuple[float, Facts]], instance: Address, attempt: int) -> HandOut:
    mine = [(at_s, facts) for at_s, facts in records if facts.instance == instance and facts.attempt == attempt]
    start_s = mine[0][0]
    ends = [at_s for at_s, facts in mine if facts.kind in CLOSING]
    ends += [at_s for at_s, facts in records if facts.kind == "Place" and facts.attempt > attempt]
    return HandOut(
        instance,
        attempt,
        start_s,
        end_s=min(ends, default=None),
        last_s=mine[-1][0],
        waits=mine[-1][1].kind in WAITING,
        sequences=tuple(facts.sequence for _, facts in mine if facts.sequence is not None),
        tickets=tuple(facts.ticket for _, facts in mine if facts.ticket is not None),
    )
