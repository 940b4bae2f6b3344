"""The time of a step that computes with steps of other engines: LoongServe's sequence parallelism, per member. Pure.

Every member's step is priced alone, by what it computes and what it exchanges with each peer; a group's step takes as
long as the slowest member's. In a layer nothing but attention can go on while the exchange does, so that part takes as
long as the longest of: the member's own attention and what it serves; what its links carry; and the way of its queries
to a holder, the attention there, and the way of the results back (in a ring: one block of K/V after the other, each
while the one before is attended to). What is left of the step, linear layers above all, takes what it takes alone.

Knows counts, bytes and bandwidths; no sequence and no other traffic: exchanges have the highest priority on every link,
so only those of the own group delay them, and these share the member's links here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum

from dunlin.cost.links import EngineLinks
from dunlin.cost.models import AttentionCounts, BatchCounts, GroupStepTimes, own_attention


@dataclass(frozen=True, slots=True)
class ExchangeBytes:
    """Bytes of one token in one layer, over all GPUs of an instance: a query, a partial result (`out` and `lse` of all
    heads in float32), and K/V.
    """

    query: float
    result: float
    kv: float


@dataclass(slots=True)
class PeerWork:
    """What a step has to do with one peer's, in each layer. `is_near`: it is an engine of the same node.

    `asked`: the attention that the peer computes for this member's rows, for `queries_out` queries; `results_in`
    partial results come back, one per query. `served`, `queries_in` and `results_out`: the other way round.
    `keys_out`, `keys_in`: tokens whose K/V goes to the peer, or comes from it (ring).
    """

    is_near: bool = True
    asked: AttentionCounts = field(default_factory=AttentionCounts)
    served: AttentionCounts = field(default_factory=AttentionCounts)
    queries_out: int = 0
    results_in: int = 0
    queries_in: int = 0
    results_out: int = 0
    keys_out: int = 0
    keys_in: int = 0

    def bytes_out(self, sizes: ExchangeBytes) -> float:
        """What goes to the peer in a layer."""
        return self.queries_out * sizes.query + self.results_out * sizes.result + self.keys_out * sizes.kv

    def bytes_in(self, sizes: ExchangeBytes) -> float:
        """What comes from the peer in a layer."""
        return self.queries_in * sizes.query + self.results_in * sizes.result + self.keys_in * sizes.kv


@dataclass(slots=True)
class GroupWork:
    """One member's part of a group's step. `own`: its rows, attending to keys that lie here (ring: to all of them).

    `kept`: tokens of a ring whose K/V it writes into own slots, where they stay.
    """

    own: BatchCounts
    peers: list[PeerWork]
    kept: int = 0


def group_step_s(step: GroupStepTimes, work: GroupWork, sizes: ExchangeBytes, links: EngineLinks, layers: int) -> float:
    """Seconds of the member's step where all members begin at once."""
    rows = work.own.prefill_rows + work.own.decode_rows
    alone_s = step.step_s(work.own) if rows else step.bare_s
    own_s = step.attention_s(own_attention(work.own))
    kept_s = work.kept * sizes.kv * (links.send_byte_s + links.receive_byte_s)
    busy_s = own_s + _served_s(step, work.peers) + layers * (_copied_s(work.peers, sizes, links) + kept_s)
    ways = [busy_s, layers * _carried_s(work.peers, sizes, links)]
    ways += [_answer_s(step, peer, sizes, links, layers) for peer in work.peers if peer.queries_out]
    if any(peer.keys_in for peer in work.peers):
        ways.append(_ring_s(own_s, work.peers, sizes, links, layers))
    return max(0.0, alone_s - own_s) + max(ways)


def _served_s(step: GroupStepTimes, peers: Iterable[PeerWork]) -> float:
    served = AttentionCounts()
    for peer in peers:
        served.add_all(peer.served)
    return step.attention_s(served)


def _copied_s(peers: Iterable[PeerWork], sizes: ExchangeBytes, links: EngineLinks) -> float:
    """What copying takes from the engine's own work in a layer."""
    return fsum(
        peer.bytes_out(sizes) * links.send_byte_s + peer.bytes_in(sizes) * links.receive_byte_s for peer in peers
    )


def _carried_s(peers: list[PeerWork], sizes: ExchangeBytes, links: EngineLinks) -> float:
    """How long the busiest of the links carries a layer's exchange."""
    seconds = 0.0
    for is_near in (True, False):
        some = [peer for peer in peers if peer.is_near == is_near]
        rate = _rate(some[0], links)[0] if some else 0.0
        if rate:
            way = max(fsum(peer.bytes_out(sizes) for peer in some), fsum(peer.bytes_in(sizes) for peer in some))
            seconds = max(seconds, way / rate)
    return seconds


def _answer_s(step: GroupStepTimes, peer: PeerWork, sizes: ExchangeBytes, links: EngineLinks, layers: int) -> float:
    """Queries go, the holder attends to its keys, results come back."""
    rate, latency_s = _rate(peer, links)
    carried = peer.queries_out * sizes.query + peer.results_in * sizes.result
    return layers * (2 * latency_s + (carried / rate if rate else 0.0)) + step.attention_s(peer.asked)


def _ring_s(own_s: float, peers: list[PeerWork], sizes: ExchangeBytes, links: EngineLinks, layers: int) -> float:
    """The own block first; each further one arrives while the one before is attended to."""
    blocks = [peer for peer in peers if peer.keys_in]
    block_s = own_s / (len(blocks) + 1)
    seconds = block_s
    for peer in blocks:
        rate, latency_s = _rate(peer, links)
        way_s = latency_s + (peer.keys_in * sizes.kv / rate if rate else 0.0)
        seconds += max(block_s, layers * way_s)
    return seconds


def _rate(peer: PeerWork, links: EngineLinks) -> tuple[float, float]:
    """Bytes per second (0: without limit) and latency of the link to the peer."""
    return (links.nvlink, links.nvlink_s) if peer.is_near else (links.nic, links.nic_s)
