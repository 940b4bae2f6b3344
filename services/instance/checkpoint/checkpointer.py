"""Copies the KV of running sequences to the host tier beside their steps, so that another instance can go on with it,
or a preempted sequence frees its slots at once.

One region at a time, of the sequence with the most tokens that lie in the KV cache alone. The engine's time in these
copies, and `REGION_OVERHEAD_S` for each, stay below `engine_share` of wall time, in which an idle engine counts too; a
share that was not used is saved up for `BURST_S`. While slots are short, sequences that may have to give theirs up have
a share of their own besides, which grows with the slots in use, and come first.
Knows no step and no other instance. Slots that are read here are only written again by steps that are sent after the
copy was cancelled.
"""

from typing import Any

from dunlin.effects import Effect
from dunlin.kv.prefix_hash import BLOCK_TOKENS
from dunlin.messages.engine import TransferDone
from dunlin.messages.types import HostRegion, Priority, TransferStatus
from dunlin.policies.checkpoint_rate import pressure_share
from services.instance.checkpoint.copy_budget import CopyBudget
from services.instance.kv.config import CheckpointConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.tickets import HostReservation, PendingTransfer, TransferPurpose
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

IDLE_RETRY_S = 0.02
"""Time between two searches after one that found nothing worth a copy, seconds."""

RETRY_AFTER_FAILURE_S = 2.0
"""Pause after the host tier was full or a copy failed, seconds."""


IN_SLAB_STATES = (SequenceState.RUNNING, SequenceState.PARKED, SequenceState.DRAINING, SequenceState.LEAVING)
"""The states in which a sequence's KV stays unchanged in its slots."""


class Checkpointer:
    """Decides what is copied when. `tokens_total` and `bytes_total` count what was committed, `busy_s_total` the
    engine's time in copies, whatever became of them.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        host_cache: HostCacheClient,
    ) -> None:
        self.tokens_total = 0
        self.bytes_total = 0
        self.busy_s_total = 0.0
        self._share, self._pressure_share = config.engine_share, config.pressure_share
        self._least_tokens = config.min_tokens
        self._most_tokens = max(config.min_tokens, config.max_tokens)
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._host_cache = host_cache
        self._not_before_s = 0.0
        self._failover_budget, self._pressure_budget = CopyBudget(), CopyBudget()
        self._paying = self._failover_budget
        """The one that pays for the copy under way."""

    @property
    def is_on(self) -> bool:
        """Whether the KV of running sequences is copied to the host tier: `engine_share` is above 0."""
        return self._share > 0

    def schedule_copy(self, now_s: float) -> list[Effect]:
        """Begin the next copy, if it is time for one and there is something to copy."""
        if not self.is_on or now_s < self._not_before_s or not self._host_cache.usable:
            return []
        for_failover, for_victims = self._may_copy(now_s)
        if not (for_failover or for_victims) or self._host_cache.is_pending(TransferPurpose.CHECKPOINT):
            return []
        chosen, self._paying = None, self._pressure_budget
        if for_victims:
            chosen = self._most_unkept(self._victims())
        if chosen is None and for_failover:
            chosen, self._paying = self._most_unkept(self._sequences.running), self._failover_budget
        if chosen is None:
            self._not_before_s = now_s + IDLE_RETRY_S
            return []
        sequence, stop = chosen
        return self._host_cache.reserve_region(sequence, stop, TransferPurpose.CHECKPOINT, Priority.CHECKPOINT, None)

    def start_copy_out(self, reservation: HostReservation, host: HostRegion) -> list[Effect]:
        """The kvstore reserved room: start the copy."""
        if not _continues_kept(reservation.sequence, reservation.region.start, reservation.region.stop):
            return self._host_cache.release(host)
        extents = self._lifecycle.kv_cache.extents(
            reservation.sequence, reservation.region.start, reservation.region.stop
        )
        return self._host_cache.copy_out(reservation, host, extents, reservation.priority)

    def on_room_refused(self, now_s: float) -> list[Effect]:
        """The host tier has no room: make no checkpoint for a while."""
        self._not_before_s = now_s + RETRY_AFTER_FAILURE_S
        return []

    def on_move_done(self, now_s: float, move: PendingTransfer, done: TransferDone) -> list[Effect]:
        """A copy ended: commit it if its sequence still has the same slots."""
        self.busy_s_total += done.busy_s
        self._paying.spend(done.busy_s)
        if done.status is TransferStatus.FAILED:
            self._not_before_s = now_s + RETRY_AFTER_FAILURE_S
        sequence, region = move.sequence, move.kept.region
        same = sequence.number == move.number and _continues_kept(sequence, region.start, region.stop)
        if done.status is not TransferStatus.OK or not same:
            return self._host_cache.release_uncommitted(move)
        self.tokens_total += region.stop - region.start
        self.bytes_total += done.moved_bytes
        return self._host_cache.commit(move, done.checksum)

    def release_checkpoints(self, now_s: float, wanted_bytes: int) -> list[Effect]:
        """Release checkpoints of running sequences, the youngest first, until `wanted_bytes` are released."""
        effects: list[Effect] = []
        freed_bytes = 0
        for sequence in reversed(self._sequences.running):
            freed_bytes += self._host_cache.size_bytes(sequence.kept_tokens)
            effects += self._host_cache.truncate(sequence)
            if freed_bytes >= wanted_bytes:
                break
        self._not_before_s = now_s + RETRY_AFTER_FAILURE_S
        return effects

    def report_fields(self) -> dict[str, Any]:
        """The checkpoint fields of a report."""
        return {
            "checkpointed_tokens_total": self.tokens_total,
            "checkpointed_bytes_total": self.bytes_total,
            "checkpoint_busy_s_total": self.busy_s_total,
        }

    def _may_copy(self, now_s: float) -> tuple[bool, bool]:
        """Whether there is time for a copy of any sequence, and for one of those that would be preempted first."""
        cache = self._lifecycle.kv_cache
        free_share = cache.available_slots / max(1, cache.slot_table.capacity)
        besides = pressure_share(free_share, self._pressure_share)
        return self._failover_budget.has_time(now_s, self._share), self._pressure_budget.has_time(now_s, besides)

    def _victims(self) -> list[Sequence]:
        """The sequences that would be preempted first: those that give way; without any, all that run."""
        running = self._sequences.running
        return [sequence for sequence in running if sequence.gives_way] or running

    def _most_unkept(self, sequences: list[Sequence]) -> tuple[Sequence, int] | None:
        """The one with the most tokens whose KV lies in the KV cache alone, and the position to copy up to."""
        best, most = None, self._least_tokens - 1
        for sequence in sequences:
            unkept = sequence.valid - sequence.valid % BLOCK_TOKENS - sequence.kept_tokens
            if unkept > most:
                best, most = sequence, unkept
        return None if best is None else (best, best.kept_tokens + min(most, self._most_tokens))


def _continues_kept(sequence: Sequence, start: int, stop: int) -> bool:
    """Whether the span continues the kept regions, and its KV is unchanged in the sequence's slots."""
    return sequence.state in IN_SLAB_STATES and sequence.kept_tokens == start and stop <= sequence.valid
