"""Bugs to plant in elastic groups: in the manager and the dispatcher, in a group's leader, in its members."""

from collections.abc import Callable

from dunlin.effects import Address, Effect
from dunlin.messages.group import number_in_group
from dunlin.policies.groups.elastic import Block
from dunlin.policies.groups.elastic_rings import RingChunk
from services.dispatcher.lifecycle.long_requests import LongRequestPlacer
from services.global_manager.elastic_groups import ElasticGroups
from services.global_manager.long_placement import LongPlacement
from services.global_manager.plan_term import PlanTerm
from services.instance.group.guest_steps import GuestSteps
from services.instance.group.guests import Guest, GuestTable
from services.instance.group.leading.exchanges import ExchangeLedger
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.stepping import SpreadSteps
from services.instance.group.leading.suspects import SpreadSuspects
from services.instance.group.member import GroupMember
from services.instance.kv.kv_cache import KvCache
from tests.zoo.plant import Bug, skip, swap


def _note_only(original: object, self: LongRequestPlacer, now_s: float, manager: Address, epoch: int) -> list[Effect]:
    if epoch:
        self._terms[manager] = epoch
    else:
        self._terms.pop(manager, None)
    return []


def _roll_back_counts(original: Callable[[SpreadSequence], None], self: SpreadSequence) -> None:
    blocks: list[Block] = self.blocks
    original(self)
    self.blocks = blocks


def _let_all_take_part(original: object, self: GroupRoster) -> None:
    self.taking_part.update(each.index for each in self.members if each.ready is not None)


def _keep_tokens_of_the_lost(original: object, self: SpreadSequence, member: int) -> bool:
    self.guests.pop(member, None)
    return False


def _unbind_all_after(original: object, self: GuestTable, guest: Guest, row: range) -> None:
    self.unbind(guest, row.start)


def _shift_stripe(original: Callable[[RingChunk, int], range], self: RingChunk, member: int) -> range:
    stripe = original(self, member)
    return range(stripe.start + 1, stripe.stop, stripe.step) if len(stripe) > 1 else stripe


def _end_ring_keeps_copies(original: Callable[[SpreadSequence], None], self: SpreadSequence) -> None:
    blocks = [*self.copies]
    original(self)
    self.blocks = [*self.blocks, *blocks]


def _jump_holes(original: object, self: SpreadSequence, stop: int) -> None:
    self.sequence.valid = max([stop, *(block.stop for block in self.after_hole)])
    self.after_hole = []


def _second_copies_of_all(
    original: Callable[[SpreadSequence, int], list[Block]], self: SpreadSequence, member: int
) -> list[Block]:
    found = original(self, member)
    return [
        Block(found[0].member if found else 0, block.start, block.stop)
        for block in self.blocks
        if block.stop <= self.sequence.valid
    ]


