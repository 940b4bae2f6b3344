"""Bugs to plant in elastic groups: in the manager and the dispatcher, in a group's leader, in its members."""

from dunlin.effects import Address, Effect
from services.dispatcher.lifecycle.long_requests import LongRequestPlacer
from services.global_manager.elastic_groups import ElasticGroups
from services.global_manager.long_placement import LongPlacement
from services.global_manager.plan_term import PlanTerm
from services.instance.group.guests import GuestTable
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.stepping import SpreadSteps
from services.instance.group.member import GroupMember
from tests.zoo.plant import Bug, skip, swap


def _note_only(original: object, self: LongRequestPlacer, now_s: float, manager: Address, epoch: int) -> list[Effect]:
    if epoch:
        self._terms[manager] = epoch
    else:
        self._terms.pop(manager, None)
    return []


BUGS = (
    Bug(
        "group-number-twice",
        "the manager gives every elastic group the same number",
        ("I4",),
        (swap(ElasticGroups._new_number, lambda original, self: 1000),),
        elastic=True,
        seed=301,
    ),
    Bug(
        "withdrawal-ignored",
        "the manager counts the slots of requests that have ended as promised",
        ("I12",),
        (skip(LongPlacement.on_withdraw, lambda: None),),
        seed=307,
        elastic=True,
    ),
    Bug(
        "next-manager-not-asked",
        "a dispatcher does not ask the manager that leads next",
        ("I12",),
        (swap(LongRequestPlacer._note_term, _note_only),),
        seed=324,
        elastic=True,
    ),
    Bug(
        "guests-never-closed",
        "a leader leaves the guests of ended sequences open",
        ("I8", "I12"),
        (skip(GuestRequests.close, list),),
        seed=363,
        elastic=True,
    ),
    Bug(
        "nobody-asked",
        "a dispatcher asks no manager about a long request",
        ("I12",),
        (skip(LongRequestPlacer._ask, list),),
        elastic=True,
        seed=535,
    ),
    Bug(
        "group-never-formed",
        "the manager never takes a group to be formed",
        ("I12",),
        (swap(PlanTerm.is_formed, lambda original, self, group: False),),
        elastic=True,
        seed=542,
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
        ("I8", "I12", "core"),
        (skip(GuestTable.take_all, list),),
        elastic=True,
        seed=559,
    ),
    Bug(
        "meetings-unanswered",
        "a member does not say that its engine has met the others",
        ("I12",),
        (skip(GroupMember._answer_meetings, list),),
        elastic=True,
        seed=564,
    ),
    Bug(
        "steps-unsettled",
        "a leader does not take in what its members have computed",
        ("I12",),
        (skip(SpreadSteps.settle, list),),
        elastic=True,
        seed=570,
    ),
)
