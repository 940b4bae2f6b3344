"""The settings of a simulated cluster: the preset, what wins over it, and what is refused."""

from typing import Any

import pytest

from simulator.cluster.spec import ClusterSpec, spec_of


def test_a_preset_sets_policies_and_settings_win_over_it() -> None:
    spec = ClusterSpec(preset="vllm", instance={"preemption.mode": "spill"})
    assert (spec.instance_config("").scheduler.policy, spec.instance_config("").preemption.mode) == (
        "prefill_first",
        "spill",
    )
    assert spec.dispatcher_config().placement.policy == "fewest_requests"
    assert ClusterSpec(preset="llumnix").manager_config().rebalance.policy == "llumnix"


def test_each_role_gets_its_own_settings() -> None:
    spec = ClusterSpec(
        instance={"scheduler.max_running": 3},
        dispatcher={"admission.max_queued": 4},
        kvstore={"exchange.replicate": True},
        monitor={"liveness.silent_s": 7.0},
    )
    assert spec.instance_config("node-1").scheduler.max_running == 3
    assert spec.instance_config("node-1").node == spec.kvstore_config("node-1").node == "node-1"
    assert spec.dispatcher_config().admission.max_queued == 4
    assert spec.kvstore_config("").exchange.replicate
    assert spec.monitor_config().liveness.silent_s == 7.0


def test_the_tier_has_its_bytes_unless_the_kvstores_settings_say_otherwise() -> None:
    assert ClusterSpec(tier_bytes=8192).kvstore_config("").tier.capacity_bytes == 8192
    other = ClusterSpec(tier_bytes=8192, kvstore={"tier.capacity_bytes": 16384})
    assert other.kvstore_config("").tier.capacity_bytes == 16384


def test_an_engine_by_flat_settings_and_the_plainest_preset() -> None:
    spec = spec_of(engine={"slots": 64, "step_s": 0.5}, instances=3)
    assert (spec.engine.ready.slots, spec.engine.progress_s, spec.instances) == (64, 0.25, 3)
    assert spec.preset == "least_loaded"
    assert spec_of(engine={"progress_s": 9.0}, preset="vllm").engine.progress_s == 9.0
    assert spec_of(preset="vllm").preset == "vllm"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "x"}, "no preset 'x': choose one of chunked, "),
        ({"instances": 0}, "instances is 0: needs at least 1"),
        ({"dispatchers": 0}, "dispatchers is 0"),
        ({"managers": -1}, "managers is -1"),
        ({"nodes": 0}, "nodes is 0"),
    ],
)
def test_a_cluster_without_a_role_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ClusterSpec(**changes)


def test_a_wrong_setting_is_refused_when_its_configuration_is_asked_for() -> None:
    spec = ClusterSpec(instance={"scheduler.speed": 1}, monitor={"liveness.silent_s": -1.0})
    with pytest.raises(ValueError, match="has no setting 'speed'"):
        spec.instance_config("")
    with pytest.raises(ValueError, match="silent_s is -1"):
        spec.monitor_config()
