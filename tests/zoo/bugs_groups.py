"""Bugs to plant in elastic groups: in the manager and the dispatcher, in a group's leader, in its members."""

from collections.abc import Callable

from dunlin.effects import Address, Effect
from services.dispatcher.lifecycle.long_requests import LongRequestPlacer
from services.global_manager.elastic_groups import ElasticGroups
from services.global_manager.long_placement import LongPlacement
from services.instance.group.guest_steps import GuestSteps
from services.instance.group.leading.exchanges import Exchange, ExchangeLedger
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.roster import Roster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.member import GroupMember
from tests.zoo.plant import Bug, skip, swap


def _note_only(original: object, self: LongRequestPlacer, now_s: float, manager: Address, epoch: int) -> list[Effect]:
    if epoch:
        self._terms[manager] = epoch
    else:
        self._terms.pop(manager, None)
    return []


def _roll_back_counts(original: Callable[[SpreadSequence], None], self: SpreadSequence) -> None:
    blocks = self.blocks
    original(self)
    self.blocks = blocks


def _take_any_answered(original: object, self: ExchangeLedger) -> Exchange | None:
    for exchange in self.outstanding:
        if not exchange.waiting:
            self.outstanding.remove(exchange)
            return exchange
    return None


def _keep_all(original: Callable[[SpreadSequence, int], bool], self: SpreadSequence, member: int) -> bool:
    original(self, member)
    return False


BUGS = (
    Bug(
        "group-number-twice",
        "the manager gives every elastic group the same number",
        ("I4",),
        (swap(ElasticGroups._new_number, lambda original, self: 1000),),
        elastic=True,
        seed=718,
    ),
    Bug(
        "withdrawal-ignored",
        "the manager counts the slots of requests that have ended as promised",
        ("I12",),
        (skip(LongPlacement.on_withdraw, lambda: None),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "wait-without-end",
        "the manager never refuses a long request that has no room, and the dispatcher waits for it",
        ("I12",),
        (skip(LongRequestPlacer.on_refused, list),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "next-manager-not-asked",
        "a dispatcher does not ask the manager that leads next",
        ("I12",),
        (swap(LongRequestPlacer._note_term, _note_only),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "refused-never-asked-again",
        "a long request that a group's leader refused is not asked for again",
        ("I12",),
        (skip(LongRequestPlacer.on_ask_due, list),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "rolled-back-blocks-stay",
        "a leader takes tokens of steps that came to nothing to lie where they were to be computed",
        ("I8", "core"),
        (swap(SpreadSequence.roll_back, _roll_back_counts),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "left-rows-count",
        "a leader counts rows that left their step as computed",
        ("I1", "I6", "I7", "I8", "core"),
        (swap(Exchange.is_computed, lambda original, self, row: True),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "answers-out-of-order",
        "a leader takes in an exchange before the one before it",
        ("I1", "I8", "I12", "core"),
        (swap(ExchangeLedger.take_answered, _take_any_answered),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "lost-member-forgotten",
        "a leader goes on with sequences whose tokens were lost with a member",
        ("I8", "I12", "core"),
        (swap(SpreadSequence.lose, _keep_all),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "guests-never-closed",
        "a leader leaves the guests of ended sequences open",
        ("I8", "I12"),
        (skip(GuestRequests.close, list),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "steps-without-a-lost-member-s-part",
        "a leader does not tell the others that a member's part of a step will not come",
        ("I12",),
        (skip(ExchangeLedger.spoilt, dict),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "members-without-a-meeting",
        "a leader lets members take part whose engines have not met",
        ("I1", "I4", "I8", "I12", "core"),
        (swap(Roster._admit, lambda original, self: self.taking_part.update(one.index for one in self.members)),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "any-leader-commands",
        "a member carries out commands of leaders that it does not follow",
        ("I4", "I8", "core"),
        (swap(GroupMember._is_current, lambda original, self, sender, group: True),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "guests-outlive-the-order",
        "a member keeps its guests when it follows another order",
        ("I4", "I8", "I12", "core"),
        (skip(GroupMember._lose, list, called_by=GroupMember.on_order),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "guests-outlive-the-leader",
        "a member keeps its guests when its leader's stream has ended",
        ("I8", "I12"),
        (skip(GroupMember.on_gone, list),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "left-rows-stay-bound",
        "a member takes what a row did not compute before it left to lie in its slots",
        ("I1", "I6", "I7", "I8", "core"),
        (skip(GuestSteps._unbind, lambda: None),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "closed-under-a-step",
        "a member frees the slots of a guest that a step is writing",
        ("I8", "core"),
        (swap(GuestSteps._ends_use, lambda original, self, command: False),),
        seed=100,
        elastic=True,
    ),
    Bug(
        "cancel-unheard",
        "a member goes on with steps that its leader has cancelled",
        ("I12",),
        (skip(GuestSteps.cancel, list),),
        seed=100,
        elastic=True,
    ),
)
