"""Bugs to plant in the instance: slots, sequences, what lies in the host tier, engines that follow each other."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.kv.prefix_hash import BLOCK_TOKENS, chain_root
from dunlin.messages.dispatch import Cancel
from dunlin.messages.engine import Close, TransferDone
from dunlin.messages.plan import GroupOrder
from dunlin.messages.pool import CommitRegion
from dunlin.messages.types import HostRegion, TransferStatus
from services.instance.admission import AttemptAdmission
from services.instance.adoption import _adopted
from services.instance.checkpoint.checkpointer import Checkpointer, _continues_kept
from services.instance.core import InstanceCore
from services.instance.engine.recovery import EngineRecovery, is_kv_trusted
from services.instance.engine.watchdog import EngineWatchdog
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.prefix_cache import ChainOf, PrefixCache
from services.instance.kv.residency import Residency
from services.instance.kv.slot_table import SlotTable
from services.instance.kv.tickets import PendingTransfer
from services.instance.migration.migrate_in import MigrateIn
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.crash_suspects import is_poison
from services.instance.sequence.sequence import KeptHostRegion, Sequence
from services.instance.sequence.states import SequenceState
from tests.zoo.plant import Bug, skip, swap


def _release_but_the_last(original: object, self: SlotTable, owner: int) -> int:
    residency = self._residencies.pop(owner, None)
    if residency is None:
        return 0
    self._counts[residency.use] -= residency.slots
    *others, last = residency.extents
    for extent in others or [last]:
        self._return_extent(extent)
    self.free += last[1] if others else 0
    return residency.slots


def _stop_in_use(original: object, self: SequenceLifecycle, sequence: Sequence) -> list[Effect]:
    if sequence.state is SequenceState.ENDING:
        return []
    if sequence.state not in (SequenceState.SPILLING, SequenceState.RESTORING):
        self._host_cache.cancel_requests(sequence)
        return self.end(sequence)
    self._sequences.transition(sequence, SequenceState.ENDING)
    return [Send(self._engine, Close(sequence.number))]


def _drain_in_use(original: object, self: SequenceLifecycle, sequence: Sequence) -> list[Effect]:
    if sequence.state is SequenceState.ENDING:
        return [] if sequence.in_steps > 0 else self.end(sequence)
    return self._release_or_spill(sequence) if sequence.state is SequenceState.DRAINING else []


def _link_of_any_tenant(original: object, self: KvCache, sequence: Sequence) -> ChainOf:
    start = chain_root("", self._weights_digest or "")
    return lambda count: sequence.chains.chain_at(start, sequence.tokens, count * BLOCK_TOKENS)


def _came_back_whole(
    original: Callable[[SequenceLifecycle, PendingTransfer, TransferDone], list[Effect]],
    self: SequenceLifecycle,
    flight: PendingTransfer,
    done: TransferDone,
) -> list[Effect]:
    is_next = flight.sequence.valid == flight.kept.region.start
    return original(self, flight, replace(done, status=TransferStatus.OK) if is_next else done)


def _landed_for_any_life(
    original: Callable[[Checkpointer, float, PendingTransfer, TransferDone], list[Effect]],
    self: Checkpointer,
    now_s: float,
    flight: PendingTransfer,
    done: TransferDone,
) -> list[Effect]:
    return original(self, now_s, replace(flight, number=flight.sequence.number), done)


def _commit_for_the_dead(
    original: object, self: HostCacheClient, flight: PendingTransfer, checksum: int
) -> list[Effect]:
    kept, sequence = flight.kept, flight.sequence
    if self._kvstore is None:
        return []
    host = kept.host
    host = HostRegion(host.handle, host.generation, host.offset_bytes, host.length_bytes, checksum)
    sequence.kept.append(KeptHostRegion(kept.region, host, kept.keeper, kept.chain))
    return [Send(self._kvstore, CommitRegion(host.handle, host.generation, checksum))]


def _never_stale(
    original: Callable[[GroupOrders, GroupOrder], str | None], self: GroupOrders, order: GroupOrder
) -> str | None:
    epoch, version = self.version
    return original(self, replace(order, epoch=epoch, plan_version=version))


def _cancel_the_newest(
    original: Callable[[AttemptAdmission, float, Address, Cancel], list[Effect]],
    self: AttemptAdmission,
    now_s: float,
    sender: Address,
    cancel: Cancel,
) -> list[Effect]:
    newest = self._sequences.by_key((sender, cancel.request))
    if newest is not None:
        cancel = replace(cancel, attempt=max(cancel.attempt, newest.place.attempt))
    return original(self, now_s, sender, cancel)


def _hold_unanswered(
    original: Callable[[EngineRecovery, Sequence, bool], list[Effect]],
    self: EngineRecovery,
    sequence: Sequence,
    trusted: bool,
) -> list[Effect]:
    passing = (SequenceState.WAITING, SequenceState.ENDING, SequenceState.RESTORING)
    goes_on = trusted and sequence.state not in passing and self._lifecycle.kv_cache.held_positions(sequence)
    computed = sequence.issued
    effects = original(self, sequence, trusted)
    if goes_on:
        sequence.issued = computed
    return effects


def _look_unforgiving(
    original: Callable[[EngineWatchdog, float, int, int], object],
    self: EngineWatchdog,
    now_s: float,
    safepoints: int,
    outstanding: int,
) -> object:
    self._checked_s = now_s
    return original(self, now_s, safepoints, outstanding)


def _landed_anyhow(
    original: Callable[[MigrateIn, int, TransferDone], list[Effect]], self: MigrateIn, handle: int, done: TransferDone
) -> list[Effect]:
    is_cancelled = done.status is TransferStatus.CANCELLED
    return original(self, handle, done if is_cancelled else replace(done, status=TransferStatus.OK))


BUGS = (
    Bug(
        "span-off-by-one",
        "a decode row is given the slot after its own",
        ("I6", "I8", "I1"),
        (
            swap(
                Residency.slots_of,
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
        (skip(KvCache.release_to_prefix_cache, lambda: None, called_by=SequenceLifecycle.end),),
        seed=300009,
    ),
    Bug(
        "leaked-extent",
        "the last piece of a residency in pieces is not given back",
        ("I8",),
        (swap(SlotTable.release, _release_but_the_last),),
        seed=30002,
    ),
    Bug(
        "slots-freed-while-in-use",
        "a sequence that ends gives its slots back while outstanding steps still write them",
        ("I6", "I8", "core"),
        (swap(SequenceLifecycle.stop, _stop_in_use),),
        seed=40024,
    ),
    Bug(
        "preempted-while-in-use",
        "a preempted sequence leaves the slab while outstanding steps still name it",
        ("I6", "I7", "I8", "I1", "core", "I12"),
        (swap(SequenceLifecycle.complete_deferred, _drain_in_use),),
        seed=30008,
    ),
    Bug(
        "pinned-block-evicted",
        "a prefix that a running sequence uses is given away",
        ("I6", "I8"),
        (swap(PrefixCache._is_evictable, lambda original, self, block: block.is_cached and block.children == 0),),
        seed=42,
    ),
    Bug(
        "prefix-shared-by-tenants",
        "a prefix is found by its tokens, whichever tenant's it is",
        ("I6",),
        (swap(KvCache._chain_of, _link_of_any_tenant),),
        seed=300049,
    ),
    Bug(
        "donated-too-much",
        "blocks are shared before they have KV",
        ("I6", "I7", "I8", "core"),
        (
            swap(
                KvCache.share_prefix,
                lambda original, self, sequence, tokens: original(self, sequence, len(sequence.tokens)),
            ),
        ),
        seed=60309,
    ),
    Bug(
        "checksum-skipped",
        "a region that came back damaged is used all the same",
        ("I6", "I7"),
        (swap(SequenceLifecycle._region_restored, _came_back_whole),),
        seed=95,
    ),
    Bug(
        "checkpoint-of-freed-slots",
        "a checkpoint counts although its sequence has left those slots meanwhile",
        ("I6", "I7"),
        (
            swap(Checkpointer.on_move_done, _landed_for_any_life),
            swap(
                _continues_kept,
                lambda original, sequence, start, stop: sequence.kept_tokens == start,
                called_by=Checkpointer.on_move_done,
            ),
            skip(HostCacheClient.cancel_copies, list, called_by=SequenceLifecycle._release_or_spill),
        ),
        seed=40209,
    ),
    Bug(
        "outlived-kvstore-obeyed",
        "a kvstore that slept and was replaced takes an instance back when it wakes",
        ("I8", "I7"),
        (skip(HostCacheClient.is_superseded, bool, called_by=InstanceCore._on_tier),),
        seed=4402163,
    ),
    Bug(
        "answer-of-a-dead-kvstore",
        "room in a kvstore's memory is used after that kvstore was replaced",
        ("I7", "I12", "I8", "core"),
        (swap(HostCacheClient.commit, _commit_for_the_dead),),
        seed=100310,
    ),
    Bug(
        "stale-epoch-obeyed",
        "an order of an older epoch or plan version is followed",
        ("I2",),
        (swap(GroupOrders._refusal, _never_stale),),
        seed=100079,
    ),
    Bug(
        "old-cancel-obeyed",
        "the cancellation of an old attempt ends the new one",
        ("I12", "I1"),
        (swap(AttemptAdmission.cancel, _cancel_the_newest),),
        seed=41190,
    ),
    Bug(
        "wild-slab-trusted",
        "after an engine's wild write its slab is used again",
        ("I6",),
        (swap(is_kv_trusted, lambda original, exited: exited is not None),),
        seed=300106,
    ),
    Bug(
        "unanswered-rows-count",
        "after an engine's end a sequence goes on behind rows that were never answered",
        ("I6", "I1", "I12", "core"),
        (swap(EngineRecovery._roll_back, _hold_unanswered),),
        seed=300115,
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
        (swap(EngineWatchdog.check, _look_unforgiving),),
        seed=60514,
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
        seed=300135,
    ),
    Bug(
        "arrival-not-given-up",
        "room for a sequence that never arrives is kept",
        ("I8",),
        (skip(MigrateIn._free, list, called_by=MigrateIn._cancel),),
        seed=143,
    ),
    Bug(
        "arrival-says-too-much",
        "a region that was not copied counts as filled",
        ("I6", "I7", "core"),
        (swap(MigrateIn.on_move_done, _landed_anyhow),),
        seed=60433,
    ),
    Bug(
        "orphans-kept",
        "a client's end does not reach the instance: cancelled sequences run on",
        ("I12", "I1"),
        (skip(SequenceLifecycle.stop, list, called_by=AttemptAdmission.cancel),),
        seed=300157,
    ),
    Bug(
        "kept-room-never-returned",
        "what was kept in the host tier stays there when it is not needed any more",
        ("I8",),
        (skip(HostCacheClient.release, list, called_by=HostCacheClient.truncate),),
        seed=300161,
    ),
)
