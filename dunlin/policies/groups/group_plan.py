"""What grouping policies read and make: candidates, constraints and groups. Knows no policy, manager or order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.types import GroupKind, GroupRole, RejectedOption, Why


@dataclass(frozen=True, slots=True)
class GroupCandidate:
    """An instance that may be grouped. `group` is the group that it is in, 0 for none, and `role` what it does there.

    `serves`: it can do its part now, and take more. `alive`: it has an engine, and is not suspect. `leaves`: it drains.
    `requests` run or wait there. `free_slots` may be given to sequences, those of cached prefixes included and what
    waits there taken off; `guest_slots` are set aside for sequences of its group. Instances with other `weights`
    compute other tokens. `left`: the group that it is in no more by this plan, and why.
    """

    address: Address
    capacity_slots: int = 0
    group: int = 0
    role: GroupRole = GroupRole.LOCAL
    serves: bool = True
    requests: int = 0
    kind: GroupKind = GroupKind.LOCAL
    alive: bool = True
    leaves: bool = False
    free_slots: int = 0
    guest_slots: int = 0
    max_positions: int = 0
    node: str = ""
    weights: str = ""
    left: RejectedOption | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Members that step together, in this order; the first leads. `roles` has one entry per member.

    `explain` makes the reason: of thousands of groups in a plan, few are new and reported.
    """

    number: int
    kind: GroupKind
    members: tuple[Address, ...]
    roles: tuple[GroupRole, ...]
    explain: Callable[[], Why] = field(compare=False, repr=False)

    @property
    def why(self) -> Why:
        """The reason for the group, and for its parts."""
        return self.explain()


@dataclass(frozen=True, slots=True)
class GroupConstraints:
    """What a policy is told besides the candidates.

    Of the instances, `prefill_share` compute prompts where work is split; or those named `prefill_names`, if any are
    named. `next_group` is a number that no group has had in this term, like all above it; policies whose groups come
    and go take new numbers from there.
    """

    prefill_share: float = 0.5
    next_group: int = 1
    prefill_names: tuple[str, ...] = ()


GroupPolicy = Callable[[Sequence[GroupCandidate], GroupConstraints], list[Group]]
EVEN_SPLIT = GroupConstraints()
