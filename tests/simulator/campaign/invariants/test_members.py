"""Planted words and states that break I4 and I8 between a group's leader and its members are found."""

from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Message
from dunlin.messages.group import (
    GroupStep,
    GroupStepDone,
    GuestsLost,
    MeetMembers,
    MemberEngine,
    MemberReady,
    MembersMet,
    OpenGuest,
)
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole, i32, i64
from services.instance.sequence.states import SequenceState
from simulator.campaign.invariants.members import FORGOTTEN_S, ConversationWatcher, GuestWatcher
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, member_address

LEADER, MEMBER, THIRD = (member_address(index) for index in range(3))
GROUP = 7
AGENTS = b"a0", b"a1", b"a2"


class Stage:
    """Instances with a leader's parts, and what watchers read of members."""

    def __init__(self) -> None:
        self.group = ScriptedGroup(40, 40, 40, groups__policy="widest")
        self.members = (LEADER, MEMBER, THIRD)
        self.guests: dict[Address, list[Any]] = {one: [] for one in self.members}
        self.cores = {
            one: SimpleNamespace(address=one, group_order=self.order(one), led_group=None) for one in self.members
        }
        for one, core in self.cores.items():
            core.group_member = SimpleNamespace(steps=SimpleNamespace(guests=FakeGuests(self.guests[one])))
        self.cores[LEADER].led_group = self.group.leader.led
        self.world = SimpleNamespace(now_s=0.0, is_paused=lambda one: False)
        self.disturbed: set[Address] = set()
        self.cluster: Any = SimpleNamespace(
            core=self.cores.get, instances=self.cores, world=self.world, of_role=lambda role: []
        )
        self.faults: Any = SimpleNamespace(was_disturbed=lambda *those: not self.disturbed.isdisjoint(those))

    def order(self, one: Address, *members: Address) -> GroupOrder:
        part = GroupRole.LEADER if one == LEADER else GroupRole.MEMBER
        return GroupOrder(1, 1, GROUP, GroupKind.ELASTIC, part, members or self.members)

    def conversation(self) -> ConversationWatcher:
        watcher = ConversationWatcher(self.cluster, SimpleNamespace(), self.faults)  # type: ignore[arg-type]
        for one in self.members:
            self.tell(watcher, one, ready(one))
        for one in self.members:
            self.introduce(watcher, one)
        return watcher

    def introduce(self, watcher: ConversationWatcher, one: Address) -> None:
        """The leader tells it of the others, all of which it meets."""
        engines = engines_of(one)
        watcher.sent(0.0, LEADER, one, MeetMembers(GROUP, engines))
        self.tell(watcher, one, MembersMet(GROUP, i32(each.member for each in engines)))

    def tell(self, watcher: ConversationWatcher, sender: Address, message: Message) -> None:
        watcher.before(Delivery(0.0, 1, LEADER, sender, message))


def engines_of(one: Address, **agents: bytes) -> tuple[MemberEngine, ...]:
    """The engines of all but the one."""
    others = [(index, each) for index, each in enumerate((LEADER, MEMBER, THIRD)) if each != one]
    return tuple(MemberEngine(index, each, agents.get(each.name, AGENTS[index])) for index, each in others)


def ready(one: Address, agent: bytes | None = None) -> MemberReady:
    own = AGENTS[(LEADER, MEMBER, THIRD).index(one)]
    return MemberReady(GROUP, one, agent or own, 0, 40, 40, 100, "w", "fp32")


class FakeGuests:
    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def __iter__(self) -> Any:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def get(self, number: int) -> Any:
        return next((each for each in self.found if each.number == number), None)

    def has(self, guest: Any, start: int, stop: int) -> bool:
        return bool(guest.start <= start and stop <= guest.stop)


def broken(kind: str, words: str) -> Any:
    return pytest.raises(Violation, match=f"^{kind} at .*{words}")


def step(exchange: int = 1, group: int = GROUP, members: tuple[int, ...] = (2,)) -> GroupStep:
    return GroupStep(group, exchange, GroupKind.MASTERS, span_member=i32(members))


def opened() -> OpenGuest:
    return OpenGuest(GROUP, 1, Address("dispatcher", "d"), 1, 1, "k", i32([1]), 1, 1, 1)


