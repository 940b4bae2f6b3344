"""Planted states that break I2, I3, I4, I5 and I9 are found, each by the text of its violation."""

from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Accepted, Tokens
from dunlin.messages.engine import StopEngine
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import Drain, GroupOrder
from dunlin.messages.types import GroupKind, GroupRole, Why, f32, i8, i32, i64
from services.instance.engine.layer_changes import LayerChanges
from simulator.campaign.invariants.authority import (
    FencingWatcher,
    GroupWatcher,
    LeadershipWatcher,
    SuspicionWatcher,
)
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign, fault

ONE, OTHER, NEW = (Address("instance", f"instance-{index}", index + 1) for index in range(3))


def broken(kind: str, words: str) -> Any:
    return pytest.raises(Violation, match=f"^{kind} at .*{words}")


def watch(campaign: Campaign, kind: type[InvariantWatcher]) -> Any:
    return kind(campaign.cluster, campaign.clients, campaign.faults)


def order(*members: Address, **changes: Any) -> GroupOrder:
    values: dict[str, Any] = {"epoch": 5, "plan_version": 2, "group": 1, "kind": GroupKind.LOCAL}
    return GroupOrder(**{**values, "part": GroupRole.LOCAL, "members": members, **changes})


# --- I2: old attempts, plans and views ---


def running() -> tuple[Campaign, Any]:
    """A request that an instance runs, as its dispatcher's journal has it."""
    campaign = Campaign()
    campaign.client()
    (request,) = campaign.cluster.dispatcher.journal
    return campaign, request


@pytest.mark.parametrize("is_columns", [False, True])
def test_tokens_of_an_old_attempt_that_count_break_i2(is_columns: bool) -> None:
    campaign, request = running()
    watcher = watch(campaign, FencingWatcher)
    number, old = request.number, request.attempt - 1
    tokens = Tokens(i64([number]), i32([old]), i64([9]), i32([9]), f32([0.0]), i8([0]))
    message = tokens if is_columns else Accepted(number, old, 1)
    event = campaign.event(request.instance, campaign.address("dispatcher"), message)
    watcher.before(event)
    watcher.after(event)
    request.tokens.append(9)
    with broken("I2", "is of an old attempt and made"):
        watcher.after(event)


def test_another_instances_answer_is_of_an_old_attempt_and_its_own_is_not() -> None:
    campaign, request = running()
    watcher = watch(campaign, FencingWatcher)
    other = next(one for one in campaign.cluster.of_role("instance") if one != request.instance)
    message = Accepted(request.number, request.attempt, 1)
    own, strange = (campaign.event(one, campaign.address("dispatcher"), message) for one in (request.instance, other))
    watcher.before(own)
    request.tokens.append(9)
    watcher.after(own)
    watcher.before(strange)
    request.tokens.append(9)
    with broken("I2", "is of an old attempt and made"):
        watcher.after(strange)


def test_an_instance_that_follows_an_older_plan_breaks_i2() -> None:
    campaign = Campaign()
    watcher, instance = watch(campaign, FencingWatcher), campaign.address("instance")
    event = campaign.event(campaign.address("global_manager"), instance, order(instance))
    for plan in ((5, 2), (5, 3), (6, 1)):
        campaign.plant(instance, plan=plan)
        watcher.after(event)
    campaign.plant(instance, plan=(5, 9))
    with broken("I2", r"went from plan \(6, 1\) back to \(5, 9\)"):
        watcher.after(event)


def test_a_dispatcher_that_takes_an_older_view_breaks_i2() -> None:
    campaign = Campaign()
    watcher, dispatcher = watch(campaign, FencingWatcher), campaign.address("dispatcher")
    monitor = campaign.address("monitor")
    event = campaign.event(monitor, dispatcher, FleetView(1, ()))

    def take(source: Address, version: int) -> None:
        campaign.plant(dispatcher, fleet=SimpleNamespace(view_source=(source, version)))
        watcher.after(event)

    take(monitor, 7)
    take(monitor, 7)
    take(Address("monitor", "monitor-0", monitor.incarnation + 1), 1)
    take(monitor, 8)  # it has no stream to the successor, of which it cannot know
    with broken("I2", "went from view .* back to .* version 7"):
        take(monitor, 7)


