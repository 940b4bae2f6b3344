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
    """

    request: str
    text: str
    tokens: tuple[int, ...]
    finish: FinishReason
    prompt_tokens: int
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    cached_tokens: int = 0


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

    def add(self, event: GenerateEvent) -> None:
        """Append the next event."""
        self.request, self.prompt_tokens, self.finish = event.request, event.prompt_tokens, event.finish
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        self.text.append(event.text)
        self.tokens.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.top_logprobs.extend(top_logprobs_of(event))

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
        )


def top_logprobs_of(event: GenerateEvent) -> Iterator[tuple[tuple[int, float], ...]]:
    """For each token of the event, the likeliest (token, log-probability) pairs."""
    start = 0
    for count in event.top_count:
        stop = start + count
        yield tuple(zip(event.top_token[start:stop], event.top_logprob[start:stop], strict=True))
        start = stop
