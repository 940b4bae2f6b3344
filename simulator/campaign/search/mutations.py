"""Changes of a plan, each drawn from a number: the same plan and number give the same plan.

Every change keeps a plan legal: entries have numbers of their own, victims and times are in range, the requests fit the
cluster.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from simulator.campaign.plans import Fault, TrialPlan, aims_of, draw_faults
from simulator.campaign.runner import DRAWN_PRESETS
from simulator.campaign.search.dense_plans import (
    FAULTS_S,
    FEWEST_SLOTS,
    KINDS,
    LOAD_S,
    admits_batch,
    dense_plan,
    with_slots,
)

Mutation = Callable[[Random, TrialPlan], TrialPlan]
AT_ONCE = (1, 1, 2, 4)
"""So many changes make a mutated plan."""
SHIFT_S = 0.2
"""Standard deviation of changes of times."""
MOST_FAULTS = 24
SMALLEST_TIER = 1 << 12


def mutated(plan: TrialPlan, number: int) -> TrialPlan:
    """The plan's mutation of that number; its name says how it came about."""
    name = f"{plan.name}.{number}"
    draw = Random(f"{name} mutation")
    for _ in range(draw.choice(AT_ONCE)):
        plan = _changed(draw, plan)
    return replace(plan, name=name)


def plan_named(name: str) -> TrialPlan:
    """The plan of a name in a search: a seed, and the numbers of the mutations that follow each other.

    Raises:
        ValueError: that is no such name.
    """
    seed, *numbers = (int(part) for part in name.split("."))
    plan = dense_plan(seed)
    for number in numbers:
        plan = mutated(plan, number)
    return plan


