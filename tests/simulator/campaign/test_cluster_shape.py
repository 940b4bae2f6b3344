"""A plan's shape becomes a cluster's specification, field by field."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.campaign.cluster_shape import CHECKPOINT_TOKENS, cluster_of
from simulator.campaign.plans import ClusterShape
from simulator.campaign.runner import plan_of

SHAPE = replace(
    plan_of(1).shape,
    instances=3,
    dispatchers=2,
    managers=2,
    nodes=2,
    slots=160,
    tier_bytes=1 << 16,
    max_running=7,
    budget_tokens=48,
    run_ahead_tokens=5,
    max_queued=9,
    step_s=0.03,
    move_s=0.2,
    restart_s=4.0,
    latency_s=0.005,
    checkpoint_share=0.025,
    pressure_share=0.3,
    prefix_reuse=False,
    preset="vllm",
    skews=(1.0, 2.0),
)


def test_the_numbers_of_processes_and_their_clocks() -> None:
    spec = cluster_of(SHAPE)
    assert (spec.instances, spec.dispatchers, spec.managers, spec.nodes) == (3, 2, 2, 2)
    assert (spec.preset, spec.tier_bytes, spec.skews_s) == ("vllm", 1 << 16, (1.0, 2.0))
    assert spec.dispatcher_config().admission.max_queued == 9


def test_the_settings_of_an_instance() -> None:
    config = cluster_of(SHAPE).instance_config("node-1")
    scheduler, checkpoint = config.scheduler, config.checkpoint
    assert (scheduler.max_running, scheduler.budget_tokens, scheduler.allocate_ahead_tokens) == (7, 48, 5)
    assert (checkpoint.min_tokens, checkpoint.engine_share) == (CHECKPOINT_TOKENS, 0.025)
    assert checkpoint.pressure_share == 0.3
    assert config.kv_cache.prefix_caching is False


def test_the_starvation_bound_is_the_same_at_both() -> None:
    shape = replace(SHAPE, batch_wait_s=0.4, risen_share=0.3, waiting_per_instance=2)
    dispatcher, instance = cluster_of(shape).dispatcher_config(), cluster_of(shape).instance_config("node-0")
    assert (dispatcher.starvation.batch_wait_s, dispatcher.starvation.risen_share) == (0.4, 0.3)
    assert (instance.starvation.batch_wait_s, instance.starvation.risen_share) == (0.4, 0.3)
    assert dispatcher.placement.max_waiting_per_instance == 2


def test_the_engine_and_the_network() -> None:
    spec = cluster_of(SHAPE)
    timing: Any = spec.engine.timing
    assert (timing.fixed_s, timing.per_move_s) == (0.03, 0.2)
    assert (spec.engine.ready.slots, spec.engine.restart_s, spec.engine.progress_s) == (160, 4.0, 0.25)
    assert spec.engine.audit
    assert (spec.network.engine_s, spec.network.node_s, spec.network.link_s) == (0.005, 0.005, 0.005)


@pytest.mark.parametrize(("replicate", "nodes", "does"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_regions_are_replicated_only_where_there_is_another_node(replicate: bool, nodes: int, does: bool) -> None:
    shape: ClusterShape = replace(SHAPE, replicate=replicate, nodes=nodes)
    assert cluster_of(shape).kvstore_config("").exchange.replicate is does
