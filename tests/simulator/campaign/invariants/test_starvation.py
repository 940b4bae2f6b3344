"""Planted states that break I12 are found: batch work that stalls, too many that rose, and chat that goes before."""

from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import Open
from dunlin.messages.fleet import FleetView
from dunlin.messages.group import OpenGuest
from dunlin.messages.lifecycle import RisenInQueue
from dunlin.messages.types import RequestClass, SamplingParams, i32
from services.instance.group.leading.numbers import GroupNumbers
from services.instance.group.leading.spread_table import SpreadTable
from simulator.campaign.invariants.starvation import StarvationWatcher
from simulator.campaign.violation import Violation
from tests.services.dispatcher.factories import submit
from tests.simulator.campaign.campaign_bench import Campaign

BATCH = RequestClass.BATCH
CLIENT = Address("client", "c")
VIEW = FleetView(10**6, ())


def place(request: int, tokens: int = 3, request_class: RequestClass = RequestClass.INTERACTIVE, **more: Any) -> Place:
    values = {"attempt": 1, "prompt_tokens": tokens, "max_tokens": 4, "sampling": SamplingParams(seed=1)}
    return Place(request, tokens=i32([7] * tokens), request_class=request_class, **{**values, **more})


class Watched:
    """A cluster with bounds of 0.4 s; one process is stopped, so that it keeps states that its core would not have."""

    def __init__(self, role: str, wait_s: float = 0.4) -> None:
        bound = {"starvation.batch_wait_s": wait_s, "starvation.risen_share": 0.5}
        self.campaign = Campaign(dispatcher=bound, instance={**bound, "scheduler.max_running": 4})
        self.watcher = StarvationWatcher(self.campaign.cluster, self.campaign.clients, self.campaign.faults)
        self.address = self.campaign.address(role)
        self.core = self.campaign.cluster.core(self.address)
        self.campaign.cluster.pause(self.address)

    def look(self, message: Message = VIEW) -> None:
        event = self.campaign.event(CLIENT, self.address, message)
        self.watcher.before(event)
        self.watcher.after(event)

    def look_for(self, for_s: float) -> None:
        """Let time pass in small steps with a look after each; the core itself is told nothing."""
        for _ in range(round(for_s / 0.1)):
            self.campaign.world.run_to(self.campaign.world.now_s + 0.1)
            self.look()

    def sent(self, to: Address, message: Message) -> None:
        self.watcher.sent(self.campaign.world.now_s, self.address, to, message)

    def batch_request(self, name: str, **more: Any) -> Any:
        request = self.core.journal.add(Address("client", name), submit(request_class=BATCH, **more), 0.0)
        return request

    def sequence(self, request: int, request_class: RequestClass = BATCH, **more: Any) -> Any:
        return self.core.sequences.add(CLIENT, place(request, request_class=request_class, **more))


def broken(words: str) -> Any:
    return pytest.raises(Violation, match=f"^I12 at .*{words}")


@pytest.mark.parametrize("role", ["dispatcher", "instance"])
def test_batch_work_that_stalls_beyond_its_bound_breaks_i12(role: str) -> None:
    watched = Watched(role)
    one = watched.batch_request("b") if role == "dispatcher" else watched.sequence(1)
    watched.look()
    watched.look_for(0.5)
    tokens = one.tokens
    tokens.append(9)  # progress
    watched.look_for(0.5)
    with broken("has stalled for 0.[56]"):
        watched.look_for(0.4)
    one.is_risen = True
    watched.look_for(1.0)


def test_what_came_back_and_was_preempted_in_one_event_was_progress() -> None:
    watched = Watched("instance")
    sequence = watched.sequence(1)
    watched.look_for(0.4)
    sequence.kv_tokens = 2  # valid again for a moment, that no look saw
    watched.look_for(0.4)
    with broken("has stalled"):
        watched.look_for(0.4)


@pytest.mark.parametrize("role", ["dispatcher", "instance"])
def test_nothing_must_rise_while_the_share_is_used_up_or_without_a_bound(role: str) -> None:
    for wait_s in (0.4, 0.0):
        watched = Watched(role, wait_s)
        for number in range(3):
            one = watched.batch_request(f"b{number}") if role == "dispatcher" else watched.sequence(number)
            one.is_risen = wait_s > 0 and number < 1
        watched.look_for(2.0)


def test_more_sequences_that_rose_than_the_share_allows_break_i12() -> None:
    watched = Watched("instance")
    for number in range(3):
        watched.sequence(number).is_risen = number < 2
    watched.look()
    watched.sequence(3).is_risen = True
    with broken("3 sequences have risen, and 2 may"):
        watched.look()


def test_more_requests_that_rose_than_the_share_allows_break_i12() -> None:
    watched = Watched("dispatcher")
    first, second = watched.batch_request("a"), watched.batch_request("b")
    first.is_risen = True
    watched.sent(CLIENT, RisenInQueue(first.key))
    second.is_risen = True
    with broken("2 requests have risen, and 1 may"):
        watched.sent(CLIENT, RisenInQueue(second.key))


def test_a_new_chat_request_that_is_dispatched_before_a_risen_one_breaks_i12() -> None:
    watched = Watched("dispatcher")
    instance, request = watched.campaign.address("instance"), watched.batch_request("b", tokens=(1, 2))
    watched.sent(instance, place(9))
    request.is_risen = True
    for other in (
        place(9, attempt=2),
        place(9, tokens=1),
        place(9, max_tokens=1),
        place(9, handle=4),
        place(9, request_class=BATCH),
    ):
        watched.sent(instance, other)
    with broken("dispatches 9 before Request"):
        watched.sent(instance, place(9))
    request.excluded_instances.append(instance)
    watched.sent(instance, place(9))


def test_younger_chat_that_starts_before_a_risen_sequence_breaks_i12() -> None:
    watched = Watched("instance")
    waiting, chat = watched.sequence(1), watched.sequence(2, RequestClass.INTERACTIVE)
    opened = Open(chat.number, i32([7]), 1, 4, SamplingParams())
    engine = Address("engine", watched.address.name)
    watched.look()
    watched.sent(engine, opened)
    waiting.is_risen = True
    with broken("starts .*request 2 .* before .*request 1 .*, which has risen"):
        watched.sent(engine, opened)
    waiting.is_claiming = True
    watched.sent(engine, opened)
    waiting.is_claiming = False
    chat.preempted = True
    watched.look()
    chat.preempted = False  # it starts
    watched.sent(engine, opened)


def test_a_younger_request_of_a_group_that_starts_before_a_risen_one_breaks_i12() -> None:
    watched = Watched("instance")
    waiting, younger = watched.sequence(1), watched.sequence(2, RequestClass.INTERACTIVE)
    spreads = SpreadTable(GroupNumbers())
    for sequence in (waiting, younger):
        spreads.add(sequence)
    watched.look()
    watched.campaign.plant(watched.address, led_group=SimpleNamespace(spreads=spreads))
    opened = OpenGuest(1, younger.number, CLIENT, 2, 1, "", i32([7]), 1, 4, 1)
    watched.sent(Address("instance", "member", 9), opened)
    waiting.is_risen = True
    with broken("starts .*request 2 .* before .*request 1 .*, which has risen"):
        watched.sent(Address("instance", "member", 9), opened)
    younger.is_batch = True
    watched.sent(Address("instance", "member", 9), opened)
