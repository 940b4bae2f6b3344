"""Moments of a fleet for LoongServe's planner: what waits, what decodes where, drawn from a seed."""

import random
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.policies.loongserve.inputs import NO_BATCH, DecodeBatch, ElasticInstance, PendingRequest

NODE_INSTANCES = 8
ANSWER = 512
"""The most that a request may generate."""


@dataclass(frozen=True)
class Moment:
    """What a planner is asked about at one moment."""

    pending: list[PendingRequest]
    batches: list[DecodeBatch]
    instances: list[ElasticInstance]


def mixed_length(draw: random.Random) -> int:
    """A length out of LoongServe's Mixed workload, about: chat, documents, and very long ones, as often each."""
    median, spread, most = draw.choice(((700, 0.8, 2_300), (8_000, 0.8, 68_000), (90_000, 0.9, 480_000)))
    return max(16, min(most, int(median * draw.lognormvariate(0.0, spread))))


def chat_length(draw: random.Random) -> int:
    """A length as in ShareGPT, about."""
    return max(16, min(2_300, int(700 * draw.lognormvariate(0.0, 0.8))))


LENGTHS = {"mixed": mixed_length, "chat": chat_length}


def draw_moment(
    draw: random.Random, count: int, waiting: int, idle_share: float, slots: int, lengths: str = "mixed"
) -> Moment:
    """`count` instances of `slots` token slots each, that share idle and the others in batches of 1 to 8 neighbours."""
    length_of = LENGTHS[lengths]
    pending = []
    for number in range(waiting):
        tokens = length_of(draw)
        pending.append(PendingRequest(number, tokens, tokens + ANSWER))
    owners = _owners(draw, count, idle_share)
    used = [0 if owner == NO_BATCH else draw.randrange(slots // 50, slots) for owner in owners]
    instances = [
        ElasticInstance(
            Address("instance", f"i{number}", 1),
            used[number],
            slots - used[number],
            owners[number],
            f"node-{number // NODE_INSTANCES}",
        )
        for number in range(count)
    ]
    batches = [_batch(draw, number, owners) for number in range(max(owners) + 1)]
    return Moment(pending, batches, instances)


def _owners(draw: random.Random, count: int, idle_share: float) -> list[int]:
    owners: list[int] = []
    batch = 0
    while len(owners) < count:
        if draw.random() < idle_share:
            owners.append(NO_BATCH)
            continue
        size = min(draw.choice((1, 1, 1, 2, 2, 4, 8)), count - len(owners))
        owners += [batch] * size
        batch += 1
    return owners


def _batch(draw: random.Random, number: int, owners: list[int]) -> DecodeBatch:
    members = tuple(index for index, owner in enumerate(owners) if owner == number)
    rows = draw.randrange(1, 64) * len(members)
    generated = [draw.randrange(1, ANSWER) for _ in range(rows)]
    inverse = 0.0
    for each in generated:
        inverse += 1.0 / each
    growth = sum(ANSWER - each for each in generated)
    return DecodeBatch(members, rows, growth, inverse, 0.03 * min(generated))