def test_what_members_and_their_leader_say_to_each_other_breaks_nothing() -> None:
    stage = Stage()
    watcher = stage.conversation()
    watcher.sent(0.0, LEADER, MEMBER, opened())
    watcher.sent(0.0, LEADER, MEMBER, step(1))
    watcher.sent(0.0, LEADER, MEMBER, step(2))
    watcher.sent(0.0, MEMBER, LEADER, GroupStepDone(GROUP, 1))
    watcher.sent(0.0, MEMBER, THIRD, GuestsLost(GROUP))


@pytest.mark.parametrize("message", [opened(), step()], ids=lambda each: type(each).__name__)
def test_commands_of_one_that_leads_nothing_and_to_no_member_are_found(message: Any) -> None:
    stage = Stage()
    with broken("I4", "leads nothing"):
        stage.conversation().sent(0.0, MEMBER, THIRD, message)
    stage.cores[LEADER].group_order = stage.order(LEADER, LEADER, THIRD)
    with broken("I4", "commands.*m1"):
        stage.conversation().sent(0.0, LEADER, MEMBER, message)


def test_an_answer_to_one_that_does_not_lead_is_found() -> None:
    stage = Stage()
    with broken("I4", "answers.*m2"):
        stage.conversation().sent(0.0, MEMBER, THIRD, GroupStepDone(GROUP, 1))


def test_an_exchange_that_comes_twice_is_found() -> None:
    stage = Stage()
    watcher = stage.conversation()
    watcher.sent(0.0, LEADER, MEMBER, step(2))
    with broken("I4", "exchange 2 after 2"):
        watcher.sent(0.0, LEADER, MEMBER, step(2))


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (MEMBER, MembersMet(GROUP, i32([0]))),
        (THIRD, GuestsLost(GROUP)),
        (THIRD, ready(THIRD, b"another")),
    ],
    ids=["it met fewer", "the other is lost", "the other has another engine"],
)
def test_a_step_with_a_member_whose_engine_has_not_met_the_others_is_found(sender: Address, said: Any) -> None:
    stage = Stage()
    watcher = stage.conversation()
    watcher.sent(0.0, LEADER, MEMBER, step(1))
    if isinstance(said, MembersMet):
        watcher.sent(0.0, LEADER, MEMBER, MeetMembers(GROUP, engines_of(MEMBER)))
    stage.tell(watcher, sender, said)
    with broken("I4", "compute with .2., and"):
        watcher.sent(0.0, LEADER, MEMBER, step(2))


def test_a_member_that_comes_back_with_its_engine_is_still_met() -> None:
    stage = Stage()
    watcher = stage.conversation()
    stage.tell(watcher, THIRD, GuestsLost(GROUP))
    stage.tell(watcher, THIRD, ready(THIRD))
    watcher.sent(0.0, LEADER, MEMBER, step(1, members=(0, 2)))
    with broken("I4", "compute with .0., and"):
        watcher.sent(0.0, LEADER, THIRD, step(1, members=(0,)))
    stage.introduce(watcher, THIRD)
    watcher.sent(0.0, LEADER, THIRD, step(2, members=(0, 1)))


def test_an_answer_is_of_the_agents_that_its_question_named() -> None:
    """The member has met the engine that the third had, not the one that it has now."""
    stage = Stage()
    watcher = stage.conversation()
    new = {THIRD.name: b"another"}
    watcher.sent(0.0, LEADER, MEMBER, MeetMembers(GROUP, engines_of(MEMBER), 1))
    stage.tell(watcher, THIRD, ready(THIRD, b"another"))
    watcher.sent(0.0, LEADER, MEMBER, MeetMembers(GROUP, engines_of(MEMBER, **new), 2))
    stage.tell(watcher, MEMBER, MembersMet(GROUP, i32([0, 2]), question=1))
    with broken("I4", "compute with .2., and"):
        watcher.sent(0.0, LEADER, MEMBER, step(1))
    stage.tell(watcher, MEMBER, MembersMet(GROUP, i32([0, 2]), question=2))
    watcher.sent(0.0, LEADER, MEMBER, step(2))


def test_a_stream_that_ends_takes_the_answers_on_it_along() -> None:
    stage = Stage()
    watcher = stage.conversation()
    watcher.sent(0.0, LEADER, MEMBER, MeetMembers(GROUP, engines_of(MEMBER, **{THIRD.name: b"old"})))
    stage.tell(watcher, MEMBER, Gone())
    stage.tell(watcher, MEMBER, ready(MEMBER))
    stage.introduce(watcher, MEMBER)
    watcher.sent(0.0, LEADER, MEMBER, step(1))