def test_a_monitor_that_counts_a_process_twice_breaks_i2() -> None:
    campaign = Campaign()
    watcher, monitor = watch(campaign, FencingWatcher), campaign.address("monitor")
    watcher.audit()
    twice = [Address("instance", "i", 1), Address("instance", "i", 2)]
    campaign.plant(monitor, registry=SimpleNamespace(present=lambda: twice))
    with broken("I2", "counts a process and its successor"):
        watcher.audit()


# --- I3, I9, I4: one leader per epoch ---


def led(campaign: Campaign, epoch: int | None) -> Address:
    """Plant a manager that leads an epoch, or none."""
    manager = campaign.address("global_manager")
    campaign.plant(manager, term=None if epoch is None else SimpleNamespace(epoch=epoch))
    return manager


def test_a_manager_that_leads_on_after_its_end_breaks_i3() -> None:
    campaign = Campaign()
    watcher = watch(campaign, LeadershipWatcher)
    (epoch,) = campaign.cluster.etcd.terms
    manager = led(campaign, epoch)
    watcher.after(campaign.event(manager, manager, Deposed(epoch - 1)))
    with broken("I3", f"heard that epoch {epoch} is over, and leads on"):
        watcher.after(campaign.event(manager, manager, Deposed(epoch)))


def test_a_manager_that_leads_anothers_epoch_breaks_i3() -> None:
    campaign = Campaign()
    watcher = watch(campaign, LeadershipWatcher)
    campaign.cluster.etcd.terms[99] = Address("global_manager", "other", 3)
    manager = led(campaign, 99)
    with broken("I3", "leads epoch 99, which is .*other"):
        watcher.after(campaign.event(manager, manager, Elected(99)))


def test_an_order_outside_the_term_of_its_manager_breaks_i9() -> None:
    campaign = Campaign()
    watcher, instance = watch(campaign, LeadershipWatcher), campaign.address("instance")
    manager = campaign.address("global_manager")

    def orders(epoch: int) -> None:
        watcher.sent(1.0, manager, instance, Drain(epoch, 1))

    with broken("I9", "has term None and orders .*instance-0.* Drain"):
        orders(7)
    watcher.before(campaign.event(manager, manager, Elected(7)))
    orders(7)
    with broken("I9", "has term 7 and orders .* Drain"):
        orders(6)
    watcher.before(campaign.event(manager, manager, Deposed(6)))
    orders(7)
    watcher.before(campaign.event(manager, manager, Deposed(7)))
    with broken("I9", "has term None and orders"):
        orders(7)
    watcher.sent(1.0, manager, instance, Deposed(7))  # no order


def test_a_manager_that_orders_when_it_hears_of_its_end_is_found_in_that_event() -> None:
    campaign = Campaign()
    watcher, manager = watch(campaign, LeadershipWatcher), campaign.address("global_manager")
    campaign.world.before, campaign.world.on_sent = watcher.before, watcher.sent
    campaign.cluster.etcd.resign()
    campaign.run(1.0)  # it leads again, and orders in its new term
    assert campaign.cluster.etcd.leader == manager
    instance = campaign.address("instance")
    late = Drain(max(campaign.cluster.etcd.terms), 1)
    campaign.cluster.manager._handlers[Deposed] = lambda *_: [Send(instance, late)]
    campaign.cluster.etcd.resign()
    with broken("I9", "has term None and orders .* Drain"):
        campaign.run(1.0)


def test_one_plan_version_with_two_meanings_breaks_i4() -> None:
    campaign = Campaign()
    watcher = watch(campaign, LeadershipWatcher)
    manager, instance = campaign.address("global_manager"), campaign.address("instance")
    for message in (order(instance), order(instance), order(instance, plan_version=3, group=2)):
        watcher.after(campaign.event(manager, instance, message))
    with broken("I4", "means .* and "):
        watcher.after(campaign.event(manager, instance, order(instance, group=2)))


# --- I4, I5: groups ---


