"""What a global manager's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.common import ReportsConfig
from dunlin.config.fields import check, section, setting
from dunlin.policies.groups.elastic_rules import ELASTIC_RULES
from dunlin.policies.groups.group import GROUP_POLICIES
from dunlin.policies.rebalance import REBALANCE_POLICIES, START_GAP


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    """Which instances form which group, and in which role."""

    policy: str = setting(
        "local_groups",
        "`local_groups`: each instance alone. `prefill_decode`: some compute prompts, the others decode. `elastic`: as "
        "`local_groups`, but several instances serve a request together that is longer than one can hold. "
        "`loongserve`: as `elastic`, but how many is decided by how long prompts take, as far as that is known. "
        "`loongserve_no_scale_up`: as `loongserve`, but a group keeps the members that it was formed of. `whole_pool`: "
        "as `elastic`, but always all of a node; `pairs`: always two (baselines).",
        choices=tuple(GROUP_POLICIES),
        why="a split pays only for steady traffic; the default preset chooses elastic",
    )
    across_nodes: bool = setting(
        False,
        "Elastic groups may have members on several nodes. For simulations: live engines of two "
        "nodes cannot meet, so no request gets through such a group.",
        why="engines compute together within a node only",
    )
    profile: str = setting(
        "",
        "With `loongserve`, the store with a profile of the instances' engines (`dunlin profile --out`), from which "
        "the times of prompts are predicted. Of several in it the only one of cluster.model counts. Empty: groups are "
        "chosen as by `elastic`.",
        why="instances measure their own engines; a manager has none",
    )
    prefill_share: float = setting(
        0.5,
        "Where work is split: share of the instances that compute prompts.",
        unit="share of the instances",
        above=0,
        below=1,
        why="a start; the right one is the share of the time that your prompts take",
    )
    prefill_instances: str = setting(
        "",
        "Where work is split: the names of the instances that compute prompts, with commas between them; all others"
        " decode. Empty: as many as `prefill_share` says, whichever.",
        why="instances are alike unless you know better: other devices, or another tensor parallelism",
    )
    order_retry_s: float = setting(
        1.0,
        "An order without an answer, or refused, is given again after this time.",
        unit="seconds",
        above=0,
        why="an instance that lives answers within milliseconds",
    )
    lease_s: float = setting(
        1.0,
        "An instance without a stream to the leading manager for so long leaves its elastic group, or ends it as its "
        "leader.",
        unit="seconds",
        above=0,
        why="a broken stream is opened anew sooner; the views tell of a death seconds later, once it was probed",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def prefill_names(self) -> tuple[str, ...]:
        """The names in `prefill_instances`."""
        return tuple(name.strip() for name in self.prefill_instances.split(",") if name.strip())

    @property
    def plans_by_time(self) -> bool:
        """Whether the policy looks at the times of prompts."""
        return self.policy in ELASTIC_RULES and ELASTIC_RULES[self.policy].plans


@dataclass(frozen=True, slots=True)
class LongRequestsConfig:
    """Requests that dispatchers ask a group for, because no instance alone can hold them."""

    max_waiting: int = setting(
        256,
        "As many wait for a group at most; more are refused, and dispatchers ask for them again.",
        unit="requests",
        least=1,
        why="a bound for memory; each is longer than an instance",
    )
    max_wait_s: float = setting(
        30.0,
        "One that has no group after so long is refused; its dispatcher asks again for as long as its client waits.",
        unit="seconds",
        above=0,
        why="what a lost answer may cost",
    )
    retry_after_s: float = setting(
        1.0,
        "A dispatcher asks again after this time for a request that was refused.",
        unit="seconds",
        above=0,
        why="the interval in which reports show that room is free",
    )
    idle_group_s: float = setting(
        5.0,
        "A group ends after so long without a request, whether its leader says so or not.",
        unit="seconds",
        above=0,
        why="leaders give members back at once; this is for those that are never given a request",
    )
    merge_after_s: float = setting(
        1.0,
        "A group that lost members, cannot hold its requests without them and is given no others for so long ends, if "
        "another group and its own instances together hold what both run: its requests are computed anew there.",
        unit="seconds",
        above=0,
        why="a killed process of a small model is back by then",
    )
    remembered_s: float = setting(
        60.0,
        "A request is too long only if no group could have held it at any time in this span.",
        unit="seconds",
        above=0,
        why="a node that restarts and loads a model is often back sooner",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class RebalanceConfig:
    """Live migration of running work between instances."""

    policy: str = setting(
        "none",
        "Which running work moves: `none`, as `llumnix` does, or `restless`: some at random, to find what breaks.",
        choices=tuple(REBALANCE_POLICIES),
        why="placement by load suffices for most traffic",
    )
    interval_s: float = setting(
        0.5, "Time between two looks.", unit="seconds", above=0, why="the interval of the instances' reports"
    )
    rest_s: float = setting(
        0.5,
        "An instance that took part in a migration rests for so long, until the views show what it changed.",
        unit="seconds",
        above=0,
        why="the interval of the instances' reports",
    )
    max_migrations: int = setting(
        4,
        "Migration orders under way at once.",
        unit="orders",
        least=1,
        why="decisions about a few pairs stay true while they are carried out",
    )
    min_load_gap: float = setting(
        START_GAP,
        "Loads, as shares of an instance's memory, must differ by this much before work moves.",
        unit="share of an instance's memory",
        above=0,
        most=1,
        why="what moved once has no reason to move back",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class HandoffRoomsConfig:
    """What prefill instances are told of the decode instances."""

    rooms_interval_s: float = setting(
        0.25,
        "How much room decode instances have is told at most once in this time.",
        unit="seconds",
        above=0,
        why="half the interval of their reports",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class PlanPaceConfig:
    """How often changes of the fleet bring about a new plan: plans look at every instance."""

    small_fleet: int = setting(
        100,
        "Up to so many instances, every change does at once.",
        unit="instances",
        least=1,
        why="a plan of as many takes about a millisecond",
    )
    per_instance_s: float = setting(
        50e-6,
        "Time between two plans for each instance beyond small_fleet.",
        unit="seconds",
        above=0,
        why="a few times what a plan takes per instance",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GlobalManagerConfig:
    """Settings of one global manager's core."""

    groups: GroupsConfig = section(GroupsConfig)
    long_requests: LongRequestsConfig = section(LongRequestsConfig)
    rebalance: RebalanceConfig = section(RebalanceConfig)
    kv_handoff: HandoffRoomsConfig = section(HandoffRoomsConfig)
    plan_pace: PlanPaceConfig = section(PlanPaceConfig)
    reports: ReportsConfig = section(ReportsConfig)
