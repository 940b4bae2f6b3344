"""The whole answer of a request, collected from its events."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import F32, I32, FinishReason, f32, i32


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer. `logprobs` and `top_logprobs` are empty unless asked for, else one entry per token.

    `tokens` has every generated token: also the stop token, and those whose text a stop string cut off. An instance had
    the KV of `cached_tokens` of the prompt already.

    `prompt_logprobs`, `prompt_ranks` (1: no token was likelier) and `prompt_top_logprobs` are empty unless asked for,
    else one entry per token of the prompt after the first.
    """

    request: str
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    prompt_tokens: int
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached_tokens: int = 0
    prompt_logprobs: tuple[float, ...] = ()
    prompt_ranks: tuple[int, ...] = ()
    prompt_top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(slots=True)
class GenerationBuilder:
    """Collects a request's events into a `Generation`."""

    request: str = ""
    prompt_tokens: int = 0
    text: list[str] = field(default_factory=list)
    tokens: I32 = field(default_factory=i32)
    logprobs: F32 = field(default_factory=f32)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    finish: FinishReason = FinishReason.RUNNING
    cached_tokens: int = 0
    prompt_logprobs: F32 = field(default_factory=f32)
    prompt_ranks: I32 = field(default_factory=i32)
    prompt_top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    def add(self, event: GenerateEvent) -> None:
        """Append the next event."""
        self.request, self.prompt_tokens, self.finish = event.request, event.prompt_tokens, event.finish
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        self.text.append(event.text)
        self.tokens.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.top_logprobs.extend(top_logprobs_of(event))
        if event.prompt_logprobs:
            self.prompt_logprobs.extend(event.prompt_logprobs)
            self.prompt_ranks.extend(event.prompt_ranks)
            self.prompt_top_logprobs.extend(prompt_top_logprobs_of(event))

    def build(self) -> Generation:
        """The answer so far."""
        return Generation(
            self.request,
            "".join(self.text),
            tuple(self.tokens),
            self.finish,
            self.prompt_tokens,
            tuple(self.logprobs),
            tuple(self.top_logprobs),
            self.cached_tokens,
            tuple(self.prompt_logprobs),
            tuple(self.prompt_ranks),
            tuple(self.prompt_top_logprobs),
        )


def top_logprobs_of(event: GenerateEvent) -> Iterator[tuple[tuple[int, float], ...]]:
    """For each token of the event, the likeliest (token, log-probability) pairs."""
    start = 0
    for count in event.top_count:
        stop = start + count
        yield tuple(zip(event.top_token[start:stop], event.top_logprob[start:stop], strict=True))
        start = stop


def prompt_top_logprobs_of(event: GenerateEvent) -> Iterator[tuple[tuple[int, float], ...]]:
    """For each prompt token of the event, the likeliest (token, log-probability) pairs there."""
    best = len(event.prompt_top_token) // len(event.prompt_logprobs)
    pairs = list(zip(event.prompt_top_token, event.prompt_top_logprob, strict=True))
    for at in range(len(event.prompt_logprobs)):
        yield tuple(pairs[at * best : (at + 1) * best])
