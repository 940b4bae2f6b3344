"""Bugs to plant in the instance: slots, sequences, what lies in the host tier, engines that follow each other."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Cancel
from dunlin.messages.engine import Close, MoveDone
from dunlin.messages.plan import Order
from dunlin.messages.pool import CommitRegion
from dunlin.messages.types import HostRegion, MoveStatus
from dunlin.prefix import BLOCK_TOKENS, begins, chain_of, root
from services.instance.admission import Admission
from services.instance.adoption import _adopted
from services.instance.arrivals import Arrivals
from services.instance.checkpointer import Checkpointer, _is_next
from services.instance.core import InstanceCore
from services.instance.lives import Lives
from services.instance.orders import Orders
from services.instance.prefixes import Link, Prefixes
from services.instance.revival import Revival, is_trusted
from services.instance.sequences import Kept, Sequence, State
from services.instance.slab import Slab
from services.instance.slots import Holding, SlotTable
from services.instance.suspects import is_poison
from services.instance.tickets import PendingMove
from services.instance.tier import HostTier
from services.instance.watch import EngineWatch
from tests.zoo.plant import Bug, skip, swap


def _release_but_the_last(original: object, self: SlotTable, owner: int) -> int:
    holding = self._holdings.pop(owner, None)
    if holding is None:
        return 0
    self._counts[holding.use] -= holding.slots
    self.free += holding.slots
    for extent in holding.extents[: max(1, len(holding.extents) - 1)]:
        self._put_back(extent)
    return holding.slots


def _stop_in_use(original: object, self: Lives, sequence: Sequence) -> list[Effect]:
    if sequence.state is State.ENDING:
        return []
    if sequence.state not in (State.SPILLING, State.RESTORING):
        self._tier.withdraw(sequence)
        return self.end(sequence)
    self._sequences.go(sequence, State.ENDING)
    return [Send(self._engine, Close(sequence.number))]


def _drain_in_use(original: object, self: Lives, sequence: Sequence) -> list[Effect]:
    if sequence.state is State.ENDING:
        return [] if sequence.in_steps > 0 else self.end(sequence)
    return self._leave_slab(sequence) if sequence.state is State.DRAINING else []


def _link_of_any_tenant(original: object, self: Slab, sequence: Sequence) -> Link:
    start = root("", self._weights_digest or "")
    return lambda count: sequence.chains.at(start, sequence.tokens, count * BLOCK_TOKENS)


def _came_back_whole(
    original: Callable[[Lives, PendingMove, MoveDone], list[Effect]], self: Lives, flight: PendingMove, done: MoveDone
) -> list[Effect]:
    is_next = flight.sequence.answered == flight.kept.region.start
    return original(self, flight, replace(done, status=MoveStatus.OK) if is_next else done)


def _landed_for_any_life(
    original: Callable[[Checkpointer, float, PendingMove, MoveDone], list[Effect]],
    self: Checkpointer,
    now_s: float,
    flight: PendingMove,
    done: MoveDone,
) -> list[Effect]:
    return original(self, now_s, replace(flight, number=flight.sequence.number), done)


def _commit_for_the_dead(original: object, self: HostTier, flight: PendingMove, checksum: int) -> list[Effect]:
    kept, sequence = flight.kept, flight.sequence
    if self._kvstore is None:
        return []
    host = kept.host
    host = HostRegion(host.handle, host.generation, host.offset_bytes, host.length_bytes, checksum)
    sequence.kept.append(Kept(kept.region, host, kept.keeper, kept.chain))
    return [Send(self._kvstore, CommitRegion(host.handle, host.generation, checksum))]


def _never_stale(original: Callable[[Orders, Order], str | None], self: Orders, order: Order) -> str | None:
    epoch, version = self.version
    return original(self, replace(order, epoch=epoch, plan_version=version))


def _cancel_the_newest(
    original: Callable[[Admission, float, Address, Cancel], list[Effect]],
    self: Admission,
    now_s: float,
    sender: Address,
    cancel: Cancel,
) -> list[Effect]:
    newest = self._sequences.of_key((sender, cancel.request))
    if newest is not None:
        cancel = replace(cancel, attempt=max(cancel.attempt, newest.place.attempt))
    return original(self, now_s, sender, cancel)


def _hold_unanswered(
    original: Callable[[Revival, Sequence, bool], list[Effect]], self: Revival, sequence: Sequence, trusted: bool
) -> list[Effect]:
    passing = (State.WAITING, State.ENDING, State.RESTORING)
    goes_on = trusted and sequence.state not in passing and self._lives.slab.held(sequence)
    computed = sequence.computed
    effects = original(self, sequence, trusted)
    if goes_on:
        sequence.computed = computed
    return effects


def _look_unforgiving(
    original: Callable[[EngineWatch, float, int, int], object],
    self: EngineWatch,
    now_s: float,
    safepoints: int,
    outstanding: int,
) -> object:
    self._looked_s = now_s
    return original(self, now_s, safepoints, outstanding)


def _landed_anyhow(
    original: Callable[[Arrivals, int, MoveDone], list[Effect]], self: Arrivals, handle: int, done: MoveDone
) -> list[Effect]:
    is_cancelled = done.status is MoveStatus.CANCELLED
    return original(self, handle, done if is_cancelled else replace(done, status=MoveStatus.OK))


BUGS = (
    Bug(
        "span-off-by-one",
        "a decode row is given the slot after its own",
        ("I6", "I8", "I1"),
        (
            swap(
                Holding.span,
                lambda original, self, start, stop: [
                    (first + (stop > 40), length) for first, length in original(self, start, stop)
                ],
            ),
        ),
        seed=30000,
    ),
    Bug(
        "leaked-slots",
        "the slots of a sequence that ends are not given back",
        ("I8",),
        (skip(Slab.retire, lambda: None, called_by=Lives.end),),
        seed=100017,
    ),
    Bug(
        "leaked-extent",
        "the last piece of a holding in pieces is not given back",
        ("I8",),
        (swap(SlotTable.release, _release_but_the_last),),
        seed=30002,
    ),
    Bug(
        "slots-freed-while-in-use",
        "a sequence that ends gives its slots back while outstanding steps still write them",
        ("I6", "I8", "core"),
        (swap(Lives.stop, _stop_in_use),),
        seed=100049,
    ),
    Bug(
        "preempted-while-in-use",
        "a preempted sequence leaves the slab while outstanding steps still name it",
        ("I6", "I7", "I8", "I1", "core", "I12"),
        (swap(Lives.settle, _drain_in_use),),
        seed=30008,
    ),
    Bug(
        "pinned-block-evicted",
        "a prefix that a running sequence uses is given away",
        ("I6", "I8"),
        (swap(Prefixes._is_loose, lambda original, self, block: block.is_held and block.children == 0),),
        seed=100039,
    ),
    Bug(
        "prefix-shared-by-tenants",
        "a prefix is found by its tokens, whichever tenant's it is",
        ("I6",),
        (swap(Slab._link, _link_of_any_tenant),),
        seed=30000,
    ),
    Bug(
        "donated-too-much",
        "blocks are shared before they have KV",
        ("I6", "I7", "I8", "core"),
        (swap(Slab.donate, lambda original, self, sequence, tokens: original(self, sequence, len(sequence.tokens))),),
        seed=100129,
    ),
    Bug(
        "checksum-skipped",
        "a region that came back damaged is used all the same",
        ("I6", "I7"),
        (swap(Lives._came_back, _came_back_whole),),
        seed=100099,
    ),
    Bug(
        "checkpoint-of-freed-slots",
        "a checkpoint counts although its sequence has left those slots meanwhile",
        ("I6", "I7"),
        (
            swap(Checkpointer.landed, _landed_for_any_life),
            swap(
                _is_next,
                lambda original, sequence, start, stop: sequence.kept_tokens == start,
                called_by=Checkpointer.landed,
            ),
            skip(HostTier.cancel, list, called_by=Lives._leave_slab),
        ),
        seed=40025,
    ),
    Bug(
        "outlived-kvstore-obeyed",
        "a kvstore that slept and was replaced takes an instance back when it wakes",
        ("I8", "I7"),
        (skip(HostTier.is_outlived, bool, called_by=InstanceCore._on_tier),),
        seed=4402163,
    ),
    Bug(
        "room-with-more-than-is-known",
        "an attempt of fewer tokens than lie in the room that it takes over ends the instance",
        ("I8", "core"),
        (swap(begins, lambda original, start, tokens, stop, chain: chain_of(start, tokens, stop) == chain),),
        seed=4602299,
    ),
    Bug(
        "answer-of-a-dead-kvstore",
        "room in a kvstore's memory is used after that kvstore was replaced",
        ("I7", "I12", "I8", "core"),
        (swap(HostTier.commit, _commit_for_the_dead),),
        seed=100310,
    ),
    Bug(
        "stale-epoch-obeyed",
        "an order of an older epoch or plan version is followed",
        ("I2",),
        (swap(Orders._refusal, _never_stale),),
        seed=100079,
    ),
    Bug(
        "old-cancel-obeyed",
        "the cancellation of an old attempt ends the new one",
        ("I12", "I1"),
        (swap(Admission.cancel, _cancel_the_newest),),
        seed=101734,
    ),
    Bug(
        "wild-slab-trusted",
        "after an engine's wild write its slab is used again",
        ("I6",),
        (swap(is_trusted, lambda original, exited: exited is not None),),
        seed=30010,
    ),
    Bug(
        "unanswered-rows-count",
        "after an engine's end a sequence goes on behind rows that were never answered",
        ("I6", "I1", "I12", "core"),
        (swap(Revival._hold, _hold_unanswered),),
        seed=100099,
    ),
    Bug(
        "poison-runs-for-ever",
        "a request that crashes engines alone is tried again and again",
        ("I1", "I12"),
        (skip(is_poison, bool),),
        seed=100108,
    ),
    Bug(
        "sleep-taken-for-a-hang",
        "an instance that slept holds its engine responsible for the time",
        ("I9",),
        (swap(EngineWatch.look, _look_unforgiving),),
        seed=100218,
    ),
    Bug(
        "adopted-one-token-short",
        "a dispatcher that takes a request over is not told its last token",
        ("I1", "I12"),
        (
            swap(
                _adopted,
                lambda original, sender, adopt, place, tokens, *rest: original(
                    sender, adopt, place, tokens[:-1], *rest
                ),
            ),
        ),
        seed=100119,
    ),
    Bug(
        "arrival-not-given-up",
        "room for a sequence that never arrives is kept",
        ("I8",),
        (skip(Arrivals._free, list, called_by=Arrivals._give_up),),
        seed=30015,
    ),
    Bug(
        "arrival-says-too-much",
        "a region that was not copied counts as filled",
        ("I6", "I7", "core"),
        (swap(Arrivals.landed, _landed_anyhow),),
        seed=100249,
    ),
    Bug(
        "orphans-kept",
        "a client's end does not reach the instance: cancelled sequences run on",
        ("I12", "I1"),
        (skip(Lives.stop, list, called_by=Admission.cancel),),
        seed=100209,
    ),
    Bug(
        "kept-room-never-returned",
        "what was kept in the host tier stays there when it is not needed any more",
        ("I8",),
        (skip(HostTier.release, list, called_by=HostTier.cut),),
        seed=50002,
    ),
)
