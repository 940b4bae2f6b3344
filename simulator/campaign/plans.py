"""The plan of a trial as data: the cluster's shape, the requests and the faults, with their times.

All of it is drawn from the seed before the run, each part from its own random stream. Each entry carries its own
numbers, so a part of a plan is a plan that replays as exactly: shrinking drops entries without changing others. It
knows no core.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from dunlin.policies.presets import PRESETS
from simulator.engine.token_model import continuation

VOCABULARY = 1000
TENANTS = ("", "one", "two")
NAMED_SHARE = 0.25
"""Share of the requests that have an idempotency key and two clients."""
AIMED = 0.3
"""Share of the faults that wait until a process is in a certain phase."""
CHATS = 0.2
"""Share of the seeds in which requests continue earlier answers, as in a chat."""
LEARNING = 0.25
"""Share of the plans in which instances have no profiles of their engines."""
BATCH_SHARES = (0.0, 0.0, 0.3, 0.7)
"""Shares of batch work, one of which each plan has."""
LONGEST_PROMPT = 60
"""Tokens; a prompt with its answer fits into the smallest KV cache."""
PAIRED = 0.1
"""Share of draws that take a pair of faults from `PAIRED_FAULTS`."""
AIMS_OF_KVSTORES = ("copying", "spilling", "restoring", "receiving", "asking", "reserved", "committed")
AIMS_OF_DISPATCHERS = ("dispatched", "preempted", "queued", "running")
AIMS_OF_INSTANCES = ("draining", "ending", "leaving", "receiving", "copying", "spilling", "restoring", "computing")
"""Phases (simulator/campaign/coverage.py) that faults of each role wait for."""
RESTLESS_KINDS = ("remap", "remap", "remap", "late_answers")
"""Faults of which a restless plan has up to four more."""
PAIRED_FAULTS = (
    ("slow_engine", "pause_instance"),
    ("corrupt", "wild_engine"),
    ("corrupt", "drain"),
    ("slow_engine", "kill_kvstore"),
    ("delay", "lose_lease"),
    ("half_open", "tier_full"),
    ("drop", "drain"),
    ("pause_monitor", "hang_engine"),
    ("shed", "corrupt"),
)
"""Pairs of faults that find more when they meet at one process."""
LONG, STEADY = 0.03, 0.2
"""Shares of the seeds with up to an hour of sparse load, and with some minutes; the others have 2 busy seconds."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The shape of the cluster. Times in seconds."""

    instances: int
    dispatchers: int
    managers: int
    nodes: int
    slots: int
    tier_bytes: int
    max_running: int
    budget_tokens: int
    run_ahead_tokens: int
    max_queued: int
    step_s: float
    move_s: float
    restart_s: float
    latency_s: float
    checkpoint_share: float
    prefix_reuse: bool
    replicate: bool
    preset: str
    quotas: tuple[int | None, int | None] | None
    """(running requests, tokens per minute) of each tenant at each dispatcher; None: no quotas."""
    skews: tuple[float, ...]
    """Clock offsets in seconds, assigned in turn to the processes as they start."""
    interrupts: str = "never"
    """The instances' policy for rows that leave their steps."""
    has_agents: bool = False
    """Whether engines of a node can meet, so that KV goes from one to the other; otherwise it goes by the host tier."""
    batch_wait_s: float = 0.0
    """Seconds without progress after which batch work rises, at dispatchers and instances; 0: never."""
    risen_share: float = 0.0
    waiting_per_instance: int = 16
    """Requests that dispatchers let wait at one instance."""
    pressure_share: float = 0.0
    """The instances' share of time for copies of victims when no slot is free."""
    rebalance: str = ""
    """The managers' policy for work that moves; empty: the preset's."""
    has_profiles: bool = True
    """Whether instances know the times of their steps; else they learn them."""
    has_long_prompts: bool = False
    """Whether some prompts are longer than any instance's slots (simulator/campaign/long_prompts.py)."""
    group_chunk_tokens: int = 0
    """Tokens of a group's chunk at each member; 0: the default, more than any prompt has."""
    long_tokens: int = 0
    """Prompts of more tokens go to groups, too; 0: none but those that no instance can hold."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request.

    Seconds after `at_s`: `second_client_s`, a second client with the same idempotency key; `disconnect_s`, the end of
    the client's connection. `poison`: it crashes every engine that computes it. `is_batch`: it is of the batch class.
    `prompt_best`: its prompt's log-probabilities are wanted, with so many alternatives.
    """

    number: int
    at_s: float
    tokens: tuple[int, ...]
    max_tokens: int
    tenant: str
    door: int
    named: bool = False
    second_client_s: float | None = None
    disconnect_s: float | None = None
    timeout_s: float | None = None
    poison: bool = False
    is_batch: bool = False
    prompt_best: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `pick` and `other` (0 to 1) choose its victims among the processes that run then.

    `amount` (0 to 1) is the strength, in the unit of its kind. `aim`: a phase (one of `AIMS_…`) that the fault waits
    for, up to a second; a process in that phase is preferred as the victim.
    """

    number: int
    at_s: float
    kind: str
    pick: float
    other: float
    lasts_s: float
    amount: float
    aim: str = ""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A batch job: its lines, all of one tenant, and how many run and are committed at a time."""

    number: int
    at_s: float
    lines: tuple[PlannedRequest, ...]
    lines_in_flight: int
    segment_lines: int


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The plan of one trial. `name`: its name in a search (simulator/campaign/search); empty: it is its seed's plan."""

    seed: int
    shape: ClusterShape
    requests: tuple[PlannedRequest, ...]
    faults: tuple[Fault, ...]
    jobs: tuple[PlannedJob, ...] = ()
    name: str = ""

    def subset(self, asks: frozenset[int], faults: frozenset[int]) -> "TrialPlan":
        """The plan with these requests and faults alone, by number."""
        return replace(
            self,
            requests=tuple(ask for ask in self.requests if ask.number in asks),
            faults=tuple(fault for fault in self.faults if fault.number in faults),
        )

    def only(self, asks: frozenset[int] | None, faults: frozenset[int] | None) -> "TrialPlan":
        """The plan with these requests and faults alone, by number; None: all of them."""
        some_asks = frozenset(ask.number for ask in self.requests) if asks is None else asks
        some_faults = frozenset(fault.number for fault in self.faults) if faults is None else faults
        return self.subset(some_asks, some_faults)


