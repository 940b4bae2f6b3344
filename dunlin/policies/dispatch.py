"""Chooses the instance for a request: functions over a dispatcher's estimates of its candidates.

Knows no fleet, no stream and no request but its size; the dispatcher decides which instances are candidates at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dunlin.messages.types import Figure, Rejected, Why

ALTERNATIVES_KEPT = 3
ROW_TOKENS = 64
"""The cost of one more row in a step, in tokens of context, so that many short requests weigh like one long one."""

SAVED_WEIGHT = 8
"""Tokens of load that outweigh one token that need not be computed, which saves slots and time to first token. By
trial (`benchmarks/affinity.py`): with less, conversations leave the instance that holds them as soon as it is busy."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be asked, with the dispatcher's own reservations already counted in.

    `free_slots` may be negative: more is promised than is free. `requests` are running or waiting there. `held_tokens`
    of the request's beginning are probably there already. `turn` numbers this dispatcher's hand-outs: the last one that
    went there, 0 for none.
    """

    name: str
    capacity_slots: int
    free_slots: int
    requests: int
    waiting_tokens: int = 0
    held_tokens: int = 0
    turn: int = 0

    @property
    def demand_tokens(self) -> int:
        """Tokens held, waiting and promised."""
        return self.capacity_slots - self.free_slots + self.waiting_tokens

    @property
    def load_tokens(self) -> int:
        """`demand_tokens`, plus what its rows cost."""
        return self.demand_tokens + ROW_TOKENS * self.requests

    @property
    def load(self) -> float:
        """`load_tokens` in units of its capacity, so that instances of several sizes compare."""
        return self.load_tokens / max(1, self.capacity_slots)


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate's index, and why."""

    index: int
    why: Why


class Policy(Protocol):
    """A choice among candidates. Ties go to the first."""

    def __call__(self, slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
        """One of them.

        Args:
            slots: what the request needs now.
            candidates: at least one.
            among: how many there are in all, if these are only the best of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """How a policy orders candidates of one capacity, whatever the request: by `rank`, less `held_weight` for each
    token that they hold. The lowest is its choice, ties go to the first: see `tests/policies/test_dispatch.py`.
    """

    rank: Callable[[Candidate], int]
    held_weight: int = 0


def least_loaded(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The smallest load after the request would be there."""

    def load(candidate: Candidate) -> float:
        return (candidate.load_tokens + slots + ROW_TOKENS) / max(1, candidate.capacity_slots)

    return _choose("least_loaded", "load", slots, candidates, among, load)


def fewest_requests(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The fewest requests, however long: the baseline that counts connections."""
    return _choose("fewest_requests", "requests", slots, candidates, among, lambda candidate: candidate.requests)


def fewest_tokens(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The fewest tokens held, promised and waiting: the shortest local queue as PecSched measures it."""

    return _choose("fewest_tokens", "tokens", slots, candidates, among, lambda candidate: candidate.demand_tokens)


def round_robin(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The one that this dispatcher has asked least lately, whatever its load."""
    return _choose("round_robin", "turn", slots, candidates, among, lambda candidate: candidate.turn)


def llumnix(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The least used and queued demand over capacity, the request's own included: the load of Llumnix."""

    def load(candidate: Candidate) -> float:
        return (candidate.demand_tokens + slots) / max(1, candidate.capacity_slots)

    return _choose("llumnix", "load", slots, candidates, among, load)


def prefix_affinity(slots: int, candidates: Sequence[Candidate], among: int = 0) -> Choice:
    """The smallest load after the request would be there, less what it need not compute and hold there anew.

    A token that is saved outweighs `SAVED_WEIGHT` tokens of load: so much busier may an instance be that holds the
    beginning. What many share is thus soon held by several, each as busy as the others.
    """

    def load(candidate: Candidate) -> float:
        cost_tokens = slots + ROW_TOKENS - SAVED_WEIGHT * candidate.held_tokens
        return (candidate.load_tokens + cost_tokens) / max(1, candidate.capacity_slots)

    choice = _choose("prefix_affinity", "load_less_saved", slots, candidates, among, load)
    chosen = candidates[choice.index]
    figures = (Figure("held_tokens", chosen.held_tokens), Figure("load_tokens", chosen.load_tokens))
    return replace(choice, why=replace(choice.why, figures=(*choice.why.figures, *figures)))


POLICIES: dict[str, Policy] = {
    "least_loaded": least_loaded,
    "fewest_requests": fewest_requests,
    "fewest_tokens": fewest_tokens,
    "round_robin": round_robin,
    "llumnix": llumnix,
    "prefix_affinity": prefix_affinity,
}

ORDERS: dict[str, Order] = {
    "least_loaded": Order(lambda candidate: candidate.load_tokens),
    "fewest_requests": Order(lambda candidate: candidate.requests),
    "fewest_tokens": Order(lambda candidate: candidate.demand_tokens),
    "round_robin": Order(lambda candidate: candidate.turn),
    "llumnix": Order(lambda candidate: candidate.demand_tokens),
    "prefix_affinity": Order(lambda candidate: candidate.load_tokens, SAVED_WEIGHT),
}
"""The order behind each policy, for callers that keep many candidates sorted."""


def beaten(unit: str, score: float, best: float) -> str:
    """The reason against a rejected candidate: how much worse it was, or that it came second among equals."""
    return f"{unit} {score:.4g}" if score > best else f"the same {unit}"


def _choose(
    policy: str, unit: str, slots: int, candidates: Sequence[Candidate], among: int, score: Callable[[Candidate], float]
) -> Choice:
    """The lowest score, explained with the next best few."""
    scores = [score(candidate) for candidate in candidates]
    order = sorted(range(len(candidates)), key=scores.__getitem__)
    best = order[0]
    chosen = candidates[best]
    figures = (
        Figure("slots", slots),
        Figure(unit, scores[best]),
        Figure("free_slots", chosen.free_slots),
        Figure("candidates", among or len(candidates)),
    )
    rejected = tuple(
        Rejected(candidates[index].name, beaten(unit, scores[index], scores[best]))
        for index in order[1 : 1 + ALTERNATIVES_KEPT]
    )
    return Choice(best, Why(policy, chosen.name, figures, rejected))
