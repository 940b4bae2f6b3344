"""Settings of elastic groups at an instance: what it does as the leader of one."""

from dataclasses import dataclass

from dunlin.config.fields import check, setting
from dunlin.policies.groups.elastic import PLACEMENT_POLICIES


@dataclass(frozen=True, slots=True)
class InstanceGroupsConfig:
    """How long requests are spread over the members of a group that this instance leads."""

    policy: str = setting(
        "balanced",
        "Over how many members a prompt is spread. `fewest`: as few as hold it; `widest`: all; `balanced`: so many "
        "that each has at least `chunk_tokens` of it to compute.",
        choices=tuple(PLACEMENT_POLICIES),
        why="a member that computes less than a chunk costs each step more than it gives",
    )
    chunk_tokens: int = setting(
        512,
        "Tokens of long prompts that one member computes in one step at most. Steps of its own requests come in "
        "between.",
        unit="tokens",
        least=1,
        why="as instance.scheduler.budget_tokens: what a step may hold without holding up other tokens for long",
    )
    step_s: float = setting(
        0.1,
        "What a step of a group may take: a long prompt's chunk gets so many tokens, up to `chunk_tokens`, where the "
        "time of the leader's steps is known.",
        unit="seconds",
        above=0,
        why="requests of the members' own wait for it between any two of their tokens; beyond a long prefix a chunk of "
        "few tokens is as efficient as one of many",
    )
    own_share: float = setting(
        0.5,
        "Where an instance has requests of its own, their steps get so much of the time that its group's last step "
        "took, before the next one begins.",
        unit="share of the group's step",
        least=0,
        why="a group's step is long, one of decode rows is short: every token would wait for one; the group is slower "
        "by a third at most",
    )
    ring: bool = setting(
        True,
        "Whether prompts of more than one chunk go round as rings where fewer members hold one than compute it: it is "
        "kept at those, and the others are free once it is computed. Until then they need slots for copies.",
        why="computed at least as fast as by queries within a node, and its tokens come from fewer members; see "
        "docs/decisions/2026-11-23-rings-in-chunks.md",
    )
    ahead_tokens: int = setting(
        128,
        "Slots that are set aside at a member beyond a sequence's tokens, for those that it generates next.",
        unit="tokens",
        least=2,
        why="a few seconds of tokens: asking for more takes a round trip, and is done when half of them are used",
    )
    max_waiting: int = setting(
        64,
        "Long requests that may wait for room in the group; the next one is refused and asks the manager again.",
        unit="sequences",
        least=1,
        why="a bound for memory: prompts are long",
    )
    retry_s: float = setting(
        0.25,
        "Time until a member that refused slots, a step that came to nothing, or engines that did not meet are asked "
        "again; longer with each time.",
        unit="seconds",
        above=0,
        why="members' own requests end without a word to the leader",
    )
    patience_s: float = setting(
        5.0,
        "When nothing of the group's requests has moved for so long, one of them goes back to its dispatcher: the "
        "youngest that has slots, or the first that waits for some.",
        unit="seconds",
        above=0,
        why="a manager that can add members has done so by then",
    )
    late_s: float = setting(
        0.5,
        "A step of the group of which nothing is heard for four times as long as the slowest of its size took lately, "
        "and for so long at least, is ended at all its members; one that does not answer that in this time is lost.",
        unit="seconds",
        above=0,
        why="a member that is stopped keeps all others waiting; the monitor takes seconds to see it",
    )
    return_after_s: float = setting(
        1.0,
        "A member on which nothing of a request lies goes back to the manager after so long.",
        unit="seconds",
        above=0,
        why="joining again takes a few round trips; the next long request may be on its way",
    )

    def __post_init__(self) -> None:
        check(self)
