"""Planted refusals and ends that break I1 are found, each by the text of its violation."""

from typing import Any

import pytest

from dunlin.messages.door import Quota, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, SamplingParams, i32
from simulator.campaign.clients import MOST_TRIES, CampaignClient
from simulator.campaign.invariants.ends import VIEWED_S, EndWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign, fault, planned


def broken(words: str) -> Any:
    return pytest.raises(Violation, match=f"^I1 at .*{words}")


def watching(**settings: Any) -> tuple[Campaign, EndWatcher]:
    campaign = Campaign(**settings)
    return campaign, EndWatcher(campaign.cluster, campaign.clients, campaign.faults)


def ended(campaign: Campaign, finish: FinishReason, **changes: Any) -> CampaignClient:
    """A client whose stream ended so, now."""
    ask = planned(**{key: changes.pop(key) for key in ("poison", "timeout_s") if key in changes})
    campaign.clients.arrivals(ask)
    client = campaign.clients.all[-1]
    client.finish, client.ended_s = finish, campaign.world.now_s
    for name, value in changes.items():
        setattr(client, name, value)
    return client


def submit(**changes: Any) -> Submit:
    return Submit(i32([1]), 1, SamplingParams(seed=0), **changes)


def refuse(code: RejectionCode, quota: Quota | None = None, queued: int = 0, detail: str = "", **changes: Any) -> int:
    """A dispatcher whose queue has room for two refuses a request; the looks that were excused."""
    campaign, watcher = watching(dispatcher={"admission.max_queued": 2})
    door, client = campaign.address("dispatcher"), campaign.client()
    campaign.cluster.etcd.quotas = (quota,) if quota is not None else ()
    journal = campaign.cluster.dispatcher.journal
    for number in range(queued):
        journal.add(client.address._replace(name=f"other-{number}"), submit(), 0.0, False)
    watcher.before(campaign.event(client.address, door, submit(**changes)))
    watcher.sent(0.0, door, client.address, SubmitRejected(code, detail))
    return watcher.excused.total()


def test_a_queue_that_was_full_before_the_event_may_have_room_after_it() -> None:
    """Seed 5634881: another request was dispatched in the same event."""
    campaign, watcher = watching(dispatcher={"admission.max_queued": 1})
    door, client = campaign.address("dispatcher"), campaign.client()
    journal = campaign.cluster.dispatcher.journal
    other = journal.add(client.address._replace(name="other"), submit(), 0.0, False)
    watcher.before(campaign.event(client.address, door, submit()))
    journal.remove(other)
    watcher.sent(0.0, door, client.address, SubmitRejected(RejectionCode.FULL, ""))
    watcher.before(campaign.event(client.address, door, submit()))
    with broken("and 0 of 1 wait"):
        watcher.sent(0.0, door, client.address, SubmitRejected(RejectionCode.FULL, ""))


def test_a_refusal_that_the_cluster_allows_breaks_nothing() -> None:
    assert refuse(RejectionCode.UNAVAILABLE) == 0
    assert refuse(RejectionCode.FULL, queued=2) == 0
    assert refuse(RejectionCode.QUOTA, Quota("", running=1)) == 0
    assert refuse(RejectionCode.FULL, timeout_s=2.0) == 1
    assert refuse(RejectionCode.FULL, detail="more than the 60 s allowed") == 1
    assert refuse(RejectionCode.QUOTA, Quota("", running=9, tokens_per_minute=60)) == 1


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (RejectionCode.INVALID, {}, "refuses .*INVALID"),
        (RejectionCode.TOO_LONG, {"timeout_s": 2.0}, "refuses .*TOO_LONG"),
        (RejectionCode.FULL, {"queued": 1}, "and 1 of 2 wait"),
        (RejectionCode.FULL, {"queued": 2, "key": "req-1"}, "and 2 of 2 wait"),
        (RejectionCode.QUOTA, {}, "whose tenant has no quota"),
        (RejectionCode.QUOTA, {"quota": Quota("", running=2)}, "and 1 of 2 run"),
    ],
)
def test_a_refusal_without_a_reason_breaks_i1(code: RejectionCode, state: dict[str, Any], words: str) -> None:
    with broken(words):
        refuse(code, **state)


