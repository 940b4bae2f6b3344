"""An instance dies in mid-sequence: another of the node goes on from what it had kept, and the text is the same."""

import asyncio
from contextlib import ExitStack
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
    shares = (plan.share, 0) if plan == PLANS["same node"] else (plan.share,)  # once is enough to see the difference
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(ClusterProcess(*checkpoint_recovery.cluster_flags(plan, share))) for share in shares
        ]
        outcome = asyncio.run(checkpoint_recovery.run(plan, *clusters))
    assert outcome.failures == []
    assert ("nothing kept: tokens at stake" in outcome.figures) == (len(shares) == 2)
