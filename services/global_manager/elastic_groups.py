"""One term's elastic groups: which requests they are for, when they grow, shrink and end.

The groups themselves are the term's orders (and, of terms before, what the views say); this owns what the orders do not
say: the leaders' wishes, the members that they gave back, the instances that refused, and the numbers given out. A plan
is made in a draft, in which requests that run come before requests that wait.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from dunlin.effects import Address
from dunlin.messages.placement import PlaceLong
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.policies.groups.elastic_groups import (
    ElasticGroup,
    choose_group,
    could_merge,
    grow_group,
    longest_that_fits,
)
from dunlin.policies.groups.elastic_rules import ELASTIC_RULES, ElasticRules
from dunlin.policies.groups.group_plan import GroupCandidate
from dunlin.policies.loongserve.grouping import plan_groups
from dunlin.policies.loongserve.inputs import GroupTimes, PendingRequest
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.group_draft import GroupDraft
from services.global_manager.long_requests import LongRequests

TAKEOVER_GAP, TAKEOVER_GAPS = 64, 256
"""Group numbers that a new manager leaves out, once at least: the last one may have given some to groups that no view
shows yet. The one before that may have, too, from the same view: by their epochs they leave out different multiples.
"""

UNFIT_TIMES = 2
"""So many times as long as groups that are too small are given for members to come back, an instance that a leader
waited for in vain is in no group."""


class ElasticGroups:
    """Arranges the groups of one term. `groups` has the members of each after the last arrangement. `times`: what is
    known of the times of prefills; None: memory alone decides.
    """

    def __init__(
        self, config: GlobalManagerConfig, epoch: int, requests: LongRequests, times: GroupTimes | None = None
    ) -> None:
        self.groups: dict[int, tuple[Address, ...]] = {}
        self._rules = ELASTIC_RULES.get(config.groups.policy, ElasticRules(()))
        self._times = times if self._rules.plans else None
        self._across_nodes = config.groups.across_nodes
        self._unfit_s = config.groups.order_retry_s
        self._idle_s = config.long_requests.idle_group_s
        self._merge_after_s = config.long_requests.merge_after_s
        self._requests = requests
        self._gap = TAKEOVER_GAP * (1 + epoch % TAKEOVER_GAPS)
        self._highest = 0
        self._wishes: dict[int, AskMembers] = {}
        self._returned: dict[int, tuple[Address, ...]] = {}
        self._kept: dict[int, tuple[Address, ...]] = {}
        """Members that were given back and are in their groups all the same, for a request needs them, or may."""
        self.made: dict[int, None] = {}
        """Groups that this term formed: no instance followed an order of them before."""
        self._unused: dict[int, None] = {}
        """Groups of this term that no request was placed in yet."""
        self._idle_since_s: dict[int, float] = {}
        self._too_small_since_s: dict[int, float] = {}
        self._unfit_until_s: dict[Address, float] = {}

    @property
    def next_group(self) -> int:
        """A number that no group has had, like all above it."""
        return self._highest + 1

    def see_numbers(self, numbers: Iterable[int]) -> None:
        """Instances are in groups with these numbers. Those above all that were made are of the managers before, though
        the term began before a view showed them.
        """
        seen = max(numbers, default=0)
        if seen > self._highest:
            self._highest = seen + self._gap

    def note_numbers(self, numbers: Iterable[int]) -> None:
        """Groups with these numbers were made."""
        self._highest = max([self._highest, *numbers])

    def on_ask(self, message: AskMembers) -> None:
        """A leader wants members for so many slots more; 0: it wants none any more. In a policy whose groups do not
        scale up it gets none.
        """
        self._wishes.pop(message.group, None)
        if message.slots > 0 and self._rules.scales_up:
            self._wishes[message.group] = message

    def on_return(self, message: ReturnMembers) -> None:
        """A leader gives members back: it lacks none, whatever it asked for before, by an older order perhaps."""
        self._wishes.pop(message.group, None)
        self._kept.pop(message.group, None)
        self._returned[message.group] = message.members

    def on_refused(self, now_s: float, instance: Address) -> None:
        """The instance refused its part of a group: it is in none for a while."""
        self._unfit_until_s[instance] = now_s + self._unfit_s

    def on_cannot_join(self, now_s: float, message: ReturnMembers) -> None:
        """A leader gave up waiting for these members: they are in no group for so long that one which is too small
        without them ends before. Such a group needs to wait no longer.
        """
        self._too_small_since_s[message.group] = now_s - self._merge_after_s
        for member in message.members:
            self._unfit_until_s[member] = now_s + max(self._unfit_s, UNFIT_TIMES * self._merge_after_s)

    def on_request_over(self, number: int) -> None:
        """A request of the group is over: without any, what was given back can be taken after all."""
        if number in self._kept and not self._requests.is_used(number):
            self._returned[number] = self._kept.pop(number)

    def on_placed(self, number: int) -> None:
        """A request was placed in the group: from now on its leader says when it ends."""
        self._unused.pop(number, None)

    def take_kept(self) -> list[int]:
        """The groups whose leaders are to say anew what they give back: they get a newer order."""
        kept, self._kept = self._kept, {}
        return list(kept)

    def has_work(self, now_s: float) -> bool:
        """Whether a new arrangement may differ from the last one though no instance came or went."""
        due = any(now_s - since_s >= self._idle_s for since_s in self._idle_since_s.values())
        return bool(due or self._wishes or self._returned or self._requests.waiting())

    def look_for_idle(self, now_s: float, candidates: Sequence[GroupCandidate]) -> None:
        """Note which groups have no request, by the asks and by the views."""
        draft = self._draft(now_s, candidates)
        idle = [group.number for group in draft.groups() if self._is_idle(group)]
        self._idle_since_s = {number: self._idle_since_s.get(number, now_s) for number in idle}

    def longest(self, candidates: Sequence[GroupCandidate]) -> int:
        """Tokens of the longest sequence that a group could hold."""
        return longest_that_fits(candidates, (), self._across_nodes)

    def arrange(self, now_s: float, candidates: Sequence[GroupCandidate]) -> list[GroupCandidate]:
        """The candidates in the groups that they are to be in from now on."""
        draft = self._draft(now_s, candidates)
        self._requests.keep_groups(draft.numbers)
        self._end_groups(now_s, draft)
        self._take_back(draft)
        self._give_up_crowded(draft)
        self._fulfil_wishes(draft)
        self._merge_too_small(now_s, draft)
        self._place_waiting(draft, candidates)
        self.groups = {group.number: tuple(one.address for one in group.members) for group in draft.groups()}
        self._forget_taken()
        self._forget_others()
        return draft.candidates()

    def _draft(self, now_s: float, candidates: Sequence[GroupCandidate]) -> GroupDraft:
        self._unfit_until_s = {one: until_s for one, until_s in self._unfit_until_s.items() if until_s > now_s}
        fit = [
            replace(one, alive=False, serves=False) if one.address in self._unfit_until_s else one for one in candidates
        ]
        return GroupDraft(fit, self._requests.promised_slots)

    def _is_idle(self, group: ElasticGroup) -> bool:
        """Whether it has no request: none that was placed in this term and is not over, and none that views show."""
        return not self._requests.is_used(group.number) and not any(one.guest_slots for one in group.members)

    def _end_groups(self, now_s: float, draft: GroupDraft) -> None:
        """End the groups that no request was ever placed in, or none for too long."""
        for number in draft.numbers:
            if self._requests.is_used(number):
                self._idle_since_s.pop(number, None)
                continue
            since_s = self._idle_since_s.get(number)
            if number in self._unused or (since_s is not None and now_s - since_s >= self._idle_s):
                draft.dissolve(number, "it has no request")

    def _take_back(self, draft: GroupDraft) -> None:
        """Free the members that leaders gave back, as far as nothing was promised that needs them. The same plan may
        give one to its group again, and then nothing has changed: its leader has to be told that it may be used.
        """
        returned, self._returned = self._returned, {}
        for number, members in returned.items():
            if number not in draft.numbers:
                continue
            group = draft.group(number)
            rest = [one for one in group.members[1:] if one.address not in members]
            if not rest and self._is_idle(group):
                draft.dissolve(number, "its leader needs no other member, and no request was placed there")
                continue
            smaller = replace(group, members=(group.members[0], *rest))
            if len(smaller.members) < len(group.members) and smaller.room_slots >= 0:
                draft.set_members(number, [one.address for one in smaller.members])
            self._kept[number] = members

    def _give_up_crowded(self, draft: GroupDraft) -> None:
        """Let requests leave a group whose lost members they need, the youngest first, if they were not placed yet."""
        for ask in reversed(self._requests.unanswered()):
            number = ask.group
            if number and self._has_lost_members(draft.group(number)) and draft.group(number).room_slots < 0:
                self._requests.take_out(ask)
                if number in self._unused and not self._requests.is_used(number):
                    draft.dissolve(number, "it lost members before a request was placed there")

    def _has_lost_members(self, group: ElasticGroup) -> bool:
        there = {member.address for member in group.members}
        return any(address not in there for address in self.groups.get(group.number, ()))

    def _fulfil_wishes(self, draft: GroupDraft) -> None:
        """Give leaders the members that they lack; if there are too few, those that there are."""
        for number, wish in list(self._wishes.items()):
            if number not in draft.numbers:
                del self._wishes[number]
                continue
            group = draft.group(number)
            more = grow_group(group, wish.slots, draft.free(), self._across_nodes, some=True)
            if more:
                draft.set_members(number, [one.address for one in (*group.members, *more)])
                left = wish.slots - sum(one.free_slots for one in more)
                self.on_ask(replace(wish, slots=max(0, left)))

    def _merge_too_small(self, now_s: float, draft: GroupDraft) -> None:
        """End the groups that have been too small for too long, where another could hold their requests beside its own:
        those are asked for anew then, and one of these instances or all join it.
        """
        for group in draft.groups():
            if not group.is_too_small or group.number not in self._wishes:
                self._too_small_since_s.pop(group.number, None)
                continue
            since_s = self._too_small_since_s.setdefault(group.number, now_s)
            if now_s - since_s >= self._merge_after_s and could_merge(group, draft.groups(), self._across_nodes):
                draft.dissolve(group.number, "too small for its requests, which another group can hold")

    def _place_waiting(self, draft: GroupDraft, candidates: Sequence[GroupCandidate]) -> None:
        """Find groups for the requests that wait, in order: one that the instances that serve could hold, if others
        left, keeps those behind it waiting.
        """
        serving = [one for one in candidates if one.serves]
        if self._times is not None:
            self._plan_groups(draft, self._times)
        for ask in self._requests.waiting():
            message = ask.message
            choice = choose_group(
                message.longest,
                draft.free(),
                _groups_for(message, draft),
                message.excluded,
                self._across_nodes,
                self._rules.ways,
            )
            if choice is None:
                if message.longest <= longest_that_fits(serving, message.excluded, self._across_nodes):
                    return
                continue
            number = choice.number or self._new_number()
            draft.set_members(number, choice.members)
            self._requests.assign(ask, number, choice.why)

    def _plan_groups(self, draft: GroupDraft, times: GroupTimes) -> None:
        """New groups for the first that wait, by how long their prompts take; others join groups, or wait."""
        asks = list(takewhile(lambda ask: not ask.message.excluded, self._requests.waiting()))
        pending = [
            PendingRequest(index, max(1, ask.message.tokens), max(1, ask.message.tokens, ask.message.longest))
            for index, ask in enumerate(asks)
        ]
        for planned in plan_groups(pending, draft.free(), times, self._across_nodes):
            number = self._new_number()
            draft.set_members(number, planned.members)
            for index in planned.requests:
                self._requests.assign(asks[index], number, planned.why)

    def _new_number(self) -> int:
        number = self.next_group
        self.note_numbers([number])
        self.made[number] = self._unused[number] = None
        return number

    def _forget_taken(self) -> None:
        """Forget what was given back and taken: the next order says so."""
        for number, members in list(self._kept.items()):
            if set(members).isdisjoint(self.groups.get(number, ())):
                del self._kept[number]

    def _forget_others(self) -> None:
        """Forget what is known of groups that have ended."""
        for table in (self._wishes, self._kept, self.made, self._unused, self._idle_since_s, self._too_small_since_s):
            for number in [number for number in table if number not in self.groups]:
                del table[number]


def _groups_for(message: PlaceLong, draft: GroupDraft) -> list[ElasticGroup]:
    """The groups with the room that counts for the request: one whose client waits in mid-stream goes before requests
    that were promised room and have not begun.
    """
    groups = draft.groups()
    return [replace(group, promised_slots=0) for group in groups] if message.generated else groups
