"""Which instance a request is dispatched to: functions over the dispatcher's candidates and the request's size.

Knows no fleet and no stream; the dispatcher decides which instances are candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, Why

REQUEST_OVERHEAD_TOKENS = 64
"""What one more request costs a step beyond its tokens, in tokens of context: many short ones weigh like a long one."""

CACHE_HIT_WEIGHT = 8
"""How many tokens of load one cached token outweighs: it saves slots, and time to the first token.

Found by trial (`benchmarks/kv/prefix_affinity.py`): with less, conversations leave the instance that has their prefix
as soon as it is busy.
"""


@dataclass(frozen=True, slots=True)
class DispatchCandidate:
    """An instance that the request may be dispatched to, with the dispatcher's own reservations counted in.

    `free_slots` may be negative: more is reserved than is free. `requests` are running or waiting there, the waiting
    ones with `waiting_tokens`. `cached_tokens` of the request's prefix are probably there. `last_dispatch` is the
    dispatcher's counter of dispatches when the last one went there; 0: none has.
    """

    name: str
    capacity_slots: int
    free_slots: int
    requests: int
    waiting_tokens: int = 0
    cached_tokens: int = 0
    last_dispatch: int = 0

    @property
    def demand_tokens(self) -> int:
        """Tokens that occupy slots, wait for slots or are reserved."""
        return self.capacity_slots - self.free_slots + self.waiting_tokens

    @property
    def load_tokens(self) -> int:
        """`demand_tokens`, plus the overhead of its requests."""
        return self.demand_tokens + REQUEST_OVERHEAD_TOKENS * self.requests

    @property
    def load(self) -> float:
        """`load_tokens` as a share of the capacity, so that instances of several sizes compare."""
        return self.load_tokens / max(1, self.capacity_slots)


@dataclass(frozen=True, slots=True)
class DispatchChoice:
    """The chosen candidate's index, and the reason."""

    index: int
    why: Why


class DispatchPolicy(Protocol):
    """A choice among candidates. Ties go to the first."""

    def __call__(self, slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
        """Choose one of the candidates.

        Args:
            slots: token slots that the request needs now.
            candidates: at least one.
            among: the number of all candidates, if these are only the best of them; 0: these are all.
        """
        ...


@dataclass(frozen=True, slots=True)
class CandidateOrder:
    """How a policy orders candidates of one capacity, whatever the request: by `rank`, less `cached_weight` for each
    cached token. The lowest is its choice, ties go to the first; `tests/policies/test_dispatch.py` holds that.
    """

    rank: Callable[[DispatchCandidate], int]
    cached_weight: int = 0


def least_loaded(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The smallest load after the request was added."""

    def load(candidate: DispatchCandidate) -> float:
        return (candidate.load_tokens + slots + REQUEST_OVERHEAD_TOKENS) / max(1, candidate.capacity_slots)

    return _choose("least_loaded", "load", slots, candidates, among, load)


def fewest_requests(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The fewest requests, however long they are: the baseline that counts connections."""
    return _choose("fewest_requests", "requests", slots, candidates, among, lambda candidate: candidate.requests)


def fewest_tokens(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The fewest tokens in slots, reserved and waiting: the shortest local queue as PecSched measures it."""

    return _choose("fewest_tokens", "tokens", slots, candidates, among, lambda candidate: candidate.demand_tokens)


def round_robin(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The candidate whose last dispatch from this dispatcher is the oldest, whatever its load."""
    return _choose("round_robin", "turn", slots, candidates, among, lambda candidate: candidate.last_dispatch)


def llumnix(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The least used and queued tokens over capacity, the request's own included: the load of Llumnix."""

    def load(candidate: DispatchCandidate) -> float:
        return (candidate.demand_tokens + slots) / max(1, candidate.capacity_slots)

    return _choose("llumnix", "load", slots, candidates, among, load)


def prefix_affinity(slots: int, candidates: Sequence[DispatchCandidate], among: int = 0) -> DispatchChoice:
    """The smallest load after the request was added, less the saving by its cached prefix there.

    A cached token outweighs `CACHE_HIT_WEIGHT` tokens of load: an instance with the prefix may be that much busier than
    one without. A prefix that many requests share is therefore soon cached at several instances of equal load.
    """

    def load(candidate: DispatchCandidate) -> float:
        cost_tokens = slots + REQUEST_OVERHEAD_TOKENS - CACHE_HIT_WEIGHT * candidate.cached_tokens
        return (candidate.load_tokens + cost_tokens) / max(1, candidate.capacity_slots)

    choice = _choose("prefix_affinity", "load_less_saved", slots, candidates, among, load)
    chosen = candidates[choice.index]
    figures = (Figure("held_tokens", chosen.cached_tokens), Figure("load_tokens", chosen.load_tokens))
    return replace(choice, why=replace(choice.why, figures=(*choice.why.figures, *figures)))


DISPATCH_POLICIES: dict[str, DispatchPolicy] = {
    "least_loaded": least_loaded,
    "fewest_requests": fewest_requests,
    "fewest_tokens": fewest_tokens,
    "round_robin": round_robin,
    "llumnix": llumnix,
    "prefix_affinity": prefix_affinity,
}

CANDIDATE_ORDERS: dict[str, CandidateOrder] = {
    "least_loaded": CandidateOrder(lambda candidate: candidate.load_tokens),
    "fewest_requests": CandidateOrder(lambda candidate: candidate.requests),
    "fewest_tokens": CandidateOrder(lambda candidate: candidate.demand_tokens),
    "round_robin": CandidateOrder(lambda candidate: candidate.last_dispatch),
    "llumnix": CandidateOrder(lambda candidate: candidate.demand_tokens),
    "prefix_affinity": CandidateOrder(lambda candidate: candidate.load_tokens, CACHE_HIT_WEIGHT),
}
"""The order behind each policy, for callers that keep many candidates sorted."""


def rejection_text(unit: str, score: float, best: float) -> str:
    """Why a candidate was not chosen: its score, or that it came second among equals."""
    return f"{unit} {score:.4g}" if score > best else f"the same {unit}"


def _choose(
    policy: str,
    unit: str,
    slots: int,
    candidates: Sequence[DispatchCandidate],
    among: int,
    score: Callable[[DispatchCandidate], float],
) -> DispatchChoice:
    """The candidate with the lowest score, and a reason that names the next best `MAX_ALTERNATIVES`."""
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
        RejectedOption(candidates[index].name, rejection_text(unit, scores[index], scores[best]))
        for index in order[1 : 1 + MAX_ALTERNATIVES]
    )
    return DispatchChoice(best, Why(policy, chosen.name, figures, rejected))
