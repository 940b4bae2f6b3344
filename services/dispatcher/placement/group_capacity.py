"""Which requests need a group, and how long a request may be that one can hold. By the views alone.

A fleet that lost an instance counts for a while as what it was: an instance that restarts makes no request too long. A
dispatcher that does not know yet what the fleet was leaves that to the manager.
"""

from dunlin.cores.recent_peak import RecentPeak
from dunlin.messages.door import RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.groups.long_requests import KnownGroup
from services.dispatcher.config import PlacementConfig
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.request import Request


class GroupCapacity:
    """Knows what one instance, and what all together can hold. `is_used`: long requests get groups at all.

    The peak of the last `remembered_s` seconds is that of all together, or without groups that of the largest instance.
    """

    def __init__(self, fleet: FleetState, config: PlacementConfig, remembered_s: float) -> None:
        self.is_used = config.long_policy == "group"
        self._fleet = fleet
        self._long_tokens = config.long_tokens
        self._peak = RecentPeak(remembered_s, 0)

    def note_view(self, now_s: float) -> None:
        """The view changed."""
        self._peak.note(now_s, self._tokens_now() if self.is_used else self._fleet.fleet_max_length([]) or 0)

    def max_length(self, now_s: float) -> int | None:
        """Tokens of the longest sequence that one instance or a group may hold; None: no instance is known."""
        alone = self._fleet.fleet_max_length([])
        if not self.is_used or alone is None:
            return alone
        positions = max((member.max_positions for member in self._fleet.members), default=0)
        if positions and not self._peak.is_settled(now_s):
            return max(alone, positions)
        return max(alone, self.pool_tokens(now_s))

    def longest_lately(self, now_s: float) -> int | None:
        """As `max_length`, of an instance that was lost lately, too: it may be back soon."""
        longest = self.max_length(now_s)
        return longest if longest is None or self.is_used else max(longest, self._peak.peak(now_s))

    def may_fit_soon(self, request: Request, now_s: float) -> bool:
        """Whether an instance that could hold the request was lost lately, and none has refused it."""
        longest = self.longest_lately(now_s)
        return longest is not None and request.max_length <= longest and not request.excluded_instances

    def refusal(self, submit: Submit) -> SubmitRejected | None:
        """Why a request that is not too long for a group cannot be served by one; None: it can, or needs none."""
        alone, length = self._fleet.fleet_max_length([]), len(submit.tokens) + (submit.max_tokens or 1)
        if not self.is_used or submit.sampling.prompt_logprobs is None or alone is None or length <= alone:
            return None
        text = (
            f"prompt_logprobs: {length} tokens are more than the {alone} of one instance, and a group of instances "
            "computes no log-probabilities of prompts"
        )
        return SubmitRejected(RejectionCode.TOO_LONG, text, field="prompt_logprobs")

    def pool_tokens(self, now_s: float) -> int:
        """Tokens that all instances hold together, by the views so far."""
        return self._peak.peak(now_s)

    def needs_group(self, request: Request) -> bool:
        """Whether the request is for a group: no instance can hold it, or its prompt is worth several. Groups compute
        no log-probabilities of prompts.
        """
        if not self.is_used or request.prompt_logprobs is not None:
            return False
        if self.fits_no_instance(request):
            return True
        return 0 < self._long_tokens < request.prompt_tokens and not request.goes_alone

    def fits_no_instance(self, request: Request) -> bool:
        """Whether no known instance alone can ever hold it."""
        limit = self._fleet.fleet_max_length(request.excluded_instances)
        return limit is not None and limit < request.max_length

    def known_groups(self) -> list[KnownGroup]:
        """The elastic groups of the last view whose leaders can be given requests."""
        free: dict[int, int] = {}
        leaders = []
        for member in self._fleet.members:
            if member.kind is not GroupKind.ELASTIC or not member.ready or member.suspect:
                continue
            free[member.group] = free.get(member.group, 0) + member.free_slots
            if member.part is GroupRole.LEADER and self._fleet.can_accept_migrated(member.address):
                leaders.append(member)
        return [KnownGroup(one.group, one.address, free[one.group]) for one in leaders if not one.draining]

    def _tokens_now(self) -> int:
        members = [one for one in self._fleet.members if one.capacity_slots > 0 and not one.draining]
        slots = sum(member.capacity_slots for member in members)
        return min([slots, *(member.max_positions for member in members if member.max_positions)])
