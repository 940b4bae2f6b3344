"""Two managers: whatever becomes of the one that leads, the other one leads, and no stream notices."""

import asyncio

import pytest

from benchmarks import managers
from dunlin.launch.process import ClusterProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_the_next_manager_leads_and_no_stream_notices() -> None:
    plan = managers.Plan(rounds=1)
    with ClusterProcess(*managers.cluster_flags(plan)) as own:
        outcome = asyncio.run(managers.run(plan, own))
    assert outcome.broken == []
    assert outcome.figures["terms"] == 3
    assert outcome.figures["requests under a fault"] >= 2 * plan.width
    assert outcome.figures["requests finished"] > 0
