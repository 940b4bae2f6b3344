"""An instance dies in mid-sequence: another of the node goes on from what it had kept, and the text is the same."""

import asyncio
from dataclasses import replace

import pytest

from benchmarks.faults import checkpoint_recovery
from cli.launch.cluster_process import ClusterProcess

pytestmark = pytest.mark.cluster


# Long, so that it runs still when the monitor has heard where, however fast the engine is.
ONE = checkpoint_recovery.CheckpointRecoveryPlan(kills=1, output_tokens=384)
PLANS = {
    "same node": ONE,
    "lost node, on TLS": replace(ONE, nodes=2, lose_nodes=True, flags=("--tls",)),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_another_instance_goes_on_from_what_a_killed_one_had_kept(
    plan: checkpoint_recovery.CheckpointRecoveryPlan,
) -> None:
    """That nothing is kept where the share is 0: tests/services/instance/checkpoint/test_checkpointer.py."""
    with ClusterProcess(*checkpoint_recovery.cluster_flags(plan, plan.share)) as cluster:
        outcome = asyncio.run(checkpoint_recovery.run(plan, cluster))
    assert outcome.failures == []
