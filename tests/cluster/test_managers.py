"""Two managers: whatever becomes of the one that leads, the other one leads, and no stream notices."""

import asyncio

import pytest

from benchmarks.faults import manager_failover
from cli.launch.cluster_process import ClusterProcess

pytestmark = pytest.mark.cluster


def test_the_next_manager_leads_and_no_stream_notices() -> None:
    plan = manager_failover.ManagerFailoverPlan(rounds=1)
    with ClusterProcess(*manager_failover.cluster_flags(plan)) as own:
        outcome = asyncio.run(manager_failover.run(plan, own))
    assert outcome.failures == []
    assert outcome.figures["terms"] == 3
    assert outcome.figures["requests under a fault"] >= 2 * plan.width
    assert outcome.figures["requests finished"] > 0
