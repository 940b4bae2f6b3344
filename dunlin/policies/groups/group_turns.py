"""Which prompts the next step of a group computes, and how much of them: functions over what waits.

LoongServe computes a prompt whole, in order of arrival (§5.1). Here a prompt is computed in chunks, so the choice is
made anew for every step. Knows no member, no slot and no message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.cost.models import BatchCounts, StepTimes

LEAST_CHUNK_TOKENS = 512
"""A member's part of a chunk, however long that takes: with fewer tokens reading the weights begins to show, and each
chunk is one span more in all later steps."""


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """A prompt that could go on: `tokens` of it are to be computed, and its client has waited for `waited_s`.

    `rank` comes first, the lower the sooner: classes, and answers that were cut off.
    """

    tokens: int
    waited_s: float
    rank: tuple[bool, ...] = ()


def response_order(prompts: Sequence[PromptTurn]) -> list[int]:
    """The prompts' indices in the order in which they are computed: the longest wait for the least work first.

    Seconds waited per token that is left, as in *highest response ratio next*: a short prompt passes a long one after a
    moment, and the long one is passed by none that has come much later, so it cannot starve. Ties go to the first.
    """
    return sorted(range(len(prompts)), key=lambda index: (prompts[index].rank, -_ratio(prompts[index])))  # stable


def _ratio(prompt: PromptTurn) -> float:
    return prompt.waited_s / max(1, prompt.tokens)


def chunk_within(times: StepTimes | None, prefix: int, seconds: float, most: int) -> int:
    """The tokens of a prompt that one member computes in a step of about `seconds`, `most` at most.

    `prefix` tokens come before them, wherever they lie: what others attend to for this member, it does for them.
    Without `times` nothing is predicted: `most`.
    """
    least = min(LEAST_CHUNK_TOKENS, most)
    if times is None:
        return most
    least_s, most_s = _chunk_s(times, prefix, least), _chunk_s(times, prefix, most)
    if most_s <= seconds or most_s <= least_s:
        return most
    # Nearly linear: attention to the prefix, and matrix products.
    return max(least, min(most, least + int((most - least) * (seconds - least_s) / (most_s - least_s))))


def _chunk_s(times: StepTimes, prefix: int, tokens: int) -> float:
    counts = BatchCounts()
    counts.add_prefill(tokens, prefix)
    return times.step_s(counts)
