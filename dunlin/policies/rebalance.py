"""Chooses the running work that moves between instances: functions over their loads. Knows no order and no stream.

`llumnix` follows Llumnix as the KunServe paper uses it: load is what is used plus what waits, over capacity; the most
loaded instance gives to the least loaded one while they are far apart; and room is made for a large prompt that fits
nowhere although there is enough in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, Why
from dunlin.policies.chance import chance
from dunlin.policies.dispatch import rejection_text

START_GAP = 0.25
"""Loads must differ by this much before anything moves, and then half of the difference does: what moved once has no
reason to move back."""
BUSY_LOAD = 0.5
"""Below this load an instance gives nothing away: moving work between idle instances gains nothing."""
_ROUNDING = 1e-9
"""Far more than the rounding of loads, far less than a slot."""
_GIVEN = 0.6
"""Share of the times that `restless` looks at an instance with work at which it gives some away."""


@dataclass(frozen=True, slots=True)
class RebalanceCandidate:
    """An instance that takes part. `demand_slots` is what waits there, `head_slots` what the first of those needs.

    `movable`: it may give, no move of its own is under way; `takes`: it may receive, it is healthy and not draining.
    """

    name: str
    capacity_slots: int
    free_slots: int
    demand_slots: int = 0
    head_slots: int = 0
    running: int = 0
    may_give: bool = True
    may_receive: bool = True

    @property
    def load(self) -> float:
        """Used and queued demand over capacity."""
        return (self.capacity_slots - self.free_slots + self.demand_slots) / max(1, self.capacity_slots)


@dataclass(frozen=True, slots=True)
class RebalanceMove:
    """About `slots` slots' worth of sequences from the candidate at `source` to the one at `target` (indices); more
    than `most_slots` (0: no bound) would do harm.
    """

    source: int
    target: int
    slots: int
    why: Why
    most_slots: int = 0


RebalancePolicy = Callable[[Sequence[RebalanceCandidate], int, float], list[RebalanceMove]]
"""(candidates, moves that may begin now, by how much loads must differ) to moves; a candidate is in one at most."""


@dataclass(frozen=True, slots=True)
class MovableSequence:
    """A sequence that could leave. `slots` is what it holds, or needs while it waits."""

    slots: int
    order: int


def none(candidates: Sequence[RebalanceCandidate], most: int, gap: float = START_GAP) -> list[RebalanceMove]:
    """Everything stays where it was placed."""
    return []


def llumnix(candidates: Sequence[RebalanceCandidate], most: int, gap: float = START_GAP) -> list[RebalanceMove]:
    """Room for large prompts first, then pairs from most to least loaded."""
    moves: list[RebalanceMove] = []
    taken: set[int] = set()
    for propose in (_make_room, partial(_pair, least_gap=gap)):
        while len(moves) < most and (move := propose(candidates, taken)) is not None:
            moves.append(move)
            taken |= {move.source, move.target}
    return moves


def restless(candidates: Sequence[RebalanceCandidate], most: int, gap: float = START_GAP) -> list[RebalanceMove]:
    """Some instances give some of their work to some others, at random: for campaigns and fault runs."""
    moves: list[RebalanceMove] = []
    taken: set[int] = set()
    for source, one in enumerate(candidates):
        numbers = (source, one.free_slots, one.demand_slots, one.running)
        takers = sorted(_takers(candidates, taken | {source}))
        is_chosen = one.may_give and one.running and source not in taken and chance(*numbers) < _GIVEN
        if not is_chosen or not takers or len(moves) >= most:
            continue
        target = takers[int(chance(*numbers, 1) * len(takers))]
        slots = 1 + int(chance(*numbers, 2) * (one.capacity_slots - one.free_slots))
        rejected = (RejectedOption("none", "campaigns want work to move"),)
        why = Why("restless", f"from {one.name} to {candidates[target].name}", (Figure("slots", slots),), rejected)
        moves.append(RebalanceMove(source, target, slots, why))
        taken |= {source, target}
    return moves


def least_loaded(candidates: Sequence[RebalanceCandidate], source: int, slots: int, rule: str) -> RebalanceMove | None:
    """Where a drained instance's work goes next: to the taker with the lowest load, as much as is free there."""
    order = _takers(candidates, {source})
    if not order:
        return None
    target = candidates[order[0]]
    share = max(1, min(slots, target.free_slots))
    figures = (Figure("slots", share), Figure("load", target.load), Figure("takers", len(order)))
    return RebalanceMove(source, order[0], share, Why(rule, f"to {target.name}", figures, _rejected(candidates, order)))


