"""Chooses the running work that moves between instances: functions over their loads. Knows no order and no stream.

`llumnix` follows Llumnix as the KunServe paper uses it: load is what is used plus what waits, over capacity; the most
loaded instance gives to the least loaded one while they are far apart; and room is made for a large prompt that fits
nowhere although there is enough in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dunlin.messages.types import Figure, Rejected, Why
from dunlin.policies.dispatch import beaten

START_GAP = 0.25
"""Loads must differ by this much before anything moves, and then half of the difference does: what moved once has no
reason to move back."""
BUSY = 0.5
"""Below this load an instance gives nothing away: moving work between idle instances gains nothing."""
ALTERNATIVES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that takes part. `demand_slots` is what waits there, `head_slots` what the first of those needs.

    `movable`: it may give, no move of its own is under way; `takes`: it may receive, it is healthy and not draining.
    """

    name: str
    capacity_slots: int
    free_slots: int
    demand_slots: int = 0
    head_slots: int = 0
    running: int = 0
    movable: bool = True
    takes: bool = True

    @property
    def load(self) -> float:
        """Used and queued demand over capacity."""
        return (self.capacity_slots - self.free_slots + self.demand_slots) / max(1, self.capacity_slots)


@dataclass(frozen=True, slots=True)
class Move:
    """About `slots` slots' worth of sequences from the candidate at `source` to the one at `target` (indices)."""

    source: int
    target: int
    slots: int
    why: Why


RebalancePolicy = Callable[[Sequence[Candidate], int, float], list[Move]]
"""(candidates, moves that may begin now, by how much loads must differ) to moves; a candidate is in one at most."""


@dataclass(frozen=True, slots=True)
class Movable:
    """A sequence that could leave. `slots` is what it holds, or needs while it waits."""

    slots: int
    order: int


def none(candidates: Sequence[Candidate], most: int, gap: float = START_GAP) -> list[Move]:
    """Everything stays where it was placed."""
    return []


def llumnix(candidates: Sequence[Candidate], most: int, gap: float = START_GAP) -> list[Move]:
    """Room for large prompts first, then pairs from most to least loaded."""
    moves: list[Move] = []
    taken: set[int] = set()
    for propose in (_make_room, partial(_pair, least_gap=gap)):
        while len(moves) < most and (move := propose(candidates, taken)) is not None:
            moves.append(move)
            taken |= {move.source, move.target}
    return moves


def least_loaded(candidates: Sequence[Candidate], source: int, slots: int, rule: str) -> Move | None:
    """Where a drained instance's work goes next: to the taker with the lowest load, as much as is free there."""
    order = _takers(candidates, {source})
    if not order:
        return None
    target = candidates[order[0]]
    share = max(1, min(slots, target.free_slots))
    figures = (Figure("slots", share), Figure("load", target.load), Figure("takers", len(order)))
    return Move(source, order[0], share, Why(rule, f"to {target.name}", figures, _rejected(candidates, order)))


def cheapest_first(movables: Sequence[Movable]) -> list[int]:
    """The order in which sequences leave: what is quickest to move first, the youngest of equals (Llumnix's rule)."""
    return sorted(range(len(movables)), key=lambda index: (movables[index].slots, -movables[index].order))


def _make_room(candidates: Sequence[Candidate], taken: set[int]) -> Move | None:
    """The instance that needs least to start the prompt that waits there gives that much, if another can take it."""
    wanting = [
        (one.head_slots - one.free_slots, index)
        for index, one in enumerate(candidates)
        if index not in taken and one.movable and one.running and one.head_slots > max(0, one.free_slots)
    ]
    takers = _takers(candidates, taken) if wanting else []
    most_free = max((candidates[index].free_slots for index in takers), default=0)
    for missing, source in sorted(wanting):
        if missing > most_free:
            return None  # as for all that come after: they miss more
        target = next((one for one in takers if one != source and candidates[one].free_slots >= missing), None)
        if target is not None:
            return _room(candidates, source, target, missing)
    return None


def _room(candidates: Sequence[Candidate], source: int, target: int, missing: int) -> Move:
    one = candidates[source]
    figures = (Figure("head_slots", one.head_slots), Figure("free_slots", one.free_slots), Figure("slots", missing))
    rejected = (Rejected("preempt", "what runs would wait and come back later"),)
    return Move(source, target, missing, Why("llumnix", f"make room at {one.name}", figures, rejected))


def _pair(candidates: Sequence[Candidate], taken: set[int], least_gap: float) -> Move | None:
    """From the most to the least loaded, half of what is between them."""
    givers = [index for index, one in enumerate(candidates) if index not in taken and one.movable and one.running > 0]
    takers = _takers(candidates, taken)
    if not givers or not takers:
        return None
    source = min(givers, key=lambda index: (-candidates[index].load, index))
    takers = [index for index in takers if index != source]
    if not takers:
        return None
    giver, target = candidates[source], candidates[takers[0]]
    gap = giver.load - target.load
    if gap < least_gap or giver.load < BUSY or target.free_slots <= 0 or target.demand_slots > 0:
        return None
    slots = min(int(gap / 2 * min(giver.capacity_slots, target.capacity_slots)), target.free_slots)
    if slots < 1:
        return None
    figures = (Figure("load", giver.load), Figure("target_load", target.load), Figure("slots", slots))
    why = Why("llumnix", f"from {giver.name} to {target.name}", figures, _rejected(candidates, takers))
    return Move(source, takers[0], slots, why)


def _takers(candidates: Sequence[Candidate], but: set[int]) -> list[int]:
    """The candidates that may receive, the least loaded first."""
    able = [index for index, one in enumerate(candidates) if index not in but and one.takes]
    return sorted(able, key=lambda index: (candidates[index].load, index))


def _rejected(candidates: Sequence[Candidate], order: Sequence[int]) -> tuple[Rejected, ...]:
    """The next best candidates, for the reason."""
    least = candidates[order[0]].load
    return tuple(
        Rejected(candidates[index].name, beaten("load", candidates[index].load, least))
        for index in order[1 : 1 + ALTERNATIVES_KEPT]
    )


REBALANCE_POLICIES: dict[str, RebalancePolicy] = {"none": none, "llumnix": llumnix}
