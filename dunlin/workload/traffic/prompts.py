"""Prompts for arrivals: random token ids of the length asked for, clipped to the model's room, that really share the
beginnings which their arrivals share. Pure, from a seed.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dunlin.messages.types import I32, RequestClass, i32
from dunlin.workload.traffic.trace import Arrival

_TABLE = 1 << 16
_HEAD = 16
"""Tokens drawn anew at the start of every text: enough that no two texts begin alike by chance."""
_KEPT_BLOCKS = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """One request as it will be sent: `max_tokens` tokens will come, neither fewer nor more. `seed` None is greedy.

    `bound` is what the user asks for at most, where that is not how much comes: the answer ends by itself. None: the
    bound is `max_tokens`, so that a scheduler that counts on the bound knows the future.
    """

    at_s: float
    prompt: I32
    max_tokens: int
    clipped: bool = False
    seed: int | None = None
    label: str = ""
    bound: int | None = None

    @property
    def request_class(self) -> RequestClass:
        """A trace's class named `batch` is sent as that; all others are interactive."""
        return RequestClass.BATCH if self.label == "batch" else RequestClass.INTERACTIVE


def clip_lengths(input_tokens: int, output_tokens: int, max_positions: int) -> tuple[int, int]:
    """Lengths that fit together into `max_positions`, each as long as it can be: the longer one gives way."""
    if input_tokens + output_tokens <= max_positions:
        return input_tokens, output_tokens
    half = max_positions // 2
    if output_tokens <= half:
        return max_positions - output_tokens, output_tokens
    if input_tokens <= half:
        return input_tokens, max_positions - input_tokens
    return half, max_positions - half


class PromptTexts:
    """Random texts of a vocabulary. A text is a few fresh tokens and a stretch of one long random table: drawing every
    token would take longer than simulating the request."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._draw = random.Random(seed)
        self._ids = range(vocabulary)
        self._seed = seed
        self._table = i32(self._draw.choices(self._ids, k=_TABLE))
        self._blocks: OrderedDict[tuple[int, int], I32] = OrderedDict()

    def random_tokens(self, tokens: int) -> I32:
        """A new text, which shares no beginning with an earlier one."""
        return self._text(self._draw, tokens)

    def prefix_block(self, name: int, tokens: int) -> I32:
        """The text of a block: the same for the same name, in whatever order blocks are asked for."""
        key = (name, tokens)
        found = self._blocks.pop(key, None)
        if found is None:
            found = self._text(random.Random(f"{self._seed} {name}"), tokens)
        self._blocks[key] = found
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return found

    def _text(self, draw: random.Random, tokens: int) -> I32:
        text = i32(draw.choices(self._ids, k=min(tokens, _HEAD)))
        while len(text) < tokens:
            start = draw.randrange(_TABLE)
            text.extend(self._table[start : start + tokens - len(text)])
        return text


def answer_bound(arrivals: Iterable[Arrival]) -> int:
    """A bound that says nothing of a single request: the least power of two that no answer of the workload exceeds."""
    most = max((arrival.output_tokens for arrival in arrivals), default=1)
    return 1 << (most - 1).bit_length()


def iter_jobs(
    arrivals: Iterable[Arrival],
    max_positions: int,
    vocabulary: int,
    seed: int,
    speed: float = 1.0,
    bound: int | None = None,
    sampled: bool = False,
) -> Iterator[Job]:
    """Jobs for `arrivals`, `speed` times as fast as they say, one at a time, all with the same `bound` of the answer as
    far as there is room. `sampled`: each has a seed, its number; else all are greedy.

    Raises ValueError for a speed that is not positive or a model too small for any request.
    """
    if not speed > 0:
        raise ValueError(f"a speed must be above 0, not {speed}")
    if max_positions < 2 or vocabulary < 1:
        raise ValueError(f"no request fits into {max_positions} positions and {vocabulary} tokens")
    texts = PromptTexts(vocabulary, seed)
    return (
        _job(arrival, max_positions, texts, speed, bound, number if sampled else None)
        for number, arrival in enumerate(arrivals)
    )


def make_jobs(
    arrivals: Iterable[Arrival],
    max_positions: int,
    vocabulary: int,
    seed: int,
    speed: float = 1.0,
    sampled: bool = False,
) -> list[Job]:
    """All of `iter_jobs`."""
    return list(iter_jobs(arrivals, max_positions, vocabulary, seed, speed, sampled=sampled))


def _job(
    arrival: Arrival, max_positions: int, texts: PromptTexts, speed: float, bound: int | None, seed: int | None
) -> Job:
    inputs, outputs = clip_lengths(arrival.input_tokens, arrival.output_tokens, max_positions)
    clipped = (inputs, outputs) != (arrival.input_tokens, arrival.output_tokens)
    most = None if bound is None else max(outputs, min(bound, max_positions - inputs))
    prompt = make_prompt(arrival, inputs, texts)
    return Job(arrival.at_s / speed, prompt, outputs, clipped, seed, arrival.label, most)


def make_prompt(arrival: Arrival, tokens: int, texts: PromptTexts) -> I32:
    """The first `tokens` input tokens of `arrival`: its blocks' texts, and its own from where they end."""
    made = i32()
    for name in arrival.blocks:
        if len(made) >= tokens:
            break
        made.extend(texts.prefix_block(name, arrival.block_tokens))
    if len(made) < tokens:
        made.extend(texts.random_tokens(tokens - len(made)))
    return made[:tokens]
