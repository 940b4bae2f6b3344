"""Planted states that break I11 and I12 are found: quotas exceeded, and work for clients or processes that are gone."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Message
from dunlin.messages.dispatch import Adopted, Cancel
from dunlin.messages.door import Abort, Quota, Submit
from dunlin.messages.types import FinishReason, RequestClass, i32
from services.dispatcher.requests.deferred import DeferredRequests
from services.dispatcher.requests.request import RequestState
from simulator.campaign.clients import CampaignClient
from simulator.campaign.invariants.progress import LATE_S, ORPHAN_S, STUCK_S, ProgressWatcher, QuotaWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign, fault


def broken(kind: str, words: str) -> Any:
    return pytest.raises(Violation, match=f"^{kind} at .*{words}")


# --- I11: quotas and the queue ---


class FakeJournal(list[Any]):
    """Requests, of which `queued` wait."""

    queued = 0

    def __init__(self, *requests: Any) -> None:
        super().__init__(*requests)
        self.deferred = DeferredRequests()

    def queued_of(self, request_class: RequestClass) -> int:
        return self.queued if request_class is RequestClass.INTERACTIVE else 0


def quota_watcher(**settings: Any) -> tuple[Campaign, QuotaWatcher]:
    campaign = Campaign(**settings)
    return campaign, QuotaWatcher(campaign.cluster, campaign.clients, campaign.faults)


def submit(**changes: Any) -> Submit:
    return Submit(i32([1]), 4, **changes)


def let_in(message: Submit, queued: int) -> None:
    """A dispatcher with room for two takes a request in while some wait."""
    campaign, watcher = quota_watcher(dispatcher={"admission.max_queued": 2})
    dispatcher, journal = campaign.address("dispatcher"), FakeJournal(range(queued))
    journal.queued = queued
    campaign.plant(dispatcher, journal=journal)
    event = campaign.event(Address("client", "c"), dispatcher, message)
    watcher.before(event)
    watcher.after(event)
    journal.append(9)
    watcher.after(event)


def test_a_request_that_a_full_queue_admits_breaks_i11() -> None:
    let_in(submit(), queued=1)
    with broken("I11", "lets .*Submit.* in, and its queue was full"):
        let_in(submit(), queued=2)


def let_in_batch(tenants: str) -> None:
    """A dispatcher with room for four takes a batch request of tenant `a` in while those of others wait."""
    campaign, watcher = quota_watcher(dispatcher={"admission.max_queued": 4})
    journal = campaign.cluster.dispatcher.journal
    message = submit(request_class=RequestClass.BATCH, tenant="a")
    for number, tenant in enumerate(tenants):
        journal.add(Address("client", f"other-{number}"), replace(message, tenant=tenant), 0.0)
    event = campaign.event(Address("client", "c"), campaign.address("dispatcher"), message)
    watcher.before(event)
    journal.add(Address("client", "c"), message, 0.0)
    watcher.after(event)


def test_a_tenant_that_has_its_part_of_a_full_queue_breaks_i11_with_one_more() -> None:
    let_in_batch("aaa")
    let_in_batch("abbbb")
    with broken("I11", "lets .*Submit.* in, and its queue was full"):
        let_in_batch("aabb")
    with broken("I11", "lets .*Submit.* in, and its queue was full"):
        let_in_batch("aaaa")


@pytest.mark.parametrize("message", [submit(key="req-1-1"), submit(idempotency="name", digest=b"d")])
def test_a_request_that_may_be_known_already_is_let_in_whatever_waits(message: Submit) -> None:
    let_in(message, queued=2)


def audit_quota(
    requests: list[tuple[str, int, int]], quota: Quota, at_s: float = 0.0, adopted: int = 0, asked: int = 0
) -> None:
    """Audit a dispatcher that runs requests of (tenant, prompt tokens, most tokens): the first were adopted, the last
    are asked about.
    """
    campaign, watcher = quota_watcher()
    dispatcher = campaign.address("dispatcher")
    for number in range(adopted):
        message = Adopted(number, 1, "req-9-1", i32(), 4)
        watcher.before(campaign.event(Address("instance", "i"), dispatcher, message))
    states = [RequestState.RUNNING] * (len(requests) - asked) + [RequestState.ADOPTING] * asked
    campaign.world.run_to(max(campaign.world.now_s, at_s))
    campaign.cluster.etcd.quotas = (quota,)
    held: Any = SimpleNamespace(
        address=dispatcher,
        quotas=SimpleNamespace(check_integrity=lambda: None),
        journal=[
            SimpleNamespace(
                number=number,
                state=states[number],
                submit=SimpleNamespace(tenant=tenant, tokens=[0] * prompt),
                max_tokens=most or None,
            )
            for number, (tenant, prompt, most) in enumerate(requests)
        ],
    )
    campaign.cluster.dispatchers["dispatcher-0"] = held
    watcher.audit()


def test_a_tenant_with_more_running_requests_than_its_quota_breaks_i11() -> None:
    quota = Quota("", running=2)
    audit_quota([("a", 1, 1), ("a", 1, 1), ("b", 1, 1)], quota)
    with broken("I11", "runs 3 requests with 6 tokens of tenant 'a'"):
        audit_quota([("a", 1, 1)] * 3, quota)


def test_resumed_requests_go_beyond_the_quota_by_as_much_again() -> None:
    quota = Quota("", running=2, tokens_per_minute=60)
    audit_quota([("a", 50, 1)] * 3, quota, adopted=2)
    audit_quota([("a", 50, 1)] * 3, quota, asked=2)
    audit_quota([("a", 9, 1)] * 4, quota, adopted=1, asked=1)
    with broken("I11", "runs 3 requests with 6 tokens of tenant 'a'"):
        audit_quota([("a", 1, 1)] * 4, quota, adopted=1)
    with broken("I11", "runs 3 resumed requests of tenant 'a'"):
        audit_quota([("a", 1, 1)] * 5, quota, adopted=1, asked=2)


def test_a_tenant_with_more_tokens_than_since_the_start_breaks_i11() -> None:
    quota = Quota("", tokens_per_minute=60)
    audit_quota([("a", 40, 20), ("b", 60, 0)], quota)
    with broken("I11", "runs 1 requests with 80 tokens of tenant 'a'"):
        audit_quota([("a", 60, 20)], quota)
    audit_quota([("a", 60, 20)], quota, at_s=20.5)


def test_accounts_that_contradict_each_other_break_i11() -> None:
    campaign, watcher = quota_watcher()
    watcher.audit()

    def check_integrity() -> None:
        raise AssertionError("2 open, 3 held")

    held: Any = SimpleNamespace(address="dispatcher-0", quotas=SimpleNamespace(check_integrity=check_integrity))
    campaign.cluster.dispatchers["dispatcher-0"] = held
    with broken("I11", "dispatcher-0: quotas: 2 open, 3 held"):
        watcher.audit()


# --- I12: progress ---


def served(**changes: Any) -> tuple[Campaign, ProgressWatcher, CampaignClient]:
    """A client whose request runs for a minute."""
    campaign = Campaign(instances=1, engine={"step_s": 1.0})
    client = campaign.client(**changes)
    return campaign, ProgressWatcher(campaign.cluster, campaign.clients, campaign.faults), client


@pytest.mark.parametrize("message", [Abort(), Gone("client left")])
def test_a_request_that_is_kept_after_its_last_client_left_breaks_i12(message: Message) -> None:
    campaign, watcher, client = served()
    event = campaign.event(client.address, campaign.address("dispatcher"), message)
    (request,) = campaign.cluster.dispatcher.journal
    watcher.before(event)
    watcher.after(event)  # another client still reads
    watcher.before(event)
    request.readers.clear()
    with broken("I12", "keeps .* after .*, which was of its last client"):
        watcher.after(event)


def test_a_request_with_an_idempotency_key_outlives_its_clients() -> None:
    campaign, watcher, client = served(named=True)
    event = campaign.event(client.address, campaign.address("dispatcher"), Gone("client left"))
    (request,) = campaign.cluster.dispatcher.journal
    watcher.before(event)
    request.readers.clear()
    watcher.after(event)


def test_an_abort_for_another_reason_is_no_withdrawal() -> None:
    campaign, watcher, client = served()
    event = campaign.event(client.address, campaign.address("dispatcher"), Abort(FinishReason.DEADLINE))
    (request,) = campaign.cluster.dispatcher.journal
    watcher.before(event)
    request.readers.clear()
    watcher.after(event)


def test_an_attempt_that_goes_on_after_its_cancellation_breaks_i12() -> None:
    campaign, watcher, _ = served()
    dispatcher, instance = campaign.address("dispatcher"), campaign.address("instance")
    (sequence,) = campaign.cluster.core(instance).sequences
    request, attempt = sequence.place.request, sequence.place.attempt
    cancelled = campaign.event(dispatcher, instance, Cancel(request, attempt))
    with broken("I12", f"instance-0.* goes on with {re.escape(sequence.name)}, which .* cancelled"):
        watcher.after(cancelled)
    watcher.after(campaign.event(dispatcher, instance, Cancel(request, attempt - 1)))
    watcher.after(campaign.event(dispatcher, instance, Cancel(request + 1, attempt)))
    watcher.after(campaign.event(campaign.address("monitor"), instance, Cancel(request, attempt)))
    campaign.cluster.core(instance).receive(campaign.world.now_s, dispatcher, cancelled.message)
    watcher.after(cancelled)


def test_a_client_that_waits_beyond_its_deadline_breaks_i12() -> None:
    campaign, watcher, client = served()
    client.submit = Submit(client.submit.tokens, 60, timeout_s=5.0)
    campaign.world.run_to(client.connected_s + 5.0 + LATE_S - 0.1)
    watcher.audit()
    campaign.run(0.2)
    with broken("I12", r"client 0 of .* is 4\.1 s over its time"):
        watcher.audit()
    campaign.faults._victims.mark_disturbed(fault(), campaign.address("dispatcher"))
    watcher.audit()


def test_work_for_a_client_that_left_breaks_i12() -> None:
    campaign, watcher, client = served()
    client.disconnected, client.ended_s = True, campaign.world.now_s
    campaign.run(LATE_S - 0.1)
    watcher.audit()
    campaign.run(0.2)
    with broken("I12", "instance-0.* goes on for client 0 .*, which left"):
        watcher.audit()


@pytest.mark.parametrize(
    ("role", "excuses"), [("instance", 1), ("dispatcher", 1), ("monitor", 0), ("global_manager", 0), ("kvstore", 0)]
)
def test_only_those_that_could_have_told_of_a_client_that_left_are_excused(role: str, excuses: int) -> None:
    campaign, watcher, client = served()
    client.disconnected, client.ended_s = True, campaign.world.now_s
    campaign.run(LATE_S + 0.1)
    campaign.faults._victims.mark_disturbed(fault(), campaign.address(role))
    if not excuses:
        with broken("I12", "which left"):
            watcher.audit()
    else:
        watcher.audit()
    assert watcher.excused.total() == excuses


def test_work_for_a_client_that_left_goes_on_for_the_grace_of_its_lost_dispatcher() -> None:
    campaign, watcher, client = served()
    door, client.disconnected, client.ended_s = client.door, True, campaign.world.now_s
    assert door is not None
    watcher.before(campaign.event(client.address, door, Gone("client left")))
    campaign.run(LATE_S)
    campaign.cluster.kill(door)
    campaign.run(ORPHAN_S - LATE_S)
    watcher.audit()
    assert watcher.excused.total() == 1
    campaign.cluster.ended_s[door] -= ORPHAN_S
    with broken("I12", "which left"):
        watcher.audit()


def test_the_grace_begins_when_the_instance_hears_of_the_loss() -> None:
    """Seed 5630676: it slept meanwhile."""
    campaign, watcher, client = served()
    door, client.disconnected, client.ended_s = client.door, True, campaign.world.now_s
    assert door is not None
    campaign.cluster.kill(door)
    campaign.run(2.0)
    campaign.cluster.ended_s[door] = campaign.world.now_s - 2.0
    watcher.before(campaign.event(door, campaign.address("instance"), Gone("stream reset")))
    campaign.cluster.ended_s[door] -= ORPHAN_S - 1.0
    client.ended_s -= 2 * ORPHAN_S
    watcher.audit()
    assert watcher.excused.total() == 1


@pytest.mark.parametrize(("has_heard", "grace_s"), [(True, LATE_S), (False, ORPHAN_S)])
def test_a_request_whose_dispatcher_died_before_it_heard_is_an_orphan(has_heard: bool, grace_s: float) -> None:
    campaign, watcher, client = served()
    assert client.door is not None
    client.disconnected, client.ended_s = True, campaign.world.now_s
    if has_heard:
        watcher.before(campaign.event(client.address, client.door, Gone("client left")))
    door = client.door
    campaign.cluster.kill(door)
    assert watcher._forgotten_s(client) == client.ended_s + grace_s
    client.door = None
    assert watcher._forgotten_s(client) == client.ended_s + ORPHAN_S


def test_a_dispatcher_that_waits_for_a_stopped_instance_breaks_i12() -> None:
    campaign, watcher, _ = served()
    instance = campaign.address("instance")
    campaign.faults.processes.asleep_s[instance] = campaign.world.now_s
    campaign.run(STUCK_S - 0.1)
    watcher.audit()
    campaign.run(0.2)
    with broken("I12", "waits for .*instance-0.*, which sleeps: "):
        watcher.audit()
    campaign.faults._victims.mark_disturbed(fault(), campaign.address("monitor"))
    watcher.audit()