def drop_faults(draw: Random, plan: TrialPlan) -> TrialPlan:
    """Up to half of the faults fewer."""
    if not plan.faults:
        return plan
    dropped = draw.sample(plan.faults, draw.randint(1, (len(plan.faults) + 1) // 2))
    return replace(plan, faults=tuple(fault for fault in plan.faults if fault not in dropped))


def add_faults(draw: Random, plan: TrialPlan) -> TrialPlan:
    """Some faults more."""
    drawn = draw_faults(draw, KINDS, LOAD_S)
    return _with_more(plan, [replace(fault, at_s=fault.at_s % FAULTS_S) for fault in drawn])


def splice_faults(draw: Random, plan: TrialPlan) -> TrialPlan:
    """The faults of another fresh plan on the load of this one."""
    other = dense_plan(draw.randrange(1 << 30))
    return replace(plan, faults=tuple(fault for fault in other.faults if fault.kind in KINDS))


def repeat_fault(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault strikes the same victim again, a moment later."""
    if not plan.faults:
        return plan
    fault = draw.choice(plan.faults)
    return _with_more(plan, [replace(fault, at_s=fault.at_s + draw.uniform(0.0, 0.5))])


def shift_fault(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault strikes a little earlier or later, or close to another one."""

    def shifted(fault: Fault) -> Fault:
        near_s = draw.choice([fault.at_s, draw.choice(plan.faults).at_s])
        return replace(fault, at_s=abs(draw.gauss(near_s, SHIFT_S)))

    return _with_one(draw, plan, shifted)


def aim_fault(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault waits for another phase."""
    return _with_one(draw, plan, lambda fault: replace(fault, aim=draw.choice(("", *aims_of(fault.kind)))))


def strike_other(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault has another victim, or the victim of another fault."""

    def moved(fault: Fault) -> Fault:
        pick = draw.choice([draw.random(), draw.choice(plan.faults).pick])
        return replace(fault, pick=pick, other=draw.random())

    return _with_one(draw, plan, moved)


def change_strength(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault lasts longer or shorter, and has another strength."""
    lasts_s = draw.choice([draw.uniform(0.05, 0.5), draw.uniform(0.5, 6.0), draw.uniform(6.0, 20.0)])
    return _with_one(draw, plan, lambda fault: replace(fault, lasts_s=lasts_s, amount=draw.random()))


def change_kind(draw: Random, plan: TrialPlan) -> TrialPlan:
    """A fault of another kind strikes at that time."""

    def changed(fault: Fault) -> Fault:
        kind = draw.choice(KINDS)
        return replace(fault, kind=kind, aim=draw.choice(("", *aims_of(kind))))

    return _with_one(draw, plan, changed)


def shrink_memory(draw: Random, plan: TrialPlan) -> TrialPlan:
    """Fewer slots, where no prompt is longer than they are, or a smaller host tier."""
    if draw.random() < 0.5 or plan.shape.has_long_prompts:
        tier_bytes = max(SMALLEST_TIER, plan.shape.tier_bytes >> draw.choice([2, 4]))
        return replace(plan, shape=replace(plan.shape, tier_bytes=tier_bytes))
    return with_slots(plan, max(FEWEST_SLOTS, plan.shape.slots * 3 // 4))


def fewer_instances(draw: Random, plan: TrialPlan) -> TrialPlan:
    """An instance fewer, where no prompt needs a group."""
    instances = max(1, plan.shape.instances - 1)
    if plan.shape.has_long_prompts:
        return plan
    return replace(plan, shape=replace(plan.shape, instances=instances, nodes=min(plan.shape.nodes, instances)))


def change_preset(draw: Random, plan: TrialPlan) -> TrialPlan:
    """Another preset; without batch work where that admits none."""
    if plan.shape.has_long_prompts:
        return plan
    plan = replace(plan, shape=replace(plan.shape, preset=draw.choice(DRAWN_PRESETS)))
    if admits_batch(plan):
        return plan
    return replace(plan, requests=tuple(replace(ask, is_batch=False) for ask in plan.requests), jobs=())


def gather_load(draw: Random, plan: TrialPlan) -> TrialPlan:
    """All requests arrive in less time."""
    share = draw.uniform(0.1, 0.9)
    return replace(plan, requests=tuple(replace(ask, at_s=ask.at_s * share) for ask in plan.requests))


def change_times(draw: Random, plan: TrialPlan) -> TrialPlan:
    """Steps, moves, engines' starts and messages take another plan's times, and batches have its bounds."""
    other = dense_plan(draw.randrange(1 << 30)).shape
    names = ("step_s", "move_s", "restart_s", "latency_s", "max_running", "budget_tokens", "run_ahead_tokens")
    chosen = draw.sample(names, draw.randint(1, len(names)))
    return replace(plan, shape=replace(plan.shape, **{name: getattr(other, name) for name in chosen}))


MUTATIONS: tuple[Mutation, ...] = (
    drop_faults,
    add_faults,
    splice_faults,
    repeat_fault,
    shift_fault,
    shift_fault,
    aim_fault,
    strike_other,
    change_strength,
    change_kind,
    shrink_memory,
    fewer_instances,
    change_preset,
    gather_load,
    change_times,
)


def _changed(draw: Random, plan: TrialPlan) -> TrialPlan:
    """The plan with one change; some changes leave some plans as they are, then another one is drawn."""
    while True:
        changed = draw.choice(MUTATIONS)(draw, plan)
        if changed != plan:
            return changed


def _with_one(draw: Random, plan: TrialPlan, change: Callable[[Fault], Fault]) -> TrialPlan:
    """The plan with one of its faults changed; as it is where it has none."""
    if not plan.faults:
        return plan
    chosen = draw.choice(plan.faults).number
    faults = tuple(change(fault) if fault.number == chosen else fault for fault in plan.faults)
    return replace(plan, faults=faults)


def _with_more(plan: TrialPlan, faults: list[Fault]) -> TrialPlan:
    """The plan with more faults, numbered behind its own; `MOST_FAULTS` in all."""
    first = 1 + max((fault.number for fault in plan.faults), default=-1)
    more = [replace(fault, number=first + index) for index, fault in enumerate(faults)]
    return replace(plan, faults=(*plan.faults, *more)[:MOST_FAULTS])
