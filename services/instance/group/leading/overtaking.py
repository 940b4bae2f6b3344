"""Whether a sequence of a group may start before an older one that waits for slots: as at an instance alone, see
`services/instance/scheduling/overtakers.py`. Knows no message.
"""

from dunlin.policies.overtake import OvertakePolicy, Overtaking
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.spread_table import SpreadTable


class SpreadOvertakers:
    """Knows what those that came after a waiting sequence and have slots may grow to."""

    def __init__(self, policy: OvertakePolicy, spreads: SpreadTable, roster: GroupRoster) -> None:
        self._policy = policy
        self._spreads = spreads
        self._roster = roster

    def blocks(self, spread: SpreadSequence) -> bool:
        """Whether one that lacks slots keeps back those behind it: not one that members could not hold if they were
        empty, for it waits for other members.
        """
        return len(spread.sequence.tokens) <= self._capacity

    def may_start(self, spread: SpreadSequence, blocked: SpreadSequence) -> bool:
        """Whether `spread` may start before `blocked`: interactive ones alone, and none before batch work that rose."""
        if spread.sequence.is_batch or blocked.sequence.is_batch:
            return False
        slots, blocked_slots = spread.sequence.max_length, blocked.sequence.max_length
        return self._policy(Overtaking(slots, blocked_slots, self._slots_ahead_of(blocked), self._capacity))

    @property
    def _capacity(self) -> int:
        placeable = self._roster.placeable()
        ready = [state.ready for state in self._roster.members if state.index in placeable]
        return sum(each.capacity_slots for each in ready if each is not None)

    def _slots_ahead_of(self, blocked: SpreadSequence) -> int:
        later = [each.sequence for each in self._spreads.live() if each.turn > blocked.turn]
        ahead = [one for one in later if one.order > blocked.sequence.order or one.has_overtaken]
        return sum(one.max_length for one in ahead)
