"""What a dispatcher's core is told at start, one section per decision. Pure."""

from dataclasses import dataclass

from dunlin.config.common import ReportsConfig
from dunlin.config.fields import check, section, setting
from dunlin.policies.admit import ADMIT_POLICIES
from dunlin.policies.by_length import POOL_POLICIES, QUEUE_POLICIES
from dunlin.policies.dispatch import DISPATCH_POLICIES
from dunlin.policies.groups.long_requests import LONG_POLICIES


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Which instance gets a request."""

    policy: str = setting(
        "least_loaded",
        "How an instance is chosen (docs/presets.md).",
        choices=tuple(DISPATCH_POLICIES),
        why="the plainest; the default preset chooses prefix_affinity",
    )
    max_waiting_per_instance: int = setting(
        16,
        "Requests that may wait at one instance for slots there; others wait here and can still go anywhere.",
        unit="requests",
        least=1,
        why="enough to bridge the time until an instance's load is known here",
    )
    view_lag_s: float = setting(
        0.1,
        "The FleetView is so much older than now: what was placed within this time is counted on top of it.",
        unit="seconds",
        least=0,
        why="the monitor's interval of publishing",
    )
    refusal_pause_s: float = setting(
        0.05,
        "An instance that refused is not asked again for so long.",
        unit="seconds",
        above=0,
        why="about one step: room appears when a step ends",
    )
    long_policy: str = setting(
        "refuse",
        "What becomes of a request that no instance alone can hold: `refuse`, or `group`: the manager is asked for "
        "instances that hold it together.",
        choices=LONG_POLICIES,
        why="it takes a manager that forms groups; the default preset chooses group",
    )
    long_tokens: int = setting(
        0,
        "Longer prompts are long: with `group` they get a group, too, though an instance could hold them, and the "
        "policies of queue and pool tell them apart. 0: none is.",
        unit="tokens",
        least=0,
        why="a group is worth its exchanges where prompts take seconds",
    )
    queue_policy: str = setting(
        "arrival",
        "Which waiting interactive request is next: by `arrival`, or `short_first`: long prompts (`long_tokens`) after "
        "all others (a baseline: they starve).",
        choices=QUEUE_POLICIES,
        why="what came first goes first",
    )
    pool_policy: str = setting(
        "shared",
        "`shared`: every instance takes every request. `by_length`: long prompts (`long_tokens`) have instances of "
        "their own (a baseline).",
        choices=POOL_POLICIES,
        why="reserved instances idle",
    )
    long_share: float = setting(
        0.5,
        "With the pools `by_length`: the share of the instances that long prompts have, the last by name; one at "
        "least, and never all.",
        unit="share of the instances",
        above=0,
        below=1,
        why="a start; the right one is the share of the time that your long prompts take",
    )
    leaderless_s: float = setting(
        1.0,
        "No manager has led for so long: a long request goes to the group with most room in the last view.",
        unit="seconds",
        above=0,
        why="an election takes longer only where the leader died",
    )
    max_lost_attempts: int = setting(
        16,
        "Attempts of one request that may be lost with their instance, in a row and without a token between; then it "
        "ends with an error.",
        unit="attempts",
        least=1,
        why="more than the instances of a small cluster: no request ends because some die",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Which requests are taken at all."""

    policy: str = setting(
        "all",
        "Which classes of requests are taken: `all`, or `interactive_only`.",
        choices=tuple(ADMIT_POLICIES),
        why="batch work is what idle slots are for",
    )
    max_queued: int = setting(
        1024,
        "Requests that may wait here for an instance; more are refused (RESOURCE_EXHAUSTED, HTTP 429).",
        unit="requests",
        least=1,
        why="a bound for memory; max_wait_s refuses most of them earlier",
    )
    max_wait_s: float = setting(
        30.0,
        "A request whose turn would come later is refused at once, by the pace of the last ones. Batch requests wait.",
        unit="seconds",
        above=0,
        why="refused now it can go elsewhere; served too late it costs all the same",
    )
    unavailable_after_s: float = setting(
        10.0,
        "No instance has been able to serve for so long: new requests are refused (UNAVAILABLE, HTTP 503).",
        unit="seconds",
        above=0,
        why="an instance that restarts is back sooner",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ObjectiveBoundsConfig:
    """The strictest objectives that a request, or a tenant for its requests, may have instead of the cluster's
    (`instance.objectives`). What asks for less is refused."""

    least_ttft_s: float = setting(
        0.5,
        "A request may ask for its first token within so long, and not for less.",
        unit="seconds",
        above=0,
        why="a third of the cluster's objective: batch work leaves steps for it, and comes back a step later",
    )
    least_tpot_s: float = setting(
        0.05,
        "A request may ask for each further token within so long, and not for less.",
        unit="seconds",
        above=0,
        why="about half of the cluster's objective: one stream takes half of a step from others at most",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class OutageConfig:
    """What becomes of accepted requests while no instance can serve."""

    give_up_after_s: float = setting(
        60.0,
        "No instance has been able to serve for so long: accepted requests end with an error.",
        unit="seconds",
        above=0,
        why="a node that restarts and loads a model is often back sooner",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class DispatcherAdoptionConfig:
    """Requests that began at another dispatcher."""

    ask_timeout_s: float = setting(
        2.0,
        "A request that may run somewhere already waits so long for the instances to say so; then it starts anew.",
        unit="seconds",
        above=0,
        why="an instance that lives answers within milliseconds",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class DispatcherStarvationConfig:
    """Batch requests that wait behind others for too long."""

    batch_wait_s: float = setting(
        600.0,
        "A batch request in the queue that has had no token for so long rises: until it ends it is dispatched like an "
        "interactive one. 0: none does.",
        unit="seconds",
        least=0,
        why="longer than a burst of chat, and little of a completion window of a day",
    )
    risen_share: float = setting(
        0.05,
        "Share of the dispatched requests that batch requests which rose may be at a time; one may always.",
        unit="share of the dispatched requests",
        least=0,
        most=1,
        why="what chat hardly notices",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    """Requests with an idempotency key whose connection was cut."""

    grace_s: float = setting(
        30.0,
        "Such a request runs on for so long after its last reader left.",
        unit="seconds",
        above=0,
        why="the time in which a client retries",
    )
    replay_s: float = setting(
        60.0,
        "Its answer is given again to the same key for so long.",
        unit="seconds",
        above=0,
        why="the time in which a client retries, twice over",
    )
    max_replays: int = setting(
        1024,
        "Answers that are kept for that at most.",
        unit="answers",
        least=1,
        why="a bound for memory: some minutes of answers",
    )
    max_replay_tokens: int = setting(
        1 << 20,
        "Tokens of all kept answers together, prompts included; each log-probability counts as one more.",
        unit="tokens",
        least=1,
        why="a bound for memory: about 12 MiB",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Settings of one dispatcher's core. `max_positions`, the model's limit for prompt and generated tokens (0 if it is
    unknown), is its host's to say.
    """

    max_positions: int = 0
    placement: PlacementConfig = section(PlacementConfig)
    admission: AdmissionConfig = section(AdmissionConfig)
    objectives: ObjectiveBoundsConfig = section(ObjectiveBoundsConfig)
    outage: OutageConfig = section(OutageConfig)
    adoption: DispatcherAdoptionConfig = section(DispatcherAdoptionConfig)
    starvation: DispatcherStarvationConfig = section(DispatcherStarvationConfig)
    idempotency: IdempotencyConfig = section(IdempotencyConfig)
    reports: ReportsConfig = section(ReportsConfig)