def audit_groups(
    orders: dict[int, GroupOrder | None],
    sequences: int = 0,
    engines: tuple[tuple[int, ...], tuple[int, ...]] = ((0, 1), (0, 1)),
    may_compute: bool = True,
    outstanding: int = 0,
    again_s: float = 0.0,
) -> None:
    """Audit two instances that follow these orders, and whose engines hold these of two layers."""
    campaign = Campaign()
    for index, address in enumerate((ONE, OTHER)):
        held: Any = SimpleNamespace(
            address=address,
            group_order=orders.get(index),
            sequences=[f"sequence-{one}" for one in range(sequences)],
            layer_changes=SimpleNamespace(may_compute=may_compute),
            steps=SimpleNamespace(outstanding=outstanding),
        )
        campaign.cluster.instances[address.name] = held
        supervisor: Any = SimpleNamespace(layers=SimpleNamespace(held=engines[index], all=2))
        campaign.cluster.engine_supervisors[address] = supervisor
    watcher = watch(campaign, GroupWatcher)
    watcher.audit()
    if again_s:
        campaign.cluster.world.run(for_s=again_s)
        watcher.audit()


def test_groups_that_agree_break_nothing() -> None:
    audit_groups({0: order(ONE), 1: order(OTHER, group=2)}, sequences=1)
    pair = {"kind": GroupKind.RING, "part": GroupRole.LOCAL}
    audit_groups({0: order(ONE, OTHER, **pair), 1: order(ONE, OTHER, **pair)})
    audit_groups({0: order(ONE, OTHER, layers=i32([0])), 1: None})
    pipeline = {"kind": GroupKind.PIPELINE, "part": GroupRole.STAGE}
    halves: Any = {index: order(ONE, OTHER, layers=i32([index]), **pipeline) for index in (0, 1)}
    audit_groups(halves)
    audit_groups(halves, engines=((0,), (1,)))
    audit_groups({})


@pytest.mark.parametrize(
    ("orders", "kind", "words"),
    [
        ({0: order(OTHER)}, "I4", "is no member of its own"),
        ({0: order(ONE), 1: order(OTHER)}, "I4", r"group \(5, 0, 1\) is "),
        ({0: order(ONE, OTHER), 1: order(ONE, OTHER, kind=GroupKind.RING)}, "I4", "and its fellow"),
        ({0: order(ONE, layers=i32([0]))}, "I5", r"layers \[0\] of 2 are all that instance/"),
        (dict.fromkeys((0, 1), order(ONE, OTHER, kind=GroupKind.RING, layers=i32([1]))), "I5", r"layers \[1\] of 2"),
        (dict.fromkeys((0, 1), order(ONE, OTHER, kind=GroupKind.PIPELINE, layers=i32([1]))), "I5", "all members"),
    ],
)
def test_groups_that_contradict_each_other_are_found(orders: Any, kind: str, words: str) -> None:
    with broken(kind, words):
        audit_groups(orders)


@pytest.mark.parametrize(("kind", "words"), [(GroupKind.MASTERS, "instance/"), (GroupKind.PIPELINE, "all members")])
def test_layers_that_an_engine_dropped_are_missed_though_its_order_names_them(kind: GroupKind, words: str) -> None:
    both = order(ONE, OTHER, kind=kind)
    with broken("I5", rf"layers \[1\] of 2 are all that {words}"):
        audit_groups({0: both, 1: both}, engines=((1,), (1,)))


def test_an_instance_that_knows_what_it_lacks_may_lack_it_for_a_while() -> None:
    alone: Any = {0: order(ONE), 1: order(OTHER, group=2)}
    engines = (0,), (0, 1)
    audit_groups(alone, engines=engines, may_compute=False, again_s=50.0)
    for may_compute, outstanding, again_s in ((True, 0, 0.0), (False, 1, 0.0), (False, 0, 70.0)):
        with broken("I5", r"layers \[0\] of 2"):
            audit_groups(alone, engines=engines, may_compute=may_compute, outstanding=outstanding, again_s=again_s)


