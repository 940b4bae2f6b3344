"""Prompts for arrivals: random token ids of the length asked for, clipped to the model's room. Pure, from a seed."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import I32, i32
from dunlin.workload.trace import Arrival


@dataclass(frozen=True, slots=True)
class Job:
    """One request as it will be sent: `max_tokens` tokens will come, neither fewer nor more. `seed` None is greedy."""

    at_s: float
    prompt: I32
    max_tokens: int
    clipped: bool = False
    seed: int | None = None


def clip(input_tokens: int, output_tokens: int, max_positions: int) -> tuple[int, int]:
    """Lengths that fit together into `max_positions`, each as long as it can be: the longer one gives way."""
    if input_tokens + output_tokens <= max_positions:
        return input_tokens, output_tokens
    half = max_positions // 2
    if output_tokens <= half:
        return max_positions - output_tokens, output_tokens
    if input_tokens <= half:
        return input_tokens, max_positions - input_tokens
    return half, max_positions - half


def make_jobs(
    arrivals: Iterable[Arrival], max_positions: int, vocabulary: int, seed: int, speed: float = 1.0
) -> list[Job]:
    """Jobs for `arrivals`, `speed` times as fast as they say.

    Raises ValueError for a speed that is not positive or a model too small for any request.
    """
    if not speed > 0:
        raise ValueError(f"a speed must be above 0, not {speed}")
    if max_positions < 2 or vocabulary < 1:
        raise ValueError(f"no request fits into {max_positions} positions and {vocabulary} tokens")
    draw = random.Random(seed)
    return [_job(arrival, max_positions, range(vocabulary), draw, speed) for arrival in arrivals]


def _job(arrival: Arrival, max_positions: int, ids: Sequence[int], draw: random.Random, speed: float) -> Job:
    inputs, outputs = clip(arrival.input_tokens, arrival.output_tokens, max_positions)
    clipped = (inputs, outputs) != (arrival.input_tokens, arrival.output_tokens)
    return Job(arrival.at_s / speed, i32(draw.choices(ids, k=inputs)), outputs, clipped)
