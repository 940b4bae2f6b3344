"""What an instance says of itself, and when: soon after a change, and as a heartbeat. Knows no monitor."""

from dataclasses import dataclass
from typing import Any

from dunlin.effects import After, Effect
from dunlin.messages.fleet import InstanceReport
from services.instance.engine_side import EngineSide
from services.instance.lives import Lives
from services.instance.revival import Revival
from services.instance.sequences import Sequences
from services.instance.slots import Use
from services.instance.steps import Steps
from services.instance.tier import HostTier


@dataclass(frozen=True, slots=True)
class ReportDue:
    """Time to report, unless a newer timer runs."""

    counter: int


class Reporter:
    """Owns the timer: one runs at a time."""

    def __init__(self, interval_s: float, after_change_s: float) -> None:
        self._interval_s = interval_s
        self._after_change_s = after_change_s
        self._due_s = float("inf")
        self._counter = 0

    def changed(self, now_s: float) -> list[Effect]:
        """Something that others should know changed: report soon."""
        return self._by(now_s, now_s + self._after_change_s)

    def reported(self, now_s: float) -> list[Effect]:
        """A report went out: the next one is a heartbeat."""
        self._due_s = float("inf")
        return self._by(now_s, now_s + self._interval_s)

    def is_due(self, message: ReportDue) -> bool:
        """Whether this is the newest timer."""
        return message.counter == self._counter

    def _by(self, now_s: float, due_s: float) -> list[Effect]:
        if due_s >= self._due_s:
            return []
        self._due_s = due_s
        self._counter += 1
        return [After(due_s - now_s, ReportDue(self._counter))]


def build_report(
    model: str,
    engine: EngineSide,
    revival: Revival,
    sequences: Sequences,
    lives: Lives,
    steps: Steps,
    tier: HostTier,
    stale_total: int,
    more: dict[str, Any],
) -> InstanceReport:
    """The whole report; `more` are fields that only others know. Made at once: reports are many in a large fleet."""
    slots, ready = lives.slots, engine.ready
    return InstanceReport(
        ready=ready is not None,
        capacity_slots=slots.capacity,
        free_slots=slots.free,
        owned_slots=slots.count(Use.OWNED),
        reserved_slots=slots.count(Use.RESERVED),
        moving_slots=slots.count(Use.MOVING),
        quarantined_slots=slots.count(Use.QUARANTINED),
        max_positions=ready.max_positions if ready else 0,
        running=len(sequences) - sequences.waiting_count,
        waiting=sequences.waiting_count,
        waiting_tokens=sequences.waiting_tokens(),
        head_waiting_tokens=sequences.head_waiting_tokens(),
        outstanding_steps=engine.outstanding,
        safepoints=engine.safepoints,
        engine_pid=engine.pid,
        model=model,
        weights_digest=ready.weights_digest if ready else "",
        kv_dtype=ready.kv_dtype if ready else "",
        steps_total=steps.done_total,
        mixed_steps_total=steps.mixed_total,
        multi_row_steps_total=steps.multi_row_total,
        tokens_total=steps.tokens_total,
        prefill_tokens_total=steps.prefill_tokens_total,
        preemptions_total=lives.preemptions_total,
        restored_tokens_total=lives.restored_tokens_total,
        recomputed_tokens_total=lives.recomputed_tokens_total,
        restored_regions_total=tier.restored_total,
        corrupt_regions_total=tier.corrupt_total,
        engine_restarts_total=engine.restarts_total,
        stale_total=engine.stale_total + stale_total,
        cached_slots=lives.slab.cached,
        prefix_hit_tokens_total=lives.prefix_hit_tokens_total,
        prefix_query_tokens_total=lives.prefix_query_tokens_total,
        claimed_tokens_total=lives.claimed_tokens_total,
        revived_tokens_total=revival.revived_tokens_total,
        poisoned_total=revival.poisoned_total,
        **more,
    )
