"""An instance dies in mid-sequence: another of the node goes on from what it had kept, and the text is the same."""

import asyncio
from contextlib import ExitStack

import pytest

from benchmarks import keeping
from dunlin.launch.process import ClusterProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


PLANS = {
    "same node": keeping.Plan(kills=1),
    "other node, on TLS": keeping.Plan(kills=1, nodes=2, flags=("--tls",)),
    "lost node": keeping.Plan(kills=1, nodes=2, lose_nodes=True),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_another_instance_goes_on_from_what_a_killed_one_had_kept(plan: keeping.Plan) -> None:
    shares = (plan.share, 0) if plan == PLANS["same node"] else (plan.share,)  # once is enough to see the difference
    with ExitStack() as stack:
        clusters = [stack.enter_context(ClusterProcess(*keeping.cluster_flags(plan, share))) for share in shares]
        outcome = asyncio.run(keeping.run(plan, *clusters))
    assert outcome.broken == []
    assert ("nothing kept: tokens at stake" in outcome.figures) == (len(shares) == 2)
