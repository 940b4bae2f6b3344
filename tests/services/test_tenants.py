"""Two tenants with the same prompts, over a whole cluster: neither reads the KV of the other, whatever breaks.

The fake engines know whose each sequence is and fail on a slot that another tenant's sequence wrote.
"""

import pytest

from dunlin.messages.dispatch import Reused
from simulator.cluster.scripted import ScriptedCluster

PROMPT = [7 * token % 900 for token in range(100)]


def found(cluster: ScriptedCluster) -> int:
    """Tokens that were reused."""
    return sum(message.tokens for _, _, _, message in cluster.world.sent if isinstance(message, Reused))


@pytest.mark.parametrize("fault", ["none", "engine", "instance"])
def test_tenants_share_with_themselves_alone_whatever_breaks(fault: str) -> None:
    cluster = ScriptedCluster(instances=2, engine={"slots": 1024})
    cluster.run_until_ready()
    for number in range(24):
        cluster.submit([*PROMPT, number % 4], max_tokens=30, seed=number % 3, tenant="ab"[number % 2])
        cluster.world.run(for_s=0.05)
        if number == 12 and fault == "engine":
            cluster.engine_supervisor("instance-0").crash()
        if number == 12 and fault == "instance":
            cluster.kill_instance("instance-0")
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    cluster.check_conservation()
    assert found(cluster) > 1000


def test_the_first_request_of_a_tenant_finds_nothing_of_the_other_s() -> None:
    cluster = ScriptedCluster(instances=1)
    cluster.run_until_ready()
    for tenant, expected in (("a", 0), ("b", 0), ("a", 96), ("b", 192)):
        cluster.submit(PROMPT, max_tokens=5, tenant=tenant)
        cluster.run_until_done()
        assert found(cluster) == expected
