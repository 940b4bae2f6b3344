"""Plans in which some prompts are longer than any instance's slots: elastic groups, under the same faults as all else.

Draws from a random stream of its own, so that everything else stays what the seed means.
"""

from dataclasses import replace
from random import Random

from simulator.campaign.plans import VOCABULARY, ClusterShape, PlannedRequest, TrialPlan

LONG_SHARE = 0.25
"""Share of the requests that are long; the first is always."""
SHORTEST, LONGEST = 1.2, 3.0
"""Lengths of long prompts, as multiples of an instance's slots."""
MORE_TOKENS = 10
"""Tenants may use so many times more tokens per minute."""
PRESETS = ("elastic", "loongserve")
UNIFIED_SHARE = 0.25
"""Share of the plans that run under `unified` instead, whose batch rows give way."""
CHUNKS = (0, 4, 8)
"""Members compute so many chunks of an instance's slots; 0: any prompt is one chunk."""
LONG_SHARES = (0.0, 0.2, 0.5)
"""Prompts of more than this share of an instance's slots go to groups; 0: none but those that no instance can hold."""
SPARE = 0.9
"""Share of the slots of a node's instances that a long request takes at most, prompt and answer."""


def elastic_part(plan: TrialPlan) -> TrialPlan:
    """The plan under one of `PRESETS` or `unified`, with long prompts and at least two instances per node whose engines
    meet.
    """
    draw = Random(f"{plan.seed} long prompts")
    instances = max(plan.shape.instances, draw.choice([2, 3, 4]))
    nodes = plan.shape.nodes if instances >= 2 * plan.shape.nodes else 1
    running, per_minute = plan.shape.quotas or (None, None)
    quotas = plan.shape.quotas and (running, per_minute and per_minute * MORE_TOKENS)
    shape = replace(
        plan.shape,
        instances=instances,
        nodes=nodes,
        quotas=quotas,
        has_agents=True,
        has_long_prompts=True,
    )
    requests = tuple(_stretched(draw, ask, shape) for ask in plan.requests)
    preset, chunks = draw.choice(PRESETS), draw.choice(CHUNKS)
    # Of another stream, so that the other seeds mean what they meant before.
    if Random(f"{plan.seed} unified").random() < UNIFIED_SHARE:
        preset = "unified"
    chunk = shape.slots // chunks if chunks else 0
    long_tokens = int(draw.choice(LONG_SHARES) * shape.slots)
    shape = replace(shape, preset=preset, group_chunk_tokens=chunk, long_tokens=long_tokens)
    return replace(plan, shape=shape, requests=requests)


def _stretched(draw: Random, ask: PlannedRequest, shape: ClusterShape) -> PlannedRequest:
    """The request, perhaps with tokens before its own that make it too long for one instance."""
    slots, chance = draw.uniform(SHORTEST, LONGEST) * shape.slots, draw.random()
    most = SPARE * shape.slots * (shape.instances // shape.nodes) - ask.max_tokens
    missing = int(min(slots, most)) - len(ask.tokens)
    before = tuple(draw.randrange(VOCABULARY) for _ in range(max(0, missing)))
    if chance >= LONG_SHARE and ask.number > 0:
        return ask
    return replace(ask, tokens=(*before, *ask.tokens))
