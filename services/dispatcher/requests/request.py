"""One admitted request: its tokens, its state and the attempt that counts. Knows no other request.

`TRANSITIONS` lists the allowed changes of state.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from dunlin.effects import Address
from dunlin.kv.prefix_hash import PrefixChain
from dunlin.messages.dispatch import IN_COMPANY
from dunlin.messages.door import PromptLogprobs, Submit
from dunlin.messages.types import F32, I32, RequestClass, f32, i32
from dunlin.policies.starvation import Progress

if TYPE_CHECKING:  # the rows know their requests
    from services.dispatcher.requests.steady_rows import SteadyRows


class RequestState(IntEnum):
    """A request's state. ADOPTING: the instances are asked whether one of them runs it for another dispatcher.

    ENDED is never seen outside the journal, which forgets the request at once.
    """

    QUEUED = 0
    DISPATCHED = 1
    RUNNING = 2
    PREEMPTED = 3
    ENDED = 4
    ADOPTING = 5


TRANSITIONS: dict[RequestState, tuple[RequestState, ...]] = {
    RequestState.QUEUED: (RequestState.DISPATCHED, RequestState.ENDED),
    RequestState.DISPATCHED: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.RUNNING: (RequestState.PREEMPTED, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.PREEMPTED: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ADOPTING, RequestState.ENDED),
    RequestState.ENDED: (),
    RequestState.ADOPTING: (RequestState.RUNNING, RequestState.QUEUED, RequestState.ENDED),
}


@dataclass(slots=True)
class GeneratedLogprobs:
    """Log-probabilities of the generated tokens, kept for readers that join later; columns as in `Delta`."""

    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)


@dataclass(slots=True)
class Request:
    """One request and the attempt that counts.

    Identity: `number` names it in this dispatcher and orders it by age, `key` is its public id. `tokens` is its
    sequence: the prompt, then every generated token that was delivered to its readers.

    Readers: `readers` are the client addresses that get its tokens; `reader_absence` counts the times when the last
    reader left, `adopted_elsewhere` those when another dispatcher adopted the request.

    Attempts: `attempt` counts dispatches; `instance` has the current one; `awaits_first_token`: no token of it has
    come. `lost_in_a_row` attempts were lost with their instance since the last token. `last_outcome` (instance, what
    happened) of the attempt before goes into the next one's reason. `excluded_instances` cannot hold the sequence, or
    have not its adapter (`lacks_adapter`: one of them said so).
    `suspicion`: see `Returned`; `trial_stop`: see `Continued`. `late_suspicion` and `late_trial_stop` alike, of crashes
    that were told after their attempt was over; `blamed_attempt` is the last of those. `migration_source` is (instance,
    attempt) of an older attempt that still holds the KV until the migration's target accepts. `first_dispatch_s` is the
    time of the first dispatch here, `token_s` that of the last token.

    Starvation: `progress` says since when it has had no new token, as far as it was looked at; `is_risen`: it is of the
    batch class and dispatched as an interactive one.

    Tenants' shares: `charged_tokens` were charged to its tenant when it was first dispatched (0: it is of the
    interactive class, or was not dispatched here).

    Groups: `is_deferred`: it waits for a group that holds it. `asked` is the manager that was asked for one, for
    `asked_attempt`, and has not been told that it is not needed any more. The current attempt is at the leader of
    `group` (0: at an instance alone); `group_refused`: the last one was refused there. `goes_alone`: it got no group,
    and fits one instance.

    Prefix cache: the first instance had KV of `cached_tokens` of the prompt; the current one was expected to have
    `expected_cached_tokens`. `generated_logprobs` is None unless the request asks for log-probabilities;
    `prompt_logprobs` alike, from the first that its client had not when it submitted the request.
    """

    number: int
    key: str
    readers: list[Address]
    submit: Submit
    submitted_s: float
    tokens: I32
    max_tokens: int | None
    state: RequestState = RequestState.QUEUED
    attempt: int = 0
    lost_in_a_row: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: int = 0
    suspicion: int = 0
    late_suspicion: int = 0
    late_trial_stop: int = 0
    blamed_attempt: int = 0
    trial_stop: int = 0
    awaits_first_token: bool = True
    instance: Address | None = None
    last_outcome: tuple[str, str] | None = None
    migration_source: tuple[Address, int] | None = None
    excluded_instances: list[Address] = field(default_factory=list)
    lacks_adapter: bool = False
    prefix_chains: PrefixChain = field(default_factory=PrefixChain)
    reader_absence: int = 0
    adopted_elsewhere: int = 0
    generated_logprobs: GeneratedLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    first_dispatch_s: float | None = None
    token_s: float | None = None
    is_risen: bool = False
    charged_tokens: int = 0
    is_deferred: bool = False
    goes_alone: bool = False
    group: int = 0
    group_refused: bool = False
    asked: Address | None = None
    asked_attempt: int = 0
    steady_rows: "SteadyRows | None" = None
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.tokens), self.submitted_s)

    def leave_steady_rows(self) -> None:
        """Its state, its attempt or its readers changed: each of its next tokens is looked at by itself."""
        if self.steady_rows is not None:
            self.steady_rows.is_current = False
            self.steady_rows = None

    @property
    def dispatched_as(self) -> RequestClass:
        """The class that it is queued and dispatched as: a batch request that rose counts as interactive."""
        return RequestClass.INTERACTIVE if self.is_risen else self.submit.request_class

    def rises_after_s(self, now_s: float) -> float | None:
        """Seconds until it is to be scheduled as an interactive request wherever it is; None: no such time is set."""
        if self.is_risen:
            return 0.0
        after_s = self.submit.rises_after_s
        return None if after_s is None else max(0.0, self.submitted_s + after_s - now_s)

    def waited_s(self, now_s: float) -> tuple[float, float]:
        """Seconds that its readers have waited for its next token: until it was dispatched first, and since then or
        since the last token.
        """
        if self.generated_tokens:
            return 0.0, now_s - (self.submitted_s if self.token_s is None else self.token_s)
        first_s = now_s if self.first_dispatch_s is None else self.first_dispatch_s
        return first_s - self.submitted_s, now_s - first_s

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; the generated tokens start at this position."""
        return len(self.submit.tokens)

    @property
    def is_plain_decode(self) -> bool:
        """Whether its next token needs no bookkeeping: not an attempt's first one, and without log-probabilities."""
        return self.state is RequestState.RUNNING and not self.awaits_first_token and self.generated_logprobs is None

    @property
    def suspicion_left(self) -> int:
        """The suspicion of its next attempt: one that crashed an engine in company only is trusted beyond that."""
        tokens = len(self.tokens)
        told = _left(self.suspicion, self.trial_stop, tokens), _left(self.late_suspicion, self.late_trial_stop, tokens)
        return max(told)

    @property
    def scored(self) -> int:
        """The prompt tokens after the first whose log-probabilities are known, here or to its client."""
        return self.submit.scored + (len(self.prompt_logprobs) if self.prompt_logprobs is not None else 0)

    @property
    def lacks_scores(self) -> bool:
        """Whether log-probabilities of its prompt are wanted that have not come."""
        return self.prompt_logprobs is not None and self.scored < self.prompt_tokens - 1

    @property
    def kept_logprobs(self) -> int:
        """Log-probabilities that are kept of it: of prompt and generated tokens, and of the alternatives to them."""
        prompt, generated = self.prompt_logprobs, self.generated_logprobs
        kept = len(prompt.logprob) + len(prompt.top_logprob) if prompt is not None else 0
        return kept + (len(generated.logprobs) + len(generated.top_logprob) if generated is not None else 0)

    @property
    def generated_tokens(self) -> int:
        """Tokens delivered so far."""
        return len(self.tokens) - len(self.submit.tokens)

    def lower_limit(self, most: int) -> bool:
        """Let the sequence grow to `most` tokens alone, where its client named no limit; False: it named one, or what
        there is leaves no room for a next token.
        """
        if self.submit.max_tokens is not None or len(self.tokens) >= most:
            return False
        self.max_tokens = most - self.prompt_tokens
        return True

    @property
    def max_length(self) -> int:
        """Tokens that the sequence may grow to; one more than it has where the request has no `max_tokens`."""
        return len(self.tokens) + 1 if self.max_tokens is None else self.prompt_tokens + self.max_tokens


def _left(suspicion: int, trial_stop: int, tokens: int) -> int:
    """What is left of a suspicion once there are so many tokens."""
    return 0 if suspicion == IN_COMPANY and tokens > trial_stop else suspicion
