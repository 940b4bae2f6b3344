"""Tenants share a cluster's batch capacity by weight, end to end: dispatchers, instances and engines of the twin."""

from typing import Any

import pytest

from dunlin.messages.door import Quota
from dunlin.messages.types import RequestClass
from simulator.cluster.scripted import ScriptedCluster
from tests.backlog import Backlog

PROMPT, GENERATED = 40, 24
"""Tokens of each batch request."""
OPEN = 150
"""Requests of a tenant at a time: far more than an instance runs and queues."""


def shared(**settings: Any) -> ScriptedCluster:
    """A cluster that knows tenants `one` and `three`, of these weights."""
    engine = {"slots": 2000, "max_positions": 512, "step_s": 0.02, "token_s": 0.0005}
    cluster = ScriptedCluster(**{"preset": "unified", "instances": 1, "engine": engine, **settings})
    cluster.etcd.set_quotas([Quota("chat"), Quota("one"), Quota("three", weight=3)])
    cluster.run_until_ready()
    return cluster


def chat(cluster: ScriptedCluster) -> Backlog:
    """Interactive requests that never pause."""
    return Backlog(cluster, "chat", 4, 30, 20, request_class=RequestClass.INTERACTIVE)


def served(cluster: ScriptedCluster, tenants: list[Backlog], for_s: float) -> list[int]:
    """The tokens that each is served in the next seconds."""
    before = [tenant.served for tenant in tenants]
    cluster.world.run_to(cluster.world.now_s + for_s)
    return [tenant.served - had for tenant, had in zip(tenants, before, strict=True)]


@pytest.mark.parametrize("settings", [{}, {"preset": "conserve"}, {"dispatchers": 2}])
def test_tokens_are_served_by_weight_beside_chat(settings: dict[str, Any]) -> None:
    cluster = shared(**settings)
    tenants = [chat(cluster), Backlog(cluster, "one", OPEN, PROMPT, GENERATED)]
    tenants.append(Backlog(cluster, "three", OPEN, PROMPT, GENERATED))
    served(cluster, tenants, 10.0)  # what the first had dispatched before the second came
    chatted, one, three = served(cluster, tenants, 30.0)
    assert chatted > 4_000
    assert 2.9 < three / one < 3.1


def test_shares_are_of_tokens_and_not_of_requests() -> None:
    cluster = shared()
    tenants = [Backlog(cluster, "one", OPEN, 300, 60), Backlog(cluster, "three", OPEN, 20, 10)]
    served(cluster, tenants, 10.0)
    one, three = served(cluster, tenants, 50.0)
    assert 2.9 < three / one < 3.1


def test_answers_that_end_early_count_by_what_they_have() -> None:
    """Clients say a `max_tokens` that their answers never reach: nobody is charged for it in the end."""
    cluster = shared()
    tenants = [Backlog(cluster, "one", OPEN, PROMPT, GENERATED)]
    tenants.append(Backlog(cluster, "three", OPEN, PROMPT, 400, stop_at=GENERATED))
    served(cluster, tenants, 10.0)
    one, three = served(cluster, tenants, 30.0)
    assert 2.9 < three / one < 3.1


def test_a_tenant_alone_gets_everything_and_one_that_joins_its_share_from_then_on() -> None:
    cluster = shared()
    one = Backlog(cluster, "one", OPEN, PROMPT, GENERATED)
    served(cluster, [one], 5.0)
    (alone,) = served(cluster, [one], 20.0)
    three = Backlog(cluster, "three", OPEN, PROMPT, GENERATED)
    served(cluster, [one, three], 5.0)
    both = served(cluster, [one, three], 20.0)
    assert sum(both) == pytest.approx(alone, rel=0.01)
    assert 2.9 < both[1] / both[0] < 3.1


def test_a_tenant_that_paused_gets_its_share_again_and_no_arrears() -> None:
    cluster = shared()
    one, three = (Backlog(cluster, name, OPEN, PROMPT, GENERATED) for name in ("one", "three"))
    served(cluster, [one, three], 10.0)
    three.is_over = True
    served(cluster, [one, three], 30.0)
    assert cluster.dispatcher.journal.queued_of(RequestClass.BATCH) > 50
    back = Backlog(cluster, "three", OPEN, PROMPT, GENERATED)
    served(cluster, [one, back], 5.0)
    shares = served(cluster, [one, back], 20.0)
    assert 2.9 < shares[1] / shares[0] < 3.1
