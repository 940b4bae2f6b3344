"""Bugs to plant in the starvation bound of batch work, at the dispatcher and the instance."""

from collections.abc import Callable, Sequence

from dunlin.messages.types import RequestClass
from dunlin.policies.starvation import StarvationBound, choose_rising
from services.dispatcher.requests.request import Request
from services.instance.sequence.sequence import Sequence as InstanceSequence
from services.instance.sequence.sequence import Turn
from services.instance.sequence.table import _waiting_turn
from tests.zoo.plant import Bug, skip, swap

_DISPATCHED_AS: Callable[[Request], RequestClass] = vars(Request)["dispatched_as"].fget


def _as_its_class(original: object, sequence: InstanceSequence) -> tuple[bool, bool, Turn]:
    return sequence.is_batch, not sequence.preempted, sequence.turn


def _without_bound(
    original: Callable[[Sequence[float], int], list[int]], stalled_s: Sequence[float], room: int
) -> list[int]:
    return original(stalled_s, len(stalled_s))


BUGS = (
    Bug(
        "starved-work-never-rises",
        "batch work waits behind chat for ever",
        ("I12",),
        (skip(StarvationBound.is_starved, bool),),
        seed=7617,
    ),
    Bug(
        "all-starved-work-rises",
        "the share of batch work that rose is not kept",
        ("I12",),
        (swap(choose_rising, _without_bound),),
        seed=7661,
    ),
    Bug(
        "risen-sequences-wait-behind-chat",
        "a batch sequence that rose keeps its place in the instance's queue",
        ("I12",),
        (swap(_waiting_turn, _as_its_class),),
        seed=7661,
    ),
    Bug(
        "risen-requests-wait-behind-chat",
        "a batch request that rose stays in the dispatcher's queue of batch requests",
        ("I12",),
        (swap(_DISPATCHED_AS, lambda original, request: request.submit.request_class),),
        seed=7718,
    ),
)
