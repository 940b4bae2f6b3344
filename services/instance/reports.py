"""The report of an instance. Knows no monitor, and not when a report is due."""

from typing import Any

from dunlin.messages.fleet import InstanceReport
from dunlin.messages.types import i32
from services.instance.engine.client import EngineClient
from services.instance.engine.recovery import EngineRecovery
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.residency import SlotUse
from services.instance.kv.whole_regions import all_layers
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.table import SequenceTable


def build_report(
    model: str,
    engine: EngineClient,
    recovery: EngineRecovery,
    sequences: SequenceTable,
    lifecycle: SequenceLifecycle,
    steps: StepLedger,
    host_cache: HostCacheClient,
    stale_total: int,
    more: dict[str, Any],
) -> InstanceReport:
    """The whole report; `more` are fields of other parts. Built in one call: a large fleet sends many reports."""
    slots, ready = lifecycle.slot_table, engine.ready
    layers = all_layers(ready) if ready else ()
    return InstanceReport(
        ready=ready is not None and ready.layers == i32(layers),
        capacity_slots=slots.capacity - slots.withheld,
        free_slots=slots.free,
        owned_slots=slots.count(SlotUse.OWNED),
        reserved_slots=slots.count(SlotUse.RESERVED),
        moving_slots=slots.count(SlotUse.MOVING),
        quarantined_slots=slots.count(SlotUse.QUARANTINED),
        max_positions=ready.max_positions if ready else 0,
        running=sequences.own_count - sequences.waiting_count,
        parked=sequences.parked_count,
        waiting=sequences.waiting_count,
        waiting_tokens=sequences.waiting_tokens(),
        head_waiting_tokens=sequences.head_waiting_tokens(),
        outstanding_steps=engine.outstanding,
        safepoints=engine.safepoints,
        engine_pid=engine.pid,
        model=model,
        weights_digest=ready.weights_digest if ready else "",
        kv_dtype=ready.kv_dtype if ready else "",
        steps_total=steps.totals.done,
        mixed_steps_total=steps.totals.mixed,
        multi_row_steps_total=steps.totals.multi_row,
        tokens_total=steps.totals.tokens,
        prefill_tokens_total=steps.totals.prefill_tokens,
        preemptions_total=lifecycle.preemptions_total,
        restored_tokens_total=lifecycle.restored_tokens_total,
        recomputed_tokens_total=lifecycle.recomputed_tokens_total,
        restored_regions_total=host_cache.restored_total,
        corrupt_regions_total=host_cache.corrupt_total,
        engine_restarts_total=engine.restarts_total,
        stale_total=stale_total,
        cached_slots=lifecycle.kv_cache.cached_slots,
        prefix_hit_tokens_total=lifecycle.prefix_hit_tokens_total,
        prefix_query_tokens_total=lifecycle.prefix_query_tokens_total,
        claimed_tokens_total=lifecycle.claimed_tokens_total,
        revived_tokens_total=recovery.revived_tokens_total,
        poisoned_total=lifecycle.poisoned_total,
        layout=ready.layout if ready else 0,
        layers_held=len(ready.layers) if ready else 0,
        model_layers=len(layers),
        **engine.misses.report_fields(),
        **steps.forecast.report_fields(),
        **more,
    )