def draw_plan(seed: int, kinds: tuple[str, ...], presets: tuple[str, ...]) -> TrialPlan:
    """The plan of a seed, with faults of `kinds` and one of `presets`."""
    shape = _shape(Random(f"{seed} shape"), presets)
    shape = replace(shape, has_profiles=Random(f"{seed} profiles").random() >= LEARNING)
    length_s = _length_s(Random(f"{seed} length"))
    asks = _chatting(Random(f"{seed} chats"), _asks(Random(f"{seed} asks"), shape, length_s))
    if PRESETS[shape.preset].admit == "all":
        asks = _classed(Random(f"{seed} classes"), asks)
    return TrialPlan(seed, shape, asks, draw_faults(Random(f"{seed} faults"), kinds, length_s))


def draw_restless(plan: TrialPlan) -> tuple[Fault, ...]:
    """Faults of `RESTLESS_KINDS` at random times of the plan; their numbers follow those of its faults."""
    draw, last_s = Random(f"{plan.seed} restless"), max((ask.at_s for ask in plan.requests), default=0.0)
    times = [draw.uniform(0.0, last_s + 1.0) for _ in range(draw.choice([0, 1, 2, 4]))]
    first = 1 + max((fault.number for fault in plan.faults), default=-1)
    return tuple(
        _fault(draw, first + index, at_s, draw.choice(RESTLESS_KINDS), draw.random())
        for index, at_s in enumerate(times)
    )


def _length_s(draw: Random) -> float:
    kind = draw.random()
    if kind < LONG:
        return draw.uniform(1200.0, 3600.0)
    return draw.uniform(30.0, 180.0) if kind < LONG + STEADY else 2.0


def _shape(draw: Random, presets: tuple[str, ...]) -> ClusterShape:
    return ClusterShape(
        instances=draw.choice([1, 2, 2, 2, 3, 4]),
        dispatchers=draw.choice([1, 2, 2]),
        managers=draw.choice([1, 2, 2]),
        nodes=draw.choice([1, 1, 2]),
        slots=draw.choice([96, 128, 160, 400]),
        tier_bytes=draw.choice([1 << 12, 1 << 16, 1 << 16, 1 << 20]),
        max_running=draw.choice([2, 8, 64]),
        budget_tokens=draw.choice([16, 48, 512]),
        run_ahead_tokens=draw.choice([1, 4, 32]),
        max_queued=draw.choice([4, 1024, 1024]),
        step_s=draw.choice([0.004, 0.01, 0.03]),
        move_s=draw.choice([0.002, 0.02, 0.2]),
        restart_s=draw.choice([0.2, 0.5, 4.0]),
        latency_s=draw.choice([0.0002, 0.001, 0.005]),
        checkpoint_share=draw.choice([0.0, 0.025, 0.5]),
        prefix_reuse=draw.random() < 0.75,
        replicate=draw.random() < 0.5,
        preset=draw.choice(presets),
        quotas=draw.choice([None, None, (3, None), (None, 600), (4, 1200)]),
        skews=tuple(draw.choice([0.0, draw.uniform(0, 1e6)]) for _ in range(7)),
        has_agents=draw.random() < 0.5,
        **_starvation(draw),
    )