def test_members_that_disagree_for_long_are_found() -> None:
    stage = Stage()
    watcher = stage.conversation()
    stage.cores[LEADER].group_order = stage.order(LEADER, LEADER, MEMBER)
    watcher.audit()
    stage.world.now_s = FORGOTTEN_S + 0.1
    stage.disturbed = {MEMBER, THIRD}
    watcher.audit()
    assert watcher.excused.total() == 2
    stage.disturbed = set()
    with broken("I4", "has been in a group of|is in a group of"):
        watcher.audit()


# --- guests ---


def computing() -> tuple[Stage, GuestWatcher, Any]:
    """A sequence of 30 tokens, 10 at each member, of which the first 20 are computed."""
    stage = Stage()
    stage.group.place(1, 30, max_tokens=4)
    led = stage.group.leader.led
    assert led is not None
    while not any(each.sequence.valid == 24 for each in led.spreads):
        stage.group.run(0.001)
    (spread,) = led.spreads
    watcher = GuestWatcher(stage.cluster, SimpleNamespace(), stage.faults)  # type: ignore[arg-type]
    for one in stage.members:
        stage.guests[one].append(SimpleNamespace(number=spread.number, start=0, stop=30))
    return stage, watcher, spread


def look(watcher: GuestWatcher, before: int = 0, number: int = 0) -> None:
    watcher._valid = {number: before}
    watcher.after(Delivery(0.0, 1, LEADER, MEMBER, GroupStepDone(GROUP, 1)))


@pytest.fixture(autouse=True)
def _cores_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.campaign.invariants.members.InstanceCore", SimpleNamespace)


def test_tokens_that_lie_where_the_leader_says_break_nothing() -> None:
    _, watcher, _ = computing()
    look(watcher)


def test_a_map_with_a_gap_or_a_lost_member_is_found() -> None:
    _, watcher, spread = computing()
    guest = spread.guests.pop(spread.blocks[0].member)
    with broken("I8", "no guest there is"):
        look(watcher)
    spread.guests[spread.blocks[0].member] = guest
    spread.blocks.pop()
    with broken("I8", "lie somewhere"):
        look(watcher)


def test_tokens_that_count_and_are_not_there_are_found_at_once() -> None:
    stage, watcher, spread = computing()
    (guest,) = stage.guests[MEMBER]
    guest.stop = 0
    look(watcher, before=spread.sequence.valid, number=spread.number)
    with broken("I8", "counts .* at .*m1"):
        look(watcher)
    stage.guests[MEMBER].clear()
    look(watcher)
    assert spread.sequence.state is SequenceState.SPREAD


def test_a_guest_of_another_group_is_found() -> None:
    stage, watcher, _ = computing()
    stage.guests[LEADER].append(SimpleNamespace(number=(GROUP + 1) << 32 | 1, start=0, stop=1))
    with broken("I4", "has guest"):
        look(watcher)


def test_guests_of_a_leader_whose_stream_ended_are_found() -> None:
    stage, watcher, _ = computing()
    watcher.after(Delivery(0.0, 1, MEMBER, THIRD, Gone("reset")))
    with broken("I8", "guests of .*, whose stream has ended"):
        watcher.after(Delivery(0.0, 1, MEMBER, LEADER, Gone("reset")))
    stage.guests[MEMBER].clear()
    watcher.after(Delivery(0.0, 1, MEMBER, LEADER, Gone("reset")))


def test_a_guest_that_its_leader_does_not_know_is_found_after_a_while() -> None:
    stage, watcher, _ = computing()
    stage.guests[MEMBER].append(SimpleNamespace(number=GROUP << 32 | 9, start=0, stop=1))
    watcher.audit()
    stage.world.now_s = FORGOTTEN_S + 0.1
    stage.disturbed = {MEMBER}
    watcher.audit()
    assert watcher.excused.total() == 1
    stage.disturbed = set()
    with broken("I8", "its leader knows nothing of it"):
        watcher.audit()


def test_members_that_compute_in_vain_are_found() -> None:
    stage, watcher, _ = computing()
    led = stage.group.leader.led
    assert led is not None
    first = led.steps.ledger.outstanding[0]
    first.answers = {1: None}
    with broken("I12", "what does not come"):
        look(watcher)
    first.is_cancelled = True
    for each in led.steps.ledger.outstanding:
        each.is_cancelled = True
    look(watcher)
    assert i64(first.waiting)
