"""Client ↔ dispatcher over gRPC: the SDK's door. Text or token ids go in, text and token ids come out."""

from dataclasses import dataclass, field

from dunlin.messages.types import F32, I32, FinishReason, RequestClass, f32, i32


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Generate from exactly one of `prompt`, `prompt_tokens` or `messages`.

    None means the server's default: `max_tokens` then is what the context leaves, `seed` is drawn and journalled.

    `resume_request` and `resume_tokens` go on with a request whose dispatcher was lost: its id and the tokens received.
    All else must be as it was, and `seed` what its first event said. `idempotency_key`: a second request of the tenant
    with the same one joins the first.
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


@dataclass(frozen=True, slots=True)
class GenerateEvent:
    """The first event names the request and its `seed`; later ones carry new text and tokens; the last has `finish`.

    One with none of these says only that the dispatcher lives. It comes at least every second.

    `text` may lag behind `tokens` by an unfinished character or a possible stop string. `top_count[i]` entries of
    `top_token` and `top_logprob` belong to token i. `cached_tokens` of the prompt were held by an instance already.
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


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel by the id that the first event named."""

    request: str


@dataclass(frozen=True, slots=True)
class CancelReply:
    """`found` is False when no such request is running or queued here."""

    found: bool


@dataclass(frozen=True, slots=True)
class InfoRequest:
    """What is served here?"""


@dataclass(frozen=True, slots=True)
class InfoReply:
    """The model that this dispatcher serves and where the monitor answers status and explain."""

    model: str
    max_positions: int
    vocabulary: int
    version: str
    monitor_endpoint: str = ""


__all__ = [
    "CancelReply",
    "CancelRequest",
    "ChatMessage",
    "GenerateEvent",
    "GenerateRequest",
    "InfoReply",
    "InfoRequest",
]