def _starvation(draw: Random) -> dict[str, Any]:
    """Some plans have a starvation bound; of these, half have short queues at instances, so that dispatchers' fill, and
    half copy victims faster under pressure.
    """
    bound = {"batch_wait_s": draw.choice([0.0, 0.0, 0.4]), "risen_share": draw.choice([0.0, 0.3])}
    if not bound["batch_wait_s"]:
        return bound
    return {**bound, "waiting_per_instance": draw.choice([1, 16]), "pressure_share": draw.choice([0.0, 0.5])}


def _asks(draw: Random, shape: ClusterShape, length_s: float) -> tuple[PlannedRequest, ...]:
    prompts = [[draw.randrange(VOCABULARY) for _ in range(48)] for _ in range(3)]
    poison = draw.choice([0, 0, 0, 0, 0, 0, 0, 1, 2])
    # Load comes in clumps, however long the run: an idle cluster costs little to simulate and finds little.
    clumps = sorted(draw.uniform(0.0, length_s) for _ in range(1 if length_s < 10 else draw.randint(3, 6)))
    clumps[0] = 0.0
    asks = []
    for number in range(draw.choice([8, 16, 16, 24, 32])):
        shared = draw.choice(prompts)[: draw.randint(1, 48)]
        own = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 12))]
        named = draw.random() < NAMED_SHARE
        asks.append(
            PlannedRequest(
                number,
                draw.choice(clumps) + draw.uniform(0.0, 2.0),
                tuple(shared + own),
                min(draw.choice([draw.randint(1, 36), draw.randint(1, 90)]), shape.slots - 61),
                draw.choice(TENANTS),
                draw.randrange(2),
                named,
                second_client_s=draw.choice([0.0, 0.1, 3.0]) if named else None,
                disconnect_s=draw.uniform(0.01, 1.0) if draw.random() < 0.08 else None,
                timeout_s=draw.choice([0.2, 2.0]) if draw.random() < 0.06 else None,
                poison=number < poison,
            )
        )
    return tuple(asks)


def _chatting(draw: Random, asks: tuple[PlannedRequest, ...]) -> tuple[PlannedRequest, ...]:
    """In some plans, let half of the requests begin with an earlier one's prompt and answer."""
    if draw.random() >= CHATS:
        return asks
    talks = list(asks[:1])
    for ask in asks[1:]:
        before = draw.choice(talks)
        text = (*before.tokens, *continuation(before.tokens, before.max_tokens, before.number))
        if draw.random() < 0.5 and len(text) < LONGEST_PROMPT:
            at_s = max(ask.at_s, before.at_s + draw.uniform(0.0, 2.0))
            tokens = (*text, *ask.tokens)[: draw.randint(len(text) + 1, LONGEST_PROMPT)]
            ask = replace(ask, at_s=at_s, tokens=tokens, tenant=before.tenant)
        talks.append(ask)
    return tuple(talks)


def _classed(draw: Random, asks: tuple[PlannedRequest, ...]) -> tuple[PlannedRequest, ...]:
    """In some plans, let a part of the requests be batch work."""
    share = draw.choice(BATCH_SHARES)
    return tuple(replace(ask, is_batch=draw.random() < share) for ask in asks)


def draw_faults(draw: Random, kinds: tuple[str, ...], length_s: float) -> tuple[Fault, ...]:
    """Faults of `kinds` within so many seconds, 5 at least: none, or up to a dozen."""
    until_s = max(5.0, length_s)
    few = draw.sample(kinds, min(4, len(kinds)))
    duos = [duo for duo in PAIRED_FAULTS if set(duo) <= set(kinds)]
    faults: list[Fault] = []
    most = draw.choice([0, 3, 6, 9, 12])
    while len(faults) < most:
        at_s, pick = draw.uniform(0.0, until_s), draw.random()
        kind = draw.choice(few if draw.random() < 0.5 else kinds)
        # Some close together and at the same process, so that they meet; some of few kinds.
        if faults and draw.random() < 0.3:
            at_s, pick = faults[-1].at_s + draw.uniform(0.0, 0.3), draw.choice([faults[-1].pick, pick])
        both = draw.choice(duos) if duos and draw.random() < PAIRED else (kind,)
        for one in both:
            faults.append(_fault(draw, len(faults), at_s, one, pick))
            at_s += draw.uniform(0.0, 0.3)
    return tuple(faults)


def _fault(draw: Random, number: int, at_s: float, kind: str, pick: float) -> Fault:
    lasts_s = draw.choice([draw.uniform(0.05, 0.5), draw.uniform(0.5, 6.0), draw.uniform(0.5, 20.0)])
    aim = draw.choice(aims_of(kind)) if draw.random() < AIMED else ""
    return Fault(number, at_s, kind, pick, draw.random(), lasts_s, draw.random(), aim)


def aims_of(kind: str) -> tuple[str, ...]:
    """The phases that faults of this kind wait for."""
    if "kvstore" in kind or kind in ("corrupt", "tier_full"):
        return AIMS_OF_KVSTORES
    return AIMS_OF_DISPATCHERS if "dispatcher" in kind else AIMS_OF_INSTANCES