def cheapest_first(movables: Sequence[MovableSequence]) -> list[int]:
    """The order in which sequences leave: what is quickest to move first, the youngest of equals (Llumnix's rule)."""
    return sorted(range(len(movables)), key=lambda index: (movables[index].slots, -movables[index].order))


def _make_room(candidates: Sequence[RebalanceCandidate], taken: set[int]) -> RebalanceMove | None:
    """The instance that needs least to start the prompt that waits there gives that much, if another can take it."""
    wanting = [
        (one.head_slots - one.free_slots, index)
        for index, one in enumerate(candidates)
        if index not in taken and one.may_give and one.running and one.head_slots > max(0, one.free_slots)
    ]
    takers = _takers(candidates, taken) if wanting else []
    most_free = max((candidates[index].free_slots for index in takers), default=0)
    for missing, source in sorted(wanting):
        if missing > most_free:
            return None  # as for all that come after: they miss more
        target = next((one for one in takers if one != source and candidates[one].free_slots >= missing), None)
        if target is not None:
            return _room_for_prompt(candidates, source, target, missing)
    return None


def _room_for_prompt(candidates: Sequence[RebalanceCandidate], source: int, target: int, missing: int) -> RebalanceMove:
    one = candidates[source]
    figures = (Figure("head_slots", one.head_slots), Figure("free_slots", one.free_slots), Figure("slots", missing))
    rejected = (RejectedOption("preempt", "what runs would wait and come back later"),)
    return RebalanceMove(source, target, missing, Why("llumnix", f"make room at {one.name}", figures, rejected))


def _pair(candidates: Sequence[RebalanceCandidate], taken: set[int], least_gap: float) -> RebalanceMove | None:
    """From the most to the least loaded, half of what is between them; never so much that it would move back."""
    givers = [index for index, one in enumerate(candidates) if index not in taken and one.may_give and one.running > 0]
    takers = _takers(candidates, taken)
    if not givers or not takers:
        return None
    source = min(givers, key=lambda index: (-candidates[index].load, index))
    takers = [index for index in takers if index != source]
    if not takers:
        return None
    giver, target = candidates[source], candidates[takers[0]]
    gap = giver.load - target.load
    if gap < least_gap or giver.load < BUSY_LOAD or target.free_slots <= 0 or target.demand_slots > 0:
        return None
    slots = min(int(gap / 2 * min(giver.capacity_slots, target.capacity_slots)), target.free_slots)
    if slots < 1:
        return None
    figures = (Figure("load", giver.load), Figure("target_load", target.load), Figure("slots", slots))
    why = Why("llumnix", f"from {giver.name} to {target.name}", figures, _rejected(candidates, takers))
    return RebalanceMove(source, takers[0], slots, why, max(slots, _most_slots(giver, target, gap + least_gap)))


def _most_slots(giver: RebalanceCandidate, target: RebalanceCandidate, change: float) -> int:
    """The most slots by which the loads' difference changes by less than that: one large sequence could turn it round,
    and would come back.
    """
    slots = change / (1 / max(1, giver.capacity_slots) + 1 / max(1, target.capacity_slots))
    return ceil(slots - _ROUNDING) - 1


def _takers(candidates: Sequence[RebalanceCandidate], but: set[int]) -> list[int]:
    """The candidates that may receive, the least loaded first."""
    able = [index for index, one in enumerate(candidates) if index not in but and one.may_receive]
    return sorted(able, key=lambda index: (candidates[index].load, index))


def _rejected(candidates: Sequence[RebalanceCandidate], order: Sequence[int]) -> tuple[RejectedOption, ...]:
    """The next best candidates, for the reason."""
    least = candidates[order[0]].load
    return tuple(
        RejectedOption(candidates[index].name, rejection_text("load", candidates[index].load, least))
        for index in order[1 : 1 + MAX_ALTERNATIVES]
    )


REBALANCE_POLICIES: dict[str, RebalancePolicy] = {"none": none, "llumnix": llumnix, "restless": restless}