def test_an_instance_knows_what_it_lacks_before_its_engine_has_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = Campaign()
    watcher, instance = watch(campaign, GroupWatcher), campaign.address("instance")
    core, layers = campaign.cluster.instances[instance.name], campaign.cluster.engine_supervisors[instance].layers
    assert campaign.faults.inject(fault("remap", amount=0.25, other=0.9)) == instance
    campaign.world.run(lambda: not layers.is_whole, for_s=1.0)
    assert core.layer_changes.is_whole  # the engine's answer is on its way
    watcher.audit()
    monkeypatch.setattr(LayerChanges, "may_compute", True)
    with broken("I5", rf"layers \[0\] of 2 are all that {instance}"):
        watcher.audit()


def test_two_elastic_groups_have_one_number_only_where_all_of_the_first_are_gone() -> None:
    campaign = Campaign()
    watcher, lost = watch(campaign, GroupWatcher), Address("instance", "lost", 99)
    first, last = campaign.cluster.of_role("instance")

    def audit(address: Address, *members: Address) -> None:
        elastic = order(*members, kind=GroupKind.ELASTIC, part=GroupRole.MEMBER, group=4)
        follower: Any = SimpleNamespace(address=address, group_order=elastic, sequences=[])
        campaign.cluster.instances.clear()
        campaign.cluster.instances[address.name] = follower
        watcher.audit()

    audit(last, lost, last)
    audit(last, lost, last, first)
    audit(last, lost, last)
    with broken("I4", f"group 4 of .* was led by {lost}"):
        audit(first, first)
    campaign.cluster.kill(last)
    with broken("I4", f"group 4 of .* was led by {lost}"):
        audit(first, first)  # it was a member, and may say something of that group still
    campaign.cluster.kill(first)
    supervisor: Any = SimpleNamespace(layers=SimpleNamespace(held=(0, 1), all=2))
    campaign.cluster.engine_supervisors[NEW] = supervisor
    audit(NEW, NEW)
    assert watcher.excused == {"I4 a group has the number of one whose members are all gone": 1}
    audit(NEW, NEW)
    assert watcher.excused.total() == 1


def test_an_instance_that_runs_requests_without_an_order_breaks_i4() -> None:
    with broken("I4", "runs .*sequence-0.* and follows no order"):
        audit_groups({0: order(ONE)}, sequences=1)


# --- I9: suspicion ---


def test_the_end_of_an_engine_that_works_breaks_i9() -> None:
    campaign = Campaign()
    watcher, instance = watch(campaign, SuspicionWatcher), campaign.address("instance")
    engine = Address("engine", instance.name)
    watcher.before(campaign.event(instance, engine, StopEngine(Why("engine contract"))))
    with broken("I9", "ends an engine that works: .*slow"):
        watcher.before(campaign.event(instance, engine, StopEngine(Why("slow"))))
    campaign.cluster.engine_supervisors[instance].engine.is_stuck = True
    watcher.before(campaign.event(instance, engine, StopEngine(Why("slow"))))


def test_the_suspicion_of_a_healthy_instance_breaks_i9() -> None:
    campaign = Campaign()
    watcher, dispatcher = watch(campaign, SuspicionWatcher), campaign.address("dispatcher")
    one, other = campaign.cluster.of_role("instance")

    def view(suspect: Address) -> None:
        members = (MemberView(suspect, suspect=True),)
        watcher.before(campaign.event(campaign.address("monitor"), dispatcher, FleetView(1, members)))

    campaign.cluster.engine_supervisors[other].engine.is_stuck = True
    view(other)
    with broken("I9", "suspects .*instance-0.*, with which nothing is wrong"):
        view(one)


def test_a_disturbed_instance_may_be_suspected_and_a_disturbed_dispatcher_may_hear_it_late() -> None:
    for role, index in (("instance", 0), ("dispatcher", 0)):
        campaign = Campaign()
        watcher, victim = watch(campaign, SuspicionWatcher), campaign.address(role, index)
        campaign.faults._victims.mark_disturbed(fault(), victim)
        members = (MemberView(campaign.address("instance"), suspect=True),)
        view = campaign.event(campaign.address("monitor"), campaign.address("dispatcher"), FleetView(1, members))
        watcher.before(view)