def test_a_stream_may_end_whole_early_by_its_client_or_after_its_deadline() -> None:
    campaign, watcher = watching()
    ended(campaign, FinishReason.LENGTH, tokens=campaign.client().expected)
    ended(campaign, FinishReason.RUNNING, disconnected=True)
    ended(campaign, FinishReason.RUNNING, rejected=SubmitRejected(RejectionCode.FULL, ""))
    watcher.before(campaign.event(campaign.address("monitor"), campaign.address("dispatcher"), submit()))
    campaign.run(2.0 / 1.2 + 0.1)
    ended(campaign, FinishReason.DEADLINE, timeout_s=2.0)
    watcher.audit()
    assert not watcher.excused


UNAVAILABLE = SubmitRejected(RejectionCode.UNAVAILABLE, "")


@pytest.mark.parametrize(
    "end",
    [
        {"finish": FinishReason.LENGTH},
        {"finish": FinishReason.DEADLINE},
        {"finish": FinishReason.DEADLINE, "timeout_s": 2.0},
        {"finish": FinishReason.ERROR, "detail": "given up after 3 attempts"},
        {"finish": FinishReason.ERROR, "detail": "poison"},
        {"finish": FinishReason.TOO_LONG},
        {"finish": FinishReason.TOO_LONG, "poison": True},
        {"finish": FinishReason.ERROR, "poison": True, "tokens": [1]},
        {"finish": FinishReason.RUNNING, "rejected": UNAVAILABLE, "attempts": MOST_TRIES - 1},
    ],
)
def test_an_end_without_a_reason_breaks_i1(end: dict[str, Any]) -> None:
    campaign, watcher = watching()
    watcher.before(campaign.event(campaign.address("monitor"), campaign.address("dispatcher"), submit()))
    campaign.run(1.0)
    ended(campaign, **end)
    with broken("client 0 .* should not have ended so"):
        watcher.audit()


def test_an_error_is_excused_where_a_fault_struck_and_counted() -> None:
    campaign, watcher = watching()
    assert campaign.faults.inject(fault("crash_engine")) is not None
    ended(campaign, FinishReason.ERROR, detail="given up after 3 attempts")
    watcher.audit()
    watcher.audit()
    assert watcher.excused == {"I1 a request ends with an error": 1}


def end_as_too_long(watcher: EndWatcher, campaign: Campaign) -> None:
    ended(campaign, FinishReason.TOO_LONG, detail="9 tokens are more than all instances together can hold, 4")
    watcher.audit()


def test_a_request_is_too_long_only_where_instances_could_not_have_held_it_lately() -> None:
    campaign, watcher = watching()
    campaign.run(VIEWED_S + 1.0)
    assert campaign.faults.inject(fault("crash_engine")) is not None, "a fault alone excuses nothing"
    watcher.audit()
    campaign.run(2 * VIEWED_S)
    with broken("should not have ended so"):
        end_as_too_long(watcher, campaign)
    campaign, watcher = watching()
    for instance in campaign.cluster.of_role("instance"):
        campaign.cluster.pause(instance)
    watcher.audit()
    campaign.run(2 * VIEWED_S)
    end_as_too_long(watcher, campaign)
    assert watcher.excused == {"I1 a request ends as too long, which the instances that served could not have held": 1}


def test_a_request_is_refused_as_too_long_only_where_the_instances_that_serve_could_not_hold_it() -> None:
    """Seed 15000499: an instance stayed drained, for the manager that was told to undo it slept."""
    campaign, watcher = watching()
    door, client = campaign.address("dispatcher"), campaign.client()
    watcher.audit()
    pool = watcher._rooms[-1][1]
    campaign.run(2 * VIEWED_S)

    def refuse_prompt_of(tokens: int) -> None:
        long = Submit(i32([1] * tokens), 1, SamplingParams(seed=0))
        watcher.before(campaign.event(client.address, door, long))
        watcher.sent(campaign.world.now_s, door, client.address, SubmitRejected(RejectionCode.TOO_LONG, ""))

    refuse_prompt_of(pool)
    with broken("refuses .*TOO_LONG"):
        refuse_prompt_of(pool - 1)
    assert watcher.excused == {"I1 TOO_LONG for a request that the instances that served could not have held": 1}
