"""Client ↔ dispatcher over gRPC: the messages of the SDK. Prompts are texts or token ids, output is both."""

from dataclasses import dataclass, field

from dunlin.messages.types import F32, I32, FinishReason, RequestClass, f32, i32


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the generated text must match: exactly one field says it.

    `json_schema` is JSON text; `json_object`: any JSON object. `regex` is a regular expression that the whole text
    matches, `choice` has the texts of which it is one, `grammar` is in Lark's notation or GBNF.
    """

    json_schema: str = ""
    json_object: bool = False
    regex: str = ""
    choice: tuple[str, ...] = ()
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Generate from exactly one of `prompt`, `prompt_tokens` or `messages`.

    None stands for the server's default: `max_tokens` is what the context leaves, `seed` is random and in the first
    event.

    `resume_request` (its id) and `resume_tokens` (the generated tokens received) resume a request whose dispatcher was
    lost. All else must be as in the first request, and `seed` that of its first event. `idempotency_key`: a second
    request of the tenant with the same key joins the first. `ttft_objective_s` and `tpot_objective_s`: seconds within
    which its first token, and each further one, should come; None: the tenant's or the cluster's objective.

    `prompt_logprobs`: log-probabilities of the prompt's tokens after the first, with so many of the likeliest besides;
    of those the client has `resume_scored`, where it resumes a request.

    `model` names the model that is served, or an adapter of it; "": the model itself. No end token and no stop ends the
    text before `min_tokens`. No token outside `allowed_token_ids` is generated
    (empty: all may be), and none of `bad_words`.
    """

    prompt: str | None = None
    prompt_tokens: I32 = field(default_factory=i32)
    messages: tuple[ChatMessage, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: I32 = field(default_factory=i32)
    ignore_eos: bool = False
    logprobs: int | None = None
    timeout_s: float | None = None
    request_class: RequestClass = RequestClass.INTERACTIVE
    tenant: str = ""
    idempotency_key: str = ""
    resume_request: str = ""
    resume_tokens: I32 = field(default_factory=i32)
    ttft_objective_s: float | None = None
    tpot_objective_s: float | None = None
    structured_output: StructuredOutput | None = None
    min_tokens: int | None = None
    allowed_token_ids: I32 = field(default_factory=i32)
    bad_words: tuple[str, ...] = ()
    prompt_logprobs: int | None = None
    resume_scored: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class GenerateEvent:
    """The first event has the request's id and its `seed`; later ones have new text and tokens; the last has `finish`.

    An event without any of these is a keepalive: an event of some kind comes every second.

    `text` may lag behind `tokens` by an incomplete character or a possible stop string. `top_count[i]` entries of
    `top_token` and `top_logprob` belong to token i. An instance had the KV of `cached_tokens` of the prompt already.
    Log-probabilities of the prompt come before its first new token, in order: of each further prompt token
    `prompt_logprobs` and `prompt_ranks` (1: none is likelier) have one entry, `prompt_top_token` and
    `prompt_top_logprob` as many as were asked for.
    """

    request: str
    text: str = ""
    tokens: I32 = field(default_factory=i32)
    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)
    finish: FinishReason = FinishReason.RUNNING
    prompt_tokens: int = 0
    detail: str = ""
    seed: int | None = None
    cached_tokens: int = 0
    prompt_logprobs: F32 = field(default_factory=f32)
    prompt_ranks: I32 = field(default_factory=i32)
    prompt_top_token: I32 = field(default_factory=i32)
    prompt_top_logprob: F32 = field(default_factory=f32)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the request with the id of its first event."""

    request: str


@dataclass(frozen=True, slots=True)
class CancelReply:
    """`found` is False if no such request is running or queued at this dispatcher."""

    found: bool


@dataclass(frozen=True, slots=True)
class InfoRequest:
    """Ask for `InfoReply`."""


@dataclass(frozen=True, slots=True)
class InfoReply:
    """The served model, its limits and the names of its adapters, and the monitor's `host:port`; empty: none is
    registered.
    """

    model: str
    max_positions: int
    vocabulary: int
    version: str
    monitor_endpoint: str = ""
    adapters: tuple[str, ...] = ()


__all__ = [
    "CancelReply",
    "CancelRequest",
    "ChatMessage",
    "GenerateEvent",
    "GenerateRequest",
    "InfoReply",
    "InfoRequest",
    "StructuredOutput",
]
