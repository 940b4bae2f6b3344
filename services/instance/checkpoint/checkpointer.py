"""Copies the KV of running sequences to the host tier beside their steps, so that another instance can go on with it.

One region at a time, of the sequence with the most tokens that lie in the KV cache alone. The engine's time in these
copies, and `REGION_OVERHEAD_S` for each, stay below `engine_share` of wall time, in which an idle engine counts too; a
share that was not used is saved up for `BURST_S`.
Knows no step and no other instance. Slots that are read here are only written again by steps that are sent after the
copy was cancelled.
"""

from typing import Any

from dunlin.effects import Effect
from dunlin.kv.prefix_hash import BLOCK_TOKENS
from dunlin.messages.engine import TransferDone
from dunlin.messages.types import HostRegion, Priority, TransferStatus
from services.instance.config import CheckpointConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.tickets import HostReservation, PendingTransfer, TransferPurpose
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.table import Sequence, SequenceState, SequenceTable

IDLE_RETRY_S = 0.02
"""Time between two searches after one that found nothing worth a copy, seconds."""

REGION_OVERHEAD_S = 0.001
"""What a region costs besides the copy: naming it, asking for room, the messages to and from engine and kvstore. It
bounds the number of regions where copies alone are so cheap that every few tokens would make one.
"""

BURST_S = 1.0
"""Unused copy time is saved up for at most so long, seconds: after a prefill the copies of a prompt are made one after
the other, where nothing was copied before.
"""

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
        self._share = config.engine_share
        self._least_tokens = config.min_tokens
        self._most_tokens = max(config.min_tokens, config.max_tokens)
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._host_cache = host_cache
        self._not_before_s = 0.0
        # Until then what was spent uses up the engine's share of the time.
        self._budget_used_until_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the KV of running sequences is copied to the host tier: `engine_share` is above 0."""
        return self._share > 0

    def schedule_copy(self, now_s: float) -> list[Effect]:
        """Begin the next copy, if it is time for one and there is something to copy."""
        if (
            not self.is_on
            or now_s < max(self._not_before_s, self._budget_used_until_s - BURST_S)
            or not self._host_cache.usable
        ):
            return []
        if self._host_cache.is_pending(TransferPurpose.CHECKPOINT):
            return []
        chosen = self._choose_sequence()
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
        if self.is_on:
            self._budget_used_until_s = (
                max(self._budget_used_until_s, now_s) + (done.busy_s + REGION_OVERHEAD_S) / self._share
            )
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

    def _choose_sequence(self) -> tuple[Sequence, int] | None:
        """The sequence with the most tokens whose KV lies in the KV cache alone, and the position to copy up to."""
        best, most = None, self._least_tokens - 1
        for sequence in self._sequences.running:
            unkept = sequence.valid - sequence.valid % BLOCK_TOKENS - sequence.kept_tokens
            if unkept > most:
                best, most = sequence, unkept
        return None if best is None else (best, best.kept_tokens + min(most, self._most_tokens))


def _continues_kept(sequence: Sequence, start: int, stop: int) -> bool:
    """Whether the span continues the kept regions, and its KV is unchanged in the sequence's slots."""
    return sequence.state in IN_SLAB_STATES and sequence.kept_tokens == start and stop <= sequence.valid