BUGS = (
    Bug(
        "group-number-twice",
        "the manager gives every elastic group the same number",
        ("I4",),
        (swap(ElasticGroups._new_number, lambda original, self: 1000),),
        elastic=True,
        seed=300611,
    ),
    Bug(
        "withdrawal-ignored",
        "the manager counts the slots of requests that have ended as promised",
        ("I12",),
        (skip(LongPlacement.on_withdraw, lambda: None),),
        elastic=True,
        seed=300620,
    ),
    Bug(
        "next-manager-not-asked",
        "a dispatcher does not ask the manager that leads next",
        ("I12",),
        (swap(LongRequestPlacer._note_term, _note_only),),
        elastic=True,
        seed=300634,
    ),
    Bug(
        "guests-never-closed",
        "a leader leaves the guests of ended sequences open",
        ("I8", "I12"),
        (skip(GuestRequests.close, list),),
        elastic=True,
        seed=300641,
    ),
    Bug(
        "nobody-asked",
        "a dispatcher asks no manager about a long request",
        ("I12",),
        (skip(LongRequestPlacer._ask, list),),
        elastic=True,
        seed=300641,
    ),
    Bug(
        "group-never-formed",
        "the manager never takes a group to be formed",
        ("I12",),
        (swap(PlanTerm.is_formed, lambda original, self, group: False),),
        elastic=True,
        seed=300649,
    ),
    Bug(
        "guests-slots-kept",
        "a member does not free the slots of guests that are closed or lost",
        ("I8", "I12"),
        (skip(GuestTable.release, lambda: None),),
        elastic=True,
        seed=549,
    ),
    Bug(
        "guests-outlive-the-group",
        "a member that is in another group keeps the guests of the last",
        ("I8", "I4", "I12", "core"),
        (skip(GuestTable.take_all, list),),
        elastic=True,
        seed=300661,
    ),
    Bug(
        "meetings-unanswered",
        "a member does not say that its engine has met the others",
        ("I12",),
        (skip(GroupMember._answer_meetings, list),),
        elastic=True,
        seed=300669,
    ),
    Bug(
        "steps-unsettled",
        "a leader does not take in what its members have computed",
        ("I12",),
        (skip(SpreadSteps.settle, list),),
        elastic=True,
        seed=300676,
    ),
    Bug(
        "rolled-back-blocks-stay",
        "a leader takes tokens of steps that came to nothing to lie where they were to be computed",
        (
            "I8",
            "core",
        ),
        (swap(SpreadSequence.roll_back, _roll_back_counts),),
        elastic=True,
        seed=60686,
    ),
    Bug(
        "lost-member-forgotten",
        "a leader goes on with sequences whose tokens were lost with a member",
        (
            "I8",
            "I12",
            "core",
        ),
        (swap(SpreadSequence.lose, _keep_tokens_of_the_lost),),
        elastic=True,
        seed=60701,
    ),
    Bug(
        "parts-awaited-in-vain",
        "a leader does not tell the others that a member's part of a step will not come",
        ("I12",),
        (skip(ExchangeLedger.spoilt, dict),),
        elastic=True,
        seed=60707,
    ),
    Bug(
        "members-without-a-meeting",
        "a leader lets members take part whose engines have not met",
        (
            "I4",
            "core",
        ),
        (swap(GroupRoster._admit, _let_all_take_part),),
        elastic=True,
        seed=60714,
    ),
    Bug(
        "guests-outlive-the-order",
        "a member keeps its guests when it follows another order",
        (
            "I4",
            "I8",
            "core",
        ),
        (skip(GroupMember._lose, list, called_by=GroupMember.on_order),),
        elastic=True,
        seed=60001,
    ),
    Bug(
        "guests-outlive-the-leader",
        "a member keeps its guests when its leader's stream has ended",
        (
            "I8",
            "I12",
            "I4",
        ),
        (skip(GroupMember.on_gone, list),),
        elastic=True,
        seed=60721,
    ),
    Bug(
        "closed-under-a-step",
        "a member frees the slots of a guest that a step is writing",
        (
            "I8",
            "core",
        ),
        (swap(GuestSteps._ends_use, lambda original, self, command: False),),
        elastic=True,
        seed=60903,
    ),
    Bug(
        "crash-blamed-on-none",
        "a leader blames no request for a crashed engine",
        ("I12",),
        (skip(SpreadSuspects.on_crash, list),),
        elastic=True,
        seed=61000,
    ),
    Bug(
        "exchanges-numbered-anew",
        "a leader numbers the exchanges of a group from one again after each answer",
        (
            "I4",
            "core",
        ),
        (swap(ExchangeLedger.next_number, lambda original, self, group: number_in_group(group, 1)),),
        elastic=True,
        seed=60777,
    ),
    Bug(
        "unbound-after-a-hole",
        "a member forgets what it holds after a hole when the hole is computed again",
        ("I8", "I12", "core"),
        (swap(GuestTable.unbind_row, _unbind_all_after),),
        elastic=True,
        seed=300751,
    ),
    Bug(
        "holes-jumped",
        "a leader takes lost tokens to be computed when those before them are",
        ("I8", "core"),
        (swap(SpreadSequence.count, _jump_holes),),
        elastic=True,
        seed=300755,
    ),
    Bug(
        "second-copies-invented",
        "a leader takes what a lost member held to lie at another one, too",
        ("I8", "I12", "core"),
        (swap(SpreadSequence._computed_without, _second_copies_of_all),),
        elastic=True,
        seed=60001,
    ),
    Bug(
        "kept-slots-leak",
        "a member keeps the slots of a guest whose leader is gone for ever",
        ("I8", "core"),
        (skip(KvCache.keep_until_needed, lambda: None),),
        elastic=True,
        seed=300772,
    ),
    Bug(
        "ring-keeps-nothing",
        "no member of a ring keeps what the plan gives it",
        ("I8", "core"),
        (skip(RingChunk.held, list),),
        elastic=True,
        seed=300780,
    ),
    Bug(
        "stripe-lacks-its-first-token",
        "a member of a ring computes all tokens of its stripe but the first",
        ("I4", "I8", "I12", "core"),
        (swap(RingChunk.stripe, _shift_stripe),),
        elastic=True,
        seed=100822,
    ),
    Bug(
        "copies-count-after-the-ring",
        "a leader takes the copies of a ring that is over to be owned as well",
        ("I8", "core"),
        (swap(SpreadSequence.end_ring, _end_ring_keeps_copies),),
        elastic=True,
        seed=300790,
    ),
)
