"""The fresh plans of a search: those of seeds, made denser.

Small clusters with little memory, two busy seconds, faults while there is load, and nothing that only costs time.
Draws from a random stream of its own.
"""

from dataclasses import replace
from random import Random

from dunlin.policies.presets import PRESETS
from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.job_plans import with_batch_jobs
from simulator.campaign.long_prompts import elastic_part
from simulator.campaign.plans import (
    RESTLESS_KINDS,
    ClusterShape,
    Fault,
    PlannedRequest,
    TrialPlan,
    aims_of,
    draw_faults,
)
from simulator.campaign.runner import RESTLESS, plan_of, restless_part

KINDS = tuple(kind for kind in fault_kinds() if kind not in RESTLESS_KINDS)
"""Faults of every plan; those of restless plans come on top."""
LOAD_S = 2.0
"""Seconds within which all requests of a plan arrive at most."""
BURSTS = (0.15, 0.5, 1.0)
"""All requests of a plan arrive within one of these shares of that time."""
DRAIN_S = 0.5
"""Seconds after the last arrival within which faults strike, too."""
FAULTS_S = LOAD_S + DRAIN_S
LASTS_S = 6.0
"""Seconds that faults last at most in most plans."""
FAULT_COUNTS = ((0, 2), (4, 8), (8, 24), (8, 24))
"""Fewest and most faults of a plan; few in some, because a fault excuses what its victim does for a while."""
LEAVING = 0.12
"""Share of the clients that disconnect soon, beside those of the seed's plan."""
MOST_REQUESTS = (8, 16, 24)
AIMED = 0.6
"""Share of the faults that wait for a phase."""
STARVING = 0.4
"""Share of the plans that are given a starvation bound, if they have none."""
SLOTS = (96, 128, 160, 400)
FEWEST_SLOTS = 96
PROMPT_SLOTS = 61
"""Slots of an instance that the longest prompt that is not meant for a group takes, and its first token."""
MODES = ("restless", "restless", "restless", "elastic", "elastic", "plain")
"""What plans are of, each as likely as the others."""


def dense_plan(seed: int) -> TrialPlan:
    """The fresh plan of a seed in a search."""
    draw = Random(f"{seed} dense")
    plan = _squeezed(draw, plan_of(seed))
    plan = replace(plan, shape=_small(draw, plan.shape))
    mode = draw.choice(MODES)
    if mode == "restless":
        plan = restless_part(plan)
    if mode == "elastic":
        plan = elastic_part(plan)
        plan = replace(plan, shape=replace(plan.shape, interrupts=draw.choice(["never", RESTLESS])))
    return replace(with_batch_jobs(plan), name=str(seed))


def with_slots(plan: TrialPlan, slots: int) -> TrialPlan:
    """The plan with so many slots per instance, and no answer that is too long for them."""
    most = slots - PROMPT_SLOTS
    asks = tuple(replace(ask, max_tokens=min(ask.max_tokens, most)) for ask in plan.requests)
    return replace(plan, shape=replace(plan.shape, slots=slots), requests=asks)


def admits_batch(plan: TrialPlan) -> bool:
    """Whether the plan's preset admits batch work."""
    return PRESETS[plan.shape.preset].admit == "all"


def _small(draw: Random, shape: ClusterShape) -> ClusterShape:
    instances = min(shape.instances, draw.choice([1, 2, 2, 3]))
    shape = replace(shape, instances=instances, nodes=min(shape.nodes, instances))
    if draw.random() >= STARVING:
        return shape
    return replace(shape, batch_wait_s=0.4, risen_share=draw.choice([0.0, 0.3]))


def _squeezed(draw: Random, plan: TrialPlan) -> TrialPlan:
    plan = with_slots(plan, min(plan.shape.slots, draw.choice(SLOTS)))
    most, share = draw.choice(MOST_REQUESTS), draw.choice(BURSTS)
    asks = tuple(_leaving(draw, replace(ask, at_s=share * (ask.at_s % LOAD_S))) for ask in plan.requests[:most])
    return replace(plan, requests=asks, faults=_many_faults(draw, plan.faults, share * LOAD_S + DRAIN_S))


def _leaving(draw: Random, ask: PlannedRequest) -> PlannedRequest:
    """The request, perhaps of a client that disconnects while it is served."""
    return replace(ask, disconnect_s=draw.uniform(0.01, 0.5)) if draw.random() < LEAVING else ask


def _many_faults(draw: Random, faults: tuple[Fault, ...], until_s: float) -> tuple[Fault, ...]:
    """As many as one of `FAULT_COUNTS` says, within so many seconds."""
    fewest, most = draw.choice(FAULT_COUNTS)
    while len(faults) < fewest:
        faults = (*faults, *draw_faults(draw, KINDS, LOAD_S))
    faults = faults[:most]
    longest_s = draw.choice([LASTS_S, LASTS_S, LASTS_S, 20.0])
    return tuple(_early(draw, replace(fault, number=index), until_s, longest_s) for index, fault in enumerate(faults))


def _early(draw: Random, fault: Fault, until_s: float, longest_s: float) -> Fault:
    aim = fault.aim or (draw.choice(aims_of(fault.kind)) if draw.random() < AIMED else "")
    return replace(fault, at_s=fault.at_s % until_s, lasts_s=min(fault.lasts_s, longest_s), aim=aim)
