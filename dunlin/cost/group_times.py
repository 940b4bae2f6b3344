"""What LoongServe's planner compares (`policies.loongserve`), out of the times of an engine and of what was measured.

Equation 7 for each degree of parallelism comes from the fleet's own measurements (`store`), where there are any; for
other degrees it is fitted to steps that the cost model composes.
"""

from collections.abc import Iterator, Mapping, Sequence

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_steps import GroupWork, PeerWork
from dunlin.cost.models import BatchCounts
from dunlin.cost.prefill_fit import PrefillPoint, fit_prefill
from dunlin.cost.strategies import PrefillModel, Strategy
from dunlin.policies.groups.tipping import tipping_tokens
from dunlin.policies.loongserve.inputs import GroupTimes, PrefillPrices

DEGREES = (1, 2, 4, 8)
"""Degrees of parallelism that are planned with."""
START_DECODE_S = 8.0
"""The mean time that requests decode for, before it was seen: 250 tokens of 30 ms or so."""
SHORTEST, LONGEST = 512, 524_288
"""Lengths of prompts that equation 7 is fitted to: each is twice the one before."""
SAMPLED_BATCHES = (1, 4, 16)
_MOST_TOKENS = 1 << 20
_MOVED_PER_S = 1e6
PlannerTimes = GroupTimes
"""What `planning_times` makes, for callers that only hand it on."""


def prefill_work(degree: int, lengths: Sequence[int]) -> GroupWork:
    """One member's part of a ring of `degree` instances of one node over whole prompts: even stripes of each."""
    own = BatchCounts()
    peers = [PeerWork() for _ in range(degree - 1)]
    for length in lengths:
        stripe = range(0, length, degree)
        own.add_stripe(stripe)
        for peer in peers:
            peer.keys_in += length // degree
            peer.keys_out += len(stripe)
    return GroupWork(own, peers)


def chunk_by_queries_s(timing: EngineTiming, degree: int, tokens: int, prefix: int, is_near: bool = True) -> float:
    """Seconds of a chunk by queries: a block of `tokens` / `degree` at each member, after `prefix` tokens that lie
    evenly at all of them. `is_near`: all are on one node.
    """
    return max(timing.group_s(_block_work(degree, tokens // degree, prefix, at, is_near)) for at in range(degree))


def _block_work(degree: int, block: int, prefix: int, at: int, is_near: bool) -> GroupWork:
    """The part of the member that computes block `at`."""
    own, share = BatchCounts(), prefix // degree
    own.add_prefill(block, share)
    peers = []
    for other in (one for one in range(degree) if one != at):
        peer = PeerWork(is_near)
        if asked := share + (block if other < at else 0):
            peer.asked.add(block, asked)
            peer.queries_out = peer.results_in = block
        if served := share + (block if other > at else 0):
            peer.served.add(block, served)
            peer.queries_in = peer.results_out = block
        peers.append(peer)
    return GroupWork(own, peers)


def chunk_by_ring_s(
    timing: EngineTiming, degree: int, tokens: int, prefix: int, answering: int, is_near: bool = True
) -> float:
    """Seconds of a chunk whose stripes go round `degree` members, after `prefix` tokens that lie evenly at the first
    `answering` of them, which are asked for these.
    """
    return max(
        timing.group_s(_stripe_work(degree, tokens // degree, prefix // answering, answering, at, is_near))
        for at in (0, degree - 1)
    )


def _stripe_work(degree: int, stripe: int, share: int, answering: int, at: int, is_near: bool) -> GroupWork:
    """The part of member `at`: half of all stripes' keys come before each of its tokens."""
    own = BatchCounts()
    own.add_prefill(stripe, share if at < answering else 0)
    own.prefix_products += stripe * stripe * (degree - 1) // 2
    peers = []
    for other in (one for one in range(degree) if one != at):
        peer = PeerWork(is_near, keys_out=stripe, keys_in=stripe)
        if share and other < answering:
            peer.asked.add(stripe, share)
            peer.queries_out = peer.results_in = stripe
        if share and at < answering:
            peer.served.add(stripe, share)
            peer.queries_in = peer.results_out = stripe
        peers.append(peer)
    return GroupWork(own, peers, kept=stripe * degree // answering)


def prefill_s(timing: EngineTiming, degree: int, lengths: Sequence[int]) -> float:
    """Seconds of a prefill of whole prompts on so many instances of one node."""
    return timing.group_s(prefill_work(degree, lengths))


def fit_degrees(timing: EngineTiming, degrees: Sequence[int]) -> dict[int, PrefillModel]:
    """Equation 7 by degree, fitted to composed prefills."""
    return {degree: fit_prefill(list(_points(timing, degree))) for degree in degrees}


def _points(timing: EngineTiming, degree: int) -> Iterator[PrefillPoint]:
    length = SHORTEST
    while length <= LONGEST:
        for batch in SAMPLED_BATCHES:
            if batch * length <= _MOST_TOKENS:
                seconds = prefill_s(timing, degree, [length] * batch)
                yield PrefillPoint(batch * length, batch * length * length, seconds)
        length *= 2


def planning_times(
    timing: EngineTiming,
    degrees: Sequence[int],
    decode_s: float,
    tp: int = 1,
    measured: Mapping[Strategy, PrefillModel] | None = None,
) -> GroupTimes:
    """The planner's times. `measured`: the fleet's own equations (`ProfileStore.strategies`), which take the place of
    composed ones of the same degree and `tp`. `decode_s`: the mean time that requests decode for, as far as is known.

    The tipping point is a step of as many tokens as there are decode rows above which a further master pays: from
    there on arithmetic takes longer than reading the weights.
    """
    own = {strategy.sp: model for strategy, model in (measured or {}).items() if strategy.tp == tp}
    missing = [degree for degree in degrees if degree not in own]
    models = {**own, **fit_degrees(timing, missing)}
    tokens = tipping_tokens(timing)
    batch = BatchCounts()
    batch.add_prefill(tokens)
    return GroupTimes(
        measured={degree: PrefillPrices(m.fixed_s, m.token_s, m.square_s) for degree, m in sorted(models.items())},
        tipping_s=timing.step_s(batch),
        decode_s=decode_s,
        move_tokens_per_s=(timing.links.nvlink or 1e12) / timing.kv_bytes_per_token,
        rows_per_master=tokens,
    )


def steady_times(fixed_s: float, token_s: float) -> GroupTimes:
    """The planner's times where a step takes `fixed_s` and a prompt's token `token_s`, shared by all members."""
    measured = {degree: PrefillPrices(fixed_s, token_s / degree, 0.0) for degree in DEGREES}
    return GroupTimes(measured, 2.0 * fixed_s, START_DECODE_S, _MOVED_PER_S, rows_per_master=256)
