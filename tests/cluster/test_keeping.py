"""An instance dies in mid-sequence: another of the node goes on from what it had kept, and the text is the same."""

import asyncio
from contextlib import ExitStack

import pytest

from benchmarks.faults import checkpoint_recovery
from cli.launch.cluster_process import ClusterProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


PLANS = {
    "same node": checkpoint_recovery.CheckpointRecoveryPlan(kills=1),
    "other node, on TLS": checkpoint_recovery.CheckpointRecoveryPlan(kills=1, nodes=2, flags=("--tls",)),
    "lost node": checkpoint_recovery.CheckpointRecoveryPlan(kills=1, nodes=2, lose_nodes=True),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_another_instance_goes_on_from_what_a_killed_one_had_kept(
    plan: checkpoint_recovery.CheckpointRecoveryPlan,
) -> None:
    shares = (plan.share, 0) if plan == PLANS["same node"] else (plan.share,)  # once is enough to see the difference
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(ClusterProcess(*checkpoint_recovery.cluster_flags(plan, share))) for share in shares
        ]
        outcome = asyncio.run(checkpoint_recovery.run(plan, *clusters))
    assert outcome.failures == []
    assert ("nothing kept: tokens at stake" in outcome.figures) == (len(shares) == 2)
