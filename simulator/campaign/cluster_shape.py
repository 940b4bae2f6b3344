"""From a plan's shape to the specification of a cluster."""

from dunlin.cost.links import EngineLinks
from dunlin.messages.types import i32
from simulator.campaign.plans import ClusterShape
from simulator.cluster.network import NetworkSpec
from simulator.cluster.spec import ClusterSpec
from simulator.engine.model import engine_settings

CHECKPOINT_TOKENS = 16
"""Short, so that requests of a few dozen tokens are checkpointed."""

LAYERS = 4
KV_BYTES = 64
"""Bytes of a token's KV, in all layers."""
WEIGHTS_SLOTS = 1
"""The memory of a layer's weights, as a multiple of its KV cache."""
BUSY_S = 0.001
"""Seconds of a copy to or from the host tier that block steps."""
COPIED_BYTES = 64 * KV_BYTES
"""Bytes that go from engine to engine in the time of a copy between KV cache and host tier."""

OBJECTIVES = {"objectives.ttft_s": 0.05, "objectives.tpot_s": 0.03, "scheduler.max_step_tokens": 64}
"""Tight beside steps of some milliseconds, so that batch work has to make way."""

RESTLESS_MOVES = {"rebalance.policy": "restless", "rebalance.interval_s": 0.1, "rebalance.rest_s": 0.05}
"""Requests of a few dozen tokens run for half a second."""


def cluster_of(shape: ClusterShape) -> ClusterSpec:
    """The specification of a cluster of that shape."""
    peer_rate = COPIED_BYTES / shape.move_s
    return ClusterSpec(
        instances=shape.instances,
        dispatchers=shape.dispatchers,
        managers=shape.managers,
        nodes=shape.nodes,
        preset=shape.preset,
        has_profiles=shape.has_profiles,
        tier_bytes=shape.tier_bytes,
        engine=engine_settings(
            progress_s=0.25,
            has_agent=shape.has_agents,
            layers=i32(range(LAYERS)),
            weights_bytes=WEIGHTS_SLOTS * shape.slots * KV_BYTES // LAYERS,
            kv_bytes_per_token=KV_BYTES,
            slots=shape.slots,
            step_s=shape.step_s,
            move_s=shape.move_s,
            restart_s=shape.restart_s,
            links=EngineLinks(nvlink=peer_rate, nic=peer_rate, look=peer_rate, host_busy_share=BUSY_S / shape.move_s),
        ),
        network=NetworkSpec(shape.latency_s, shape.latency_s, shape.latency_s),
        instance={
            **OBJECTIVES,
            **_starvation(shape),
            **({"groups.chunk_tokens": shape.group_chunk_tokens} if shape.group_chunk_tokens else {}),
            **({"interrupts.policy": shape.interrupts} if shape.interrupts != "never" else {}),
            "scheduler.max_running": shape.max_running,
            "kv_cache.prefix_caching": shape.prefix_reuse,
            "checkpoint.min_tokens": CHECKPOINT_TOKENS,
            "checkpoint.engine_share": shape.checkpoint_share,
            "checkpoint.pressure_share": shape.pressure_share,
            "scheduler.budget_tokens": shape.budget_tokens,
            "scheduler.allocate_ahead_tokens": shape.run_ahead_tokens,
        },
        manager=RESTLESS_MOVES if shape.rebalance == "restless" else {},
        dispatcher={
            **({"placement.long_tokens": shape.long_tokens} if shape.long_tokens else {}),
            "admission.max_queued": shape.max_queued,
            "placement.max_waiting_per_instance": shape.waiting_per_instance,
            **_starvation(shape),
        },
        kvstore={"exchange.replicate": shape.replicate and shape.nodes > 1},
        skews_s=shape.skews,
    )


def _starvation(shape: ClusterShape) -> dict[str, float]:
    return {"starvation.batch_wait_s": shape.batch_wait_s, "starvation.risen_share": shape.risen_share}
